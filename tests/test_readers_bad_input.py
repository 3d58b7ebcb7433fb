"""Mistakes in the files of the tasks: one line each, with the file and the row or the place."""

import functools
import json

import pyarrow.parquet
import pytest

from keras_bert.data.examples import iterate_examples, number
from keras_bert.data.rows import parquet_rows
from keras_bert.data.tagged import read_tagged, to_bio
from keras_bert.errors import InputError
from keras_bert.tasks.choice import read_choices
from keras_bert.tasks.squad import read_questions


def read_numbers(path, **options):
    return [example.label for example in iterate_examples(path, read_label=number, **options)]


def refusal(read, path):
    with pytest.raises(InputError) as error:
        list(read(path))
    assert "\n" not in str(error.value)
    return str(error.value)


A_TAG = "a tag must be O, or B-, I-, E-, L-, S- or U- and a type; got"
NO_LABEL = "'label' must be a text or a finite number; got"
QUESTION = {"id": "q7", "question": "Who?"}
CHOICES = '{"prompt": "p", "choices": ["a", "b"], "label": 1}\n'


def squad(**changes):
    paragraphs = [{"context": "", "qas": []}, {"context": "abc", "qas": [QUESTION, QUESTION | changes]}]
    return json.dumps({"data": [{"paragraphs": []}, {"paragraphs": paragraphs}]})


def question(**changes):
    return json.dumps(QUESTION | {"context": "ab"} | changes)


def entities(*found):
    return json.dumps({"text": "🎵 나다", "entities": found[0] if found == (None,) else found})


def entity(start, end, label="x", **more):
    return {"start": start, "end": end, "label": label, **more}


# By reader, name of the file and data_format: contents, and how the messages begin after the path.
REFUSALS = {
    (iterate_examples, "a.tsv", None): [
        ("", "must have columns and rows; it is empty"),
        ("text\tlabel\n", "must have rows; it has only a header: text, label"),
        ("text\tintent\na\tb\n", "there is no column 'label'; the columns are text, intent; pass label_column=…"),
        ("text\tlabel\na\tb\n\na\n", "row 4: must have 2 columns (text, label); got 1"),
        ("text\tlabel\na\tb\tc\n", "row 2: must have 2 columns (text, label); got 3"),
        ("text\tlabel\ttext\na\tb\tc\n", "column names must differ; got text, label, text"),
        ("text\tlabel\na\t\n", f"row 2: {NO_LABEL} ''"),
        (b"text\tlabel\na\tb\n\xed\x95\tb\n", "row 3: must be UTF-8 text: invalid continuation byte at byte 1; "
         "convert the file: iconv -f ENCODING -t UTF-8 FILE > NEW_FILE (Korean files are often in CP949)"),
        (b"\xef\xbb\xbftext\t\xff\n", "row 1: must be UTF-8 text: invalid start byte at byte 9; "),
        ("text\tlabel\na\tb\n".encode("utf-16"), "row 1: must be UTF-8 text: invalid start byte at byte 1; "
         "convert the file: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE")],
    (iterate_examples, "a.csv", None): [
        ('text,label\n"a,b\n', "line 2: the last cell has no closing quote"),
        ('text,label\na,b\n"a" b,c\n', "line 3: ',' expected after '\"'"),
        ("text,label\na\rb,c\n", "line 2: must have quotes around a cell with a carriage return"),
        ('text,label\n"two\nlines",x\nshort\n', "row 3: must have 2 columns (text, label); got 1"),
        ('"no\nheader","x"\na,b\n', "there is no column 'text'; the columns are 'no\\nheader', x; pass text_column=…"),
        ("text;label\na;b;x\nc;y\n", "there is no column 'text'; the columns are text;label; the cells seem to be sep"),
        *((f'text,"{name}"\na,b\n', f"there is no column 'label'; the columns are text, {name!r}; re")
          for name in (" label", "label\r", "la\u200bbel", "\ufefflabel")),
        ("text,text_pair ,Label\na,b,c\n", "there is no column 'text_pair'; the columns are text, 'text_pair ', Label"),
        ("\ufeff\ufefftext,Label\na,b\n", r"there is no column 'text'; the columns are '\ufefftext', Label; rename ")],
    (iterate_examples, "a.jsonl", None): [
        ('{"text": "a", "label": "b"}\n{"text": ', "row 2: not JSON: Expecting value: line 1 column 10 (char 9)"),
        ('{"text": "a", "label": "b"}\n\n7\n', "row 3: must be an object; got 7"),
        ('{"text": "a", "label": "b"}\n{"text": ["c\\n"]}', "row 2: 'text' must be a text; got ['c\\n']"),
        ('{"text": "a", "label": true}', f"row 1: {NO_LABEL} True"),
        ('{"text": "a", "label": ["b", "c"]}',
         f"row 1: {NO_LABEL} ['b', 'c']; texts with several labels are for task=multilabel"),
        ('{"text": "a", "label": "b"}\n{"text": "c", "text_pair": "d", "label": "b"}',
         "row 1: 'text_pair' must be a text; got None"),
        ('{"text": "a", "text_pair": "d", "label": "b"}\n{"text": "c", "label": "b"}',
         "row 2: 'text_pair' must be a text; got None"),
        ('{"text": "\\ud83d", "label": "b"}', "row 1: not JSON: 'utf-8' codec can't encode"),
        ("[" * 100_000, "row 1: not JSON: maximum recursion depth exceeded")],
    (iterate_examples, "a.tsv", "klue-nli"): [
        ('[{"premise": "a"}, ', "not a JSON file: Expecting value: line 1 column 19 (char 18)"),
        (b'\xef\xbb\xbf[{"premise": "\xff"}]', "must be UTF-8 text: invalid start byte at byte 18; convert")],
    (iterate_examples, "a.tsv", "klue-tc"): [('["title"]', 'row 1: must be an object; got "title"')],
    (iterate_examples, "a.tsv", "klue-sts"): [
        ('[{"sentence1": "a", "sentence2": "b", "labels": 3.5}]',
         "there is no column 'labels.label'; the columns are sentence1, sentence2, labels; this is a test file")],
    (iterate_examples, "a.tsv", "rte"): [
        ("index\tsentence1\tsentence2\n0\ta\tb\n", "there is no column 'label'; the columns are index, sentence1, "
         "sentence2; this is a test file without labels, for predict alone")],
    (iterate_examples, "a.tsv", "nsmc"): [
        ("id,document,label\n1,a\n", "there is no column 'document'; the columns are 'id,document,label'; "
         "data_format=nsmc reads TSV files, whatever their suffix, with the columns document, label")],
    (iterate_examples, "a.tsv", "mnli"): [
        ("sentence1\tsentence2\tgold_label\na\tb\t-\n", "must have other rows "
         "than 1 row labelled - (row 2), which the official loaders skip; the columns are sentence1, sentence2, gold"),
        ("sentence1\tsentence2\tgold_label\na\tb\tneutral\na\tb\t\n",
         "row 3: 'gold_label' must be a text or a finite number; got ''")],
    (iterate_examples, "a.tsv", "cola"): [
        ("gj04\t1\t\ta\ngj04\t1\tb\n", "row 2: must have 4 columns (source, label, mark, sentence); got 3")],
    (iterate_examples, "a.tsv", "qqp"): [
        ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\n",
         "must have other rows than 1 row with fewer than 6 columns (row 2), which the official loaders skip; the "
         "columns are id, qid1, qid2, question1, question2, is_duplicate"),
        ("question1\tquestion2\tis_duplicate\na\tb\t0\t1\n",
         "row 2: must have 3 columns (question1, question2, is_duplicate); got 4")],
    (iterate_examples, "a.tsv", "GLUE"): [
        ("text\tlabel\na\tb\n", "data_format must be one of cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, ax, "
         "nsmc, kornli, korsts, klue-tc, klue-nli, klue-sts, snips; got 'GLUE'")],
    (read_numbers, "a.tsv", None): [
        (f"text\tlabel\na\t1\nb\t{score}\n", f"row 3: 'label' must be a number; got {score!r}") for score in (
            "good", "nan", "inf", "infinity", "1e999", "3,5", "1_0", "1_000.5", "１", "٣.5", "1\u00a0", "0x10", "1e",
            "--1")],
    (read_tagged, "a.conll", None): [
        ("play\tO\n\nfly\tB_X\n", f"row 3: {A_TAG} 'B_X'"),
        ("fly\tM-X\n", f"row 1: {A_TAG} 'M-X'; if this is a header, delete it"),
        ("# a comment\nplay O\nfly\n", "row 3: must have 2 columns, like the rows before; got 1"),
        ("play O\n# a comment\nfly O\n", "row 2: must have 2 columns, like the rows before; got 3"),
        ("play\tO\n \tO\n", "row 2: must have a word in the first column; got ' '"),
        (b"play\tO\n\xff\tO\n", "row 2: must be UTF-8 text: invalid start byte at byte 1; "),
        ("\n# nothing\n-DOCSTART-\tO\n\n", "holds no sentences")],
    (read_tagged, "a.jsonl", None): [
        ('{"words": ["a", "b"], "tags": ["O"]}', "row 1: must have as many tags as words, 2; got 1"),
        ('{"words": "a b", "tags": ["O"]}', "row 1: 'words' must be a list of texts; got 'a b'"),
        ('{"tokens": ["a"], "tags": [1]}', "row 1: 'tags' must be a list of texts; got [1]"),
        ('{"sentence": "a"}', "there is no column 'text'; the columns are sentence; pass words and tags, or te"),
        (entities(None), "row 1: 'entities' must be a list; got None"),
        (entities("a"), "row 1, entity 1: must be an object; got 'a'"),
        (entities(entity(0, 1), entity(0, "2")), "row 1, entity 2: 'end' must be a whole number; got '2'"),
        (entities(entity(True, 2)), "row 1, entity 1: 'start' must be a whole number; got True"),
        (entities(entity(2, 4, " ")), "row 1, entity 1: 'label' must be a text; got ' '; correct the row"),
        (entities(entity(3, 9)),
         "row 1, entity 1: must have 0 <= start < end <= 4, the length of the text in code points; got start 3 and "),
        (entities(entity(2, 2)), "row 1, entity 1: must have 0 <= start < end <= 4"),
        (entities(entity(1, 2)), "row 1, entity 1: must contain more than white space; got ' '"),
        (entities(entity(2, 4, text="🎵나")),
         "row 1, entity 1: text[2:4], counted in code points, must be '🎵나'; got '나다'"),
        (entities(entity(2, 4), entity(0, 3)),
         "row 1: entities must not overlap; entity 2 ends at 3, and entity 1 starts at 2")],
    (read_tagged, "a.tsv", "klue-ner"): [
        ("가\tB-PS\n나\tI_PS\n", f"row 2: {A_TAG} 'I_PS'"),
        ("가\n", "row 1: must have one character and a tag; got '가'"),
        ("가\tO\n가 나\tO\n", "row 2: must have one character and a tag; got '가 나'")],
    (read_tagged, "a.tsv", "naver-ner"): [
        ("가 나\tPER-B\n", "row 1: must have as many tags as words, 2; got 1"),
        ("가\tPER-X\n", f"row 1: {A_TAG} 'PER-X'"),
        ("가\tO\n나 O\n", "row 2: must have a sentence, a tab and its tags, or a number, a word and a tag, separated "
         "by tabs; got '나 O'"),
        ("1\t가\tPER_B\n2\t나\tPER\n", f"row 2: {A_TAG} 'PER'")],
    (read_questions, "a.json", None): [
        ("", "must hold one JSON object, as SQuAD's files do; got an empty file"),
        ("[]", "must hold one JSON object, as SQuAD's files do; got []"),
        ("{", "not a JSON file: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "'data' must be a list; got None"),
        ('{"data": []}', "holds no questions"),
        ('{"data": [[]]}', "article 1: must be an object; got []"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "article 1, paragraph 1: 'context' must be a text; got None"),
        ('{"data": [{"paragraphs": [{"context": "a"}]}]}', "article 1, paragraph 1: 'qas' must be a list; got None"),
        *((squad(**changes), f"article 2, paragraph 2, question 2{message}") for changes, message in (
            ({"answers": [{"text": "b", "answer_start": 0}]},
             " (id q7), answer 1: context[start:start+1] must be the answer, 'b'; got 'a' at 0"),
            ({"answers": [{"text": "c", "answer_start": -1}]}, " (id q7), answer 1: context[start:start+1] must be"),
            ({"answers": [{"text": "b", "answer_start": "1"}]},
             " (id q7), answer 1: 'answer_start' must be a whole number; got '1'"),
            ({"answers": [{"text": "", "answer_start": 0}]}, " (id q7), answer 1: context[start:start+0] must be the"),
            ({"answers": [{"answer_start": 0}]}, " (id q7), answer 1: 'text' must be a text; got None"),
            ({"answers": {"text": ["b"], "answer_start": [1]}}, " (id q7): 'answers' must be a list; got {'text"),
            ({"answers": ["b"]}, " (id q7), answer 1: must be an object; got 'b'"),
            ({"answers": [{"text": "b", "answer_start": 1}], "is_impossible": True},
             " (id q7): an impossible question must have no answers; got 1"),
            ({"is_impossible": "no"}, " (id q7): 'is_impossible' must be True or False; got 'no'"),
            ({"id": 7}, ": 'id' must be a text; got 7"),
            ({"question": None}, " (id q7): 'question' must be a text; got None")))],
    (read_questions, "a.jsonl", None): [
        (question(answers={"text": ["a"], "answer_start": [1]}),
         "row 1 (id q7), answer 1: context[start:start+1] must be the answer, 'a'; got 'b' at 1"),
        (question(answers={"text": ["a"], "answer_start": []}),
         "row 1: answers must have as many starts as texts, 1; got 0"),
        (question(answers=[{"text": "a"}]), "row 1: 'answers' must be an object; got [{'text': 'a'}]"),
        (question(context=["ab"]), "row 1: 'context' must be a text; got ['ab']")],
    (read_choices, "a.csv", None): [
        ("prompt,choice0,label\np,a,0\n", "row 2: must have two choices or more; got 1"),
        ("prompt,choice0,choice2,label\np,a,b,0\n", "row 2: 'choice1' must be a text; got None"),
        ("prompt,choice0,choice1,label\np,a,b,2\n", "row 2: 'label' must be a number from 0 to 1; got '2'"),
        ("text,choice0,choice1\np,a,b\n", "there is no column 'prompt'; the columns are text, choice0, choice1")],
    (read_choices, "a.jsonl", None): [
        (CHOICES.replace("1", "-1"), "row 1: 'label' must be a number from 0 to 1; got -1"),
        (CHOICES.replace("1", "true"), "row 1: 'label' must be a number from 0 to 1; got True"),
        (CHOICES + '{"prompt": "p", "choices": ["a", "b"]}', "row 2: 'label' must be a number from 0 to 1; got None"),
        (CHOICES + CHOICES.replace('"b"', '"b", "c"'), "row 2: must have 2 choices as the first row; got 3"),
        (CHOICES.replace('["a", "b"]', '"ab"'), "row 1: 'choices' must be a list of texts; got 'ab'"),
        ('{"prompt": "p", "choice0": "a", "choice1": "b"}\n{"prompt": "p", "choice0": "a"}',
         "row 2: 'choice1' must be a text; got None")],
    (read_choices, "a.txt", "CoNLL"): [("", "data_format must be one of swag, codah; got 'CoNLL'")],
    (read_tagged, "a.txt", "CoNLL"): [("", "data_format must be one of conll, klue-ner, naver-ner, snips; got")],
    **{(read, "a.parquet", None): [("PAR1 no table PAR1", "not a Parquet file: ")]
       for read in (iterate_examples, read_tagged, read_questions, read_choices)},
}


@pytest.mark.parametrize("read, name, data_format, content, message", [
    (*file, *case) for file, cases in REFUSALS.items() for case in cases],
    ids=lambda value: getattr(value, "__name__", str(value)[:40]))
def test_a_line_names_the_file_and_the_place(tmp_path, read, name, data_format, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    read = functools.partial(read, data_format=data_format) if data_format else read
    assert refusal(read, path).startswith(f"{path}: {message}")


@pytest.mark.parametrize("files, data_format, message", [
    ({"seq.out": "O O\n"}, None, ": row 2: seq.in and seq.out must have the same rows; seq.out: no line here"),
    ({"seq.out": "O\nO\n"}, None, "/seq.out: row 1: must have as many tags as words, 2; got 1"),
    ({"seq.out": "O slot\nO\n"}, None, f"/seq.out: row 1: {A_TAG} 'slot'"),
    ({}, None, "/seq.out: cannot be read: No such file or directory"),
    ({"label": "PlayMusic\n"}, "snips", ": row 2: seq.in and label must have the same rows; label: no line here"),
    ({"label": "PlayMusic\n\n\nStop\n"}, "snips", ": row 2: seq.in and label must have the same rows; label: no"),
    ({}, "snips", "/label: cannot be read: No such file or directory")])
def test_folders_of_snips(tmp_path, files, data_format, message):
    for name, content in {"seq.in": "play music\nstop\n", **files}.items():
        (tmp_path / name).write_text(content)
    read = functools.partial(iterate_examples, data_format=data_format) if data_format else read_tagged
    assert refusal(read, tmp_path).startswith(f"{tmp_path}{message}")


def test_columns_of_a_published_format_are_fixed(tmp_path):
    for name in ("text_column", "text_pair_column", "label_column"):
        with pytest.raises(InputError) as error:
            next(iterate_examples(tmp_path / "a.tsv", data_format="nsmc", **{name: "q"}))
        assert str(error.value) == f"{name} must be left out with data_format=nsmc, which sets the columns; got 'q'"


@pytest.mark.parametrize("read, suffixes", [
    *((read, "a data file must end in .tsv, .csv, .jsonl, .parquet, .json, or be of a published data set, which "
       "data_format must name") for read in (iterate_examples, read_choices)),
    (read_questions, "a file of questions must end in .json, .jsonl, .parquet"),
    (read_tagged, "a file of tagged words must end in .conll, .bio, .iob, .tsv, .txt, .jsonl, .json, .parquet, "
                  "or have a data_format of conll, klue-ner, naver-ner, snips"),
])
def test_files_that_are_none(tmp_path, read, suffixes):
    for name, suffix in (("a.xlsx", ".xlsx"), ("a", "no suffix")):
        assert refusal(read, tmp_path / name) == f"{tmp_path}/{name}: {suffixes}; got {suffix}"
    path = tmp_path / "a.jsonl"
    assert refusal(read, path) == f"{path}: cannot be read: No such file or directory"
    if read is not read_tagged:  # a folder may hold seq.in
        path.mkdir()
        assert refusal(read, path) == f"{path}: cannot be read: Is a directory"


def test_a_value_of_parquet_that_python_lacks(tmp_path):
    path = tmp_path / "times.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"time": pyarrow.array([0, 10**12], pyarrow.timestamp("s"))}), path)
    assert refusal(parquet_rows, path) == f"{path}: row 2: date value out of range"


def test_tags_alone():
    with pytest.raises(InputError, match="^a tag must be O, or .* and a type; got 'X'$"):
        to_bio(["O", "X"])
