"""Labelled texts from TSV, CSV and JSON Lines files."""

import csv
import dataclasses
import json
import os

from keras_bert.errors import InputError

csv.field_size_limit(2**31 - 1)  # the default refuses texts of 131,072 characters


@dataclasses.dataclass(frozen=True)
class Example:
    """One text or pair of texts; `text_pair` and `label` are None where the file has none. `row` is the file's line or
    record, counted from 1, the header included."""

    text: str
    text_pair: str | None
    label: str | None
    row: int


def read_examples(path, text="text", text_pair=None, label="label"):
    """Reads a file by its column names.

    `.tsv` has a header line and no quoting, `.csv` has a header and RFC 4180 quoting, `.jsonl` has one object a line.

    Args:
        path: the file, UTF-8.
        text: column of the text.
        text_pair: column of the second text; where None, `text_pair` if the file has it.
        label: column of the label, or None to read texts alone.

    Returns:
        a list of `Example`s.

    Raises:
        InputError: names the file, the row and the column.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _READERS:
        raise InputError(f"{path}: a data file must end in {', '.join(_READERS)}; got {suffix or 'no suffix'}")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            columns, rows = _READERS[suffix](path, file)
            for name in filter(None, (text, text_pair, label)):
                if name not in columns:
                    raise InputError(f"{path}: there is no column {name!r}; the file has {', '.join(columns)}")
            if text_pair is None and "text_pair" in columns:
                text_pair = "text_pair"
            examples = [
                Example(_cell(path, row, values, text), text_pair and _cell(path, row, values, text_pair),
                        label and _label(path, row, values, label), row)
                for row, values in rows
            ]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: must be UTF-8 text: {error.reason} at byte {error.start}") from None
    if not examples:
        raise InputError(f"{path}: holds no rows")
    return examples


def _read_delimited(path, file, **format):
    reader = csv.reader(file, strict=True, **format)
    try:
        columns = next(reader, [])
    except csv.Error as error:
        raise InputError(f"{path}: row 1: {error}") from None
    if len(set(columns)) < len(columns):
        raise InputError(f"{path}: row 1: column names must differ; got {', '.join(columns)}")

    def rows():
        try:
            for values in reader:
                if not values:
                    continue
                if len(values) != len(columns):
                    raise InputError(f"{path}: row {reader.line_num}: must have {len(columns)} columns as the header; "
                                     f"got {len(values)}")
                yield reader.line_num, dict(zip(columns, values))
        except csv.Error as error:
            raise InputError(f"{path}: row {reader.line_num}: {error}") from None

    return columns, rows()


def _read_tsv(path, file):
    return _read_delimited(path, file, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_json_lines(path, file):
    records = []
    for row, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: row {row}: not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError(f"{path}: row {row}: must be an object; got {line.strip()[:40]}")
        records.append((row, values))
    return list(records[0][1]) if records else [], records


_READERS = {".tsv": _read_tsv, ".csv": _read_delimited, ".jsonl": _read_json_lines}


def _cell(path, row, values, column):
    value = values.get(column)
    if not isinstance(value, str):
        raise InputError(f"{path}: row {row}: {column!r} must be a text; got {value!r}")
    return value


def _label(path, row, values, column):
    value = values.get(column)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise InputError(f"{path}: row {row}: {column!r} must be a label; got {value!r}")
    return str(value)
