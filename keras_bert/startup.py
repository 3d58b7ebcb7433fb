"""Settings of the process that TensorFlow reads while it is imported."""

import contextlib
import importlib.util
import os
import platform
import subprocess
import sys

# Copies standard input to standard error without absl's lines of level info and warning.
_FILTER = r"""
import re, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that is filtered
notes = re.compile(rb"[IW]\d{4} |WARNING: All log messages before absl|To enable the following instructions: ")
for line in sys.stdin.buffer:
    if not notes.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def enable_onednn():
    """Turns oneDNN's kernels on for x86-64 processors, unless TF_ENABLE_ONEDNN_OPTS is set or TensorFlow imported.

    TensorFlow turns them on by itself only where it finds AVX-512 VNNI or newer instructions. On other processors
    fine-tuning takes 1.8 times as long without them (docs/performance.md). Results differ by rounding.
    """
    if platform.machine() in ("x86_64", "AMD64") and "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def quiet_tensorflow():
    """Hides the notes that TensorFlow logs; what it writes as an error while it is imported stays.

    TensorFlow 2.21 writes some of them before it reads TF_CPP_MIN_LOG_LEVEL, so these are filtered out of standard
    error. Call it before anything imports TensorFlow. A TF_CPP_MIN_LOG_LEVEL in the environment is respected; with 0
    nothing is hidden.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") != "0" and "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _QuietImport())


class _QuietImport:
    """A finder of modules that filters standard error during the import of TensorFlow."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec:
            load = spec.loader.exec_module

            def load_quietly(module):
                with _filtered_stderr():
                    load(module)

            spec.loader.exec_module = load_quietly
        return spec


@contextlib.contextmanager
def _filtered_stderr():
    """Sends standard error through a filter; a process of its own, so that the last words of a crash get through."""
    try:
        original = os.dup(2)
        process = subprocess.Popen([sys.executable, "-ISc", _FILTER], stdin=subprocess.PIPE)
    except OSError:  # standard error is closed, or Python is embedded in another program
        yield
        return
    with process:
        os.dup2(process.stdin.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(original, 2)
            os.close(original)
