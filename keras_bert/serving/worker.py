"""A worker of `keras-bert serve`: a process with the models and both interfaces, which the supervisor starts."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import types

from keras_bert import startup
from keras_bert.serving import logs

logs.configure()
startup.quiet_tensorflow()

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keras_bert.serving.app import create_app
from keras_bert.serving.grpc_api import create_server
from keras_bert.serving.model import ModelServer
from keras_bert.serving.settings import format_address

HEADERS_S = 10  # seconds to receive a request's headers; for the first request, counted from connecting
KEEP_ALIVE_S = 75  # longer than load balancers keep an idle connection, commonly 60 s


class Protocol(HttpToolsProtocol):
    """An HTTP connection with a timeout for headers and JSON errors. uvicorn limits only the time between a response
    and the next request, so that clients that never finish their headers would stay connected."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc):
        self._timer.cancel()
        super().connection_lost(exc)

    def on_message_begin(self):
        super().on_message_begin()
        if self._timer.cancelled():
            self._start_timer()

    def on_headers_complete(self):
        self._timer.cancel()
        super().on_headers_complete()

    def _start_timer(self):
        self._timer = self.loop.call_later(HEADERS_S, self._close_soon)

    def _close_soon(self):
        """Closes the connection after another 0.2 s, unless headers that have already arrived are read by then: this
        process itself may have been delayed."""
        self._timer = self.loop.call_later(0.2, self.transport.close)

    def send_400_response(self, msg):
        body = json.dumps({"error": "this is not HTTP"}).encode()
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
                             b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()


class HttpServer(uvicorn.Server):
    """A uvicorn server without signal handlers; `_serve` stops it together with gRPC."""

    def capture_signals(self):
        return contextlib.nullcontext()


def main(descriptor):
    """Serves until the supervisor stops it or has ended.

    Args:
        descriptor: file descriptor of the socket that the supervisor listens on. Standard input has the settings, one
            line of JSON, and ends when the supervisor ends.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # each connection needs a file descriptor
    models = ModelServer(types.SimpleNamespace(**json.loads(sys.stdin.readline())))
    config = uvicorn.Config(
        create_app(models), http=Protocol, ws="none", lifespan="on", log_config=None, access_log=False,
        server_header=False, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=models.settings.grace_s)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(models, HttpServer(config), socket.socket(fileno=int(descriptor))))


async def _serve(models, http, listener):
    loop, stop, settings = asyncio.get_running_loop(), asyncio.Event(), models.settings
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(0, lambda: (loop.remove_reader(0), stop.set()))  # standard input has ended
    rpc = create_server(models)
    rpc.add_insecure_port(format_address(settings.host, settings.grpc_port))
    await rpc.start()
    serving = asyncio.create_task(http.serve([listener]))
    await stop.wait()
    models.stopping = http.should_exit = True
    await asyncio.gather(serving, rpc.stop(settings.grace_s))
    logs.logger.info({"event": "stopped", "worker": os.getpid()})
    os._exit(0)  # gRPC, uvloop and TensorFlow sometimes deadlock when Python shuts down
