"""Exceptions for invalid input and for work that a signal has stopped."""


class InputError(ValueError):
    """An error for invalid input. The message is one line that names the location (file, row, key), the rule and the
    value; the command line prints it without a traceback. Write arguments as in Python, `overwrite=True`, `port=…` or,
    as a subject, `epochs must be`: the command line shows them as flags."""


class MissingColumn(InputError):
    """An error for a table that lacks a column."""


class UnknownSuffix(InputError):
    """An error for a file whose suffix does not say how to read it."""


class InputWarning(UserWarning):
    """A warning about input that can be used but is probably not what was meant. The message is one line, as for
    `InputError`."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; of an error in a traced function, the one below the traceback. An
    error without a message gives the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if lines[0] == "in user code:" else 0]


class Stopped(KeyboardInterrupt):
    """An orderly stop after a signal. The message says how to continue.

    Args:
        signal: number of the signal.
        message: one line.
    """

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal
