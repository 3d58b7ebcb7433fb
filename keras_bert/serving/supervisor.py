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
from collections.abc import Iterable, Mapping

from prometheus_client.multiprocess import mark_process_dead

from keras_bert.errors import InputError
from keras_bert.files.workspaces import is_empty
from keras_bert.serving import logs
from keras_bert.serving.settings import Settings, find_first_version, find_versions, format_address, is_saved_model

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
_MAX_PAUSE = 30  # seconds
# The program of a worker. Its first argument is the folder that contains the package, for a checkout that is not
# installed; `-P` leaves out the current folder, where a file could have the name of a module.
_START = """
import sys
sys.path[:0] = {sys.argv[1]} - set(sys.path)
from keras_bert.serving.worker import main
main(sys.argv[2])"""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def supervise(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT; replaces ports of 0, `threads` and `tensorflow`. Raises an `InputError` if there
    is neither a model nor an empty folder at a path, a port is in use, or a setting does not fit the models."""
    versions = {name: None if os.path.isdir(path) and is_empty(path) else find_first_version(path)
                for name, path in settings.models.items()}
    _check_litert(settings, versions)
    tensorflow = _needs_tensorflow(settings.models)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_bind(settings.host, settings.port, "port"))
        grpc_port = None
        if tensorflow and _has_grpc():
            reserved = stack.enter_context(_bind(settings.host, settings.grpc_port or 0, "grpc_port"))
            # The workers bind the gRPC port themselves; this socket reserves it and never listens.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            grpc_port = reserved.getsockname()[1]
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="keras-bert-metrics-"))
        listener.listen(2048)
        settings = dataclasses.replace(
            settings, port=listener.getsockname()[1], grpc_port=grpc_port, tensorflow=tensorflow,
            threads=max(1, len(os.sched_getaffinity(0)) // settings.workers))
        _announce(settings, versions)
        logs.configure()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # `sigtimedwait` below waits for them; there are no handlers
        workers = [_Worker(settings, listener, folder) for _ in range(settings.workers)]
        try:
            while True:
                for worker in workers:
                    worker.keep_running()
                received = signal.sigtimedwait(_SIGNALS, 0.5)
                if received and received.si_signo != signal.SIGCHLD:
                    logs.logger.info({"event": "stopping", "signal": signal.Signals(received.si_signo).name,
                                      "sender": received.si_pid})
                    break
            listener.close()
        finally:
            _stop(workers, settings.grace_s)


def _check_litert(settings: Settings, versions: dict[str, tuple[int, str] | None]) -> None:
    """Raises an `InputError` if a LiteRT folder cannot be served with these settings, or by what is installed."""
    for name, version in versions.items():
        if version is None or is_saved_model(version[1]):
            continue
        if not importlib.util.find_spec("ai_edge_litert"):
            raise InputError(f"{version[1]}: is a LiteRT folder, which needs more packages: pip install ai-edge-litert")
        for signature in settings.row_wise.get(name, ()):
            raise InputError(f"--row_wise={name}:{signature}: must be left out for a LiteRT folder, whose texts never "
                             "run in batches")


def _needs_tensorflow(models: Mapping[str, str]) -> bool:
    """Returns True if there is a SavedModel among the versions, or a folder without a version, where one may appear.
    Raises an `InputError` if there is one, and TensorFlow is not installed."""
    is_installed = importlib.util.find_spec("tensorflow") is not None
    needs = False
    for path in models.values():
        versions = find_versions(path)
        found = next(filter(is_saved_model, versions.values()), None)
        if found and not is_installed:
            raise InputError(f"{found}: is a SavedModel, which needs TensorFlow: pip install tensorflow; or serve the "
                             "folder of keras-bert export litert")
        needs = needs or bool(found) or not versions
    return needs and is_installed


def _has_grpc() -> bool:
    return all(map(importlib.util.find_spec, ("grpc", "tensorflow_serving")))


class _Worker:
    """One worker, whose process is started again when it dies.

    The new process starts after 0.5 s. If the old one has not run for at least `_MAX_PAUSE` seconds, the pause doubles
    each time, up to `_MAX_PAUSE`.
    """

    process: subprocess.Popen[str] | None = None
    log: threading.Thread  # copies what the process writes

    def __init__(self, settings: Settings, listener: socket.socket, folder: str) -> None:
        self._started, self._due, self._pause = 0.0, 0.0, 0.5
        self._settings = json.dumps(dataclasses.asdict(settings)) + "\n"
        self._descriptor, self._folder = listener.fileno(), folder
        self._environment = {
            # Of glibc. TensorFlow's batches of different sizes permanently fragment multiple arenas. LiteRT's texts do
            # not, and threads that share one wait for each other.
            "MALLOC_ARENA_MAX": "1" if settings.tensorflow else str(1 + settings.threads),
            "TOKENIZERS_PARALLELISM": "false"}  # each call has one core

    def keep_running(self) -> None:
        """Checks whether the process has died; starts a new one when it is due."""
        now = time.monotonic()
        if self.process and self.process.poll() is not None:
            died_early = now - self._started < _MAX_PAUSE
            self._pause = min(2 * self._pause, _MAX_PAUSE) if died_early else 0.5
            self._due = now + self._pause
            logs.logger.error({"event": "died", "worker": self.process.pid, "exit_status": self.process.returncode,
                               "restart_s": self._pause})
            mark_process_dead(self.process.pid, self._folder)  # removes its gauges; its counters stay
            self.process = None
        if not self.process and now >= self._due:
            self._started = now
            process = self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, _ROOT, str(self._descriptor)], encoding="utf-8",
                stdin=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace", pass_fds=[self._descriptor],
                env=self._environment | os.environ | {"PROMETHEUS_MULTIPROC_DIR": self._folder})
            assert process.stdin  # a pipe
            process.stdin.write(self._settings)  # not as an argument, where others could read the token
            process.stdin.flush()  # not closed: the worker stops when its standard input ends
            self.log = threading.Thread(target=_copy_log, args=[process.stderr], daemon=True)
            self.log.start()


def _copy_log(lines: Iterable[str]) -> None:
    """Copies a worker's standard error to this process's. Lines that are not JSON, which C++ libraries and crashes
    write, become the message of a JSON line."""
    for line in lines:
        with contextlib.suppress(OSError, ValueError):  # keeps reading if writing fails; otherwise workers would block
            if line.startswith('{"time": "'):
                sys.stderr.write(line)
                sys.stderr.flush()
            else:
                logs.logger.error(line.rstrip())


def _stop(workers: Iterable[_Worker], grace: float) -> None:
    """Lets the workers finish what they are doing; kills those that do not end in time."""
    running = [(worker.process, worker.log) for worker in workers if worker.process]
    for process, _ in running:
        process.terminate()
    end = time.monotonic() + grace + 5
    for process, log in running:
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        log.join(1)


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


def _announce(settings: Settings, versions: dict[str, tuple[int, str] | None]) -> None:
    """Writes the addresses and models for the person who started the server; the log that follows is JSON."""
    http = format_address(settings.host, settings.port)
    rpc = "" if settings.grpc_port is None else f" and gRPC at {format_address(settings.host, settings.grpc_port)}"
    lines = [f"http://{http}/v1/models/NAME:predict{rpc}; workers: {settings.workers}, threads of each: "
             f"{settings.threads}"]
    for name, path in settings.models.items():
        version = versions[name]
        lines.append(f"{name} is {path}, version {version[0]}" if version else
                     f"warning: {name} is {path}, which has no version yet")
    if not settings.tensorflow:
        lines.append("gRPC is off, because all models are LiteRT folders: its messages would need TensorFlow")
    elif settings.grpc_port is None:
        lines.append("warning: gRPC is off: to turn it on, pip install grpcio tensorflow-serving-api")
    if not settings.token and settings.host not in ("127.0.0.1", "::1", "localhost"):
        lines.append("warning: the server is reachable from other machines without a token; --token_file=FILE sets one")
    for line in lines:
        print(f"keras-bert: {line}", file=sys.stderr, flush=True)
