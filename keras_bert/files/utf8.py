"""Text files, which are UTF-8."""

import codecs

from keras_bert.arguments import Path
from keras_bert.errors import InputError


def decode(line: bytes, place: Path, is_first: bool) -> str:
    """Decodes a line or a file; if `is_first`, without its byte order mark. If it is not UTF-8, raises an InputError
    that names the `place` and how to convert the file."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        is_utf16 = error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        # CP949 is a guess at most: Chinese and Japanese text can be decoded as CP949, too.
        name, hint = ("UTF-16", "") if is_utf16 else ("ENCODING", " (Korean files are often in CP949)")
        raise InputError(f"{place}: must be UTF-8 text: {error.reason} at byte {error.start + 1}; convert the file: "
                         f"iconv -f {name} -t UTF-8 FILE > NEW_FILE{hint}") from None
    return text.removeprefix("\ufeff") if is_first else text
