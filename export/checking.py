"""One line of a contract, checked."""

import dataclasses

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"


@dataclasses.dataclass(frozen=True)
class Result:
    """One line of the contract: its number, its rule, `passed`, `failed` or `not applicable`, and what was seen."""

    line: int
    rule: str
    status: str
    seen: str


class NotApplicable(Exception):
    """The check says nothing about this SavedModel."""


def expect(condition, seen):
    """Fails a check, with what was seen, unless the condition holds."""
    if not condition:
        raise ValueError(seen)


def run_check(line, rule, check, loaded, path):
    """The `Result` of `check(loaded, path)`, which returns what is worth telling, or raises."""
    try:
        return Result(line, rule, PASSED, check(loaded, path) or "")
    except NotApplicable as reason:
        return Result(line, rule, NOT_APPLICABLE, str(reason))
    except Exception as error:  # whatever a foreign artifact raises is what was seen
        return Result(line, rule, FAILED, one_line(error))


def one_line(error):
    """What an error says first; a traced function's error stands below its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if lines[0] == "in user code:" else 0]
