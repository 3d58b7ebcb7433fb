"""A uvicorn server with a timeout for clients that send headers slowly or not at all, JSON errors, and no signal
handling."""

import contextlib
import json

from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 10  # seconds to receive a request's headers; for the first request, counted from connecting


class Protocol(HttpToolsProtocol):
    """An HTTP connection with a timeout for headers. uvicorn limits only the time between a response and the next
    request."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc):
        self._timer.cancel()
        super().connection_lost(exc)

    def on_message_begin(self):
        super().on_message_begin()
        if self._timer.cancelled():
            self._wait_for_headers()

    def on_headers_complete(self):
        self._timer.cancel()
        super().on_headers_complete()

    def _wait_for_headers(self):
        self._timer = self.loop.call_later(HEADERS_S, self._look_again)

    def _look_again(self):
        """Closes the connection after another 0.2 s, unless headers that have already arrived are read by then: this
        process itself may have been delayed."""
        self._timer = self.loop.call_later(0.2, self.transport.close)

    def send_400_response(self, msg):
        body = json.dumps({"error": "this is not HTTP"}).encode()
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
                             b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()


class Quiet(Server):
    """A uvicorn server without signal handlers; the worker stops it by setting `should_exit`."""

    def capture_signals(self):
        return contextlib.nullcontext()
