"""A worker of `keras-bert serve`: a process with the models and both interfaces, which the supervisor starts."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
from typing import cast

from keras_bert.serving import ALIVE, LATE, READY, STUCK, logs
from keras_bert.startup import quiet_tensorflow

logs.configure(pipe=2)

import uvicorn

from keras_bert.serving.app import create_app
from keras_bert.serving.connection import Protocol
from keras_bert.serving.model import ModelServer
from keras_bert.serving.settings import Settings, format_address

KEEP_ALIVE_S = 75  # longer than load balancers keep an idle connection, commonly 60 s
STUCK_S = 60  # seconds that a batch takes beyond its timeout
SWITCH_S = 0.001  # seconds between switches of threads, so that the event loop soon gets its turn; Python's are 5 ms


def main(descriptor: int, accepts_at_once: int) -> None:
    """Serves on the socket with this file descriptor until the supervisor, which listens on it, stops it or has ended.
    Accepts connections when the models are loaded or, if `accepts_at_once`, before. Standard input is a socket to the
    supervisor: it has the settings, one line of JSON, then heartbeats, and ends with the supervisor. This process
    writes `READY` to it when it is ready, and answers heartbeats by `ALIVE` or, if a batch runs longer than
    `--timeout_s`, by `LATE`, after another minute by `STUCK`."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # each connection needs a file descriptor
    sys.setswitchinterval(SWITCH_S)
    quiet_tensorflow()
    models = ModelServer(Settings(**json.loads(sys.stdin.readline())))
    if models.settings.tensorflow:
        import_tensorflow()
    config = uvicorn.Config(
        create_app(models), http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=cast(int, models.settings.grace_s))  # asyncio takes a float, too
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(models, _Server(config), socket.socket(fileno=descriptor), bool(accepts_at_once)))


def import_tensorflow() -> None:
    """Imports TensorFlow without Keras, in half of the time. TensorFlow imports Keras only to register its classes for
    `tf.saved_model.load`, and does without if it is not installed; afterwards Keras can be imported as usual."""
    sys.modules.setdefault("keras", None)  # type: ignore[arg-type]  # makes its import fail
    import tensorflow  # noqa: F401

    if sys.modules["keras"] is None:
        del sys.modules["keras"]


class _Server(uvicorn.Server):
    capture_signals = contextlib.nullcontext  # type: ignore[assignment]  # `_serve` has handlers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts what has connected, which the system would reset, before it stops as uvicorn does."""
        assert sockets
        accepted = []
        with contextlib.suppress(OSError), sockets[0].dup() as listener:  # none is left, or no file descriptor
            self.servers[0].close()
            for _ in range(2048):
                accepted.append(listener.accept()[0])
        for connection in accepted:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Protocol(self.config, self.server_state, {}), connection)
        await super().shutdown(sockets)


async def _serve(models: ModelServer, http: uvicorn.Server, listener: socket.socket, accepts_at_once: bool) -> None:
    loop, settings = asyncio.get_running_loop(), models.settings
    drain, stop = asyncio.Event(), asyncio.Event()

    def stop_at_once() -> None:
        drain.set()
        stop.set()

    def answer_supervisor() -> None:
        with contextlib.suppress(OSError):
            if os.read(0, 1024):
                late = models.lateness()
                os.write(0, ALIVE if late <= 0 else LATE if late <= STUCK_S else STUCK)
                return
        loop.remove_reader(0)  # it has ended
        stop_at_once()

    loop.add_reader(0, answer_supervisor)
    loading = asyncio.create_task(models.load())
    if not accepts_at_once:
        await loading
    loop.add_signal_handler(signal.SIGTERM, drain.set)
    loop.add_signal_handler(signal.SIGINT, stop_at_once)
    rpc = None
    if settings.grpc_port is not None:
        from keras_bert.serving.grpc_api import start_server  # it imports TensorFlow

        rpc = await start_server(models, format_address(settings.host, settings.grpc_port))
    serving = asyncio.create_task(http.serve([listener]))
    loading.add_done_callback(lambda _: os.write(0, READY))
    await drain.wait()
    models.draining = True
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), settings.drain_s)
    models.stopping = http.should_exit = True
    await asyncio.gather(serving, *([rpc.stop(settings.grace_s)] if rpc else []))
    logs.logger.info({"event": "stopped", "worker": os.getpid()})
    os._exit(0)  # gRPC, uvloop and TensorFlow sometimes deadlock when Python shuts down
