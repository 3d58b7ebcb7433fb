"""The functions that the checks of all contracts share."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_bert.arguments import Path

Loaded = Any  # the root object of a SavedModel of any exporter; or a `LiteModel`
Check = Callable[[Loaded, Path], str | None]  # returns what to report, or raises; its docstring is the rule
PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"


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
        return Result(line, rule, FAILED, one_line(error))


def one_line(error: Exception) -> str:
    """Returns the first line of an error's message; for an error in a traced function, the one below the traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if lines[0] == "in user code:" else 0]
