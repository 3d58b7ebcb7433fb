"""HTTP connections of the server: the limits of time and size, and the errors, that uvicorn lacks."""

import asyncio
import collections
import http
import json
import re
import resource
import select
import time
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keras_bert.serving.logs import logger

MAX_HEADERS = 2**15  # bytes of a request besides its body: the request line and the headers
HEADERS_S = 10  # seconds to receive a request's headers; for the first request, counted from connecting
SEND_S = 10  # seconds for a client to take a piece of a response
LINGER_S = 5  # seconds to receive the rest of a body, and for the client to take the rest of a response, when closing
PROBE_S = 0.2  # seconds between interim responses to a client that has sent its end

# RFC 9112, section 3.2: a name, or an IP address, which may have a port.
_HOST = re.compile(rb"([\w.~!$&'()*+,;=%-]*|\[[0-9a-fA-F:.]+\])(:\d*)?")


class LingeringTransport:
    """A transport that, if it is closed while a request is incomplete (`is_receiving`), sends its end and receives the
    rest for `LINGER_S`. If it closed at once, the system would reset the connection, and the client might never read
    the response (RFC 9112, section 9.6). A closed connection whose client does not take the rest of a response is
    aborted after the same time."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._is_closing, self.is_receiving = transport, loop, False, False
        self.timer: asyncio.TimerHandle | None = None  # aborts a closed connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        if self.is_receiving:
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()
        self.timer = self._loop.call_later(LINGER_S, self._transport.abort)


class Protocol(HttpToolsProtocol):
    """An HTTP connection with limits for the size and time of headers, for the time of sending, and for the number of
    connections; JSON errors; the rules of RFC 9112 for the header Host; and answers to half-closed connections. Each
    request finds it in its state, as `connection`. The `deadline` of the request that is being answered, if there is
    one, ends when the connection `is_lost`."""

    _refused_at: ClassVar[float] = -1.0  # when the process last logged that it has too many connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.deadline: asyncio.Timeout | None = None
        self.is_lost = False
        self.app_state = {"connection": self}
        self._unanswered: collections.deque[Any] = collections.deque()  # uvicorn's cycles; the first runs
        self._lingering = LingeringTransport(transport, self.loop)
        self._header_bytes, self._problem = 0, (400, "this is not HTTP")
        self._send_s = SEND_S
        self._send_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        super().connection_made(cast(Any, self._lingering))
        self._start_timer()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4  # models and refusals need descriptors, too
        if len(self.connections) > limit:
            self._lingering.abort()
            if time.monotonic() - Protocol._refused_at >= 1:
                Protocol._refused_at = time.monotonic()
                logger.error({"event": "too many connections", "limit": limit})

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._timer.cancel()
        self._stop_send_timer()
        super().connection_lost(exc)
        if self._lingering.timer:
            self._lingering.timer.cancel()
        for cycle in self._unanswered:  # uvicorn tells it only the last
            cycle.disconnected = True
            cycle.message_event.set()
        if self.deadline and not self.deadline.expired():
            self.deadline.reschedule(self.loop.time())

    # Receiving

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > MAX_HEADERS and not self.transport.is_closing():
            self._problem = _TOO_LARGE
            self.send_400_response("")
        # uvicorn no longer waits for the next request, but line ends before it do not begin one.
        is_idle = self.cycle is not None and self.cycle.response_complete and not self._lingering.is_receiving
        if is_idle and self._timer.cancelled() and not self.timeout_keep_alive_task and not self.transport.is_closing():
            self._start_timer()

    # The parser calls these. `_header_bytes` is the number of bytes received since the last callback except
    # `on_message_begin`: headers, or trailers or extensions of chunks.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer.cancelled():
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        self._timer.cancel()
        self._lingering.is_receiving = True
        self._check_headers()
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        if len(self._unanswered) > 1:
            self._watch()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._header_bytes = 0
        self._lingering.is_receiving = False
        super().on_message_complete()

    def _check_headers(self) -> None:
        """Checks the size of the headers and the header Host. The host of an absolute URL replaces it, as RFC 9112,
        section 3.2.2, requires."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADERS:
            self._problem = _TOO_LARGE
            raise ValueError
        hosts = [value for name, value in self.headers if name == b"host"]
        if b"://" in self.url.partition(b"?")[0] and not self.url.startswith(b"/"):
            authority = self.url.split(b"/", 3)[2].partition(b"?")[0]
            self.headers[:] = [(name, authority if name == b"host" else value) for name, value in self.headers]
        else:
            authority = b"".join(hosts)
        is_missing = not hosts and self.parser.get_http_version() != "1.0"
        if is_missing or len(hosts) > 1 or not _HOST.fullmatch(authority):
            self._problem = 400, "the request must have one header Host, with a name or an address"
            raise ValueError

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's result, which uvicorn's has not
        """Keeps a connection open whose client has sent its end after a request (half-closed): it gets its answer."""
        if self._lingering.is_receiving:
            return False
        self.shutdown()  # closes, now or after the answer
        self._watch()
        return not self.transport.is_closing()

    def _watch(self) -> None:
        """Finds out whether a client has gone that has sent its end, or another request behind the running one: until
        that is answered, uvicorn reads nothing more, not even an end. Sends interim responses (RFC 9110, section 15.2):
        the system of a client that has gone responds by a reset, that of a half-closed connection does not."""
        if self._watch_timer:
            self._watch_timer.cancel()
        if self.transport.is_closing() or not self._unanswered:
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), select.POLLRDHUP)
        if poll.poll(0) and self.deadline and self.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._watch_timer = self.loop.call_later(PROBE_S, self._watch)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEADERS_S, self._close_soon)

    def _close_soon(self) -> None:
        """Closes the connection after another 0.2 s, unless headers that have already arrived are read by then: this
        process itself may have been delayed."""
        self._timer = self.loop.call_later(0.2, self.transport.close)

    # Sending. The transport calls `pause_writing` when the client has not taken a piece, and `resume_writing` when it
    # has taken most of it.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_send_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()

    def shutdown(self) -> None:
        super().shutdown()
        self._send_s = LINGER_S
        if self._send_timer:
            self._start_send_timer()

    def _start_send_timer(self) -> None:
        self._stop_send_timer()
        self._send_timer = self.loop.call_later(self._send_s, self._lingering.abort)

    def _stop_send_timer(self) -> None:
        if self._send_timer:
            self._send_timer.cancel()
            self._send_timer = None

    def send_400_response(self, msg: str) -> None:
        status, message = self._problem
        body = json.dumps({"error": message}).encode()
        self._lingering.is_receiving = True  # the client may still be sending
        self.transport.write(f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                             f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()


_TOO_LARGE = 431, f"the request line and the headers may have at most {MAX_HEADERS} bytes"
