"""The one exception that means "the input is wrong, not the program"."""


class InputError(ValueError):
    """Bad input. The message is one line that names the place (file, row, key), the rule and the value; the command
    line prints it without a traceback."""
