"""The parent process of the workers. It loads no model, so that it survives when a worker dies."""

import contextlib
import dataclasses
import errno
import importlib.util
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from keras_bert.errors import InputError
from keras_bert.files.atomic import is_empty
from keras_bert.processes import available_cores
from keras_bert.serving import ALIVE, LATE, READY, STUCK, logs, metrics
from keras_bert.serving.settings import GRPC_PORT, Settings, find_first_version, format_address, needs_tensorflow
from keras_bert.terminal import print_error

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT  # of `waitid`: what has ended, without a wait, and leaves it
_MAX_PAUSE = 30  # seconds
_BEAT_S = 0.5  # seconds between heartbeats
_BEATS = 8  # heartbeats in a row after which a worker is hung
_IDLE_TICKS = 1  # hundredths of a second of a core, the most that threads which only wait use between heartbeats
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
        listener.listen(2048)
        cores = available_cores()
        # Threads wait for Python's lock. TensorFlow's batches gain more by sharing all cores; LiteRT has none.
        count = settings.workers or (1 if tensorflow else cores)
        settings = dataclasses.replace(
            settings, port=listener.getsockname()[1], grpc_port=grpc_port, tensorflow=tensorflow, workers=count,
            threads=max(1, cores // count))
        _announce(settings, versions, without_grpc)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # `sigtimedwait` below waits for them; there are no handlers
        reader, writer = os.pipe()  # this process's own log, like those of the workers
        logs.configure(writer)
        stack.callback(_copy_in_thread(os.fdopen(reader, "rb"), os.getpid()).join, 1)  # nobody may read the log
        stack.callback(os.close, writer)
        memories = metrics.make_memories(count)
        workers = [_Worker(number, settings, listener, memories) for number in range(count)]
        stop_signal = signal.SIGTERM
        try:
            while True:
                _keep_running(workers)
                received = signal.sigtimedwait(_SIGNALS, _BEAT_S)
                # The value is undefined if this process was stopped and continues.
                if received and received.si_signo in (signal.SIGTERM, signal.SIGINT):
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
    pause that doubles each time, up to `_MAX_PAUSE`. `due` is the end of the pause by `time.monotonic`.

    A process that hangs is killed. It hangs if, at `_BEATS` heartbeats in a row, it has not answered the last one, or
    runs a batch for longer than its timeout; and none of its threads computes, or waits for a core or a disk, as those
    of a slow one do. It also hangs if a batch has run for another minute, whatever other threads do. If it is not ready
    yet, they may wait for anything, but must not be stopped by a signal. Heartbeats are counted, because time also
    passes while this process itself is stopped."""

    process: subprocess.Popen[bytes] | None = None
    is_ready = False  # True if it accepts connections, and has tried to load its models
    log: threading.Thread  # copies what the process writes
    _control: socket.socket  # connected to the standard input of the process

    def __init__(self, number: int, settings: Settings, listener: socket.socket, memories: Mapping[str, int]) -> None:
        self._number, self.due, self._pause, self._lost = number, 0.0, 0.5, ""
        self._settings = json.dumps(dataclasses.asdict(settings)) + "\n"
        self._descriptor, self._memories = listener.fileno(), memories
        self._environment = {
            # Of glibc. TensorFlow's batches of different sizes permanently fragment multiple arenas. LiteRT's texts do
            # not, and threads that share one wait for each other.
            "MALLOC_ARENA_MAX": "1" if settings.tensorflow else str(1 + settings.threads),
            "TOKENIZERS_PARALLELISM": "false",  # each call has one core
            "TEST_TMPDIR": "/nowhere"}  # of absl, which TensorFlow imports: else absl needs a writable folder

    def start(self, accepts_at_once: bool) -> None:
        self._answer, self._used, self._idle_beats, self._next_beat = b"", math.inf, 0, time.monotonic()
        self._control, standard_input = socket.socketpair()
        with standard_input:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, _ROOT, str(self._descriptor), str(int(accepts_at_once))],
                stdin=standard_input.fileno(), stderr=subprocess.PIPE, env=self._environment | os.environ
                | metrics.environment(self._memories, self._number, self._lost),
                pass_fds=[self._descriptor, *self._memories.values()])
        self._lost = "died"  # unless it hangs
        assert self.process.stderr  # a pipe
        self.log = _copy_in_thread(self.process.stderr, self.process.pid)
        with contextlib.suppress(OSError):  # the process has died at once
            # Not as an argument, where others could read the token. The worker stops when this socket is closed.
            self._control.sendall(self._settings.encode())
        self._control.setblocking(False)

    def check(self) -> None:
        """Notices that the process has become ready, or has died; kills it if it hangs."""
        if not self.process:
            return
        self.beat(self.process)
        if self.process.poll() is not None:
            self._pause = 0.5 if self.is_ready else min(2 * self._pause, _MAX_PAUSE)
            self.due = time.monotonic() + self._pause
            logs.logger.error({"event": "died", "worker": self.process.pid, "exit_status": self.process.returncode,
                               "restart_s": self._pause})
            metrics.reset_gauges(self._memories, self._number)
            self._control.close()
            self.process, self.is_ready = None, False

    def beat(self, process: subprocess.Popen[bytes]) -> None:
        """Reads what the process has written. If a heartbeat is due, sends it, or kills the process if it hangs."""
        with contextlib.suppress(OSError):  # it has written nothing
            self._answer += self._control.recv(1024)
        self.is_ready = self.is_ready or READY in self._answer
        if time.monotonic() < self._next_beat:
            return
        if STUCK in self._answer:
            self._idle_beats = _BEATS
        elif ALIVE in self._answer:
            self._idle_beats = 0
        else:
            last, self._used = self._used, _used_ticks(
                process.pid, is_answering=LATE in self._answer, busy="RDt" if self.is_ready else "RDtS")
            self._idle_beats = self._idle_beats + 1 if 0 <= self._used - last <= _IDLE_TICKS else 0
        if self._idle_beats == _BEATS:
            logs.logger.error({"event": "hung", "worker": process.pid,
                               "reason": "batch" if LATE in self._answer else "no answer"})
            self._lost = "hung"
            process.kill()
        self._answer, self._next_beat = b"", time.monotonic() + _BEAT_S
        with contextlib.suppress(OSError):  # it has ended, or reads nothing
            self._control.send(b"\n")


def _used_ticks(process: int, is_answering: bool, busy: str) -> float:
    """Returns the processor time of a process's threads; or infinity if one is in a `busy` state of proc(5): R runs or
    waits for a core, D waits for a disk, S for anything else, a debugger has stopped t. The main thread is left out if
    it `is_answering`."""
    used = 0.0
    try:
        for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
            state, *fields = (thread / "stat").read_text().rpartition(")")[2].split()
            if not (is_answering and thread.name == str(process)):
                used += math.inf if state in busy else int(fields[10]) + int(fields[11])
    except OSError:  # it has just ended
        return math.inf
    return used


def _keep_running(workers: Sequence[_Worker]) -> None:
    """Starts the processes that are due. As long as no worker is ready, only one runs, and accepts at once."""
    for worker in workers:
        worker.check()
    processes = {worker.process.pid for worker in workers if worker.process}
    with contextlib.suppress(ChildProcessError):  # there are none
        # Orphans, which the first process of a container inherits.
        while (ended := os.waitid(os.P_ALL, 0, _ENDED)) and ended.si_pid not in processes:
            os.waitpid(ended.si_pid, 0)
    for worker in workers:
        is_alone = not any(other.process for other in workers)
        is_due = not worker.process and time.monotonic() >= worker.due
        if is_due and (is_alone or any(other.is_ready for other in workers)):
            worker.start(accepts_at_once=is_alone)


def _stop(workers: Iterable[_Worker], number: signal.Signals, seconds: float) -> None:
    """Passes a signal on to the workers, which end after `seconds` at most; kills those that do not. Returns when their
    logs are copied."""
    running = [(worker, worker.process) for worker in workers if worker.process]
    for _, process in running:
        process.send_signal(number)
    end = time.monotonic() + seconds + 5
    while left := [(worker, process) for worker, process in running if process.poll() is None]:
        for worker, process in left:
            worker.beat(process)
            if time.monotonic() > end:
                process.kill()
        received = signal.sigtimedwait(_SIGNALS, _BEAT_S)
        if received and received.si_signo == signal.SIGINT:  # ends a drain
            for _, process in left:
                process.send_signal(signal.SIGINT)
    for worker, _ in running:
        worker.log.join(1)


def _copy_in_thread(log: IO[bytes], writer: int) -> threading.Thread:
    thread = threading.Thread(target=_copy_log, args=[log, writer], daemon=True)
    thread.start()
    return thread


def _copy_log(log: Iterable[bytes], writer: int) -> None:
    """Copies the log of a process, the `writer`, to standard error. If that fails, for example because the disk is
    full, tries again; meanwhile, its pipe fills. Lines of C++ libraries and crashes, which are not JSON, become
    messages of JSON lines."""
    for line in log:
        if not line.startswith(b'{"time": "'):
            logs.logger.info(line.decode(errors="replace").rstrip(), extra={"writer": writer})
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
    rpc = "" if settings.grpc_port is None else f" and gRPC at {format_address(settings.host, settings.grpc_port)}"
    print_error(f"http://{format_address(settings.host, settings.port)}/v1/models/NAME:predict{rpc}; workers: "
                f"{settings.workers}, threads of each: {settings.threads}")
    for name, path in settings.models.items():
        print_error(f"{name} is {path}" if versions[name] else f"warning: {name} is {path}, which has no version yet")
    if without_grpc:
        print_error(f"gRPC is off: {without_grpc}")
    if not settings.token and settings.host not in ("127.0.0.1", "::1", "localhost"):
        print_error("warning: the server is reachable from other machines without a token; --token_file=FILE sets one")
