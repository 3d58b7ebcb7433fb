"""The functions that the checks of all contracts share."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_bert.arguments import Path
from keras_bert.errors import first_line

Loaded = Any  # the root object of a SavedModel of any exporter; or a `LiteModel`
Check = Callable[[Loaded, Path], str | None]  # returns what to report, or raises; its docstring is the rule
PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"
TEXTS = ["play some music", "", "turn off the light please, it is late", "Zürich, 서울"]


@dataclasses.dataclass(frozen=True)
class Result:
    """The result for one line of the contract: its number, its rule, its status and what was observed."""

    line: int
    rule: str
    status: str
    seen: str


class NotApplicable(Exception):
    """The exception of a check that does not apply to this SavedModel."""


def expect(condition: object, seen: str) -> None:
    """Fails a check unless the condition holds; `seen` says what was observed."""
    if not condition:
        raise ValueError(seen)


def run_check(line: int, check: Check, loaded: Loaded, path: Path) -> Result:
    rule = check.__doc__ or check.__name__  # `python -OO` has no docstrings
    try:
        return Result(line, rule, PASSED, check(loaded, path) or "")
    except NotApplicable as reason:
        return Result(line, rule, NOT_APPLICABLE, str(reason))
    except Exception as error:  # another exporter's SavedModel may raise anything
        return Result(line, rule, FAILED, first_line(error))
