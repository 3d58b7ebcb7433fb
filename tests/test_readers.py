"""What the readers of texts, questions and choices make of their files."""

import collections
import csv
import dataclasses
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from keras_bert.data.examples import FORMATS, Example, iterate_examples, number, read_examples
from keras_bert.data.tables import read_table
from keras_bert.errors import InputError, InputWarning
from keras_bert.tasks.choice import ChoiceExample, read_choices
from keras_bert.tasks.squad import QuestionExample, read_questions

from conftest import REAL


def write(path, content):
    path.write_bytes(content.encode())
    return path


def write_parquet(path, rows, **options):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return path


# Tables.

CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(str.strip)


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None,
                     max_examples=30)
@hypothesis.given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5),
                  st.sampled_from(["", "\ufeff"]), st.sampled_from(["\n", "\r\n"]))
def test_all_tables_read_alike(tmp_path, rows, bom, end):
    names = ("text", "text_pair", "label")
    expected = [(*row, number) for number, row in enumerate(rows, 1)]
    objects = [dict(zip(names, row)) for row in rows]
    write(tmp_path / "a.tsv", bom + "".join("\t".join(row) + end for row in (names, *rows)))
    with open(tmp_path / "a.csv", "w", encoding="utf-8-sig" if bom else "utf-8", newline="") as file:
        csv.writer(file, lineterminator=end).writerows([names, *rows])
    write(tmp_path / "a.jsonl", bom + "".join(json.dumps(values) + end for values in objects))
    write(tmp_path / "a.json", bom + json.dumps(objects, ensure_ascii=False, indent=1).replace("\n", end))
    write_parquet(tmp_path / "a.parquet", objects)
    for suffix, header in ((".tsv", 1), (".csv", 1), (".jsonl", 0), (".json", 0), (".parquet", 0)):
        examples = [(e.text, e.text_pair, e.label, e.row - header) for e in read_examples(tmp_path / f"a{suffix}")]
        assert examples == expected, suffix


def test_the_limit_of_cells_is_not_one_of_the_process(tmp_path):
    """Of a cell longer than the default of the module `csv`."""
    limit, text = csv.field_size_limit(), "a" * 200_000
    path = write(tmp_path / "a.csv", f"text,label\n{text},x\nb,y\n")
    rows = iterate_examples(path)
    assert next(rows).text == text and csv.field_size_limit() == limit
    assert [example.text for example in rows] == ["b"] and csv.field_size_limit() == limit < len(text)


def test_blank_lines_take_no_memory(tmp_path):
    path = write(tmp_path / "a.tsv", "text\n" + "\n" * 20_000 + "a\n" + "\n" * 20_000)
    rows = iterate_examples(path, label_column=None)
    tracemalloc.start()
    try:
        assert collections.deque(rows, maxlen=1) == collections.deque([Example("a", None, None, 20_002)])
        assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Measured in a process of its own, because pyarrow's memory is not Python's: each file twice, the second time with
    12 MB of texts, which cannot be compressed."""
    suffixes, numbers = [".tsv", ".csv", ".jsonl", ".parquet"], random.Random(0)
    texts = [numbers.randbytes(100).hex() for _ in range(60_000)]
    for count, suffix in itertools.product((10_000, 60_000), suffixes):
        path, rows = tmp_path / f"{count}{suffix}", ({"text": text, "label": "x"} for text in texts[:count])
        if suffix == ".parquet":
            write_parquet(path, list(rows), row_group_size=5000)
        elif suffix == ".jsonl":
            write(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        else:
            separator = {".tsv": "\t", ".csv": ","}[suffix]
            write(path, "".join(f"{separator.join(row)}\n" for row in (("text", "label"), *map(dict.values, rows))))
    code = """import pathlib, re, sys
from keras_bert.data.examples import iterate_examples
for path in sys.argv[1:]:
    count = sum(1 for _ in iterate_examples(path))
    print(count, re.search(r'VmHWM:\\s+(\\d+) kB', pathlib.Path('/proc/self/status').read_text())[1])"""
    paths = [tmp_path / f"{count}{suffix}" for count in (10_000, 60_000) for suffix in suffixes]
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
    lines = subprocess.run([sys.executable, "-c", code, *paths], env=environment, capture_output=True, text=True,
                           check=True).stdout.splitlines()
    counts, peaks = zip(*(map(int, line.split()) for line in lines))
    assert counts == (10_000,) * 4 + (60_000,) * 4
    for suffix, before, after in zip(suffixes, peaks[3:], peaks[4:]):
        assert after - before < 12_000, suffix  # KB


def test_labels_are_texts_and_may_be_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", "".join(f'{{"text": "a", "label": {label}}}\n' for label in ("2", "0.5", '"x"')))
    examples = read_examples(path)
    assert [example.label for example in examples] == ["2", "0.5", "x"]
    assert [number(path, example) for example in examples[:2]] == [2.0, 0.5]


@hypothesis.settings(deadline=None)
@hypothesis.given(st.text("0123456789.+-eE_ ", min_size=1, max_size=6) | st.floats(allow_nan=False).map(str)
                  | st.sampled_from(["1_0", " 1 ", "infinity", "nan", "１", "٣", "1\u00a0", "\t2.5e-3", "1e999"]))
def test_numbers_are_those_that_pandas_reads(text):
    try:
        wanted = float(pandas.to_numeric(text))
    except ValueError:
        wanted = math.nan
    try:
        value = number("a.csv", Example("a", None, text, 1))
    except InputError:
        assert not math.isfinite(wanted)
    else:
        assert value == pytest.approx(wanted, rel=1e-15)


TEXTS = ['He said "hi"', 'plain', '"all of it"', 'one " quote', "it's"]


def test_quoted_cells_of_tsv_files_are_warned_of(tmp_path):
    table = pandas.DataFrame({"text": ["plain", *TEXTS], "label": ["x"] * 6})
    table.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    with pytest.warns(InputWarning) as found:
        read_examples(tmp_path / "a.tsv")
    assert [str(warning.message) for warning in found] == [
        f"{tmp_path / 'a.tsv'}: quoted cells: 3, the first in row 3, whose quotes are read as part of their texts; a "
        ".tsv file has no quoting: write it with quoting=csv.QUOTE_NONE, or write a .csv file"]
    for name, options in (("c.tsv", {"sep": "\t", "quoting": csv.QUOTE_NONE}), ("c.csv", {})):
        table.to_csv(tmp_path / name, index=False, **options)
        assert [example.text for example in read_examples(tmp_path / name)] == list(table["text"])
    table["text"] += "\t"
    table.to_csv(tmp_path / "d.tsv", sep="\t", index=False)
    with pytest.raises(InputError, match=r"row 2: must have 2 columns \(text, label\); got 3; a .tsv file has no q"):
        read_examples(tmp_path / "d.tsv")


@pytest.mark.parametrize("text", ['"all of it"', '""', '"', '"a" and "b"', '""a"" b', '"a "b"', '"a"" b" c"'])
def test_quotes_that_are_no_quoting(tmp_path, text):
    path = write(tmp_path / "a.tsv", f'text\tlabel\n{text}\tx\n"so ""it"" is"\ty\n')
    assert [example.text for example in read_examples(path)] == [text, '"so ""it"" is"']


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_columns_are_those_of_all_rows(tmp_path, suffix):
    columns, rows = read_table(write(tmp_path / f"a{suffix}", '{"b": 1}\n{"a": 2}\n{"b": 3}\n'))
    assert columns == ["b", "a"]
    assert list(rows) == [(1, {"b": 1, "a": None}), (2, {"b": None, "a": 2}), (3, {"b": 3, "a": None})]


@pytest.mark.parametrize("name, content, expected", [
    # What other readers take for ends of lines.
    ("a.tsv", 'text\tlabel\na\rb\x85c\u2028"d\tx\n', [('a\rb\x85c\u2028"d', "x", 2)]),
    ("a.tsv", "text\tlabel\na\rb\0\tx\r\r\n\n", [("a\rb\0", "x\r", 2)]),
    ("a.csv", 'text,label\r\n"a\rb\0","x\r"\r\n\r\n', [("a\rb\0", "x\r", 2)]),
    ("a.jsonl", '{"text": "a\\rb\\u0000", "label": "x\\r"}\r\n\r\n', [("a\rb\0", "x\r", 1)]),
    # Rows of a spreadsheet.
    ("a.csv", 'text,label\n"a\nb",x\n\n"c\n\nd",y\n', [("a\nb", "x", 2), ("c\n\nd", "y", 4)]),
    # A byte order mark is skipped at the start of a file alone.
    ("a.tsv", "\ufeff\ntext\tlabel\n\na\tb\n", [("a", "b", 4)]),
    ("a.jsonl", '\ufeff\n{"text": "a", "label": "b"}\n\u00a0\n', [("a", "b", 2)]),
    ("a.tsv", "\ufefftext\tlabel\n\ufeffa\tb\n", [("\ufeffa", "b", 2)])])
def test_ends_of_lines_and_marks(tmp_path, name, content, expected):
    assert read_examples(write(tmp_path / name, content)) == [
        Example(text, None, label, row) for text, label, row in expected]


# Published layouts, one row each as the releases have it.

@pytest.mark.parametrize("format, content, expected", [
    ("cola", "gj04\t1\t\tOur friends won't.\nbc\t0\t*\t\"We yelled.\n", ("Our friends won't.", None, "1", 1)),
    ("sst2", "sentence\tlabel\nhide new secretions \t0\n", ("hide new secretions ", None, "0", 2)),
    ("mrpc", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tAmrozi \" said\tReferring\r\n",
     ('Amrozi " said', "Referring", "1", 2)),
    ("qqp", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\t\"Why?\tHow?\t0\n",
     ('"Why?', "How?", "0", 2, "1")),
    ("stsb", "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
             "0\tmain\tMSRvid\t2012\t1\tnone\tnone\tA plane.\tAn air plane.\t5.000\n",
     ("A plane.", "An air plane.", "5.000", 2, "0")),
    ("mnli", "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
             "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n0\t1\t1n\tg\t(\t(\t(\t(\tOne.\tTwo.\tx\tneutral\n",
     ("One.", "Two.", "neutral", 2, "0")),
    ("qnli", "index\tquestion\tsentence\tlabel\n0\tWhen?\tThen.\tentailment\n",
     ("When?", "Then.", "entailment", 2, "0")),
    ("rte", "index\tsentence1\tsentence2\tlabel\n0\tNo.\tYes.\tnot_entailment\n",
     ("No.", "Yes.", "not_entailment", 2, "0")),
    ("wnli", "index\tsentence1\tsentence2\tlabel\n0\tA pin.\tIt.\t1\n", ("A pin.", "It.", "1", 2, "0")),
    ("ax", "index\tsentence1\tsentence2\n0\tOne.\tTwo.\n", ("One.", "Two.", None, 2, "0")),
    ("nsmc", "id\tdocument\tlabel\n1\t\t0\n2\t굳 ㅋ\t1\n", ("", None, "0", 2)),
    ("kornli", "sentence1\tsentence2\tgold_label\n가\t나\tneutral\n", ("가", "나", "neutral", 2)),
    ("korsts", "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\nm\tM\t2\t1\t3.8\t가\t\"나\n",
     ("가", '"나', "3.8", 2)),
    ("klue-tc", '[{"guid": "y-0", "title": "유튜브", "label": "생활문화"}]', ("유튜브", None, "생활문화", 1)),
    ("klue-nli", '[{"premise": "가", "hypothesis": "나", "gold_label": "neutral", "author": "a"}]',
     ("가", "나", "neutral", 1)),
    ("klue-sts", '[{"sentence1": "가", "sentence2": "나", "labels": {"label": 3.7, "real-label": 3.71}}]',
     ("가", "나", "3.7", 1)),
])
def test_published_layouts(tmp_path, format, content, expected):
    path = write(tmp_path / "file.txt", content)
    unlabelled = dataclasses.replace(Example(*expected), label=None)
    assert next(iterate_examples(path, label_column=None, data_format=format)) == unlabelled
    if expected[2] is not None:
        assert next(iterate_examples(path, data_format=format)) == Example(*expected)


def test_every_layout_is_tested():
    (mark,) = test_published_layouts.pytestmark
    assert [*(values[0] for values in mark.args[1]), "snips"] == list(FORMATS)


def test_folders_of_intents(tmp_path):
    write(tmp_path / "seq.in", "play music \n\nflights and fares\n")
    write(tmp_path / "label", "PlayMusic\n\natis_flight#atis_airfare\n")
    assert read_examples(tmp_path, data_format="snips") == [
        Example("play music", None, "PlayMusic", 1), Example("flights and fares", None, "atis_flight#atis_airfare", 3)]


def test_real_files_of_classes_and_numbers():
    for name, format, labels in (
            ("glue/QNLI/fewshot16-42_train.tsv", "qnli", {"entailment": 16, "not_entailment": 16}),
            ("ko/nsmc/train_rebuilt.txt", "nsmc", {"0": 379, "1": 421}),
            ("ko/question_pair/train.tsv", "qqp", {"0": 205, "1": 95})):
        found = collections.Counter(example.label for example in read_examples(REAL / name, data_format=format))
        assert found == labels, name
    path = REAL / "ko/kornlu/KorSTS/sts-dev.tsv"
    numbers = [number(path, example) for example in iterate_examples(path, data_format="korsts")]
    assert len(numbers) == 100 and 0 <= min(numbers) and max(numbers) <= 5
    assert abs(sum(numbers) / 100 - 1.75) < 1e-9


# Questions.

def test_squad_files(tmp_path):
    questions = [{"id": "a", "question": "Who?", "answers": [{"text": "é", "answer_start": 1}] * 2},
                 {"id": "b", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": [{}]},
                 {"id": "c", "question": "How?"}]
    paragraphs = [{"context": "😀é", "qas": questions[:1]}, {"context": "x", "qas": questions[1:]}]
    path = write(tmp_path / "a.json", "\ufeff" + json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))
    assert list(read_questions(path)) == [
        QuestionExample("a", "Who?", "😀é", [("é", 1)] * 2, False, "article 1, paragraph 1, question 1 (id a)"),
        QuestionExample("b", "Why?", "x", [], True, "article 1, paragraph 2, question 1 (id b)"),
        QuestionExample("c", "How?", "x", [], False, "article 1, paragraph 2, question 2 (id c)")]


def test_rows_of_questions(tmp_path):
    rows = [{"id": "a", "question": "Who?", "context": "bc", "answers": {"text": ["c"], "answer_start": [1]}},
            {"id": "b", "question": "Why?", "context": "x", "answers": {"text": [], "answer_start": []}},
            {"id": "c", "question": "How?", "context": "x", "answers": None},
            {"id": None, "question": "How?", "context": "x", "answers": None}]
    write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    write_parquet(tmp_path / "a.parquet", rows)
    for name in ("a.jsonl", "a.parquet"):
        assert list(read_questions(tmp_path / name)) == [
            QuestionExample("a", "Who?", "bc", [("c", 1)], False, "row 1 (id a)"),
            QuestionExample("b", "Why?", "x", [], True, "row 2 (id b)"),
            QuestionExample("c", "How?", "x", [], False, "row 3 (id c)"),
            QuestionExample("4", "How?", "x", [], False, "row 4 (id 4)")]


@pytest.mark.parametrize("name, count, impossible", [("xquad/xquad.en.json", 225, 0),
                                                     ("squad/dev-v2.0-small.json", 14, 6)])
def test_real_files_of_questions(name, count, impossible):
    examples = list(read_questions(REAL / "qa" / name))
    assert (len(examples), sum(example.impossible for example in examples)) == (count, impossible)
    assert len({example.place for example in examples}) == count
    assert all(example.answers for example in examples if not example.impossible)


# Choices.

def test_tables_of_choices(tmp_path):
    write(tmp_path / "a.tsv", "label\tchoice1\tchoice0\tprompt\n1\tb\ta\tp\n")
    write(tmp_path / "a.csv", 'prompt,choice0,choice1,label\r\np,a,"b",1\r\n')
    write(tmp_path / "a.jsonl", '{"prompt": "p", "choices": ["a", "b"], "label": 1}')
    write_parquet(tmp_path / "a.parquet", [{"prompt": "p", "choices": ["a", "b"], "label": 1}])
    for name, row in (("a.tsv", 2), ("a.csv", 2), ("a.jsonl", 1), ("a.parquet", 1)):
        assert list(read_choices(tmp_path / name)) == [ChoiceExample("p", ["a", "b"], 1, row)]


def test_swag_files(tmp_path):
    path = write(tmp_path / "val.csv", ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,"
                                       "ending3,label\n0,v,1,He sits. She,He sits.,She,gold,\"a, b.\",c.,d.,e.,2\n")
    choices = ["She a, b.", "She c.", "She d.", "She e."]
    assert list(read_choices(path, "swag")) == [ChoiceExample("He sits.", choices, 2, 2)]
    path = write(tmp_path / "test.csv", "sent1,sent2,ending0,ending1\nHe sits.,She,a.,b.\n")
    assert list(read_choices(path, "swag")) == [ChoiceExample("He sits.", ["She a.", "She b."], None, 2)]


@pytest.mark.parametrize("name, right", [("fold0_dev.tsv", [18, 22, 19, 21]), ("fold0_train.tsv", [32, 41, 48, 39])])
def test_real_files_of_choices(name, right):
    examples = list(read_choices(REAL / "multiple_choice/codah" / name, "codah"))
    assert {len(example.choices) for example in examples} == {4}
    labels = [example.label for example in examples]
    assert [labels.count(i) for i in range(4)] == right and len(labels) == sum(right)
