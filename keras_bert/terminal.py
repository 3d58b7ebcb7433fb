"""Progress output of the commands, and their orderly stop."""

import contextlib
import signal
import sys
import time

from keras_bert.errors import Stopped


@contextlib.contextmanager
def stoppable(message):
    """Context manager in which SIGTERM raises `Stopped` with the message, so that temporary files are removed."""
    def stop(number, _):
        raise Stopped(number, message)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


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


class ProgressLine(StatusLine):
    """A status line of the share of the work that is done, the number of results, results a second and the time left.

    Args:
        unit: what the results are called.
    """

    def __init__(self, unit, stream=None):
        super().__init__(stream)
        self.unit = unit
        self.started = time.monotonic()

    def __call__(self, share, count):
        """Shows the line if it is due. `share` is above 0."""
        if not self.is_due():
            return
        seconds, filled = time.monotonic() - self.started, round(20 * share)
        left = round(seconds * (1 - share) / share)
        self.show(f"[{'=' * filled}{' ' * (20 - filled)}] {share:.0%}  {count} {self.unit}  "
                  f"{count / seconds:.0f} {self.unit}/s  {left // 60}:{left % 60:02d} left")
