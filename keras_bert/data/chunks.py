"""Files as chunks of rows that processes share, in which an invalid row does not end the reading."""

import dataclasses

from keras_bert.data.tables import (
    byte_lines,
    check_columns,
    csv_rows,
    json_object,
    named_cells,
    parquet_rows,
    suffix_of,
    tsv_cells,
)
from keras_bert.errors import InputError
from keras_bert.files import decode

_ROWS, _SIZE = 1024, 2**20  # of a chunk: the number of its rows, and of their bytes or characters, at most


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file, not yet parsed. The boundaries of chunks depend on the file alone.

    Args:
        path: path of the file.
        columns: names of the columns; None if each row has its own.
        rows: list of (number, row), the number that of the line or record, the header included.
        share: fraction of the file read so far.
        error: `InputError`, if the file cannot be read beyond these rows.
    """

    path: str
    columns: list[str] | None
    rows: list
    share: float
    error: InputError | None = None

    def parse(self):
        """Yields (number, dict of the row's values) or, for an invalid row, (number, InputError)."""
        parse = _PARSERS[suffix_of(self.path)]
        for number, row in self.rows:
            try:
                yield number, parse(self.path, number, row, self.columns)
            except InputError as error:
                yield number, error


def check_suffix(path):
    """Raises an InputError if `read_chunks` does not read files of this suffix."""
    if suffix_of(path) not in _PARSERS:
        raise InputError(f"{path}: must end in {', '.join(_PARSERS)}, .jsonl.gz, .tsv.gz, .csv.gz")


def read_chunks(path):
    """Yields the `Chunk`s of a `.jsonl`, `.tsv`, `.csv` or `.parquet` file, at least one. Text files may be compressed
    with gzip. If the file cannot be read to its end, the last chunk has the `error`."""
    columns, rows, size, share = None, [], 0, 1.0
    try:
        columns, read = _OPENERS[suffix_of(path)](path)
        check_columns(path, columns or (), required=())
        for number, share, row in read:
            rows.append((number, row))
            size += _size(row)
            if len(rows) == _ROWS or size >= _SIZE:
                yield Chunk(path, columns, rows, share)
                rows, size = [], 0
        yield Chunk(path, columns, rows, 1.0)
    except InputError as error:
        yield Chunk(path, columns, rows, share, error)


def _size(row):
    if isinstance(row, bytes | InputError):
        return len(row) if isinstance(row, bytes) else 0
    return sum(len(value) for value in (row.values() if isinstance(row, dict) else row) if isinstance(value, str))


# Functions of a path that return (columns or None, iterator of (number, share, row)).

def _open_json_lines(path):
    return None, ((number, share, line) for number, share, line in byte_lines(path) if line.strip())


def _open_tsv(path):
    lines = ((number, share, line) for number, share, line in byte_lines(path) if line.rstrip(b"\r\n"))
    number, _, line = next(lines, (1, 1.0, b""))
    return tsv_cells(decode(line, f"{path}: row {number}", number == 1)), lines


def _open_csv(path):
    share = 0.0

    def decoded():
        nonlocal share
        for number, share, line in byte_lines(path):  # noqa: B007
            # Bytes that are not UTF-8 become surrogates, so that `_parse_csv` refuses only their row.
            yield line.decode(errors="surrogateescape").removeprefix("\ufeff" if number == 1 else "")

    rows = csv_rows(path, decoded())
    number, columns = next(rows, (1, []))
    return _cells(path, number, columns), ((number, share, row) for number, row in rows)


def _open_parquet(path):
    rows = parquet_rows(path)
    return next(rows), rows


_OPENERS = {".jsonl": _open_json_lines, ".tsv": _open_tsv, ".csv": _open_csv, ".parquet": _open_parquet}


# Functions of the path, the number of a row, the row and the columns that return a dict of the row's values.

def _parse_json_line(path, number, line, _):
    return json_object(path, number, decode(line, f"{path}: row {number}", number == 1))


def _parse_tsv(path, number, line, columns):
    return named_cells(path, number, tsv_cells(decode(line, f"{path}: row {number}", False)), columns)


def _parse_csv(path, number, row, columns):
    return named_cells(path, number, _cells(path, number, row), columns)


def _cells(path, number, row):
    """Returns the cells of a row; raises an InputError if it is one, or if the cells are not UTF-8."""
    if isinstance(row, InputError):
        raise row
    decode("\t".join(row).encode(errors="surrogateescape"), f"{path}: row {number}", False)
    return row


def _parse_parquet(_path, _number, values, _columns):
    return values


_PARSERS = {".jsonl": _parse_json_line, ".tsv": _parse_tsv, ".csv": _parse_csv, ".parquet": _parse_parquet}
