"""Signals that end a run in good order."""

import contextlib
import signal
import threading


@contextlib.contextmanager
def noted_signals():
    """Gives a list that Ctrl-C and SIGTERM are noted in; a second one acts at once. Python lets only the main thread
    do so: elsewhere the list stays empty."""
    received = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number, _):
        received.append(number)
        signal.signal(number, previous[number])

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
