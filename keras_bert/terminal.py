"""What a command shows while it works."""

import sys
import time


class StatusLine:
    """A line that is redrawn on a terminal, five times a second at most; elsewhere one every ten seconds.

    Args:
        stream: where to write; standard error where None.
    """

    def __init__(self, stream=None):
        self.stream = stream or sys.stderr
        self.interactive = self.stream.isatty()
        self._shown = time.monotonic()

    def is_due(self):
        """Whether it is time for the next one."""
        return time.monotonic() - self._shown >= (0.2 if self.interactive else 10)

    def show(self, line, stays=False):
        """Writes a line, in place of the last one that does not stay."""
        self._shown = time.monotonic()
        end = "\r" if self.interactive and not stays else "\n"
        self.stream.write(f"\x1b[K{line}{end}" if self.interactive else line + end)
        self.stream.flush()

    def clear(self):
        """Takes the line away, on a terminal."""
        if self.interactive:
            self.stream.write("\x1b[K")
