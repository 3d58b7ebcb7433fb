"""JSON files."""

import datetime
import decimal
import json
import math
import os
import re
from typing import Any

from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.files.atomic import atomic_file
from keras_bert.files.failures import reading


def json_text(value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON, in which a number that is not finite is null: JSON has no NaN."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_value(value: Any) -> Any:
    """Returns a value of a table as JSON holds it: a date or a time in ISO 8601, a decimal number as a text. Raises a
    TypeError, whose message follows the name of the value, for bytes and other values."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {str(name): json_value(part) for name, part in value.items()}
        case list() | tuple():
            return [json_value(part) for part in value]
        case datetime.date() | datetime.time():  # a datetime is a date
            return value.isoformat()
        case decimal.Decimal():
            return str(value)
    raise TypeError(f"must be of a type that JSON has; got {type(value).__name__}")


def write_json(path: Path, value: Any) -> None:
    """Writes a human-readable JSON file atomically, see `json_text`. A list of numbers takes one line."""
    text = json_text(value, indent=2)
    with atomic_file(path) as new, open(new, "w", encoding="utf-8") as file:
        file.write(re.sub(r"\[[-+.,\d\seE]+\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")


def read_json(path: Path) -> Any:
    with open(path, encoding="utf-8-sig") as file:  # editors on Windows write a byte order mark
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number too long, brackets too deep
            raise InputError(f"{os.fspath(path)}: not a JSON file: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; empty if there is no such file."""
    if not os.path.exists(path):
        return {}
    with reading(path):
        values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{os.fspath(path)}: must hold one JSON object; got {values!r:.100}")
    return values
