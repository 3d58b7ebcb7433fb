"""Files as chunks of rows that processes share, in which an invalid row does not end the reading."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from keras_bert.data.rows import ROW_FORMATS, ROW_SUFFIXES, RowFormat, suffix_of
from keras_bert.data.tables import check_columns
from keras_bert.errors import InputError, Option

_CURE = "; leave it out of ", Option("keep_columns=…")
ROWS, CHUNK_SIZE = 1024, 2**20  # of a chunk: the number of its rows, and of their bytes or characters, at most


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file, not yet parsed. The boundaries of chunks depend on the file alone."""

    path: str
    columns: Sequence[str] | None  # None if each row has its own
    rows: list[tuple[int, Any]]  # number of the line or record, the header included; what `RowFormat.parse` takes
    share: float  # fraction of the file read so far
    error: InputError | None = None  # why the file cannot be read beyond these rows

    def parse(self) -> Iterator[tuple[int, dict[str, Any] | InputError]]:
        """Yields the values of each row, or the error of an invalid one, with its number."""
        parse = ROW_FORMATS[suffix_of(self.path)].parse
        for number, row in self.rows:
            try:
                yield number, parse(self.path, number, row, self.columns)
            except InputError as error:
                yield number, error


def check_suffix(path: str) -> None:
    if (suffix := suffix_of(path)) not in ROW_FORMATS:
        raise InputError(f"{path}: a data file must end in {', '.join(ROW_SUFFIXES)}; got {suffix or 'no suffix'}")


def read_chunks(path: str, keep_columns: Sequence[str] = ()) -> Iterator[Chunk]:
    """Yields the `Chunk`s of a `.jsonl`, `.tsv`, `.csv` or `.parquet` file, at least one. Text files may be compressed
    with gzip. If the file cannot be read to its end, the last chunk has the `error`; if it lacks one of `keep_columns`,
    the only chunk."""
    form = ROW_FORMATS[suffix_of(path)]
    columns: Sequence[str] | None = None
    rows: list[tuple[int, Any]] = []
    size, share = 0, 1.0
    try:
        columns, read = form.open(path, None)
        names = _columns_of(path, form, keep_columns) if columns is None and keep_columns else columns or ()
        check_columns(path, names, keep_columns if names else (), *_CURE)  # an empty file has no columns
        for number, share, row in read:
            rows.append((number, row))
            size += _size(row)
            if len(rows) == ROWS or size >= CHUNK_SIZE:
                yield Chunk(path, columns, rows, share)
                rows, size = [], 0
        yield Chunk(path, columns, rows, 1.0)
    except InputError as error:
        yield Chunk(path, columns, rows, share, error)


def sized(examples: Iterable, texts_of: Callable[[Any], Iterable[str]], most: int = ROWS) -> Iterator[list]:
    """Yields lists of `most` examples, or of fewer if their texts (`texts_of`) have `CHUNK_SIZE` characters."""
    chunk: list = []
    size = 0
    for example in examples:
        chunk.append(example)
        size += sum(map(len, texts_of(example)))
        if len(chunk) == most or size >= CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _columns_of(path: str, form: RowFormat, wanted: Sequence[str]) -> list[str]:
    """Returns the columns of a file in which each row has its own: of the first rows, until these have all `wanted`
    ones, and otherwise of all rows that are valid."""
    columns: dict[str, None] = {}
    for number, _, row in form.open(path, None)[1]:
        with contextlib.suppress(InputError):  # of this row alone
            columns |= dict.fromkeys(form.parse(path, number, row, None))
        if columns.keys() >= set(wanted):
            break
    return list(columns)


def _size(row: Any) -> int:
    if isinstance(row, bytes | InputError):
        return len(row) if isinstance(row, bytes) else 0
    return sum(len(value) for value in (row.values() if isinstance(row, dict) else row) if isinstance(value, str))
