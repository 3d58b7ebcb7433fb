"""What is set before TensorFlow and Keras are imported, and the cores that a process may use."""

import contextlib
import functools
import glob
import importlib
import math
import os
import platform
import sys
import types
from collections.abc import Iterator
from typing import Any

_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"  # of Linux's cgroups, version 2: microseconds in each period, and the period
# The classes that `.keras` files name, by the modules that export them.
_CLASSES = {
    "hub": ["HubLayer"],
    "layers": ["BertEmbeddings", "BertLayer", "EncoderBlock", "MaskedLMHead", "SelfAttention"],
    "models": ["BertClassifier", "BertEmbedder", "BertEmbeddingClassifier", "BertFeatureTagger", "BertFeatures",
               "BertMultipleChoice", "BertPretrainer", "BertRegressor", "BertSpanLabeler", "BertTokenClassifier"],
    "models.feature_tagger": ["ScalarMix"],
    "training.optimizer": ["AdamW", "Lamb", "WarmupDecay"],
}


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
    """Hides TensorFlow's log notes and warnings by setting TF_CPP_MIN_LOG_LEVEL, unless it is already set. TensorFlow
    2.21 writes a few before it reads that variable.

    Errors are shown only if there is an NVIDIA device, because every program would log one about a missing device. Call
    this before anything imports TensorFlow.
    """
    has_gpu = bool(glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg"))  # the second is for WSL
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL") or ("2" if has_gpu else "3")


def register_classes() -> None:
    """Registers the package's classes for `keras.saving.load_model` as soon as Keras is imported. Each is imported when
    a file names it."""
    finder = _KerasWatcher()
    sys.meta_path.insert(0, finder)
    finder.find_spec()


class _KerasWatcher:
    """A module finder that finds nothing. It is asked at every import, until it has seen Keras."""

    def find_spec(self, *_: Any) -> None:
        if saving := getattr(sys.modules.get("keras"), "saving", None):
            # Not `remove`, because the import that asks iterates over the list.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            for module, names in _CLASSES.items():
                for name in names:
                    later = types.SimpleNamespace(from_config=functools.partial(_from_config, module, name))
                    saving.get_custom_objects().setdefault(f"keras_bert>{name}", later)


def _from_config(module: str, name: str, config: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(f"keras_bert.{module}"), name).from_config(config)
