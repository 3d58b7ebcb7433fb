"""Labelled texts from tables."""

import dataclasses
import math

from keras_bert.data.formats import FORMATS, Columns, choose
from keras_bert.data.tables import read_table, text_of
from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class Example:
    """One text or pair of texts; `text_pair` and `label` are None where the file has none. `row` is the file's line or
    record, counted from 1, the header included."""

    text: str
    text_pair: str | None
    label: str | None
    row: int


def read_examples(path, text="text", text_pair=None, label="label", format=None):
    """The examples of `iterate_examples` as a list."""
    return list(iterate_examples(path, text, text_pair, label, format))


def iterate_examples(path, text="text", text_pair=None, label="label", format=None):
    """Reads a table by its column names, see `read_table`: `.tsv`, `.csv`, `.jsonl`, `.json`, `.parquet`.

    Args:
        path: the file, UTF-8.
        text: column of the text.
        text_pair: column of the second text; where None, `text_pair` if the file has it.
        label: column of the label, or None to read texts alone.
        format: name of a published layout in `FORMATS`, which gives the columns and says how to read the file, whatever
            its suffix; of the arguments above only `label=None` counts then.

    Yields:
        `Example`s.

    Raises:
        InputError: names the file, the row and the column.
    """
    layout = choose(path, format, FORMATS) if format else Columns(text, text_pair, label, kind=None)
    text, text_pair, label = layout.text, layout.text_pair, label and layout.label
    columns, rows = read_table(path, (text, text_pair, label), layout.kind, layout.header)
    if text_pair is None and not format and "text_pair" in columns:
        text_pair = "text_pair"
    for row, values in rows:
        yield Example(text_of(path, row, values, text), text_pair and text_of(path, row, values, text_pair),
                      label and _label(path, row, values[label], label), row)


def number(path, example):
    """The label of an `Example` of the file `path` as a float.

    Raises:
        InputError: it is no finite number; names the file and the row.
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
