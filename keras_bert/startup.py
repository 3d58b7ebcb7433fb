"""What is set before TensorFlow and Keras are imported."""

import contextlib
import functools
import glob
import importlib.machinery
import os
import platform
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

# The classes that `.keras` files name, by the modules that export them.
_CLASSES = {
    "hub": ["HubLayer"],
    "layers": ["BertEmbeddings", "BertLayer", "EncoderBlock", "MaskedLMHead", "SelfAttention"],
    "models": ["BertClassifier", "BertEmbedder", "BertEmbeddingClassifier", "BertFeatureTagger", "BertFeatures",
               "BertJointClassifier", "BertMultipleChoice", "BertPretrainer", "BertRegressor", "BertSpanLabeler",
               "BertTokenClassifier"],
    "models.feature_tagger": ["ScalarMix"],
    "training.optimizer": ["AdamW", "Lamb", "WarmupDecay"],
}


def enable_onednn() -> None:
    """Turns on oneDNN's kernels on x86-64 processors, unless TF_ENABLE_ONEDNN_OPTS is set or TensorFlow is already
    imported. TensorFlow itself turns them on only for AVX-512 VNNI or newer instructions; on other processors,
    fine-tuning takes 1.4 to 1.6 times as long without them. Results differ by rounding."""
    if platform.machine() in ("x86_64", "AMD64") and "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def quiet_tensorflow() -> None:
    """Hides TensorFlow's log notes and warnings by setting TF_CPP_MIN_LOG_LEVEL, unless it is already set, and those
    that TensorFlow 2.21 writes before it reads that variable. Shows errors only if there is an NVIDIA device, because
    every program would log one about a missing device. Call this before anything imports TensorFlow."""
    has_gpu = bool(glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg"))  # the second is for WSL
    level = os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL") or ("2" if has_gpu else "3")
    if level in ("2", "3") and "tensorflow" not in sys.modules and os.getpid() != 1:  # whose end ends the filter
        _QUIET.hidden = "IWE"[:int(level)]
        sys.meta_path = [_QUIET, *(finder for finder in sys.meta_path if finder is not _QUIET)]


def _find_quiet(name: str, *args: Any) -> Any:
    """A finder's `find_spec` that finds TensorFlow as `PathFinder` does, and runs it `_without_log`."""
    spec = importlib.machinery.PathFinder.find_spec(name, *args) if name == "tensorflow" else None
    if spec and (loader := spec.loader):
        loader.exec_module = functools.partial(_without_log, loader.exec_module)  # type: ignore[method-assign]
    return spec


def _without_log(run: Callable[[Any], None], module: Any) -> None:
    """Runs a module. Another process filters its log, so that what is written before a crash is shown, too."""
    sys.meta_path = [finder for finder in sys.meta_path if finder is not _QUIET]
    pattern = f"^(WARNING: All log messages before absl|[{_QUIET.hidden}]0000 )"
    try:
        os.fstat(2)
        grep: Any = subprocess.Popen(["grep", "-aEv", "--line-buffered", pattern], stdin=subprocess.PIPE, stdout=2)
    except OSError:  # there is no standard error, or no grep
        return run(module)
    error = os.dup(2)
    os.dup2(grep.stdin.fileno(), 2)
    try:
        run(module)
    finally:
        os.dup2(error, 2)
        os.close(error)
        with contextlib.suppress(subprocess.TimeoutExpired):  # if a child process that was started still writes
            grep.communicate(timeout=1)


def register_classes(*_: Any) -> None:
    """Registers the package's classes for `keras.saving.load_model`, now or as soon as Keras is imported: until then it
    is asked at every import, as a finder of modules that finds none. Each class is imported when a file names it."""
    if saving := getattr(sys.modules.get("keras"), "saving", None):
        # Not `remove`, because the import that asks iterates over the list.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not _FINDER]
        for module, names in _CLASSES.items():
            for name in names:
                # A class, because KerasHub calls `issubclass` for each registered object.
                later = type(name, (), {"from_config": staticmethod(functools.partial(_from_config, module, name))})
                saving.get_custom_objects().setdefault(f"keras_bert>{name}", later)
    elif _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _from_config(module: str, name: str, config: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(f"keras_bert.{module}"), name).from_config(config)


_FINDER: Any = types.SimpleNamespace(find_spec=register_classes)
_QUIET: Any = types.SimpleNamespace(find_spec=_find_quiet, hidden="")  # `hidden` are levels of the log
