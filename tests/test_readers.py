"""What the readers of texts, questions and choices make of their files."""

import collections
import csv
import io
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tracemalloc
import unicodedata
import warnings

import hypothesis
import hypothesis.strategies as st
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from keras_bert.data import iterate_lines
from keras_bert.data.chunks import read_chunks
from keras_bert.data.examples import Example, iterate_examples, number, read_examples
from keras_bert.data.tables import open_data, read_table
from keras_bert.data.tagged import read_tagged
from keras_bert.errors import InputError, InputWarning
from keras_bert.files.json_files import Record
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


def test_parquet_files_name_their_classes_beside_lists_of_lists(tmp_path):
    features = {"label": {"names": ["off", "on"], "_type": "ClassLabel"}, "boxes": [[{"dtype": "int64"}]], "none": []}
    table = pyarrow.Table.from_pylist([{"text": "a", "label": 1, "boxes": [[1, 2]]}])
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}),
                        tmp_path / "a.parquet")
    assert read_examples(tmp_path / "a.parquet") == [Example("a", None, "on", 1)]


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


@pytest.mark.slow("memory that grows with the rows")
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
    with pytest.raises(InputError, match="row 3: 'label' must be a number; got 'x'"):
        list(iterate_examples(path, read_label=number))


@hypothesis.settings(deadline=None)
@hypothesis.given(st.text("0123456789.+-eE_ ", min_size=1, max_size=6) | st.floats(allow_nan=False).map(str)
                  | st.sampled_from(["1_0", " 1 ", "infinity", "nan", "１", "٣", "1\u00a0", "\t2.5e-3", "1e999"]))
def test_numbers_are_those_that_pandas_reads(text):
    try:
        wanted = float(pandas.to_numeric(text))
    except ValueError:
        wanted = math.nan
    try:
        value = number(Record("a.csv", 1, {"label": text}), "label")
    except InputError:
        assert not math.isfinite(wanted)
    else:
        assert value == pytest.approx(wanted, rel=1e-15)


ROWS = [("Hallo, Welt; ja", "Gruß"), ('sie sagte "ja"\nund nein', "Frage"), ("\fa\u2028b", "Gruß")]
FRAME = pandas.DataFrame(ROWS, columns=["text", "label"])
TEXT, ENTITY = {"id": 1, "text": "Ada met Bob"}, {"start": 0, "end": 3, "label": "PER"}
PRODIGY = TEXT | {"_task_hash": 2, "tokens": [{"text": "Ada", "start": 0}], "spans": [ENTITY | {"token_start": 0}]}
TAGS = "B-PER I-PER I-PER O O O O O O O O".split()


def excel(separator, encoding="utf-8-sig"):
    """A CSV file of Excel where this is the separator of lists, or its text with tabs."""
    csv.writer(file := io.StringIO(newline=""), delimiter=separator).writerows([("text", "label"), *ROWS])
    return file.getvalue().encode(encoding)


@pytest.mark.parametrize("name, content, expected, warning", [
    ("german_excel.csv", excel(";"), ROWS, "read with ';' between the cells, not ','"),
    ("excel_text.csv", excel("\t"), ROWS, r"read with '\t' between the cells, not ','"),
    ("unicode_text.csv", excel("\t", "utf-16"), "row 1: must be UTF-8 text: ", ""),
    ("pandas.tsv", FRAME.to_csv(index=False), ROWS, r"read with ',' between the cells, not '\t'"),
    ("cat.csv", excel(",") * 2, [*ROWS, ("\ufefftext", "label"), *ROWS], "row 5 is the header again, but read as"),
    ("cat.tsv", "text\tlabel\na\tx\n" * 2, [("a", "x"), ("text", "label"), ("a", "x")], "row 3 is the header again"),
    ("comma.tsv", "text, raw\tlabel\na\tx\nb, c\ty\n", "there is no column 'text'; the columns are 'text, r", ""),
    ("doccano.jsonl", TEXT | {"label": ["greeting"], "Comments": []}, [("Ada met Bob", "greeting")], ""),
    ("doccano_tag.jsonl", TEXT | {"label": [[0, 3, "PER"]]}, TAGS, ""),
    ("doccano_tag.jsonl", TEXT | {"entities": [{"label": "PER", "start_offset": 0, "end_offset": 3}]}, TAGS, ""),
    ("label_studio_tag.json", [TEXT | {"label": [{"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}]}], TAGS, ""),
    ("label_studio_tag.json", [TEXT | {"annotation_id": 7}, TEXT | {"label": [ENTITY]}], 11 * ["O"], ""),
    ("label_studio.json", {"annotations": [{"result": []}], "data": {"text": "Ada"}},
     "there is no column 'text'; the columns are annotations, data, data.text; of Label Studio, export JSON-M", ""),
    ("prodigy_tag.jsonl", PRODIGY | {"answer": "accept"}, TAGS, ""),
    ("prodigy_tag.jsonl", PRODIGY | {"answer": "reject"}, "row 1: 'answer' must be accept; got 'reject'; leave", ""),
])
def test_tables_of_other_programs(tmp_path, name, content, expected, warning):
    """They are read, in chunks too, or refused in one line."""
    content = content if isinstance(content, str | bytes) else json.dumps(content)
    (path := tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with warnings.catch_warnings(record=True, action="always") as found:
        try:
            if "tag" in name:
                assert next(read_tagged(path)).tags == expected
            else:
                assert [(example.text, example.label) for example in read_examples(path)] == expected
                texts = [row["text"] for chunk in read_chunks(str(path)) for _, row in chunk.parse()]
                assert texts == [text for text, _ in expected]
        except InputError as error:
            assert str(error).startswith(f"{path}: {expected}") and "\n" not in str(error)
    assert bool(found) == bool(warning) and all(str(each.message).startswith(f"{path}: {warning}") for each in found)


@pytest.mark.parametrize("name, kind, options", [
    ("a.tsv", "csv", {"sep": "\t", "index": False}), ("a.csv", "csv", {"index": False}), ("a.parquet", "parquet", {}),
    ("a.jsonl", "json", {"orient": "records", "lines": True}), ("a.json", "json", {"orient": "records"}), ("", "", {})])
def test_a_column_that_looks_like_another(tmp_path, name, kind, options):
    column = unicodedata.normalize("NFD", "발화")
    data = open_data(table := pandas.DataFrame({column: ["a"], "label": ["x"]}), "data")
    if name:
        getattr(table, f"to_{kind}")(data := tmp_path / name, **options)
    with pytest.raises(InputError) as error:
        read_examples(data, "발화")
    assert str(error.value).endswith(f"{ascii(column)}, label; rename {ascii(column)}, which looks like it")


def test_lines_end_at_line_feeds_alone(tmp_path):
    assert list(iterate_lines(write(tmp_path / "a.txt", "\ufeffa\fb\x85c\u2028d\re\r\n\n\vf"))) == [
        "a\fb\x85c\u2028d\re", "", "\vf"]


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


def test_columns_are_those_of_all_rows(tmp_path):
    content = '{"b": 1}\n{"a": 2}\n{"b": 3}\n'
    for data in (write(tmp_path / "a.jsonl", content), write(tmp_path / "a.json", content),
                 open_data(map(json.loads, content.splitlines()), "data")):
        columns, rows = read_table(data)
        assert columns == ["b", "a"]
        assert [(row.place, row.values) for row in rows] == [
            (1, {"b": 1, "a": None}), (2, {"b": None, "a": 2}), (3, {"b": 3, "a": None})]


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


def test_folders_of_intents(tmp_path):
    write(tmp_path / "seq.in", "play music \n\nflights and fares\n")
    write(tmp_path / "label", "PlayMusic\n\natis_flight#atis_airfare\n")
    assert read_examples(tmp_path, data_format="snips") == [
        Example("play music", None, "PlayMusic", 1), Example("flights and fares", None, "atis_flight#atis_airfare", 3)]


@pytest.mark.parametrize("name, data_format, counts", [
    ("glue/QNLI/fewshot16-42_train.tsv", "qnli", {"entailment": 16, "not_entailment": 16}),
    ("ko/nsmc/train_rebuilt.txt", "nsmc", {"0": 379, "1": 421}),
    ("ko/question_pair/train.tsv", "qqp", {"0": 205, "1": 95}),
    ("multiple_choice/codah/fold0_dev.tsv", "codah", {0: 18, 1: 22, 2: 19, 3: 21}),
    ("multiple_choice/codah/fold0_train.tsv", "codah", {0: 32, 1: 41, 2: 48, 3: 39}),
    ("qa/xquad/xquad.en.json", None, {False: 225}), ("qa/squad/dev-v2.0-small.json", None, {False: 8, True: 6})])
def test_real_files(name, data_format, counts):
    """Their labels, or whether their questions are impossible."""
    if data_format:
        read = read_choices if data_format == "codah" else iterate_examples
        found = [example.label for example in read(REAL / name, data_format=data_format)]
    else:
        found = [not example.answers for example in read_questions(REAL / name)]
    assert collections.Counter(found) == counts


def test_real_numbers():
    path = REAL / "ko/kornlu/KorSTS/sts-dev.tsv"
    numbers = [example.label for example in iterate_examples(path, data_format="korsts", read_label=number)]
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


# Choices.

def test_tables_of_choices(tmp_path):
    write(tmp_path / "a.tsv", "label\tchoice1\tchoice0\tprompt\n1\tb\ta\tp\n")
    write(tmp_path / "a.csv", 'prompt,choice0,choice1,label\r\np,a,"b",1\r\n')
    write(tmp_path / "a.jsonl", '{"prompt": "p", "choices": ["a", "b"], "label": 1}')
    write_parquet(tmp_path / "a.parquet", [{"prompt": "p", "choices": ["a", "b"], "label": 1}])
    for name, row in (("a.tsv", 2), ("a.csv", 2), ("a.jsonl", 1), ("a.parquet", 1)):
        assert list(read_choices(tmp_path / name)) == [ChoiceExample("p", ["a", "b"], 1, row)]
