"""The log: JSON, a line for each request and each event, on standard error. No text of a request is ever in it."""

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
    """The line of a request; who answers it fills it in. See docs/serving.md."""

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
    """Writes one line."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    sys.stderr.write(json.dumps({"time": now, **fields}) + "\n")


@contextlib.contextmanager
def observed(call, method, path, client):
    """Gives the `Entry` of a request; logs and counts it when the block ends.

    Args:
        call: what it is called in the metrics.
        method, path, client: for the log; the path is cut.
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
    """Writes where an unforeseen error arose, without its message, which may hold a text."""
    frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-5:]]
    tell(event="error", error=type(error).__name__, at=frames)
