"""Progress output of the commands."""

import sys
import time


class StatusLine:
    """A status line, which is redrawn up to five times a second on a terminal; elsewhere, one line every ten seconds.
    As a context manager, it removes the line at the end.

    Args:
        stream: where to write. Defaults to standard error.
    """

    def __init__(self, stream=None):
        self.stream = stream or sys.stderr
        self.interactive = self.stream.isatty()
        self._shown = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.clear()

    def is_due(self):
        """Returns True if it is time to show the next line."""
        return time.monotonic() - self._shown >= (0.2 if self.interactive else 10)

    def show(self, line, stays=False):
        """Writes a line. On a terminal, it replaces the last line, unless that was shown with `stays=True`."""
        self._shown = time.monotonic()
        end = "\r" if self.interactive and not stays else "\n"
        self.stream.write(f"\x1b[K{line}{end}" if self.interactive else line + end)
        self.stream.flush()

    def clear(self):
        """Removes the line, on a terminal."""
        if self.interactive:
            self.stream.write("\x1b[K")
