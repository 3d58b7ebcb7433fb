"""HTTP connections of the server: limits of time, and errors, that uvicorn lacks."""

import asyncio
import json
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 10  # seconds to receive a request's headers; for the first request, counted from connecting
LINGER_S = 5  # seconds to receive the rest of a body after a response that closes the connection


class LingeringTransport:
    """A transport that, if it is closed while the client is sending, sends its end, and receives the rest for
    `LINGER_S`. If it closed at once, the system would reset the connection, and the client might never read the
    response (RFC 9112, section 9.6). `is_receiving` is True while the body of a request is incomplete."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._is_closing, self.is_receiving = transport, loop, False, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        if not self.is_receiving:
            self._transport.close()
        elif not self.is_closing():
            self._is_closing = True
            self._transport.write_eof()
            self._transport.resume_reading()
            self._loop.call_later(LINGER_S, self._transport.close)


class Protocol(HttpToolsProtocol):
    """An HTTP connection with a timeout for headers and JSON errors. uvicorn limits only the time between a response
    and the next request, so that clients that never finish their headers would stay connected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._lingering = LingeringTransport(transport, self.loop)
        super().connection_made(cast(Any, self._lingering))
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer.cancelled():
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._timer.cancel()
        self._lingering.is_receiving = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._lingering.is_receiving = False
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEADERS_S, self._close_soon)

    def _close_soon(self) -> None:
        """Closes the connection after another 0.2 s, unless headers that have already arrived are read by then: this
        process itself may have been delayed."""
        self._timer = self.loop.call_later(0.2, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        body = json.dumps({"error": "this is not HTTP"}).encode()
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
                             b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()
