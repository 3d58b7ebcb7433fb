"""Process settings that TensorFlow reads while it is imported, and the cores that a process may use."""

import contextlib
import glob
import importlib.machinery
import math
import os
import platform
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

# Copies standard input to standard error, without the notes of TensorFlow and LiteRT and absl's lines at the levels in
# the argument.
_FILTER = r"""
import re, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that is filtered
notes = re.compile(rb"[%b]\d{4} |WARNING: All log messages before absl|To enable the following instructions: "
                   rb"|INFO: Created TensorFlow Lite" % sys.argv[1].encode())
for line in sys.stdin.buffer:
    if not notes.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""

_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"  # of Linux's cgroups, version 2: microseconds in each period, and the period
_litert_has_run, _first_run_of_litert = False, threading.Lock()


def available_cores() -> int:
    """Returns the number of cores that this process may use: those that it may run on or, if that is less, those of its
    container's limit (`docker run --cpus`, Kubernetes's `limits.cpu`), rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # there is no such file, or the quota is "max"
        with open(_CPU_LIMIT) as file:
            quota, period = map(int, file.read().split())
        count = min(count, math.ceil(quota / period))
    return count


def enable_onednn() -> None:
    """Turns on oneDNN's kernels on x86-64 processors, unless TF_ENABLE_ONEDNN_OPTS is set or TensorFlow is already
    imported. TensorFlow itself turns them on only for AVX-512 VNNI or newer instructions; on other processors,
    fine-tuning takes 1.4 to 1.6 times as long without them. Results differ by rounding."""
    if platform.machine() in ("x86_64", "AMD64") and "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


@contextlib.contextmanager
def without_keras() -> Iterator[None]:
    """Context manager in which TensorFlow is imported without Keras, which takes half of the time. TensorFlow imports
    Keras only to register its classes for `tf.saved_model.load`, and does without if it is not installed; afterwards
    Keras can be imported as usual."""
    is_hidden = "tensorflow" not in sys.modules and "keras" not in sys.modules
    if is_hidden:
        sys.modules["keras"] = None  # type: ignore[assignment]  # makes its import fail; mypy knows modules only
    try:
        yield
    finally:
        if is_hidden:
            del sys.modules["keras"]


def quiet_tensorflow() -> None:
    """Hides TensorFlow's log notes and warnings by setting TF_CPP_MIN_LOG_LEVEL, unless it is already set.

    TensorFlow 2.21 writes some of them before it reads that variable; these are filtered out of standard error. Errors
    are shown only if there is an NVIDIA device, because every program would log one about a missing device. Call this
    before anything imports TensorFlow.
    """
    has_gpu = bool(glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg"))  # the second is for WSL
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL") or ("2" if has_gpu else "3")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = level
    if level != "0" and "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _QuietImport("I" if level == "1" else "IW"))


class _QuietImport:
    """A module finder that filters out log lines of these `levels`, letters, while TensorFlow is imported."""

    def __init__(self, levels: str) -> None:
        self.levels = levels

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow":
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _QuietImport))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec and spec.loader:
            loader: Any = spec.loader
            load = loader.exec_module

            def load_quietly(module: types.ModuleType) -> None:
                with _filtered_stderr(self.levels):
                    load(module)

            loader.exec_module = load_quietly
        return spec


@contextlib.contextmanager
def quiet_litert() -> Iterator[None]:
    """Context manager that hides the note of LiteRT's first run in a process where TensorFlow's are hidden."""
    global _litert_has_run
    with contextlib.nullcontext() if _litert_has_run else _first_run_of_litert:  # others wait, and would write it, too
        is_hidden = not _litert_has_run and os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") not in ("", "0")
        with _filtered_stderr("IW") if is_hidden else contextlib.nullcontext():
            yield
        _litert_has_run = True


@contextlib.contextmanager
def _filtered_stderr(levels: str) -> Iterator[None]:
    """Context manager that sends standard error through a filter. The filter is a separate process, so that the last
    output before a crash gets through."""
    try:
        original = os.dup(2)
        if not os.path.basename(sys.executable or "").startswith("python"):
            raise OSError("sys.executable is not Python: the program embeds it")
        process = subprocess.Popen([sys.executable, "-ISc", _FILTER, levels], stdin=subprocess.PIPE)
    except OSError:  # or standard error is closed
        yield
        return
    assert process.stdin is not None
    os.dup2(process.stdin.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # processes that the import started may still write to it
            process.wait(timeout=2)
