"""Oddities of published data sets. Each has a small file in our own words, and the rows that its official loaders get.

Unless an entry names another source, the oddity was found in the files that docs/data_sets.md lists.
"""

import csv
import io
import json
import pathlib
import re
import subprocess
import sys
import warnings

import pytest

from keras_bert.data.examples import FORMATS, iterate_examples
from keras_bert.data.tagged import FORMATS as TAG_FORMATS
from keras_bert.data.tagged import read_tagged
from keras_bert.errors import InputWarning
from keras_bert.tasks.choice import read_choices
from keras_bert.tasks.squad import read_questions

from conftest import REAL

ROOT = pathlib.Path(__file__).parents[1]
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
NLI = "sentence1\tsentence2\tgold_label\n"
MNLI = ("index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2")
PARSES = "n\tfiction\t( a )\t( b )\t(ROOT a)\t(ROOT b)"
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
KORSTS = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\n"

# (oddity, format, content of the file, (text, text_pair, label) of each row)
TEXTS = [
    ("no header, in the train and dev files", "cola",
     "gj04\t1\t\tThe boat sank.\n", [("The boat sank.", None, "1")]),
    ("marks of doubt in a column between the label and the text", "cola",
     "bc01\t0\t*?\tSank boat the.\nbc01\t1\t??\tIt sank.\n", [("Sank boat the.", None, "0"), ("It sank.", None, "1")]),
    ("a header and other columns, in the test file", "cola",
     "index\tsentence\n0\tThe boat sank.\n1\tIt did.\n", [("The boat sank.", None, None), ("It did.", None, None)]),
    ("a text of the train file that is a column's name in the test file", "cola",
     "gj04\t1\t\tindex\n", [("index", None, "1")]),
    ("spaces at the end of texts", "sst2",
     "sentence\tlabel\na slow film \t0\n", [("a slow film ", None, "0")]),
    ("a test file whose first column is the index", "sst2",
     "index\tsentence\n0\ta slow film\n", [("a slow film", None, None)]),
    ("a byte order mark and CRLF, in Microsoft's own files", "mrpc",
     "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe left.\tHe went.\r\n",
     [("He left.", "He went.", "1")]),
    # github.com/nyu-mll/GLUE-baselines/issues/5
    ("a line break within a question, which splits its row in two", "qqp",
     QQP + '1\t2\t3\tWho?\tWho was\n"\tWho was he?\t0\n4\t5\t6\tWhy?\tWhy so?\t1\n', [("Why?", "Why so?", "1")]),
    # The layout is that of the official reader, huggingface/datasets datasets/glue/glue.py.
    ("a test file with another id and no labels", "qqp",
     "id\tquestion1\tquestion2\n0\tWho?\tWho was it?\n", [("Who?", "Who was it?", None)]),
    ("numbers with and without decimals", "stsb",
     f"{STSB}\tscore\n0\tnews\tx\t2012\t0511\tnone\tnone\tIt rains.\tIt pours.\t3.750\n"
     "1\tnews\tx\t2013\t12\tnone\tnone\tIt rains.\tIt snows.\t1\n",
     [("It rains.", "It pours.", "3.750"), ("It rains.", "It snows.", "1")]),
    # The columns of MNLI are those that the readers of GLUE in huggingface/transformers and datasets expect.
    ("one annotator's label before the gold label, in the train file", "mnli",
     f"{MNLI}\tlabel1\tgold_label\n0\t31\t31{PARSES}\tIt is.\tIt was.\tneutral\tentailment\n",
     [("It is.", "It was.", "entailment")]),
    # Bowman et al., 2015, section 2.3: pairs without a majority have the gold label -.
    ("pairs whose annotators did not agree", "mnli",
     "gold_label\tsentence1\tsentence2\n-\tIt is.\tIt was.\nneutral\tIt is.\tIt will be.\n",
     [("It is.", "It will be.", "neutral")]),
    ("quotes doubled as in CSV, in a file without quoting", "qnli",
     'index\tquestion\tsentence\tlabel\n0\tWhat?\t"The ""old"" one."\tentailment\n',
     [("What?", '"The ""old"" one."', "entailment")]),
    ("an index that does not begin at 0, in a part of a file", "rte",
     "index\tsentence1\tsentence2\tlabel\n927\tIt is.\tIt was.\tnot_entailment\n",
     [("It is.", "It was.", "not_entailment")]),
    ("numbers as labels of an entailment", "wnli",
     "index\tsentence1\tsentence2\tlabel\n0\tA pin was in it.\tIt had a pin.\t1\n",
     [("A pin was in it.", "It had a pin.", "1")]),
    # huggingface/datasets datasets/glue/glue.py: AX has a test file alone.
    ("the diagnostic file, without labels", "ax",
     "index\tsentence1\tsentence2\n0\tIt is.\tIt was.\n", [("It is.", "It was.", None)]),
    ("empty reviews", "nsmc",
     "id\tdocument\tlabel\n1\t\t0\n2\t굳\t1\n", [("", None, "0"), ("굳", None, "1")]),
    ("a quote in one row, and the next quote rows later", "kornli",
     NLI + '가"\t나\tneutral\n다\t라\tneutral\n마\t"바\tentailment\n',
     [('가"', "나", "neutral"), ("다", "라", "neutral"), ("마", '"바', "entailment")]),
    # huggingface/datasets datasets/kor_nli/kor_nli.py skips them.
    ("rows without all three columns", "kornli",
     NLI + "가\t나\tneutral\n다 라\tneutral\n마\t바\tentailment\n",
     [("가", "나", "neutral"), ("마", "바", "entailment")]),
    ("no line feed at the end of the file", "korsts",
     KORSTS + "news\tx\t2012test\t0004\t3.800\t가\t나", [("가", "나", "3.800")]),
    ("the titles of articles as texts", "klue-tc",
     '[{"guid": "y-0", "title": "유튜브", "label": "생활문화"}]', [("유튜브", None, "생활문화")]),
    ("a nested label beside a binary one, and CRLF between the lines of JSON", "klue-sts",
     json.dumps([{"sentence1": "가", "sentence2": "나",
                  "labels": {"label": 3.7, "real-label": 3.71, "binary-label": 1}}], indent=4).replace("\n", "\r\n"),
     [("가", "나", "3.7")]),
    ("a no-break space, and the labels of the author and five annotators", "klue-nli",
     json.dumps([{"premise": "가\xa0나", "hypothesis": "다", "gold_label": "neutral", "author": "entailment",
                  "label2": "neutral"}], ensure_ascii=False), [("가\xa0나", "다", "neutral")]),
]


@pytest.mark.parametrize("format, content, expected", [entry[1:] for entry in TEXTS], ids=[entry[0] for entry in TEXTS])
def test_texts(tmp_path, format, content, expected):
    path = tmp_path / "file.txt"
    path.write_bytes(content.encode())
    has_labels = expected[0][2] is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        examples, texts = ([(example.text, example.text_pair, example.label, example.index) for example
                            in iterate_examples(path, data_format=format, label_column=column)]
                           for column in ("label" if has_labels else None, None))
    assert [example[:3] for example in examples] == expected
    if FORMATS[format].kind == ".tsv":
        rows = official_rows(content, FORMATS[format], has_labels)
        assert [row for row in rows if row[2] != "-"] == examples  # which have no majority of the annotators
        assert [(*row[:2], None, row[3]) for row in rows] == texts


def official_rows(content, columns, has_labels):
    """Returns the rows that the official loaders get, with their indexes: no quoting, and no rows without all their
    columns."""
    text = io.StringIO(content.removeprefix("\ufeff"), newline="")
    header = columns.header if has_labels else None
    names = (columns.text, columns.text_pair, columns.label if has_labels else None, columns.index)
    rows = [tuple(row.get(name) for name in names) for row
            in csv.DictReader(text, header, delimiter="\t", quoting=csv.QUOTE_NONE)]
    return [row for row in rows if all(cell is not None for cell, name in zip(row, names[:3]) if name)]


@pytest.mark.parametrize("format, content, message", [
    ("qqp", QQP + "4\t5\t6\tWhy?\tWhy so?\t1\n" + "1\n" * 12,
     "skipped 12 rows with fewer than 6 columns (rows 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, …), as the official loaders do"),
    ("kornli", NLI + "가\t나\tneutral\n가\t나\n가\t나\t-\n",
     "skipped 1 row with fewer than 3 columns (row 3) and 1 row labelled - (row 4), as the official loaders do"),
])
def test_one_warning_names_the_skipped_rows(tmp_path, format, content, message):
    path = tmp_path / "file.tsv"
    path.write_text(content)
    with pytest.warns(InputWarning) as caught:
        assert len(list(iterate_examples(path, data_format=format))) == 1
    assert [str(warning.message) for warning in caught] == [f"{path}: {message}"]


# (oddity, format, suffix, content of the file, (prompt, choices, label) of each row)
CHOICES = [
    # github.com/rowanz/swagaf: the columns of its .csv files.
    ("a first column without a name, and the words that all endings begin with in a column of their own", "swag",
     ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,label\n"
     '3,v,7,He sits. He,He sits.,He,gold,"rises, then goes.",sings.,0\n',
     [("He sits.", ["He rises, then goes.", "He sings."], 0)]),
    ("a test file without labels", "swag",
     ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1\n"
     "3,v,7,He sits. He,He sits.,He,gold,a.,b.\n",
     [("He sits.", ["He a.", "He b."], None)]),
    ("no header, and categories of one letter", "codah",
     "i\tHe sits and\tsings.\trises.\tgoes.\tsleeps.\t2\n",
     [("He sits and", ["sings.", "rises.", "goes.", "sleeps."], 2)]),
]


@pytest.mark.parametrize("format, content, expected", [entry[1:] for entry in CHOICES], ids=[e[0] for e in CHOICES])
def test_choices(tmp_path, format, content, expected):
    path = tmp_path / "file.csv"
    path.write_text(content)
    assert [(example.prompt, example.choices, example.label) for example in read_choices(path, format)] == expected


# (oddity, format, content of the file or of seq.in and seq.out, (words or the text, tags) of each sentence)
TAGS = [
    ("lines of -DOCSTART- that are not sentences, in CoNLL-2003", "conll",
     "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\n- : O O\n\n-DOCSTART- -X- -X- O\n\nBonn NNP B-NP B-LOC\n",
     [(["EU", "-"], ["B-ORG", "O"]), (["Bonn"], ["B-LOC"])]),
    # The first release is IOB1, most copies are IOB2; both have the published number of entities.
    ("entities that begin with I-, and with B- only after one of their type, in CoNLL-2003", "conll",
     "EU NNP I-NP I-ORG\nin IN I-PP O\nBonn NNP I-NP I-LOC\nRome NNP B-NP B-LOC\n",
     [(["EU", "in", "Bonn", "Rome"], ["B-ORG", "O", "B-LOC", "B-LOC"])]),
    ("comments that begin with ##, with the sentence and its entities", "klue-ner",
     "## klue-ner-v1_dev_0\t<가:PS> 나\n가\tB-PS\n \tO\n나\tO\n\n## klue-ner-v1_dev_1\t#다\n#\tO\n다\tO\n",
     [("가 나", ["B-PS", "O", "O"]), ("#다", ["O", "O"])]),
    ("an entity that begins with a space", "klue-ner",
     "## 0\t<x>\n가\tO\n \tB-OG\n나\tI-OG\n다\tI-OG\n", [("가 나다", ["O", "O", "B-OG", "I-OG"])]),
    ("entities that touch, and end before a particle in the same word", "klue-ner",
     "## 0\t<x>\n가\tB-LC\n나\tB-LC\n다\tI-LC\n는\tO\n", [("가나다는", ["B-LC", "B-LC", "I-LC", "O"])]),
    ("tags with the type first, joined by a hyphen, and O", "naver-ner",
     "가는 나 다 .\tPER-B DAT-B DAT-I O\n", [(["가는", "나", "다", "."], ["B-PER", "B-DAT", "I-DAT", "O"])]),
    ("entities without a first tag", "naver-ner",
     "가는 나 다\tO DAT-I DAT-I\n", [(["가는", "나", "다"], ["O", "B-DAT", "I-DAT"])]),
    # The layout is that of the challenge's data_loader.py.
    ("numbers before the words, tags joined by an underscore, and - for O", "naver-ner",
     "1\t가는\tPER_B\n2\t-\t-\n\n1\t나\tDAT_B\n2\t다\tDAT_I\n\n",
     [(["가는", "-"], ["B-PER", "O"]), (["나", "다"], ["B-DAT", "I-DAT"])]),
    ("two spaces between words and at the end, in SNIPS", "snips",
     ("play  a  tune \nstop  \n", "O O B-track\nO\n"),
     [(["play", "a", "tune"], ["O", "O", "B-track"]), (["stop"], ["O"])]),
    ("types with dots and underscores, in ATIS", "snips",
     ("o'hare at 6 pm\n", "B-toloc.airport_name O B-depart_time.time I-depart_time.time\n"),
     [(["o'hare", "at", "6", "pm"], ["B-toloc.airport_name", "O", "B-depart_time.time", "I-depart_time.time"])]),
]


@pytest.mark.parametrize("format, content, expected", [entry[1:] for entry in TAGS], ids=[entry[0] for entry in TAGS])
def test_tags(tmp_path, format, content, expected):
    path = tmp_path / "file.txt"
    if format == "snips":
        path = tmp_path
        for name, part in zip(("seq.in", "seq.out"), content):
            (path / name).write_text(part)
    else:
        path.write_text(content)
    examples = list(read_tagged(path, format))
    assert [(getattr(example, "words", example.text), example.tags) for example in examples] == expected
    lines = (content[0] if format == "snips" else content).splitlines()
    for example, (words, _) in zip(examples, expected):
        assert re.match(rf"(1\t)?{re.escape(words[0])}\s", lines[example.row - 1])


# (oddity, question, context, answers): KorQuAD has all of them.
QUESTIONS = [
    ("an answer that ends with a space", "언제?", "봄 밤에", [{"text": "봄 ", "answer_start": 0}]),
    ("white space around the question", " 언제?\n", "봄 밤에", [{"text": "봄", "answer_start": 0}]),
    ("a tab within the question", "언\t제?", "봄 밤에", [{"text": "밤", "answer_start": 2}]),
]


@pytest.mark.parametrize("question, context, answers", [e[1:] for e in QUESTIONS], ids=[e[0] for e in QUESTIONS])
def test_questions(tmp_path, question, context, answers):
    path = tmp_path / "file.json"
    questions = [{"id": "1-0-0", "question": question, "answers": answers}]  # without is_impossible
    path.write_text(json.dumps({"version": "1.0", "data": [{"paragraphs": [{"context": context, "qas": questions}]}]}))
    (example,) = read_questions(path)
    assert (example.question, example.context, example.impossible) == (question, context, False)
    assert [{"text": text, "answer_start": start} for text, start in example.answers] == answers


def test_the_page_has_the_counts_of_the_benchmark():
    script = ROOT / "benchmarks/count_examples.py"
    files = sorted((REAL / "multiple_choice/codah").glob("*.tsv"))
    output = subprocess.run([sys.executable, script, "--task=choice", "--data_format=codah", *files],
                            capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs/data_sets.md").read_text()
    for line in output.splitlines()[2:]:
        assert line.split(" | ", 2)[2] in page


def test_every_format_is_tested():
    assert {entry[1] for entry in TEXTS} | {"snips"} == set(FORMATS)  # test_readers.py has that one
    assert {entry[1] for entry in TAGS} == set(TAG_FORMATS)
    assert len(TEXTS) + len(TAGS) + len(CHOICES) + len(QUESTIONS) > 35
