"""What happens to every HTTP request: its log line, the limits of its time and memory, and its errors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_bert.serving import embeddings, logs, rerank
from keras_bert.serving.memory import MemoryBudget
from keras_bert.serving.settings import Settings, host_name
from keras_bert.serving.tensors import RequestError

_CALLS = {embeddings.PATH: "embeddings"} | dict.fromkeys(rerank.PATHS, "rerank")  # `method` in metrics
MAX_PATH = 1000  # characters; Python converts at most 4,300 digits to a number
_PIECE = 2**16  # bytes of a response that are sent at a time


def respond_error(request: Request, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    content: Any = embeddings.error(status, message) if request.scope["path"] == embeddings.PATH else message
    return JSONResponse({"error": content}, status, headers)


async def respond_request_error(request: Request, error: RequestError) -> Response:
    return respond_error(request, error.status, error.message, error.headers)


@contextlib.asynccontextmanager
async def answering(request: Request, seconds: float) -> AsyncIterator[None]:
    """Context manager that cancels its block after so many seconds, with a `RequestError`, or when the client
    disconnects, with a `ClientDisconnect`. The body of the request must have been read."""
    has_gone = False

    async def wait_for_disconnect() -> None:
        nonlocal has_gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_gone = True
        if not deadline.expired():
            deadline.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(seconds) as deadline:
            disconnect = asyncio.create_task(wait_for_disconnect())
            try:
                yield
            finally:
                disconnect.cancel()
    except TimeoutError:
        if has_gone:
            raise ClientDisconnect from None
        raise RequestError(504, f"the answer took more than {seconds:g} seconds") from None


class RequestMiddleware:
    """ASGI middleware that logs each request, checks its path and its header `Host`, and gives it memory of the budget
    until its response has been sent. A response closes the connection if the body of the request has not been read to
    its end, because the rest may never come. Responses are sent in pieces, so that a client which does not read them is
    noticed. HEAD is GET without the body (RFC 9110, section 9.3.2).

    It is ASGI, and neither a dependency nor `@app.middleware("http")`, because the time includes sending the response.
    """

    def __init__(self, app: ASGIApp, settings: Settings, memory: MemoryBudget) -> None:
        self.app, self._settings, self._memory = app, settings, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers, path, method = dict(scope["headers"]), scope["path"], scope["method"]
        is_complete = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                if not is_complete:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                return await send(message)
            body = message.get("body", b"") if method != "HEAD" else b""
            entry.bytes += len(body)
            for start in range(0, max(1, len(body)), _PIECE):
                more_body = start + _PIECE < len(body) or message.get("more_body", False)
                await send({**message, "body": body[start:start + _PIECE], "more_body": more_body})

        async def receive_and_record() -> Message:
            nonlocal is_complete
            message = await receive()
            is_complete = not message.get("more_body")
            return message

        call = path.rpartition(":")[2] if path.endswith((":predict", ":classify", ":regress")) else (
            _CALLS.get(path) or method)
        with logs.log_request(call, method, path, (scope["client"] or [""])[0]) as entry, \
                self._memory.request() as memory:
            scope = {**scope, "method": "GET" if method == "HEAD" else method}
            scope["state"] |= {"entry": entry, "memory": memory}
            try:
                if len(path) > MAX_PATH:
                    raise RequestError(414, f"the path may have at most {MAX_PATH} characters")
                host = headers.get(b"host", b"").decode("latin-1")
                if not self._settings.allows_host(host):
                    raise RequestError(421, f"the header Host is not a name of this server: start it with "
                                            f"--allowed_host={host_name(host)[:200]}, or with a token")
                await self.app(scope, receive_and_record, send_and_record)
            except RequestError as error:
                await (await respond_request_error(Request(scope), error))(scope, receive, send_and_record)
            except ClientDisconnect:
                entry.status = 499  # nginx's status for a client that has disconnected
