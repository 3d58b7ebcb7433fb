"""The parent process of the workers. It loads no model, so that it survives when a worker dies."""

import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from typing import IO

from prometheus_client.multiprocess import mark_process_dead

from keras_bert.errors import InputError
from keras_bert.files.atomic import is_empty
from keras_bert.processes import available_cores
from keras_bert.serving import logs, metrics
from keras_bert.serving.settings import GRPC_PORT, Settings, find_first_version, format_address, needs_tensorflow
from keras_bert.terminal import print_error

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
_MAX_PAUSE = 30  # seconds
# The program of a worker. Its first argument is the folder that contains the package, for a checkout that is not
# installed; `-P` leaves out the current folder, where a file could have the name of a module. Until the worker accepts
# connections, signals end it at once.
_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
sys.path[:0] = {sys.argv[1]} - set(sys.path)
from keras_bert.serving.worker import main
main(*map(int, sys.argv[2:]))"""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_STDERR_LOCK = threading.Lock()


def supervise(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT; replaces ports of 0, `workers`, `threads` and `tensorflow`. Workers accept
    connections once they have loaded their models. If none is ready, one accepts early, to report that models are
    loading; the others start after it. Raises an `InputError` if there is neither a model nor an empty folder at a
    path, a port is in use, or a setting does not fit the models."""
    versions = {name: None if os.path.isdir(path) and is_empty(path) else find_first_version(path)
                for name, path in settings.models.items()}
    settings.check_litert(versions)
    tensorflow = needs_tensorflow(settings.models)
    without_grpc = _why_not_grpc(tensorflow)
    if without_grpc and settings.grpc_port is not None:
        raise InputError(f"--grpc_port={settings.grpc_port}: must be left out while gRPC is off: {without_grpc}")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_bind(settings.host, settings.port, "port"))
        grpc_port = None
        if not without_grpc:
            wanted = GRPC_PORT if settings.grpc_port is None else settings.grpc_port
            reserved = stack.enter_context(_bind(settings.host, wanted, "grpc_port"))
            # The workers bind the gRPC port themselves; this socket reserves it and never listens.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            grpc_port = reserved.getsockname()[1]
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="keras-bert-metrics-"))
        listener.listen(2048)
        cores = available_cores()
        # Threads wait for Python's lock. TensorFlow's batches gain more by sharing all cores; LiteRT has none.
        count = settings.workers or (1 if tensorflow else cores)
        settings = dataclasses.replace(
            settings, port=listener.getsockname()[1], grpc_port=grpc_port, tensorflow=tensorflow, workers=count,
            threads=max(1, cores // count))
        _announce(settings, versions, without_grpc)
        reader, writer = os.pipe()  # this process's own log, like those of the workers
        logs.configure(writer)
        stack.callback(_copy_in_thread(os.fdopen(reader, "rb")).join, 1)  # not forever: nobody may read the log
        stack.callback(os.close, writer)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # `sigtimedwait` below waits for them; there are no handlers
        workers = [_Worker(number, settings, listener, folder) for number in range(count)]
        stop_signal = signal.SIGTERM
        try:
            while True:
                _keep_running(workers)
                received = signal.sigtimedwait(_SIGNALS, 0.5)
                if received and received.si_signo != signal.SIGCHLD:
                    stop_signal = signal.Signals(received.si_signo)
                    logs.logger.info({"event": "stopping", "signal": stop_signal.name, "sender": received.si_pid})
                    break
            listener.close()
        finally:
            _stop(workers, stop_signal, settings.drain_s + settings.grace_s)


def _why_not_grpc(tensorflow: bool) -> str:
    """Returns why gRPC is off; "" if it is on."""
    if not tensorflow:
        return "its messages need TensorFlow, which LiteRT folders do not"
    if not all(map(importlib.util.find_spec, ("grpc", "grpc_health", "tensorflow_serving"))):
        return "to turn it on, pip install grpcio grpcio-health-checking tensorflow-serving-api"
    return ""


class _Worker:
    """One worker, whose process is started again when it dies: after 0.5 s or, if it had never been ready, after a
    pause that doubles each time, up to `_MAX_PAUSE`. `due` is the end of the pause by `time.monotonic`."""

    process: subprocess.Popen[bytes] | None = None
    is_ready = False  # True if it accepts connections, and has tried to load its models
    log: threading.Thread  # copies what the process writes
    _control: socket.socket  # connected to the standard input of the process

    def __init__(self, number: int, settings: Settings, listener: socket.socket, folder: str) -> None:
        self._number, self.due, self._pause = number, 0.0, 0.5
        self._settings = json.dumps(dataclasses.asdict(settings)) + "\n"
        self._descriptor, self._folder = listener.fileno(), folder
        self._environment = {
            # Of glibc. TensorFlow's batches of different sizes permanently fragment multiple arenas. LiteRT's texts do
            # not, and threads that share one wait for each other.
            "MALLOC_ARENA_MAX": "1" if settings.tensorflow else str(1 + settings.threads),
            "TOKENIZERS_PARALLELISM": "false"}  # each call has one core

    def start(self, accepts_at_once: bool) -> None:
        self._control, standard_input = socket.socketpair()
        with standard_input:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, _ROOT, str(self._descriptor), str(int(accepts_at_once))],
                stdin=standard_input.fileno(), stderr=subprocess.PIPE, pass_fds=[self._descriptor],
                env=self._environment | os.environ | {"PROMETHEUS_MULTIPROC_DIR": self._folder,
                                                      metrics.WORKER: str(self._number)})
        assert self.process.stderr  # a pipe
        self.log = _copy_in_thread(self.process.stderr)
        with contextlib.suppress(OSError):  # the process has died at once
            # Not as an argument, where others could read the token. The worker stops when this socket is closed.
            self._control.sendall(self._settings.encode())
        self._control.setblocking(False)

    def check(self) -> None:
        """Notices that the process has become ready, or has died."""
        if not self.process:
            return
        with contextlib.suppress(OSError):  # it has written nothing yet
            self.is_ready = self.is_ready or self._control.recv(1) != b""
        if self.process.poll() is not None:
            self._pause = 0.5 if self.is_ready else min(2 * self._pause, _MAX_PAUSE)
            self.due = time.monotonic() + self._pause
            logs.logger.error({"event": "died", "worker": self.process.pid, "exit_status": self.process.returncode,
                               "restart_s": self._pause})
            mark_process_dead(self._number, self._folder)  # removes its gauges
            self._control.close()
            self.process, self.is_ready = None, False


def _keep_running(workers: Sequence[_Worker]) -> None:
    """Starts the processes that are due. As long as no worker is ready, only one runs, and accepts at once."""
    for worker in workers:
        worker.check()
    for worker in workers:
        is_alone = not any(other.process for other in workers)
        is_due = not worker.process and time.monotonic() >= worker.due
        if is_due and (is_alone or any(other.is_ready for other in workers)):
            worker.start(accepts_at_once=is_alone)


def _stop(workers: Iterable[_Worker], number: signal.Signals, seconds: float) -> None:
    """Passes a signal on to the workers, which end after `seconds` at most; kills those that do not. Returns when their
    logs are copied."""
    running = [(worker.process, worker.log) for worker in workers if worker.process]
    for process, _ in running:
        process.send_signal(number)
    end = time.monotonic() + seconds + 5
    for process, log in running:
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        log.join(1)


def _copy_in_thread(log: IO[bytes]) -> threading.Thread:
    thread = threading.Thread(target=_copy_log, args=[log], daemon=True)
    thread.start()
    return thread


def _copy_log(log: Iterable[bytes]) -> None:
    """Copies a log to standard error. If that fails, for example because the disk is full, tries again; meanwhile, its
    pipe fills. Lines of C++ libraries and crashes, which are not JSON, become messages of JSON lines."""
    for line in log:
        if not line.startswith(b'{"time": "'):
            logs.logger.error(line.decode(errors="replace").rstrip())
            continue
        with _STDERR_LOCK:
            while line:
                try:
                    line = line[os.write(2, line):]
                except OSError:
                    time.sleep(1)


def _bind(host: str, port: int, flag: str) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        cure = f"--{flag}, or any free one with --{flag}=0" if is_port else "--host"
        raise InputError(f"{format_address(host, port)}: cannot be served: {error.strerror}; choose another with "
                         f"{cure}") from None
    return listener


def _announce(settings: Settings, versions: dict[str, tuple[int, str] | None], without_grpc: str) -> None:
    """Writes the addresses and models for the person who started the server; the log that follows is JSON."""
    http = format_address(settings.host, settings.port)
    rpc = "" if settings.grpc_port is None else f" and gRPC at {format_address(settings.host, settings.grpc_port)}"
    print_error(f"http://{http}/v1/models/NAME:predict{rpc}; workers: {settings.workers}, threads of each: "
                f"{settings.threads}")
    for name, path in settings.models.items():
        print_error(f"{name} is {path}" if versions[name] else f"warning: {name} is {path}, which has no version yet")
    if without_grpc:
        print_error(f"gRPC is off: {without_grpc}")
    if not settings.token and settings.host not in ("127.0.0.1", "::1", "localhost"):
        print_error("warning: the server is reachable from other machines without a token; --token_file=FILE sets one")
