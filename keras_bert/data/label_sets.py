"""Reader of texts that may have any number of labels, for multi-label classification."""

import csv
import functools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from keras_bert.arguments import Path, check_rules, is_missing
from keras_bert.data.examples import Columns, Example, iterate_examples
from keras_bert.data.tables import Rows, printed_list
from keras_bert.errors import Option
from keras_bert.files.json_files import Record

# The data sets, and the names of the labels that their files number from 0.
FORMATS = {
    # GoEmotions (Demszky et al., 2020), train, dev and test files (github.com/google-research/google-research).
    "goemotions": Columns("text", label="labels", header=("text", "labels", "id")),
}
_NAMES = {"goemotions": (
    "admiration amusement anger annoyance approval caring confusion curiosity desire disappointment disapproval "
    "disgust embarrassment excitement fear gratitude grief joy love nervousness optimism pride realization relief "
    "remorse sadness surprise neutral").split()}
FLAGS_CURE = "; for a 0 or 1 of each label, make a column of each label's, and pass ", Option("label_columns=…")
_LIST = re.compile(r"\[.*\]|\{.*\}|\(.*\)|\w+\(\[.*\].*\)", re.DOTALL)  # the last as libraries for arrays print it
_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def iterate_label_sets(path: Path | Rows, text_column: str = "text", text_pair_column: str | None = None,
                       label_column: str | None = "label", label_columns: list[str] | None = None,
                       label_delimiter: str = ",", data_format: str | None = None) -> Iterator[Example]:
    """Reads a table, see `iterate_examples`. The labels of a text are a list of str or int, perhaps as JSON or Python
    prints it, or a str with a delimiter between the labels; a label may be in double quotes, as in a CSV file. A
    missing cell is a text without labels. Or each label has a column of its own.

    Args:
        path: the file, UTF-8; or `Rows`.
        text_column, text_pair_column: see `iterate_examples`.
        label_column: column of the labels; "label" may also be named `labels`. If None, only texts are read.
        label_columns: the columns of the labels, whose values are 1 (or true) if the text has the label, and 0 (or
            false) if not. If None, `label_column` is read.
        label_delimiter: character between the labels in a str.
        data_format: name of a published data set's format in `FORMATS`.

    Yields:
        `Example`s whose `label` is a sorted tuple of different str; it is empty if the text has no label.

    Raises:
        InputError: the file is invalid; the message names the file, the row and the column.
    """
    without_format = ["left out with ", Option(f"data_format={data_format}"), ", which sets the columns"]
    check_rules(
        ("label_columns", label_columns, "different names, at least one",
         label_columns is None or 0 < len(label_columns) == len(set(label_columns))),
        ("label_columns", label_columns, without_format, not (label_columns and data_format)),
        ("label_column", label_column, ["left out with ", Option("label_columns")],
         not label_columns or label_column in (None, "label")),
        ("label_delimiter", label_delimiter, without_format, not data_format or label_delimiter == ","))
    if label_columns and label_column:
        return iterate_examples(path, text_column, text_pair_column, label_columns, read_label=_flagged)
    read_label = functools.partial(_listed, delimiter=label_delimiter, names=_NAMES.get(data_format or ""))
    return iterate_examples(path, text_column, text_pair_column, label_column, data_format, read_label, FORMATS,
                            other_label="labels" if label_column == "label" else None)


def _listed(row: Record, column: str, delimiter: str, names: list[str] | None) -> tuple[str, ...]:
    value = [] if is_missing(row.values[column]) else row.values[column]
    if isinstance(value, str) and _LIST.fullmatch(value.strip()):
        value = printed_list(value)
        if isinstance(value, str) and not re.fullmatch(r"\([^'\"]*\)", value):
            raise row.error(column, f"a list as JSON or Python prints it, or {_text(delimiter)}", *FLAGS_CURE)
    if value and isinstance(value, list) and delimiter != ",":
        raise row.error(column, _text(delimiter), "; for a list, leave out ", Option("label_delimiter"))
    labels = _split(row, column, value, delimiter) if isinstance(value, str) else value
    if not isinstance(labels, list):
        raise row.error(column, f"a list of labels, [] for none, or {_text(delimiter)}", *FLAGS_CURE)
    if not all(map(_is_label, labels)):
        raise row.error(column, "labels that are texts or whole numbers, and not empty", *FLAGS_CURE)
    flags = [flag for label in labels for flag in re.split(r"[\s,;|]+", str(label).strip().lower())]  # perhaps
    has_flags = len({*flags}) < len(flags) or len(flags) > len(labels)
    labels = sorted({str(label).strip() for label in labels})
    if names is None and has_flags and all(flag in _FLAGS for flag in flags):
        raise row.error(column, "a list with each label once", *FLAGS_CURE)
    if names is None:
        return tuple(labels)
    for label in labels:
        if label not in map(str, range(len(names))):
            raise row.error(column, f"numbers from 0 to {len(names) - 1}", f", {label!r} among them")
    return tuple(sorted(names[int(label)] for label in labels))


def _text(delimiter: str) -> str:
    return f"a text with {delimiter!r} between the labels"


def _is_label(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip() != ""


def are_flags(labels: Collection[str]) -> bool:
    """Returns True for two labels that mean no and yes: 0 and 1, False and True."""
    return len(labels) == 2 and {_FLAGS.get(label.lower()) for label in labels} == {False, True}


def _split(row: Record, column: str, text: str, delimiter: str) -> list[str]:
    """Returns the labels in a text."""
    try:
        return [label.strip() for label in next(csv.reader(
            [text.strip()], delimiter=delimiter, skipinitialspace=True, strict=True))]
    except csv.Error:
        raise row.error(column, "labels with a quote at both ends or none") from None


def _flagged(row: Record, columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the columns that are 1."""
    for column in columns:
        if str(row.values[column]).lower() not in _FLAGS:
            raise row.error(column, "0 or 1")
    return tuple(sorted(column for column in columns if _FLAGS[str(row.values[column]).lower()]))
