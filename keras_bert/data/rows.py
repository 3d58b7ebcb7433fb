"""The rows of TSV, CSV, JSON and Parquet files, as streams. A row is parsed apart from reading it, so that an invalid
one need not end the reading, and so that other processes can parse it."""

import codecs
import contextlib
import csv
import gzip
import importlib
import itertools
import json
import os
import re
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple, cast

from keras_bert.arguments import Path
from keras_bert.errors import InputError, InputWarning
from keras_bert.files.paths import reading
from keras_bert.files.utf8 import MAX_LINE, LongLine, decode, read_lines

# The rule that a row has broken, by a part of the message of the module `csv`.
_CSV_RULES = {
    "new-line": "must have quotes around a cell with a carriage return",
    "unexpected end": "the last cell has no closing quote",
    "field limit": f"a cell may have at most {MAX_LINE:,} characters; perhaps a closing quote is missing",
}
_CELL_LIMIT = threading.Lock()  # held by the thread that has changed the limit of the module `csv`
NO_QUOTING = "a .tsv file has no quoting: write it with quoting=csv.QUOTE_NONE, or write a .csv file"

# (number of the line or record, from 1, the header included; fraction of the file read so far; what `parse` takes)
UnparsedRow = tuple[int, float, Any]


class RowFormat(NamedTuple):
    """How the rows of a file are read."""

    # Takes a path and the columns of a file without a header, or those of a Parquet file that are read; returns the
    # columns, None if each row has its own, and the rows. A first line with one of the given columns is a header.
    open: Callable[[Path, Sequence[str] | None], tuple[list[str] | None, Iterator[UnparsedRow]]]
    # Takes the path, the number of a row and the row; returns its cells, or its values by the names of their columns.
    cells: Callable[[Path, int, Any], list[str] | dict[str, Any]]

    def parse(self, path: Path, number: int, row: Any, columns: Sequence[str] | None,
              may_be_short: bool = False) -> dict[str, Any]:
        """Returns the values of a row; those of the first columns, if it `may_be_short` and has fewer cells than there
        are columns. Raises an InputError if it is invalid."""
        cells = self.cells(path, number, row)
        return _named(path, number, cells, columns or (), may_be_short) if isinstance(cells, list) else cells


def suffix_of(path: Path) -> str:
    """Returns the suffix of a path in lower case, without the `.gz` of a compressed file that is read line by line."""
    stem, suffix = os.path.splitext(os.fspath(path).lower())
    inner = os.path.splitext(stem)[1] if suffix == ".gz" else ""
    return inner if inner in _LINE_FORMATS else suffix


def lines(path: Path) -> Iterator[tuple[int, float, str]]:
    """Yields (row, fraction of the file read so far, line) for each line of a UTF-8 text file, plain or `.gz`."""
    for row, share, line in byte_lines(path):
        yield row, share, decode(line, f"{path}: row {row}", row == 1)


def iterate_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 text file, plain or `.gz`, without their ends. As for all commands, only \\n ends a
    line, perhaps after \\r; `str.splitlines` also splits at form feeds and U+2028, for instance."""
    return (line.rstrip("\r\n") for _, _, line in lines(path))


def paired_lines(folder: Path, *names: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (row, lines) for the lines, stripped, of files of a folder that are not all blank; raises an InputError if
    only some of them are."""
    files = (lines(os.path.join(folder, name)) for name in names)
    for row, entries in enumerate(itertools.zip_longest(*files, fillvalue=(0, 1.0, "")), 1):
        stripped = [line.strip() for _, _, line in entries]
        if any(stripped) and not all(stripped):
            short = [name for name, line in zip(names, stripped) if not line]
            raise InputError(f"{folder}: row {row}: {_enumerated(names)} must have the same rows; "
                             f"{' and '.join(short)}: no line here; one is missing, or the others have one too many")
        if all(stripped):
            yield row, stripped


def _enumerated(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def byte_lines(path: Path, unit: str = "row") -> Iterator[tuple[int, float, bytes | LongLine]]:
    """Yields (row, fraction of the file read so far, line or error) for the lines of `read_lines`, of a plain or `.gz`
    file. Messages call a line `unit`."""
    with reading(path), open(path, "rb") as raw:
        size = os.path.getsize(path)
        is_plain = not os.fspath(path).lower().endswith(".gz")
        read = 0
        try:
            for row, length, line in read_lines(raw if is_plain else cast(BinaryIO, gzip.open(raw)), f"{path}: {unit}"):
                read = read + length if is_plain else raw.tell()
                yield row, read / max(read, size), line
        except (EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None


def json_values(path: Path) -> list[Any]:
    """Returns the values in a JSON file, which follow one another."""
    values, place, decoder = [], 0, json.JSONDecoder()
    with reading(path), open(path, "rb") as file:
        text = decode(file.read(), path, is_first=True).strip()
    try:
        while match := re.compile(r"\S").search(text, place):
            value, place = decoder.raw_decode(text, match.start())
            values.append(value)
        _refuse_surrogates(text, values)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file: {error}") from None
    return values


def json_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Returns (row, object) for the objects in a JSON file, which are an array or follow one another."""
    values = json_values(path)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    return [(row, _as_object(path, row, value)) for row, value in enumerate(values, 1)]


def _refuse_surrogates(text: str, values: Any) -> None:
    """Raises a ValueError if a JSON value has a lone surrogate, which cannot be encoded as UTF-8."""
    if "\\ud" in text.lower():
        json.dumps(values, ensure_ascii=False).encode()


def import_pyarrow(path: Path) -> tuple[ModuleType, ModuleType]:
    """Returns the modules `pyarrow` and `pyarrow.parquet`."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(f"{path}: Parquet files need pyarrow: pip install pyarrow") from None


def parquet_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yields the names of a Parquet file's columns, then (row, fraction of the rows read so far, values) for each row,
    with only the given columns if there are any."""
    pyarrow, parquet = import_pyarrow(path)
    with reading(path):
        file = open(path, "rb")
    row = 0
    try:
        with file, parquet.ParquetFile(file, pre_buffer=False) as table:  # True would keep all that was read
            names, rows, classes = table.schema_arrow.names, table.metadata.num_rows, _classes(table.schema_arrow)
            yield names
            for batch in table.iter_batches(1024, columns=columns):  # each batch is from one row group
                for values in zip(*batch.columns):
                    row += 1
                    yield row, row / rows, {
                        name: class_of(value.as_py(), classes[name], f"{path}: row {row}: {name!r}", True)
                        if name in classes else value.as_py() for name, value in zip(batch.schema.names, values)}
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file: {' '.join(str(error).split())}; "
                         f"other files end in {', '.join(ROW_FORMATS)}, .json") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: row {row}: must be UTF-8 text: {error.reason}") from None
    except (ValueError, OverflowError) as error:  # a value that Python lacks, such as a date after the year 9999
        raise InputError(f"{path}: row {row}: {error}") from None


def parquet_classes(path: Path) -> dict[str, list[str]]:
    """Returns the class names of each column of a Parquet file that is Hugging Face's `ClassLabel`, or a list of it."""
    _, parquet = import_pyarrow(path)
    return _classes(parquet.read_schema(path))


def _classes(schema: Any) -> dict[str, list[str]]:
    """Returns `parquet_classes` from the schema of a file: Hugging Face writes the features of a `Dataset` into it."""
    stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info") or {}
    features = {column: feature[:1] if isinstance(feature, list) else [feature.get("feature") or feature]
                for column, feature in (stored.get("features") or {}).items()}  # of a list, the feature of its items
    return {column: feature["names"] for column, of_items in features.items() for feature in of_items
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"}  # the items may be lists, too


def class_of(value: Any, names: list[str], where: str, names_classes: bool) -> Any:
    """Returns a class of a `ClassLabel`, or a list of classes, as `open_data` does; values that are no number stay."""
    if isinstance(value, list):
        return [class_of(part, names, where, names_classes) for part in value]
    if not isinstance(value, int):
        return value
    if not -1 <= value < len(names):
        raise InputError(f"{where} must be the number of a class, below {len(names)}; got {value}")
    return None if value == -1 else names[value] if names_classes else value


def _as_object(path: Path, row: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path}: row {row}: must be an object; got {json.dumps(value, ensure_ascii=False)[:40]}")
    return value


def _open_json_lines(path: Path, header: Sequence[str] | None) -> tuple[None, Iterator[UnparsedRow]]:
    return None, ((number, share, line) for number, share, line in byte_lines(path) if isinstance(line, LongLine)
                  or line.decode(errors="replace").removeprefix("\ufeff" if number == 1 else "").strip())


def _json_cells(path: Path, number: int, line: bytes | LongLine) -> dict[str, Any]:
    text = decode(line, f"{path}: row {number}", number == 1)
    try:
        _refuse_surrogates(text, values := json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: row {number}: not JSON: {error}") from None
    return _as_object(path, number, values)


def _open_table(path: Path, header: Sequence[str] | None, own: str) -> tuple[list[str], Iterator[UnparsedRow]]:
    """Opens a `.tsv` or `.csv` file, whose format has the separator `own`."""
    lines = byte_lines(path, "row" if own == "\t" else "line")
    first = next(lines, (1, 0.0, b""))
    separator, lines = _separator(path, own, decode(first[2], f"{path}: row 1", True)), itertools.chain([first], lines)
    if not own == separator == "\t":
        return _with_header(path, _csv_rows(path, lines, separator), header)
    columns, rows = _with_header(path, itertools.dropwhile(_is_blank, lines), header)
    # In a file of one column, a blank line is an empty text, but not at the end.
    return columns, _without_blank_end(rows) if len(columns) == 1 else itertools.filterfalse(_is_blank, rows)


def _separator(path: Path, own: str, header: str) -> str:
    """Returns the separator of a table's cells: `own`, or another one, with a warning, if it is in the header, and all
    rows have the same number of cells, at least two, under this one alone."""
    inside = [each for each in ",;\t" if each in header]
    widths = {}
    for each in {own, *inside} if {*inside} - {own} else ():
        with contextlib.suppress(InputError):  # a line or a cell is too long
            widths[each] = {len(row) if isinstance(row, list) else 0
                            for _, _, row in _csv_rows(path, byte_lines(path), each)}
    regular = [each for each, of_rows in widths.items() if len(of_rows) == 1 and max(of_rows) > 1]
    if len(regular) != 1 or own in regular:
        return own
    warnings.warn(f"{path}: read with {regular[0]!r} between the cells, not {own!r}", InputWarning, stacklevel=2)
    return regular[0]


def _is_blank(row: UnparsedRow) -> bool:
    number, _, line = row
    start = codecs.BOM_UTF8 if number == 1 else b""
    return not isinstance(line, LongLine) and not line.removeprefix(start).rstrip(b"\r\n")


def _without_blank_end(rows: Iterator[UnparsedRow]) -> Iterator[UnparsedRow]:
    blank = 0  # the number of blank lines since the last other one
    for row in rows:
        number, share, _ = row
        if _is_blank(row):
            blank += 1
            continue
        yield from ((earlier, share, b"\n") for earlier in range(number - blank, number))
        yield row
        blank = 0


def _csv_rows(path: Path, lines: Iterator[UnparsedRow], separator: str) -> Iterator[UnparsedRow]:
    number, share = 0, 0.0  # of the line that the reader has taken last

    def decoded(numbered: tuple[int, float, bytes | LongLine]) -> str:
        nonlocal number, share
        number, share, line = numbered
        if isinstance(line, LongLine):
            raise line
        # Bytes that are not UTF-8 become surrogates, so that `_cells` refuses only their row.
        return line.decode(errors="surrogateescape").removeprefix("\ufeff" if number == 1 else "")

    reader = csv.reader(map(decoded, lines), delimiter=separator, strict=True)
    for row in itertools.count(1):
        try:
            if values := _next_row(reader):
                yield row, share, values
        except StopIteration:
            return
        except csv.Error as error:
            rule = next((rule for part, rule in _CSV_RULES.items() if part in str(error)), str(error))
            problem = InputError(f"{path}: line {number}: {rule}")
            if "field limit" in str(error):  # as after a long line, the next row cannot be found
                raise problem from None
            yield row, share, problem


def _next_row(reader: Iterator[list[str]]) -> list[str]:
    """Returns the next row of a `csv.reader`. A cell may have `MAX_LINE` characters: the default rejects texts longer
    than 131,072; without a limit, a quote that is never closed would read the rest of the file. The limit is one of
    the whole process, whose other code gets its own back."""
    with _CELL_LIMIT:
        limit = csv.field_size_limit(MAX_LINE)
        try:
            return next(reader)
        finally:
            csv.field_size_limit(limit)


def _cells(path: Path, number: int, row: list[str] | bytes | InputError) -> list[str]:
    """Returns the cells of a row of `_csv_rows`, or of a line without quoting."""
    if isinstance(row, InputError):
        raise row
    if isinstance(row, bytes):
        return decode(row, f"{path}: row {number}", number == 1).removesuffix("\n").removesuffix("\r").split("\t")
    decode("\t".join(row).encode(errors="surrogateescape"), f"{path}: row {number}", False)
    return row


def _with_header(path: Path, rows: Iterator[Any], header: Sequence[str] | None) -> tuple[list[str], Iterator[Any]]:
    """Returns the columns in the first row and the other rows; or `header`, if it names none of them, and all rows."""
    first = next(rows, None)
    if first is None:
        return [], rows
    columns = _cells(path, first[0], first[2])
    if header and set(header).isdisjoint(columns):
        return list(header), itertools.chain([first], rows)
    return columns, _watch_for_headers(path, rows, columns if isinstance(first[2], list) else first[2])


def _watch_for_headers(path: Path, rows: Iterator[UnparsedRow], header: list[str] | bytes) -> Iterator[UnparsedRow]:
    """Warns of rows that are the header again, as in files that were joined by `cat`."""
    for number, share, row in rows:
        if ([cell.removeprefix("\ufeff") for cell in row] if isinstance(row, list) else row) == header:
            warnings.warn(f"{path}: row {number} is the header again, but read as a text: delete it", InputWarning, 2)
        yield number, share, row


def _named(path: Path, row: int, values: list[str], columns: Sequence[str], may_be_short: bool) -> dict[str, str]:
    if len(values) != len(columns) and not (may_be_short and len(values) < len(columns)):
        cure = f"; {NO_QUOTING}" * (suffix_of(path) == ".tsv" and any(value.startswith('"') for value in values))
        raise InputError(f"{path}: row {row}: must have {len(columns)} columns ({', '.join(columns):.60}); "
                         f"got {len(values)}{cure}")
    return dict(zip(columns, values))


def _open_parquet(path: Path, header: Sequence[str] | None) -> tuple[list[str], Iterator[UnparsedRow]]:
    rows = parquet_rows(path, header)
    return next(rows), rows


_LINE_FORMATS = {  # of files that may be compressed
    ".tsv": RowFormat(lambda path, header: _open_table(path, header, "\t"), _cells),
    ".csv": RowFormat(lambda path, header: _open_table(path, header, ","), _cells),
    ".jsonl": RowFormat(_open_json_lines, _json_cells),
}
ROW_FORMATS = {**_LINE_FORMATS, ".parquet": RowFormat(_open_parquet, lambda path, number, values: values)}
ROW_SUFFIXES = *ROW_FORMATS, *(f"{suffix}.gz" for suffix in _LINE_FORMATS)
