"""A worker of `keras-bert serve`: a process with the models and both interfaces, which the supervisor starts."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any, cast

from keras_bert import startup
from keras_bert.serving import logs

logs.configure()
startup.quiet_tensorflow()
with startup.without_keras():
    import tensorflow  # noqa: F401  before the modules below, which import it with Keras

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keras_bert.serving.app import create_app
from keras_bert.serving.grpc_api import create_server
from keras_bert.serving.model import ModelServer
from keras_bert.serving.settings import Settings, format_address

HEADERS_S = 10  # seconds to receive a request's headers; for the first request, counted from connecting
KEEP_ALIVE_S = 75  # longer than load balancers keep an idle connection, commonly 60 s
LINGER_S = 5  # seconds to receive the rest of a body after a response that closes the connection
SWITCH_S = 0.001  # seconds between switches of threads, so that the event loop soon gets its turn; Python's are 5 ms


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


class HttpServer(uvicorn.Server):
    """A uvicorn server without signal handlers; `_serve` stops it together with gRPC."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(descriptor: str) -> None:
    """Serves on the socket with this file descriptor until the supervisor, which listens on it, stops it or has ended.
    Standard input has the settings, one line of JSON, and ends when the supervisor ends."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # each connection needs a file descriptor
    sys.setswitchinterval(SWITCH_S)
    models = ModelServer(Settings(**json.loads(sys.stdin.readline())))
    config = uvicorn.Config(
        create_app(models), http=Protocol, ws="none", lifespan="on", log_config=None, access_log=False,
        server_header=False, timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=cast(int, models.settings.grace_s))  # asyncio takes a float, too
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(models, HttpServer(config), socket.socket(fileno=int(descriptor))))


async def _serve(models: ModelServer, http: HttpServer, listener: socket.socket) -> None:
    loop, stop, settings = asyncio.get_running_loop(), asyncio.Event(), models.settings
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(0, stop.set)  # standard input has ended
    rpc = create_server(models)
    rpc.add_insecure_port(format_address(settings.host, settings.grpc_port))
    await rpc.start()
    serving = asyncio.create_task(http.serve([listener]))
    await stop.wait()
    loop.remove_reader(0)
    models.stopping = http.should_exit = True
    await asyncio.gather(serving, rpc.stop(settings.grace_s))
    logs.logger.info({"event": "stopped", "worker": os.getpid()})
    os._exit(0)  # gRPC, uvloop and TensorFlow sometimes deadlock when Python shuts down
