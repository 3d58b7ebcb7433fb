"""What happens to every HTTP request: its log line, its limits of size and time, and its errors."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_bert.serving import embeddings, logs, rerank
from keras_bert.serving.settings import Settings, host_name
from keras_bert.serving.tensors import RequestError

_CALLS = {embeddings.PATH: "embeddings"} | dict.fromkeys(rerank.PATHS, "rerank")  # `method` in metrics
MAX_PATH = 1000  # characters; Python converts at most 4,300 digits to a number


def respond_error(request: Request, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    content: Any = embeddings.error(status, message) if request.scope["path"] == embeddings.PATH else message
    return JSONResponse({"error": content}, status, headers)


async def respond_request_error(request: Request, error: RequestError) -> Response:
    return respond_error(request, error.status, error.message, error.headers)


class RequestMiddleware:
    """ASGI middleware that logs each request, checks its header `Host`, and limits the size of its body and the time to
    receive and answer it. A response closes the connection if the body of the request has not been read to its end,
    because the rest may never come.

    It is ASGI, and neither a dependency nor `@app.middleware("http")`, because the time includes sending the response,
    and a client that disconnects must cancel the endpoint.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        is_complete = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                if not is_complete:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            else:
                entry.bytes += len(message.get("body", b""))
            await send(message)

        async def receive_and_record() -> Message:
            nonlocal is_complete
            message = await receive()
            is_complete = not message.get("more_body")
            return message

        path, method = scope["path"], scope["method"]
        call = path.rpartition(":")[2] if path.endswith((":predict", ":classify", ":regress")) else (
            _CALLS.get(path) or method)
        with logs.log_request(call, method, path, (scope["client"] or [""])[0]) as entry:
            scope["state"]["entry"] = entry
            try:
                if len(path) > MAX_PATH:
                    raise RequestError(414, f"the path may have at most {MAX_PATH} characters")
                host = headers.get(b"host", b"").decode("latin-1")
                if not self._settings.allows_host(host):
                    raise RequestError(421, f"the header Host is not a name of this server: start it with "
                                            f"--allowed_host={host_name(host)[:200]}, or with a token")
                await self._answer(scope, receive_and_record, send_and_record)
            except RequestError as error:
                await (await respond_request_error(Request(scope), error))(scope, receive, send_and_record)
            except ClientDisconnect:
                entry.status = 499  # nginx's status for a client that has disconnected

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application until it has answered, the client has disconnected, or a timeout is reached: at first
        that for the body and, once the body is complete, that for the answer."""
        settings, size, received = self._settings, 0, asyncio.Event()

        async def receive_limited() -> Message:
            nonlocal size
            content_length = int(dict(scope["headers"]).get(b"content-length", 0))
            message = await receive() if content_length <= settings.max_body else {}
            size += len(message.get("body", b""))
            if max(size, content_length) > settings.max_body:
                raise RequestError(413, f"the body may have at most {settings.max_body} bytes")
            if not message.get("more_body") and not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time() + settings.timeout_s)
                received.set()
            return message

        async def wait_for_disconnect() -> None:
            await received.wait()
            await receive()

        answer = asyncio.ensure_future(self.app(scope, receive_limited, send))
        disconnect = asyncio.create_task(wait_for_disconnect())
        try:
            async with asyncio.timeout(settings.body_timeout_s) as deadline:
                await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            if received.is_set() and not answer.done():
                raise RequestError(504, f"the answer took more than {settings.timeout_s:g} seconds") from None
            if not answer.done():
                raise RequestError(408, f"the body must come within {settings.body_timeout_s:g} seconds") from None
        finally:
            answer.cancel()
            disconnect.cancel()
        if not answer.done():
            raise ClientDisconnect
        answer.result()
