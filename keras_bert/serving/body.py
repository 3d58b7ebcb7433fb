"""The body of an HTTP request: received within the limits of size, time and memory, and decompressed."""

import asyncio
import contextlib
import zlib
from collections.abc import Iterable

from starlette.requests import Request

from keras_bert.inference.served_model import RequestError
from keras_bert.serving.memory import RequestMemory
from keras_bert.serving.middleware import memory_of, server_of
from keras_bert.serving.tensors import in_thread_if_large

_PIECE = 2**16  # bytes that are decompressed at a time
_STEP = 2**20  # bytes of content, at most, that come from it before they are counted
_MAX_MEMBERS = 1000  # of a gzip body; each costs time, and the smallest has 20 bytes
_GZIP = 31  # `wbits` of zlib


async def read_body(request: Request) -> bytes:
    """Returns the content of the body. Raises a `RequestError` if a limit is exceeded, or a coding is wrong."""
    settings, memory = server_of(request).settings, memory_of(request)
    codings = parse_codings(request.headers.getlist("content-encoding"))
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            body = await _receive(request, settings.max_body, memory)
    except TimeoutError:
        raise RequestError(408, f"the body must come within {settings.body_timeout_s:g} seconds") from None
    if "gzip" in codings:
        body = await in_thread_if_large(settings.max_body, decompress, body, settings.max_body, memory)
    return body


async def _receive(request: Request, limit: int, memory: RequestMemory) -> bytes:
    body, size = bytearray(), int(request.headers.get("content-length", 0))
    if size <= limit:
        async for chunk in request.stream():
            memory.reserve(2 * len(chunk))  # also for the copy below
            body += chunk
            size = len(body)
            if size > limit:
                break
    if size > limit:
        raise RequestError(413, f"the body may have at most {limit} bytes")
    return bytes(body)


def parse_codings(headers: Iterable[str]) -> list[str]:
    """Returns the codings in headers `Content-Encoding`, which are lists (RFC 9110, section 8.4), without `identity`.
    Raises a `RequestError` if they are anything but one gzip."""
    names = [name for header in headers for item in header.split(",") if (name := item.strip().lower())]
    codings = ["gzip" if name == "x-gzip" else name for name in names if name != "identity"]
    if codings not in ([], ["gzip"]):
        raise RequestError(415, f"Content-Encoding: must be gzip or identity; got {', '.join(names)[:80]}",
                           {"Accept-Encoding": "gzip, identity"})
    return codings


def decompress(body: bytes, limit: int, memory: RequestMemory) -> bytes:
    """Returns the content of a gzip body, all its members (RFC 1952). Raises a `RequestError` if the body is not gzip,
    incomplete, or followed by something else, or the content has more than `limit` bytes."""
    reader, content, step, start, members = zlib.decompressobj(_GZIP), bytearray(), b"", 0, 1
    with contextlib.suppress(zlib.error):
        while start < len(body) or (len(step) == _STEP and not reader.eof):
            if reader.eof:
                reader, members = zlib.decompressobj(_GZIP), members + 1
            piece = body[start:start + _PIECE]
            step = reader.decompress(piece, _STEP)
            start += len(piece) - len(reader.unconsumed_tail) - len(reader.unused_data)
            if len(content) + len(step) > limit or members > _MAX_MEMBERS:
                raise RequestError(413, f"the body may have at most {limit} bytes after decompression, and "
                                        f"{_MAX_MEMBERS} gzip members")
            memory.reserve(2 * len(step))  # also for the copy below
            content += step
        if reader.eof:
            return bytes(content)
    raise RequestError(400, "the body must be gzip, as the header Content-Encoding says")
