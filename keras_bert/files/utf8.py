"""Text files, which are UTF-8: their lines, of limited size."""

import codecs
import functools
from collections.abc import Iterator
from typing import BinaryIO

from keras_bert.arguments import Path
from keras_bert.errors import InputError

MAX_LINE = 16 * 2**20  # bytes, as many as a request to `keras-bert serve` may have


class LongLine(InputError):
    """An error for a line of more than `MAX_LINE` bytes."""


def read_lines(file: BinaryIO, place: str) -> Iterator[tuple[int, int, bytes | LongLine]]:
    """Yields (number, size in bytes, line) for each line. A long line is skipped in constant memory; in its place is a
    `LongLine`, whose message begins with `place` and the number."""
    for number, line in enumerate(iter(functools.partial(file.readline, MAX_LINE + 1), b""), 1):
        size = len(line)
        if size <= MAX_LINE:
            yield number, size, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE)
            size += len(line)
        yield number, size, LongLine(f"{place} {number}: may have at most {MAX_LINE:,} bytes; got {size:,}")


def decode(line: bytes | LongLine, place: Path, is_first: bool) -> str:
    """Decodes a file, or a line of `read_lines`; if `is_first`, without its byte order mark. Raises a `LongLine`. If it
    is not UTF-8, raises an InputError that names the `place` and how to convert the file."""
    if isinstance(line, LongLine):
        raise line
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        is_utf16 = error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        # CP949 is a guess at most: Chinese and Japanese text can be decoded as CP949, too.
        name, hint = ("UTF-16", "") if is_utf16 else ("ENCODING", " (Korean files are often in CP949)")
        raise InputError(f"{place}: must be UTF-8 text: {error.reason} at byte {error.start + 1}; convert the file: "
                         f"iconv -f {name} -t UTF-8 FILE > NEW_FILE{hint}") from None
    return text.removeprefix("\ufeff") if is_first else text
