"""The log on standard error: JSON, one line per request and per event. It never contains text from a request."""

import contextlib
import dataclasses
import datetime
import json
import sys
import time
import traceback

from keras_bert.serving import metrics


@dataclasses.dataclass
class Entry:
    """The log line of a request; the code that answers the request fills it in. See docs/serving.md for the fields."""

    method: str
    path: str
    client: str
    model: str = ""
    version: int | None = None
    instances: int | None = None
    queue_ms: float | None = None
    compute_ms: float | None = None
    status: int | str = 500
    bytes: int = 0


def tell(**fields):
    """Writes one log line with these fields."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    sys.stderr.write(json.dumps({"time": now, **fields}) + "\n")


@contextlib.contextmanager
def observed(call, method, path, client):
    """Context manager that yields the `Entry` of a request; logs and counts the request when the block ends.

    Args:
        call: name of the call in the metrics.
        method, path, client: fields of the log line; the path is truncated.
    """
    entry, start = Entry(method, path[:200], client), time.perf_counter()
    try:
        yield entry
    finally:
        seconds = time.perf_counter() - start
        metrics.REQUESTS.labels(entry.model, call, entry.status).inc()
        metrics.LATENCY.labels(entry.model, call).observe(seconds)
        tell(**dataclasses.asdict(entry), total_ms=round(seconds * 1000, 2))


def tell_bug(error):
    """Logs where an unexpected error was raised. Omits its message, which may contain a text."""
    frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-5:]]
    tell(event="error", error=type(error).__name__, at=frames)
