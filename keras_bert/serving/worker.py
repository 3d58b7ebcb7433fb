"""A worker of `keras-bert serve`: a process with the models and both interfaces, which the supervisor starts."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys

from keras_bert import startup

startup.quiet_tensorflow()

from uvicorn import Config

from keras_bert.serving import logs
from keras_bert.serving.connection import Protocol, Quiet
from keras_bert.serving.grpc_api import make_server
from keras_bert.serving.middleware import Middleware
from keras_bert.serving.rest import make_app
from keras_bert.serving.service import Service
from keras_bert.serving.settings import Settings

KEEP_ALIVE_S = 75  # longer than load balancers keep an idle connection, commonly 60 s


def main(descriptor):
    """Serves until the supervisor stops it or has ended.

    Args:
        descriptor: file descriptor of the socket that the supervisor listens on. Standard input has the `Settings`, one
            line of JSON, and ends when the supervisor ends.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # each connection needs a file descriptor
    settings = Settings(**json.loads(sys.stdin.readline()))
    service = Service(settings)
    config = Config(Middleware(make_app(service), service), http=Protocol, ws="none", lifespan="off", log_config=None,
                    access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE_S,
                    timeout_graceful_shutdown=settings.grace_s)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(service, Quiet(config), socket.socket(fileno=int(descriptor))))


async def _serve(service, http, listener):
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(0, lambda: (loop.remove_reader(0), stop.set()))  # standard input has ended
    settings = service.settings
    rpc = make_server(service)
    rpc.add_insecure_port(f"{settings.host}:{settings.grpc_port}")
    await rpc.start()
    serving = asyncio.create_task(http.serve([listener]))
    watching = [asyncio.create_task(model.watch()) for model in service.models.values()]
    await stop.wait()
    service.stopping = http.should_exit = True
    for task in watching:
        task.cancel()
    await asyncio.gather(serving, rpc.stop(settings.grace_s))
    logs.tell(event="stopped", worker=os.getpid())
    os._exit(0)  # gRPC, uvloop and TensorFlow sometimes deadlock when Python shuts down


if __name__ == "__main__":
    main(*sys.argv[1:])
