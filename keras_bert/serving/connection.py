"""HTTP connections of the server: the limits of time and size, and the errors, that uvicorn lacks."""

import asyncio
import collections
import fcntl
import json
import re
import resource
import socket
import sys
import termios
import time
from typing import Any, ClassVar, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from keras_bert.serving import logs

MAX_HEADERS = 2**15  # bytes of a request besides its body: the request line and the headers
HEADERS_S = 10  # seconds to receive a request's headers; for the first request, counted from connecting
SEND_S, SEND_BYTES = 10, 64_000  # seconds in which a client must take so many bytes of a response
LINGER_S = 5  # the same while the server stops; also, to receive the rest of a body when closing
_UNSENT = 2**16  # bytes of a response that the system buffers before it sends them
_BUFFERED = 2**17  # bytes, Linux's default
_AHEAD = 2**12  # bytes of later requests after which reading pauses
_PIECE = 2**10  # bytes that are parsed at a time, so that headers are limited in large packets, too

# RFC 9112, section 3.2: a name, or an IP address, which may have a port.
_HOST = re.compile(rb"([\w.~!$&'()*+,;=%-]*|\[[0-9a-fA-F:.]+\])(:\d*)?")


class LimitedTransport:
    """A transport that, if it is closed while a request is incomplete (`is_receiving`), sends its end and receives the
    rest for `LINGER_S`. If it closed at once, the system would reset the connection, and the client might never read
    the response (RFC 9112, section 9.6). It aborts the connection of a client that takes a response too slowly."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._is_closing, self.is_receiving = transport, loop, False, False
        self._socket, self._written = transport.get_extra_info("socket"), 0
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self.send_s, self.timer = SEND_S, cast(asyncio.TimerHandle | None, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        if self.is_receiving:
            self.send_s = LINGER_S
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()
        self.limit_sending()

    def limit_sending(self) -> None:
        """Aborts the connection when the client has taken less than `SEND_BYTES` per `send_s` on average, until all has
        been sent: a client's system may take megabytes at once, then nothing until the client has read most of them.
        What a system takes at the start, up to `_BUFFERED`, does not count: its program may not have read any."""
        if self.timer:
            self.timer.cancel()
        self._credit, self._seen = float(SEND_BYTES), self._taken()
        self.timer = self._loop.call_later(1, self._check_sending, _BUFFERED)

    def _check_sending(self, uncounted: int = 0) -> None:
        self.timer, taken = None, self._taken()
        self._credit += max(0, taken - self._seen - uncounted) - SEND_BYTES / self.send_s
        self._seen = taken
        if self._credit <= 0:
            self._transport.abort()
        elif self._is_closing or self._transport.get_write_buffer_size():
            self.timer = self._loop.call_later(1, self._check_sending)

    def _taken(self) -> int:
        """Returns the bytes that the client's system has acknowledged."""
        queued = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4))
        return self._written - self._transport.get_write_buffer_size() - int.from_bytes(queued, sys.byteorder)


class Protocol(HttpToolsProtocol):
    """An HTTP connection with limits for the size and time of headers, for the time of sending, and for the number of
    connections; JSON errors; and the rules of RFC 9112 for the header Host. It ignores trailers, and requests to
    upgrade; while requests wait for the response to an earlier one, it reads little more. Each request finds it in its
    state, as `connection`. The `deadline` of the request that is being answered, if there is one, ends when the
    connection `is_lost`; it `is_cut` if a response has not been sent to its end."""

    _refused_at: ClassVar[float] = -1.0  # when the process last logged that it has too many connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.deadline: asyncio.Timeout | None = None
        self.is_lost = self.is_cut = False
        self.app_state = {"connection": self}
        self._unanswered: collections.deque[Any] = collections.deque()  # uvicorn's cycles; the first runs
        self._limited = LimitedTransport(transport, self.loop)
        self._header_bytes, self._problem = 0, (400, "this is not HTTP")
        self._unparsed = b""  # what follows a request that waits for the response before
        super().connection_made(cast(Any, self._limited))
        resume = self.flow.resume_reading
        self.flow.resume_reading = lambda: None if self._is_full() else resume()  # type: ignore[method-assign]
        self._start_timer()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4  # models and refusals need descriptors, too
        if len(self.connections) > limit:
            self._limited.abort()
            if time.monotonic() - Protocol._refused_at >= 1:
                Protocol._refused_at = time.monotonic()
                logs.logger.error({"event": "too many connections", "limit": limit})

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.is_cut = exc is not None or bool(self._unanswered or self.transport.get_write_buffer_size())
        self._timer.cancel()
        super().connection_lost(exc)
        if self._limited.timer:
            self._limited.timer.cancel()
        for cycle in self._unanswered:  # uvicorn tells it only the last
            cycle.disconnected = True
            cycle.message_event.set()
        if self.deadline and not self.deadline.expired():
            self.deadline.reschedule(self.loop.time())

    # Receiving

    def data_received(self, data: bytes) -> None:
        data, self._unparsed = self._unparsed + data, b""
        for start in range(0, len(data), _PIECE):
            if self.transport.is_closing():
                return
            if self.pipeline:
                self._unparsed = data[start:]
                if self._is_full():
                    self.flow.pause_reading()
                return
            self._header_bytes += len(piece := data[start:start + _PIECE])
            self._parse(piece)
            if self._header_bytes > MAX_HEADERS and not self.transport.is_closing():
                self._problem = _TOO_LARGE
                self.send_400_response("")

    def _is_full(self) -> bool:
        return len(self._unparsed) > _AHEAD  # until then, it reads, to notice that the client has gone

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser has skipped the body. An upgrade may be ignored (RFC 9110, section 7.8): the request is parsed
            # again without it.
            lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode()),
                     *(b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"), b"", b""]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self._parse(b"\r\n".join(lines) + data[upgrade.args[0]:])
        except httptools.HttpParserError:
            self.send_400_response("")

    # The parser calls these. `_header_bytes` is the number of bytes received since the last callback except
    # `on_message_begin`: headers, or trailers or extensions of chunks.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        if self._timer.cancelled():
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._limited.is_receiving:  # otherwise, it is a trailer
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade() or self.parser.get_method() == b"CONNECT":
            self._header_bytes = 0
            self._timer.cancel()
            self._limited.is_receiving = True
            self._check_headers()
            super().on_headers_complete()
            self._unanswered.append(self.cycle)

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if not self.transport.is_closing():
            self.data_received(b"")
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._header_bytes = 0
            self._limited.is_receiving = False
            super().on_message_complete()

    def _check_headers(self) -> None:
        """Checks the size of the headers and the header Host. The host of an absolute URL replaces it, as RFC 9112,
        section 3.2.2, requires."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEADERS:
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

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEADERS_S, self._close_soon)

    def _close_soon(self) -> None:
        """Closes the connection after another 0.2 s, unless headers that have already arrived are read by then: this
        process itself may have been delayed."""
        self._timer = self.loop.call_later(0.2, self.transport.close)

    # Sending

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._limited.timer:
            self._limited.limit_sending()

    def shutdown(self) -> None:
        if self.cycle is None:  # the first request may be on its way
            self._timer.cancel()
            self._timer = self.loop.call_later(0.8, self._close_soon)
        else:
            super().shutdown()
        self._limited.send_s = LINGER_S
        if self._limited.timer:
            self._limited.limit_sending()

    def send_400_response(self, msg: str) -> None:
        status, message = self._problem
        body = json.dumps({"error": message}).encode()
        with logs.log_request("", "", "", (self.client or ("",))[0]) as entry:
            entry.status, entry.bytes = status, len(body)
        self._limited.is_receiving = True  # the client may still be sending
        self.transport.write(STATUS_LINE[status] + f"content-type: application/json\r\nconnection: close\r\n"
                             f"content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()


_TOO_LARGE = 431, f"the request line and the headers may have at most {MAX_HEADERS} bytes"
