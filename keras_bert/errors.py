"""Exceptions for invalid input and for work that a signal has stopped.

Python writes an argument `overwrite=True`, the command line `--overwrite`. So a message is given in parts, of which an
`Option` is an argument: texts of the user that look like one stay as they are. The parts are strings, so most messages
are one f-string, and an error is extended by `InputError(*error.parts, "; more")`.
"""

from collections.abc import Collection


class Option(str):
    """An argument in a message, as Python writes it: `epochs`, `overwrite=True`, or `output=…` for any value. Only the
    modules of `commands/`, which no Python code calls, write flags themselves."""

    def on_command_line(self, flags: Collection[str]) -> str:
        """Returns `--epochs`, `--overwrite`, `--output`; `--nooverwrite` for False. Arguments that are not `flags` of
        the command stay as in Python."""
        name, _, value = self.partition("=")
        if name not in flags:
            return self
        if value == "False":
            return f"--no{name}"
        return f"--{name}" if value in ("", "True", "…") else f"--{self}"


class InputError(ValueError):
    """An error for invalid input. Its parts, joined without spaces, are one line that names the location (file, row,
    key), the rule and the value; the command line prints it without a traceback.

    `InputError(Option("epochs"), " must be at least 1; got 0")`
    """

    def __init__(self, *parts: str) -> None:
        super().__init__("".join(parts))
        self.parts = parts

    def on_command_line(self, flags: Collection[str]) -> str:
        """Returns the message for a command that has these flags."""
        return "".join(part.on_command_line(flags) if isinstance(part, Option) else part for part in self.parts)


class MissingColumn(InputError):
    """An error for a table that lacks a column."""


class UnknownSuffix(InputError):
    """An error for a file whose suffix does not say how to read it."""


class InputWarning(UserWarning):
    """A warning, one line, about input that can be used but is probably not what was meant."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or below a traceback of TensorFlow; or the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if lines[0] == "in user code:" else 0]


class Stopped(KeyboardInterrupt):
    """An orderly stop after a signal, given by its number. The message, one line, says how to continue."""

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal
