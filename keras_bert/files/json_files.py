"""JSON files, checks of their values, and the keys of other libraries' files, which `declared_keys.toml` declares."""

import dataclasses
import datetime
import decimal
import functools
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from keras_bert.arguments import Path, broken_rule, is_missing
from keras_bert.errors import InputError, Option
from keras_bert.files.atomic import atomic_file
from keras_bert.files.paths import reading


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
    with reading(path), open(path, encoding="utf-8-sig") as file:  # editors on Windows write a byte order mark
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number too long, brackets too deep
            raise InputError(f"{os.fspath(path)}: not a JSON file: {error}") from None


def read_object(path: Path, required: bool = False) -> dict[str, Any]:
    """Returns the object in a JSON file; empty if there is no such file and it is not `required`."""
    if not required and not os.path.exists(path):
        return {}
    values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{os.fspath(path)}: must hold one JSON object; got {values!r:.100}")
    return values


@dataclasses.dataclass(slots=True)
class Record:
    """An object in a file, or a row of a table, whose values are checked when they are read. Its str is its place in
    error messages: `a.json: article 1, paragraph 2`.

    Args:
        file: the path; or a table in memory, whose str is its name.
        place: an int, the number of a row, from 1, the header included; or a str, the place of an object, "" if it is
            the only one.
        values: the values by their names.
    """

    file: Any
    place: Any
    values: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.file}: {self.where}".removesuffix(": ")

    @property
    def where(self) -> str:
        """The place without the file."""
        return f"row {self.place}" if isinstance(self.place, int) else self.place

    def error(self, name: str, rule: str, *cure: str) -> InputError:
        """Returns the error for a value that breaks a rule, which follows "must be"."""
        return InputError(f"{self}: {name!r} must be {rule}; got {self.values.get(name)!r:.60}", *cure)

    def get(self, name: str, kind: Any) -> Any:
        """Returns a value of a type, or of what another annotation stands for, see `arguments.check`."""
        value = self.values.get(name)
        if type(value) is not kind and (rule := broken_rule(value, kind)):
            raise self.error(name, rule)
        return value

    def one_of(self, name: str, choices: Iterable[Any], default: Any = None, cure: str = "") -> Any:
        """Returns a value that must be one of these; if there is none, `default`, which must be, too."""
        if (value := self.values.get(name, default)) not in (choices := list(choices)):
            raise self.error(name, " or ".join(str(choice) for choice in choices if choice is not None), cure)
        return value

    def text(self, name: str, labelled: bool = False) -> str:
        """Returns a text. Without labels, it may be blank, so that each row has an answer; with them, it must not: a
        file of text cannot tell an empty cell from a missing one."""
        text = self.values.get(name)
        if not isinstance(text, str) or labelled and is_missing(text):
            raise self.error(name, "a text", "; correct the row, or leave it out" * is_missing(text))
        return text

    def texts(self, name: str, labelled: bool = False) -> list[str]:
        """Returns a list of texts, see `text`."""
        texts = self.values.get(name)
        if not isinstance(texts, list) or not all(isinstance(text, str) and not (labelled and is_missing(text))
                                                  for text in texts):
            raise self.error(name, "a list of texts")
        return texts

    def records(self, name: str, item: str) -> Iterator["Record"]:
        """Yields the objects in a list, whose places end in `item` and their numbers."""
        place = f"{self.where}, {item} ".removeprefix(", ")
        for number, values in enumerate(self.get(name, list), 1):
            record = Record(self.file, f"{place}{number}", values)
            if not isinstance(values, dict):
                raise InputError(f"{record}: must be an object; got {values!r:.40}")
            yield record


_EMPTY: tuple[Any, ...] = None, "", [], {}


@dataclasses.dataclass(frozen=True)
class Keys:
    """The known keys of an object in JSON.

    Args:
        place: the file, and the object in it: `"tokenizer.json: model"`.
        applied: the keys, with spaces between them, that this package follows.
        without_effect: the keys that change no answer, by the reason.
        neutral: the only values of keys that this package does not follow. null and empty values are neutral, too.
    """

    place: str
    applied: str = ""
    without_effect: Mapping[str, str] = dataclasses.field(default_factory=dict)
    neutral: Mapping[str, Collection[Any]] = dataclasses.field(default_factory=dict)

    def differences(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Returns the keys with a value that this package cannot follow, and for each one the rule and the value."""
        return {key: f"must be {' or '.join(map(str, allowed)) or 'left out'}; got {values[key]!r:.60}"
                for key, allowed in self.neutral.items()
                if values.get(key) not in _EMPTY and values[key] not in allowed}

    def unknown(self, values: Mapping[str, Any]) -> list[str]:
        """Returns a line for the keys that nothing here knows."""
        known = {*self.applied.split(), *" ".join(self.without_effect.values()).split(), *self.neutral}
        names = [repr(key) for key, value in values.items() if key not in known and value not in _EMPTY]
        return [f"{self.place}: keras_bert does not know {', '.join(names)}, which may change answers"] * bool(names)


@functools.cache
def declared() -> dict[str, Keys]:
    """Returns the `Keys` by their places."""
    import tomllib  # imported here, because most commands start without it

    with open(os.path.join(os.path.dirname(__file__), "declared_keys.toml"), "rb") as file:
        return {place: Keys(place, **groups) for place, groups in tomllib.load(file).items()}


def all_differences(values_by_place: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the lines about keys and values that this package cannot follow or does not know."""
    return [line for place, values in values_by_place.items() for line in (
        *(f"{place}: {key} {rule}" for key, rule in declared()[place].differences(values).items()),
        *declared()[place].unknown(values))]


def check_followed(folder: Path, differences: Collection[str]) -> None:
    """Raises an InputError if files of a folder say what this package does not follow."""
    if differences:
        raise InputError(f"{os.fspath(folder)}: its files say what keras_bert cannot follow: {'; '.join(differences)}; "
                         "to go on without it, pass ", Option("allow_inexact=True"), " to convert")
