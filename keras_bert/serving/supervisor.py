"""The parent process of the workers. It loads no model, so that it survives when a worker dies."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from prometheus_client.multiprocess import mark_process_dead

from keras_bert.errors import InputError
from keras_bert.serving.versions import check_model

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
_LONGEST_PAUSE = 30  # seconds
_ARENAS = {"MALLOC_ARENA_MAX": "1"}  # of glibc; batches of different sizes permanently fragment multiple arenas


def supervise(settings):
    """Serves until SIGTERM or SIGINT.

    Args:
        settings: `Settings`.

    Raises:
        InputError: there is no model at a path, or a port is in use.
    """
    versions = {name: check_model(path) for name, path in settings.models.items()}
    with _bind(settings.host, settings.port) as listener, _bind(settings.host, settings.grpc_port) as reserved, \
            tempfile.TemporaryDirectory(prefix="keras-bert-metrics-") as folder:
        # The workers bind the gRPC port themselves; this socket reserves it and never listens.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.listen(2048)
        settings = dataclasses.replace(
            settings, port=listener.getsockname()[1], grpc_port=reserved.getsockname()[1],
            threads=max(1, len(os.sched_getaffinity(0)) // settings.workers))
        _announce(settings, versions)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # `sigtimedwait` below waits for them; there are no handlers
        slots = [_Slot(settings, listener, folder) for _ in range(settings.workers)]
        try:
            while True:
                for slot in slots:
                    slot.tend()
                caught = signal.sigtimedwait(_SIGNALS, 0.5)
                if caught and caught.si_signo != signal.SIGCHLD:
                    _say(f"{signal.Signals(caught.si_signo).name} from process {caught.si_pid}: stopping")
                    break
            listener.close()
        finally:
            _stop([slot.process for slot in slots if slot.process], settings.grace_s)


class _Slot:
    """A slot for one worker, which starts a new worker when its worker dies.

    The new worker starts after 0.5 s. If the old one has not run for at least `_LONGEST_PAUSE` seconds, the pause
    doubles each time, up to `_LONGEST_PAUSE`.
    """

    def __init__(self, settings, listener, folder):
        self.process, self._due, self._pause = None, 0.0, 0.5
        self._settings = json.dumps(dataclasses.asdict(settings)) + "\n"
        self._descriptor, self._folder = listener.fileno(), folder

    def tend(self):
        """Checks whether the worker has died; starts a new one when it is due."""
        now = time.monotonic()
        if self.process and self.process.poll() is not None:
            quick = now - self._started < _LONGEST_PAUSE
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) if quick else 0.5
            self._due = now + self._pause
            _say(f"worker {self.process.pid} ended with status {self.process.returncode}; another starts in "
                 f"{self._pause:g} s")
            mark_process_dead(self.process.pid, self._folder)  # removes its gauges; its counters stay
            self.process = None
        if not self.process and now >= self._due:
            self._started = now
            self.process = subprocess.Popen(
                [sys.executable, "-m", "keras_bert.serving.worker", str(self._descriptor)], stdin=subprocess.PIPE,
                pass_fds=[self._descriptor], env=_ARENAS | os.environ | {"PROMETHEUS_MULTIPROC_DIR": self._folder})
            self.process.stdin.write(self._settings.encode())  # not as an argument, where others could read the token
            self.process.stdin.flush()  # not closed: the worker stops when its standard input ends


def _stop(processes, grace):
    """Lets the workers finish what they are doing; kills those that do not end in time."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + grace + 5
    for process in processes:
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _bind(host, port):
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise InputError(f"{host}:{port}: cannot be served: {error.strerror}") from None
    return listener


def _announce(settings, versions):
    _say(f"http://{settings.host}:{settings.port}/v1/models/NAME:predict and gRPC at {settings.host}:"
         f"{settings.grpc_port}; workers: {settings.workers}, threads of each: {settings.threads}")
    for name, path in settings.models.items():
        _say(f"{name} is {path}, version {versions[name]}")
    if not settings.token and settings.host not in ("127.0.0.1", "::1", "localhost"):
        _say("warning: anybody who reaches this address can ask; --token_file=FILE asks for a token")


def _say(line):
    print(f"keras-bert: {line}", file=sys.stderr, flush=True)
