"""The keys of files that other libraries write, and of requests to the server, with what this package does about each.
`declared_keys.toml` has them; docs/keys.py writes them into docs/convert.md."""

import dataclasses
import functools
import os
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

from keras_bert.arguments import Path
from keras_bert.errors import InputError, Option

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
