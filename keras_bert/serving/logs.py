"""The log: standard `logging`, formatted as one JSON object per line on standard error.

Workers and the supervisor write it to pipes, which the supervisor copies to its standard error. Writing never waits: if
nobody reads the log, or its disk is full, the pipes fill, and further lines are dropped and counted.

It never contains text from a request's body. Exceptions are logged without their messages, and messages of other
libraries only up to the first line, because the lines after it may repeat an exception's message.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from keras_bert.serving import metrics

logger = logging.getLogger("keras_bert.serving")

_CAPACITY = 2**20  # bytes that a pipe holds: some thousand lines; Linux's default is 64 KiB
_MAX_MESSAGE = 500  # characters of a message of another library


class JsonFormatter(logging.Formatter):
    """Formats a record whose message is a dict as these fields, and any other with its level, logger and message. Of an
    exception, adds the type and the last five code positions."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {"time": moment, "process": getattr(record, "writer", record.process)}
        if isinstance(record.msg, dict):
            fields |= record.msg
        else:
            fields |= {"level": record.levelname, "logger": record.name,
                       "message": record.getMessage().partition("\n")[0][:_MAX_MESSAGE]}
        if record.exc_info and record.exc_info[0]:
            frames = traceback.extract_tb(record.exc_info[2])[-5:]
            fields |= {"error": record.exc_info[0].__name__,
                       "at": [f"{frame.filename}:{frame.lineno}" for frame in frames]}
        return json.dumps(fields)


class PipeHandler(logging.Handler):
    """Writes lines to a pipe. Drops and counts them while it is full."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._pipe, self._rest = pipe, b""  # the rest of a line of which only the beginning fitted into the pipe
        os.set_blocking(pipe, False)  # for C++ libraries, too
        with contextlib.suppress(OSError):  # the pipes of this user together already have their maximum
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _CAPACITY)

    def emit(self, record: logging.LogRecord) -> None:
        data = self._rest + self.format(record).encode() + b"\n"
        try:
            self._rest = data[os.write(self._pipe, data):]
        except OSError:  # it is full, or the supervisor has ended
            metrics.DROPPED.inc()


def configure(pipe: int) -> None:
    """Formats what the loggers of this process (of this package, uvicorn, gRPC, asyncio) write, warnings and uncaught
    exceptions by `JsonFormatter`, and writes it to a pipe."""
    logging.basicConfig(handlers=[PipeHandler(pipe)], force=True)
    logger.setLevel(logging.INFO)
    logging.captureWarnings(True)
    sys.excepthook = lambda *exc_info: logger.critical("uncaught exception", exc_info=exc_info)


@dataclasses.dataclass
class Entry:
    """The log line of a request; the code that answers the request fills it in. docs/operating.md has the fields."""

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


@contextlib.contextmanager
def log_request(call: str, method: str, path: str, client: str) -> Iterator[Entry]:
    """Yields the `Entry` of a request. When the block ends, logs the request and counts it in the metrics as `call`."""
    entry, start = Entry(method, path[:200], client), time.perf_counter()
    try:
        yield entry
    finally:
        seconds = time.perf_counter() - start
        metrics.REQUESTS(entry.model, call, entry.status).inc()
        metrics.LATENCY(entry.model, call).observe(seconds)
        logger.info(vars(entry) | {"total_ms": round(seconds * 1000, 2)})
