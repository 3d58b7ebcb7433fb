"""Progress output of the commands, and their orderly stop."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from keras_bert.errors import Stopped


def print_error(message: object) -> None:
    """Writes a line to standard error. Drops it if that fails, for example because the disk is full."""
    with contextlib.suppress(OSError):
        print(f"keras-bert: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def stoppable(message: str) -> Iterator[None]:
    """Context manager in which SIGTERM raises `Stopped` with the message, so that temporary files are removed."""
    def stop(number: int, _: Any) -> None:
        raise Stopped(number, message)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class StatusLine(contextlib.AbstractContextManager):
    """A status line, by default on standard error. On a terminal, it is redrawn up to five times a second and removed
    at the end of the `with` statement; elsewhere, a line is written every ten seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.interactive = self.stream.isatty()
        self._shown = time.monotonic()

    def __exit__(self, *_: Any) -> None:
        self.clear()

    def is_due(self) -> bool:
        """Tells whether it is time to show the next line."""
        return time.monotonic() - self._shown >= (0.2 if self.interactive else 10)

    def show(self, line: str, stays: bool = False) -> None:
        """Writes a line. On a terminal, it replaces the last line, unless that was shown with `stays=True`."""
        self._shown = time.monotonic()
        end = "\r" if self.interactive and not stays else "\n"
        self.stream.write(f"\x1b[K{line}{end}" if self.interactive else line + end)
        self.stream.flush()

    def clear(self) -> None:
        if self.interactive:
            self.stream.write("\x1b[K")


class ProgressLine(StatusLine):
    """A status line of the share of the work that is done, the number of results, called `unit`, results a second and
    the time left. The speed leaves out the time until the first results, which is mostly start-up; it is shown once
    half as much time again has passed."""

    def __init__(self, unit: str, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.unit = unit
        self.started = time.monotonic()
        self._first: tuple[float, float, int] | None = None  # the time, the share and the number of the first results

    def __call__(self, share: float, count: int) -> None:
        """Shows the line if it is due. `share` is in (0, 1]."""
        now, filled = time.monotonic(), round(20 * share)
        self._first = self._first or (now, share, count)
        if not self.is_due():
            return
        line = f"[{'=' * filled}{' ' * (20 - filled)}] {share:.0%}  {count} {self.unit}"
        begin, first_share, first_count = self._first
        seconds, done = now - begin, share - first_share
        if done > 0 and seconds > (begin - self.started) / 2:
            left = round(seconds * (1 - share) / done)
            line += f"  {(count - first_count) / seconds:.0f} {self.unit}/s  {left // 60}:{left % 60:02d} left"
        self.show(line)
