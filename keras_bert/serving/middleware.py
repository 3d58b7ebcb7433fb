"""Pure ASGI middleware around each HTTP request: checks the token, limits the body and the time, and logs the
request."""

import asyncio
import hmac

from keras_bert.serving import logs
from keras_bert.serving.refusal import RequestError
from keras_bert.serving.rest import refusal
from keras_bert.serving.web import FILES

OPEN = ("/healthz", "/readyz", *FILES)  # paths that need no token and are answered even while the server stops


def has_token(header, token):
    """Returns True if the value of an authorization header, bytes, has the token. Takes the same time for all wrong
    values."""
    return not token or hmac.compare_digest(header, f"Bearer {token}".encode())


class Middleware:
    """ASGI middleware that adds the `Entry` of the request to the scope as "entry".

    Args:
        app: the ASGI application.
        service: the application's `Service`.
    """

    def __init__(self, app, service):
        self._app, self._service, self._settings = app, service, service.settings

    async def __call__(self, scope, receive, send):
        async def noted(message):
            if message["type"] == "http.response.start":
                entry.status = message["status"]
            else:
                entry.bytes += len(message.get("body", b""))
            await send(message)

        call = scope["path"].rpartition(":")[2] if scope["path"].endswith((":predict", ":classify", ":regress")) else (
            scope["method"])
        with logs.observed(call, scope["method"], scope["path"], (scope["client"] or [""])[0]) as entry:
            scope["entry"] = entry
            try:
                self._admit(scope)
                await self._run(scope, await self._body(scope, receive), receive, noted)
            except RequestError as error:
                await refusal(error)(scope, receive, noted)
            except _Gone:
                entry.status = 499  # nginx's status for a client that has disconnected
            except Exception as error:  # FastAPI has already sent the response
                logs.tell_bug(error)

    def _admit(self, scope):
        if scope["path"] in OPEN:
            return
        header = dict(scope["headers"]).get(b"authorization", b"")
        if not has_token(header, self._settings.token):
            raise RequestError(
                401, "the header Authorization must be Bearer and the token", {"WWW-Authenticate": "Bearer"})
        if self._service.stopping:
            raise RequestError(503, "the server is stopping", {"Retry-After": "1", "Connection": "close"})

    async def _body(self, scope, receive):
        most = self._settings.max_body
        too_large = RequestError(413, f"the body may have {most} bytes")
        if int(dict(scope["headers"]).get(b"content-length", 0)) > most:
            raise too_large
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise RequestError(408, f"the body must come within {self._settings.body_timeout_s:g} seconds",
                               {"Connection": "close"}) from None
        return bytes(body)

    async def _run(self, scope, body, receive, send):
        """Runs the application until it has answered, the client has disconnected, or the timeout is reached."""
        async def replay():
            return {"type": "http.request", "body": body, "more_body": False}

        answered = asyncio.create_task(self._app(scope, replay, send))
        gone = asyncio.create_task(receive())
        try:
            await asyncio.wait({answered, gone}, timeout=self._settings.timeout_s,
                               return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                return answered.result()
            if gone.done():
                raise _Gone
            raise RequestError(504, f"the answer took more than {self._settings.timeout_s:g} seconds")
        finally:
            answered.cancel()
            gone.cancel()


class _Gone(Exception):
    """The client has closed its connection."""
