"""What happens to every HTTP request: its log line, the limits of its time and memory, its body and its errors."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_bert.inference.served_model import RequestError
from keras_bert.serving import embeddings, logs, rerank, tensors
from keras_bert.serving.connection import Protocol
from keras_bert.serving.memory import RequestMemory
from keras_bert.serving.model import ModelServer
from keras_bert.serving.settings import host_name

_CALLS = {embeddings.PATH: "embeddings"} | dict.fromkeys(rerank.PATHS, "rerank")  # `method` in metrics
MAX_PATH = 1000  # characters; Python converts at most 4,300 digits to a number
_PIECE = 2**16  # bytes of a response that are sent at a time, or of a body that are decompressed
_STEP = 2**20  # bytes of content, at most, that come from it before they are counted
_MAX_MEMBERS = 1000  # of a gzip body; each costs time, and the smallest has 20 bytes
_CUT = 499  # nginx's status for a client that has disconnected before it has the whole response
_GZIP = 31  # `wbits` of zlib


def check_access(request: Request) -> None:
    """Rejects requests without the token."""
    authorization = request.headers.get("authorization", "").encode("latin-1")
    request.app.server.check_access(authorization, "header Authorization")


async def read_body(request: Request) -> bytes:
    """Returns the content of the body. Raises a `RequestError` if a limit is exceeded, or a coding is wrong."""
    settings, memory = request.app.server.settings, request.state.memory
    codings = parse_codings(request.headers.getlist("content-encoding"))
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            body = await _receive(request, settings.max_body, memory)
    except TimeoutError:
        raise RequestError(408, f"the body must come within {settings.body_timeout_s:g} seconds") from None
    if "gzip" in codings:
        body = await tensors.in_thread_if_large(settings.max_body, decompress, body, settings.max_body, memory)
    return body


async def _receive(request: Request, limit: int, memory: RequestMemory) -> bytes:
    body, size = bytearray(), int(request.headers.get("content-length", 0))
    if size <= limit:
        async for chunk in request.stream():
            memory.reserve(2 * len(chunk))  # also for the copy below
            body += chunk
            if (size := len(body)) > limit:
                break
    if size > limit:
        raise RequestError(413, f"the body may have at most {limit} bytes (--max_body_mb)")
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
                raise RequestError(413, f"the body may have at most {limit} bytes (--max_body_mb) after "
                                        f"decompression, and {_MAX_MEMBERS} gzip members")
            memory.reserve(2 * len(step))  # also for the copy below
            content += step
        if reader.eof:
            return bytes(content)
    raise RequestError(400, "the body must be gzip, as the header Content-Encoding says")


@contextlib.asynccontextmanager
async def answering(request: Request, seconds: float) -> AsyncIterator[None]:
    """Cancels its block after so many seconds, with a `RequestError`, or when the client disconnects, with a
    `ClientDisconnect`. The body of the request must have been read."""
    connection: Protocol = request.state.connection
    if connection.is_lost:
        raise ClientDisconnect
    try:
        async with asyncio.timeout(seconds) as connection.deadline:
            yield
    except TimeoutError:
        if connection.is_lost:
            raise ClientDisconnect from None
        raise RequestError(504, f"the answer took more than {seconds:g} seconds") from None
    finally:
        connection.deadline = None


class RequestMiddleware:
    """ASGI application around the router: logs each request, checks its path and its header `Host`, gives it memory of
    the budget until its response has been sent, and answers its errors. Endpoints find the server in `request.app`, and
    the log entry, the memory and the connection in `request.state`. A response closes the connection while the server
    drains, and if the request's body has not been read to its end, because the rest may never come. Responses are sent
    in pieces, to notice a client that does not read them. HEAD is GET without the body (RFC 9110, section 9.3.2).
    Starlette's own middleware is not used, because each layer passes on all messages once more."""

    def __init__(self, router: ASGIApp, server: ModelServer) -> None:
        self.server, self._router = server, router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, path, method = dict(scope["headers"]), scope["path"], scope["method"]
        is_complete = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
        connection: Protocol = scope["state"]["connection"]
        has_started = False

        async def send_and_record(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started, entry.status = True, message["status"]
                if not is_complete or self.server.draining:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                return await send(message)
            body = message.get("body", b"") if method != "HEAD" else b""
            for start in range(0, max(1, len(body)), _PIECE):
                piece, more_body = body[start:start + _PIECE], start + _PIECE < len(body) or message.get("more_body")
                await send({**message, "body": piece, "more_body": more_body})
                await connection.flow.drain()
                entry.bytes += 0 if connection.is_cut else len(piece)

        async def receive_and_record() -> Message:
            nonlocal is_complete
            message = await receive()
            is_complete = not message.get("more_body")
            return message

        call = path.rpartition(":")[2] if path.endswith((":predict", ":classify", ":regress")) else (
            _CALLS.get(path) or method)
        with logs.log_request(call, method, path, (scope["client"] or [""])[0]) as entry, \
                self.server.memory.request() as memory:
            scope = {**scope, "app": self, "method": "GET" if method == "HEAD" else method}
            scope["state"] |= {"entry": entry, "memory": memory}
            try:
                self._check_path_and_host(path, headers)
                await self._router(scope, receive_and_record, send_and_record)
            except ClientDisconnect:
                entry.status = _CUT
            except (Exception, asyncio.CancelledError) as error:
                if has_started:
                    entry.status = _CUT
                    raise
                await respond_exception(Request(scope), error)(scope, receive, send_and_record)
            if connection.is_cut:
                entry.status = _CUT

    def _check_path_and_host(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if len(path) > MAX_PATH:
            raise RequestError(414, f"the path may have at most {MAX_PATH} characters")
        host = headers.get(b"host", b"").decode("latin-1")
        if not self.server.settings.allows_host(host):
            raise RequestError(421, f"the header Host is not a name of this server: start it with "
                                    f"--allowed_host={host_name(host)[:200]}, or with a token")


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def respond_exception(request: Request, error: BaseException) -> Response:
    """Returns the response to a request that an exception has ended."""
    match error:
        case RequestError():
            return _respond(request, error.status, error.message, error.headers)
        case HTTPException():
            return _respond_http_exception(request, error)
        case asyncio.CancelledError():
            return _respond(request, 503, "the server has stopped before the answer was complete: --grace_s is over")
        case MemoryError():
            return _respond(request, 503, "the server has no memory for this request now", {"Retry-After": "1"})
    logs.logger.error("a request failed", exc_info=error)
    return _respond(request, 500, "the server failed; its log says where")


def _respond_http_exception(request: Request, error: HTTPException) -> Response:
    """Answers 404 and 405 for paths without an endpoint, to clients with the token."""
    try:
        check_access(request)
    except RequestError as denied:
        return respond_exception(request, denied)
    if error.status_code == 405 and error.headers:
        allowed = set(error.headers["Allow"].split(", "))
        methods = sorted(allowed | {"HEAD"} if "GET" in allowed else allowed)
        return _respond(request, 405, f"this path takes {' and '.join(methods)}", {"Allow": ", ".join(methods)})
    message = {404: "there is nothing at this path"}.get(error.status_code, str(error.detail))
    return _respond(request, error.status_code, message, error.headers)


def _respond(request: Request, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    content: Any = embeddings.error(status, message) if request.scope["path"] == embeddings.PATH else message
    return JSONResponse({"error": content}, status, headers)
