"""Readers of tables in TSV, CSV, JSON and Parquet files, as streams."""

import csv
import dataclasses
import gzip
import importlib
import itertools
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterable

from keras_bert.arguments import replace_surrogates
from keras_bert.errors import InputError, InputWarning, MissingColumn, UnknownSuffix
from keras_bert.files import decode, reading

csv.field_size_limit(2**31 - 1)  # the default rejects texts longer than 131,072 characters
_NO_QUOTING = "a .tsv file has no quoting: write it with quoting=csv.QUOTE_NONE, or write a .csv file"


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


def suffix_of(path):
    """Returns the suffix of a path in lower case, without the `.gz` of a compressed file that is read line by line."""
    stem, suffix = os.path.splitext(os.fspath(path).lower())
    inner = os.path.splitext(stem)[1] if suffix == ".gz" else ""
    return inner if inner in (".jsonl", ".tsv", ".csv") else suffix


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
                      f"their texts; {_NO_QUOTING}", InputWarning, stacklevel=2)


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


def lines(path):
    """Yields (row, fraction of the file read so far, line) for each line of a UTF-8 text file, plain or `.gz`."""
    for row, share, line in byte_lines(path):
        yield row, share, decode(line, f"{path}: row {row}", row == 1)


def byte_lines(path):
    """Yields what `lines` yields, with each line as bytes."""
    with reading(path), open(path, "rb") as raw:
        size = os.path.getsize(path)
        file = gzip.open(raw) if os.fspath(path).lower().endswith(".gz") else raw
        read = 0
        try:
            for row, line in enumerate(file, 1):
                read = read + len(line) if file is raw else raw.tell()
                yield row, read / max(read, size), line
        except (EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None


def json_lines(path):
    """Yields (row, fraction of the file read so far, object) for each line of a JSON Lines file that is not blank."""
    for row, share, line in lines(path):
        if line.strip():
            yield row, share, json_object(path, row, line)


def json_object(path, row, line):
    """Returns the object in a line of a JSON Lines file; raises an InputError if there is none."""
    try:
        _refuse_surrogates(line, values := json.loads(line))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: row {row}: not JSON: {error}") from None
    return _object(path, row, values)


def json_values(path):
    """Returns the list of the values in a JSON file, which follow one another."""
    values, place, decoder = [], 0, json.JSONDecoder()
    with reading(path), open(path, "rb") as file:
        text = decode(file.read(), path, is_first=True).strip()
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, re.compile(r"\s*").match(text, place).end())
            values.append(value)
        _refuse_surrogates(text, values)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file: {error}") from None
    return values


def _refuse_surrogates(text, values):
    """Raises a ValueError if a JSON value has a lone surrogate, which cannot be encoded as UTF-8."""
    if "\\ud" in text.lower():
        json.dumps(values, ensure_ascii=False).encode()


def import_pyarrow(path):
    """Returns the modules `pyarrow` and `pyarrow.parquet`; raises an InputError if they are not installed."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(f"{path}: Parquet files need pyarrow: pip install pyarrow") from None


def parquet_rows(path, columns=None):
    """Yields the column names of a Parquet file, then (row, fraction of the rows read so far, values) for each row.

    Args:
        columns: list of the columns to read. If None, all.
    """
    pyarrow, parquet = import_pyarrow(path)
    with reading(path):
        file = open(path, "rb")
    row = 0
    try:
        with file, parquet.ParquetFile(file, pre_buffer=False) as table:  # True would keep all that was read
            names, rows = table.schema_arrow.names, table.metadata.num_rows
            yield names
            for batch in table.iter_batches(1024, columns=columns):  # each batch is from one row group
                for values in zip(*batch.columns):
                    row += 1
                    yield row, row / rows, dict(zip(batch.schema.names, (value.as_py() for value in values)))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file: {' '.join(str(error).split())}; "
                         f"other files end in {_suffixes(_READERS)}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: row {row}: must be UTF-8 text: {error.reason}") from None


# Each reader below yields the columns of a table, then (row, values).

def _read_tsv(path, header, short):
    split = ((row, tsv_cells(line)) for row, _, line in lines(path))
    return _read_cells(path, header, short, ((row, values) for row, values in split if values != [""]))


def tsv_cells(line):
    """Returns the cells of a line of a `.tsv` file; [""] if it is blank."""
    return line.removesuffix("\n").removesuffix("\r").split("\t")


def _read_csv(path, header, short):
    def cells():
        for row, values in csv_rows(path, (line for _, _, line in lines(path))):
            if isinstance(values, InputError):
                raise values
            yield row, values

    return _read_cells(path, header, short, cells())


def csv_rows(path, lines):
    """Yields (row, cells) for each row of a `.csv` file that is not blank, or (row, InputError) for an invalid one."""
    reader = csv.reader(lines, strict=True)
    for row in itertools.count(1):
        try:
            if values := next(reader):
                yield row, values
        except StopIteration:
            return
        except csv.Error as error:
            rule = ("must have quotes around a cell with a carriage return" if "new-line" in str(error) else str(error))
            yield row, InputError(f"{path}: line {reader.line_num}: {rule}")


def _read_cells(path, header, short, cells):
    first = next(cells, (1, []))
    is_data = header and first[1] and set(header).isdisjoint(first[1])
    columns = header if is_data else first[1]
    yield columns
    for row, values in itertools.chain([first], cells) if is_data else cells:
        if short is not None and len(values) < len(columns):
            short.append(row)
        else:
            yield row, named_cells(path, row, values, columns, "" if is_data else " as the header")


def named_cells(path, row, values, columns, source=" as the header"):
    """Returns a dict of the cells of a row; raises an InputError if there are not as many as columns. `source` is what
    error messages say about the number of columns."""
    if len(values) != len(columns):
        cure = f"; {_NO_QUOTING}" * (suffix_of(path) == ".tsv" and any(value.startswith('"') for value in values))
        raise InputError(f"{path}: row {row}: must have {len(columns)} columns{source}; got {len(values)}{cure}")
    return dict(zip(columns, values))


def _read_json_lines(path, *_):
    return _read_objects(lambda: ((row, values) for row, _, values in json_lines(path)))


def _read_json(path, *_):
    values = json_values(path)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    rows = [(row, _flat(_object(path, row, value))) for row, value in enumerate(values, 1)]
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


def _read_parquet(path, *_):
    rows = parquet_rows(path)
    yield next(rows)
    for row, _, values in rows:
        yield row, values


def _flat(values):
    """Adds the values of nested objects under the keys `outer.inner`."""
    return values | {f"{key}.{name}": value for key, inner in values.items() if isinstance(inner, dict)
                     for name, value in inner.items()}


def _object(path, row, value):
    if not isinstance(value, dict):
        raise InputError(f"{path}: row {row}: must be an object; got {json.dumps(value, ensure_ascii=False)[:40]}")
    return value


_READERS = {None: _read_memory, ".tsv": _read_tsv, ".csv": _read_csv, ".jsonl": _read_json_lines, ".json": _read_json,
            ".parquet": _read_parquet, "snips": _read_folder}
