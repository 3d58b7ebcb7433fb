"""Readers of tables in TSV, CSV, JSON and Parquet files, as streams."""

import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterable

from keras_bert.arguments import replace_surrogates
from keras_bert.data.rows import NO_QUOTING, ROW_FORMATS, ShortRow, as_object, json_values, lines, suffix_of
from keras_bert.errors import InputError, InputWarning, MissingColumn, UnknownSuffix


@dataclasses.dataclass(frozen=True)
class Rows:
    """A table in memory, which readers accept in place of a path.

    Args:
        name: what error messages call it.
        rows: list of dicts from column names to values.
        numbers: list of the numbers of the rows. If None, they count from 1.
    """

    name: str
    rows: list[dict]
    numbers: list[int] | None = None

    def __str__(self):
        return self.name


def open_data(data, name, tuples=()):
    """Returns a data set as readers accept it: the path of a file as str, or `Rows`.

    Args:
        data: a path; a pandas DataFrame; or an iterable of dicts from column names to values, or of tuples.
        name: what error messages call rows in memory.
        tuples: tuples of column names, one for each allowed length of a tuple of values.

    Raises:
        InputError: a row has another form, or there is none, and the message names the row, counted from 1; or two
            columns of a DataFrame have the same name.
    """
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    if not isinstance(data, Iterable) or isinstance(data, dict):
        raise InputError(f"{name} must be a path, a DataFrame or a list of rows; got {data!r:.40}")
    if hasattr(data, "columns"):
        check_columns(name, list(map(str, data.columns)), required=())
        data = data.to_dict("records")
    rows, columns, first = [], {len(names): names for names in tuples}, None
    for row, values in enumerate(data, 1):
        if isinstance(values, list | tuple) and len(values) in columns:
            first = first or len(values)
            if len(values) != first:
                raise InputError(f"{name}: row {row}: must have {first} values as the first row; got {values!r:.40}")
            values = dict(zip(columns[len(values)], values))
        if not isinstance(values, dict):
            forms = " or ".join(["a dict", *(f"({', '.join(names)})" for names in tuples)])
            raise InputError(f"{name}: row {row}: must be {forms}; got {values!r:.40}")
        rows.append({str(column): _native(value) for column, value in values.items()})
    if not rows:
        raise InputError(f"{name}: holds no rows")
    return Rows(name, rows)


def _native(value):
    """Converts tuples to lists, and NumPy's values and arrays to Python's; replaces surrogates in texts."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, dict):
        return {name: _native(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_native(part) for part in value]
    return replace_surrogates(value) if isinstance(value, str) else value


def read_table(path, required=(), kind=None, header=None, short=None):
    """Opens a table.

    A `.tsv` file has a header line and no quoting. A `.csv` file has a header and RFC 4180 quoting. A `.jsonl` file has
    one object per line; it is read twice, first for the names of its columns. A `.json` file has an array of objects or
    one object after the other, and is not streamed but read as a whole; the values of its nested objects become columns
    `outer.inner`. Blank lines and a byte order mark at the start of a file are skipped. Text files but `.json` may be
    compressed with gzip: `.tsv.gz`.

    Args:
        path: path of the file, UTF-8; or `Rows`, for which `kind` and `header` have no effect.
        required: names of columns that the table must have. Those that are None are ignored.
        kind: suffix that selects the reader. If None, the file's own suffix.
        header: names of the columns, for a `.tsv` or `.csv` file without a header. A first line with one of these names
            is a header all the same.
        short: list to which the numbers of the rows of a `.tsv` or `.csv` file with too few columns are appended; these
            rows are skipped. If None, such a row is an error.

    Returns:
        (columns, rows): list of str, for JSON the keys of all rows; iterator of (row, dict of the row's values). Every
        row has all columns; values that a JSON row lacks are None. `row` is the number of the line or record, from 1,
        the header included.

    Raises:
        InputError: the file is invalid (the message names the file and the row), or pyarrow, which Parquet needs, is
            not installed.
    """
    table = choose_reader(path, _READERS, "a data file", kind)(path, header, short)
    rows = _read(path, required, table, short)
    may_be_quoted = not kind and not isinstance(path, Rows) and suffix_of(path) == ".tsv"  # no published format
    return next(rows), _watch_for_quotes(path, rows) if may_be_quoted else rows


def choose_reader(path, readers, what, kind=None, other=""):
    """Returns the reader of a data set.

    Args:
        path: path of the file, or `Rows`.
        readers: dict of suffixes to readers; the key None is for `Rows`.
        what, other: what error messages call the file, and another way to say how to read it.
        kind: suffix to use instead of the path's.
    """
    suffix = None if isinstance(path, Rows) else kind or suffix_of(path)
    if suffix not in readers:
        raise UnknownSuffix(
            f"{path}: {what} must end in {_suffixes(readers)}{other}; got {suffix or 'no suffix'}")
    return readers[suffix]


def _suffixes(readers):
    return ", ".join(name for name in readers if name and name[0] == ".")


def _read(path, required, table, short):
    columns = next(table)
    if not columns:
        raise InputError(f"{path}: must have columns and rows; it is empty")
    check_columns(path, columns, required)
    yield columns
    row = 0
    for row, values in table:
        yield row, values
    if not row:
        found = "every row has too few columns" if short else "it has only a header"
        raise InputError(f"{path}: must have rows; {found}: {', '.join(columns)}")


def _watch_for_quotes(path, rows):
    """Yields the rows of a `.tsv` file, then warns if its cells are quoted as pandas and `csv` do it by default: if all
    cells that have quotes are in quotes themselves, with two quotes for one inside."""
    quoted, others, first = 0, 0, None
    for row, values in rows:
        yield row, values
        for cell in () if others else values.values():
            if '"' in cell:
                inner = cell[1:-1].replace('""', "")
                if cell[0] == cell[-1] == '"' and '"' not in inner and len(inner) < len(cell) - 2:
                    quoted, first = quoted + 1, first or row
                else:
                    others += 1
    if quoted and not others:
        warnings.warn(f"{path}: quoted cells: {quoted:,}, the first in row {first}, whose quotes are read as part of "
                      f"their texts; {NO_QUOTING}", InputWarning, stacklevel=2)


def check_columns(path, columns, required, cure=""):
    """Checks that no two columns have the same name and that the table has all `required` columns that are not None.

    Args:
        cure: end of the error message about a missing column; by default, the argument that names another one.

    Raises:
        InputError: a name is repeated or missing.
    """
    names = " ".join(", ".join(columns).split()) or "none"  # on one line
    if len(set(columns)) < len(columns):
        raise InputError(f"{path}: column names must differ; got {names}")
    for name in filter(None, required):
        if name not in columns:
            cure = cure or (f"; pass {name}_column=…" if name in ("text", "text_pair", "label") else "")
            raise MissingColumn(f"{path}: there is no column {name!r}; the columns are {names}{cure}")


def text_of(path, row, values, column):
    """Returns the text in a column of a row; raises an InputError if it is not a str."""
    text = values.get(column)
    if not isinstance(text, str):
        raise InputError(f"{path}: row {row}: {column!r} must be a text; got {text!r:.40}")
    return text


def texts_of(path, row, values, column):
    """Returns the list of texts in a column of a row; raises an InputError if it is not a list of str."""
    texts = values.get(column)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{path}: row {row}: {column!r} must be a list of texts; got {texts!r:.40}")
    return texts


# Each reader below yields the columns of a table, then (row, values).

def _read_rows(form, path, header, short):
    columns, rows = form.open(path, header)
    if columns is None:  # the file is read twice, as the columns are those of all rows
        yield from _read_objects(lambda: ((row, form.parse(path, row, raw, None))
                                          for row, _, raw in form.open(path, header)[1]))
        return
    yield columns
    for row, _, raw in rows:
        try:
            yield row, form.parse(path, row, raw, columns)
        except ShortRow:
            if short is None:
                raise
            short.append(row)


def _read_json(path, *_):
    values = json_values(path)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    rows = [(row, _flat(as_object(path, row, value))) for row, value in enumerate(values, 1)]
    return _read_objects(lambda: rows)


def _read_memory(table, *_):
    return _read_objects(lambda: zip(table.numbers or itertools.count(1), table.rows))


def _read_folder(folder, *_):
    """Reads the folder of a data set of intents and slots (Goo et al., 2018)."""
    text_path, label_path = (os.path.join(folder, name) for name in ("seq.in", "label"))
    yield ["text", "label"]
    pairs = itertools.zip_longest(lines(text_path), lines(label_path), fillvalue=(0, 1.0, ""))
    for row, ((_, _, text), (_, _, label)) in enumerate(pairs, 1):
        if text.strip() or label.strip():
            if not (text.strip() and label.strip()):
                raise InputError(f"{folder}: row {row}: seq.in and label must have the same rows; "
                                 f"got {text.strip()!r:.40} and {label.strip()!r:.40}")
            yield row, {"text": text.strip(), "label": label.strip()}


def _read_objects(objects):
    """Reads the iterable of (row, values) that each call of `objects` returns."""
    columns = dict.fromkeys(name for _, values in objects() for name in values)  # of all rows, in constant memory
    yield list(columns)
    for row, values in objects():
        yield row, columns | values


def _flat(values):
    """Adds the values of nested objects under the keys `outer.inner`."""
    return values | {f"{key}.{name}": value for key, inner in values.items() if isinstance(inner, dict)
                     for name, value in inner.items()}


_READERS: dict[str | None, Callable] = {
    None: _read_memory, **{suffix: functools.partial(_read_rows, form) for suffix, form in ROW_FORMATS.items()},
    ".json": _read_json, "snips": _read_folder,
}
