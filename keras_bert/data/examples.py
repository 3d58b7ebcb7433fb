"""Readers of labelled texts from tables, and the columns of published datasets."""

import dataclasses
import math

from keras_bert.data.tables import read_table, text_of
from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a table that hold its texts and labels.

    Args:
        text, text_pair, label: names of columns. Those that are None are not read.
        kind: suffix that selects the reader of the file, see `read_table`. If None, the file's own suffix.
        header: names of all columns, for a file without a header.
    """

    text: str
    text_pair: str | None = None
    label: str | None = "label"
    kind: str | None = ".tsv"
    header: tuple[str, ...] | None = None


FORMATS = {
    # GLUE (Wang et al., 2018), the train and dev files. Among the test files, only CoLA's differ: they have a header.
    "cola": Columns("sentence", header=("source", "label", "mark", "sentence")),
    "sst2": Columns("sentence"),
    "mrpc": Columns("#1 String", "#2 String", "Quality"),
    "qqp": Columns("question1", "question2", "is_duplicate"),
    "stsb": Columns("sentence1", "sentence2", "score"),
    "mnli": Columns("sentence1", "sentence2", "gold_label"),
    "qnli": Columns("question", "sentence"),
    "rte": Columns("sentence1", "sentence2"),
    "wnli": Columns("sentence1", "sentence2"),
    # Naver sentiment movie corpus, .txt files (github.com/e9t/nsmc).
    "nsmc": Columns("document"),
    # KorNLU (Ham et al., 2020).
    "kornli": Columns("sentence1", "sentence2", "gold_label"),
    "korsts": Columns("sentence1", "sentence2", "score"),
    # KLUE (Park et al., 2021), JSON arrays of objects.
    "klue-tc": Columns("title", kind=".json"),
    "klue-nli": Columns("premise", "hypothesis", "gold_label", kind=".json"),
    "klue-sts": Columns("sentence1", "sentence2", "labels.label", kind=".json"),
    # Intents of ATIS and SNIPS (Goo et al., 2018), folders of seq.in and label.
    "snips": Columns("text", kind="snips"),
}


def choose(path, data_format, formats):
    """Returns the entry of a format's name in `formats`.

    Raises:
        InputError: the name is unknown; the message names the file and lists the formats.
    """
    if data_format not in formats:
        raise InputError(f"{path}: data_format must be one of {', '.join(formats)}; got {data_format!r}")
    return formats[data_format]


@dataclasses.dataclass(frozen=True)
class Example:
    """One text or pair of texts. `text_pair` and `label` are None if the file has none. `row` is the number of the line
    or record in the file, from 1, the header included."""

    text: str
    text_pair: str | None
    label: str | None
    row: int


def read_examples(path, text_column="text", text_pair_column=None, label_column="label", data_format=None):
    """Returns the examples of `iterate_examples` as a list."""
    return list(iterate_examples(path, text_column, text_pair_column, label_column, data_format))


def iterate_examples(path, text_column="text", text_pair_column=None, label_column="label", data_format=None):
    """Reads a table by its column names, see `read_table`: `.tsv`, `.csv`, `.jsonl`, `.json`, `.parquet`, `Rows`.

    Args:
        path: path of the file, UTF-8; or `Rows`.
        text_column: column of the text.
        text_pair_column: column of the second text. If None, `text_pair` if there is such a column.
        label_column: column of the label. If None, only texts are read.
        data_format: name of a published dataset's format in `FORMATS`. It sets the columns and the reader, whatever
            the file's suffix; of the arguments above, only `label_column=None` still has an effect.

    Yields:
        `Example`s.

    Raises:
        InputError: the file is invalid; the message names the file, the row and the column.
    """
    given = Columns(text_column, text_pair_column, label_column, kind=None)
    columns = choose(path, data_format, FORMATS) if data_format else given
    text, text_pair, label = columns.text, columns.text_pair, label_column and columns.label
    names, rows = read_table(path, (text, text_pair, label), columns.kind, columns.header)
    if text_pair is None and not data_format and "text_pair" in names:
        text_pair = "text_pair"
    for row, values in rows:
        yield Example(text_of(path, row, values, text), text_pair and text_of(path, row, values, text_pair),
                      label and _label(path, row, values[label], label), row)


def number(path, example):
    """Returns the label of an `Example` of the file `path` as a float.

    Raises:
        InputError: the label is not a finite number; the message names the file and the row.
    """
    try:
        value = float(example.label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path}: row {example.row}: 'label' must be a number; got {example.label!r}")
    return value


def _label(path, row, value, column):
    finite = isinstance(value, str | int) or isinstance(value, float) and math.isfinite(value)
    if isinstance(value, bool) or not finite or value == "":
        raise InputError(f"{path}: row {row}: {column!r} must be a label; got {value!r}")
    return str(value)
