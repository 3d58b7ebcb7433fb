"""Exceptions for invalid input and for work that a signal has stopped.

In Python an argument is written `overwrite=True`, on the command line `--overwrite`. A message is therefore given in
parts, and an `Option` among them is an argument: nothing has to be found in a text, which may contain anything. As the
parts are strings, an error with no argument is an f-string as ever, and the advice of one error can end another.
"""

from collections.abc import Collection


class Option(str):
    """An argument in a message, as Python writes it: its name, perhaps with a value, `overwrite=True`, or with `=…` for
    any value."""

    @property
    def name(self) -> str:
        return self.partition("=")[0]

    def as_flag(self) -> str:
        """Returns the flag: `--epochs`, `--overwrite` for `overwrite=True`, `--nooverwrite` for `overwrite=False`."""
        value = self.partition("=")[2]
        if value == "False":
            return f"--no{self.name}"
        return f"--{self.name}" if value in ("", "True", "…") else f"--{self}"


class InputError(ValueError):
    """An error for invalid input. The message is one line that names the location (file, row, key), the rule and the
    value; the command line prints it without a traceback.

    `InputError(Option("epochs"), " must be at least 1; got 0")`

    Args:
        *parts: the parts of the message, joined without spaces. Arguments that are also flags are `Option`s.
    """

    def __init__(self, *parts: str) -> None:
        super().__init__("".join(parts))
        self.parts = parts

    def on_command_line(self, flags: Collection[str]) -> str:
        """Returns the message for a command that has these flags; other arguments stay as in Python."""
        return "".join(part.as_flag() if isinstance(part, Option) and part.name in flags else part
                       for part in self.parts)


class MissingColumn(InputError):
    """An error for a table that lacks a column."""


class UnknownSuffix(InputError):
    """An error for a file whose suffix does not say how to read it."""


class InputWarning(UserWarning):
    """A warning about input that can be used but is probably not what was meant. The message is one line, as for
    `InputError`."""


class Stopped(KeyboardInterrupt):
    """An orderly stop after a signal. The message says how to continue.

    Args:
        signal: number of the signal.
        message: one line.
    """

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal
