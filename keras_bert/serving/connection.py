"""uvicorn, with what it lacks: a limit for clients that send their headers slowly or not at all, errors in JSON, and
signals that somebody else handles."""

import contextlib
import json

from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 10  # seconds for the headers of a request, and before the first one of a connection


class Protocol(HttpToolsProtocol):
    """A connection. uvicorn limits only the time between a response and the next request."""

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
        """Reads what has come meanwhile, before it closes: it may be this process that was held up."""
        self._timer = self.loop.call_later(0.2, self.transport.close)

    def send_400_response(self, msg):
        body = json.dumps({"error": "this is not HTTP"}).encode()
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
                             b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()


class Quiet(Server):
    """A uvicorn server that leaves signals alone: the worker stops it by `should_exit`."""

    def capture_signals(self):
        return contextlib.nullcontext()
