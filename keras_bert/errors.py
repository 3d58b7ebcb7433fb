"""What means "the input is wrong, not the program", and "told to stop"."""


class InputError(ValueError):
    """Bad input. The message is one line that names the place (file, row, key), the rule and the value; the command
    line prints it without a traceback."""


class InputWarning(UserWarning):
    """The input can be worked with, but is hardly what was meant. One line, as of `InputError`."""


class Stopped(KeyboardInterrupt):
    """A signal ended the work in good order. The message says how to go on.

    Args:
        signal: number of the signal.
        message: one line.
    """

    def __init__(self, signal, message):
        super().__init__(message)
        self.signal = signal
