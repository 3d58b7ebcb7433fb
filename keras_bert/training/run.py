"""What the runs of `finetune` and of `pretrain` share: options, the output folder, devices, signals, checkpoints and
the log."""

import contextlib
import dataclasses
import datetime
import importlib.util
import math
import os
import re
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import keras
import tensorflow as tf

from keras_bert import kernels
from keras_bert.arguments import Path, Requirement, check, check_rules, to_json
from keras_bert.data import TextBatches
from keras_bert.errors import InputError, Option, Stopped
from keras_bert.files import atomic, json_files
from keras_bert.terminal import StatusLine
from keras_bert.training.checkpoints import ADVICE, Checkpoints, Trained, changes


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The base class of the options of `finetune` and of `pretrain`, which have a field for each argument."""

    # What says how to run and where to save, but does not decide the result: it may differ in a resumed run.
    not_part_of_run: ClassVar[tuple[str, ...]] = ("output", "overwrite", "save_steps", "log_dir")
    data: ClassVar[tuple[str, ...]] = ()  # the arguments that may be rows in memory

    @classmethod
    def checked(cls, function: Callable, arguments: dict[str, Any]) -> Self:
        """Returns the arguments of a function in the form that JSON has, see `to_json`. Raises an InputError if one is
        out of its range, or does not fit the others, the backend or the installed packages."""
        check(function, arguments)
        values = {name: value if name in cls.data else to_json(value) for name, value in arguments.items()}
        values["output"] = os.path.normpath(values["output"])  # a slash at the end would put the checkpoints into it
        make: Callable[..., Self] = cls
        options = make(**values)
        check_rules(*options.rules(), (
            "deterministic", values["deterministic"], "left out on the JAX backend, where XLA_FLAGS="
            "--xla_gpu_deterministic_ops=true does it", not (values["deterministic"] and kernels.BACKEND == "jax")))
        if values["log_dir"] and not importlib.util.find_spec("tensorboard"):
            raise InputError(Option("log_dir"), " needs TensorBoard: pip install tensorboard")
        return options

    def rules(self) -> list[Requirement]:
        """Returns the rules that annotations cannot express, see `arguments.check_rules`."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def of_run(self) -> dict[str, Any]:
        return {name: value for name, value in self.as_json().items() if name not in self.not_part_of_run}


class Output:
    """The folder that a run writes at its end. Until then, its checkpoints are in `path`.checkpoints. Raises an
    InputError if it cannot be written, or has one of the `inputs`, the files that the run reads. If there are
    checkpoints, it may exist: see `open`."""

    def __init__(self, path: str, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
        self.path, self.overwrite, self.checkpoints = path, overwrite, f"{path}.checkpoints"
        self._resumes = os.path.exists(self.checkpoints)
        atomic.check_free(path, overwrite or self._resumes, inputs)

    def open(self, run: dict[str, dict], writes: bool = True) -> tuple[Checkpoints, bool]:
        """Returns the `Checkpoints`, and True if the folder is already written: an earlier process was killed before it
        removed them. Raises an InputError if the folder, or the checkpoints, are of another run."""
        checkpoints = Checkpoints(self.checkpoints, run, self.overwrite, writes)
        metrics = json_files.read_object(os.path.join(self.path, "metrics.json")) if self._resumes else {}
        is_written = metrics.keys() >= {"arguments", "sha256"} and not changes(metrics, run)
        if writes and not is_written:
            atomic.check_free(self.path, self.overwrite)
        return checkpoints, is_written


@contextlib.contextmanager
def recorded_signals(signals: list[int]) -> Iterator[None]:
    """Context manager in which Ctrl-C and SIGTERM append their signal numbers to a list instead of ending the process.
    A second signal of the same kind is handled as usual. Python allows signal handlers only in the main thread: in
    other threads the list stays empty."""
    def record(number: int, _: types.FrameType | None) -> None:
        signals.append(number)
        signal.signal(number, previous[signal.Signals(number)])

    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM) if in_main_thread}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Run:
    """A training run of `total` steps, which resumes from its last checkpoint. The training loop updates `progress`."""

    def __init__(self, model: Trained, checkpoints: Checkpoints, total: int, save_steps: int) -> None:
        self.model = model
        self.checkpoints = checkpoints
        self.save_steps = save_steps  # between two checkpoints
        self.signals: list[int] = []  # for `recorded_signals`
        self.progress = checkpoints.restore_last(model)
        self.saved = self.progress.step  # at the last checkpoint
        if self.saved:
            print(f"resuming from step {self.saved} of {total}", file=sys.stderr)

    def check_loss(self, loss: float) -> None:
        """Ends the run if the loss is not finite."""
        if not math.isfinite(loss):
            raise InputError(f"the loss must be a finite number; at step {self.progress.step} it is {loss}; the last "
                             f"checkpoint is of step {self.saved}; ", *ADVICE)

    def checkpoint(self, stop: list[int] | bool, now: bool = False) -> None:
        """Saves the state and the progress if it is time to, or `now`. Saves them and ends the run if `stop`, which is
        `signals`, or True if any process has received a signal."""
        if stop or now or self.progress.step - self.saved >= self.save_steps:
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()  # during `fit` on JAX, the variables have old values
            self.checkpoints.save_last(self.model, self.progress)
            self.saved = self.progress.step
            if stop:  # also a signal that has arrived while the state was saved
                raise Stopped(self.signals[0] if self.signals else signal.SIGTERM,
                              f"stopped and saved at step {self.progress.step}; run the same command again to resume")


class TrainingLog:
    """The log of a training run of `total` steps: shows scores, speed, share of the devices' peak speed and time left
    on standard error, and writes TensorBoard logs to `log_dir`."""

    def __init__(self, total: int, unit: str, log_dir: Path | None = None, peak: float | None = None) -> None:
        self.total = total
        self.unit = unit  # of the speed: `examples` or `tokens`, padding included
        self.peak = peak  # floating point operations per second of all devices together; None if unknown
        self.line = StatusLine()
        self.writer = tf.summary.create_file_writer(log_dir) if log_dir else None
        self.steps = self.units = 0
        self.seconds = self.operations = 0.0

    def count(self, steps: int, seconds: float, units: int, operations: float = 0) -> None:
        """Counts steps, the seconds that they took, their examples or tokens, and their floating point operations."""
        self.steps += steps
        self.seconds += seconds
        self.units += units
        self.operations += operations

    @property
    def rate(self) -> float:
        """Examples or tokens per second."""
        return self.units / self.seconds if self.seconds else 0.0

    def show(self, step: int, title: str, scores: dict[str, float], stays: bool = False) -> None:
        """Shows a line. Without `stays`, shows it only if it is time to, see `StatusLine`."""
        if not (stays or self.line.is_due()):
            return
        line = "  ".join([title, *(f"{name} {value:.4f}" for name, value in scores.items())])
        if self.steps:
            left = datetime.timedelta(seconds=round(self.seconds / self.steps * (self.total - step)))
            share = f"  {self.operations / self.seconds / self.peak:.1%} of peak" if self.peak else ""
            line += f"  {self.rate:.0f} {self.unit}/s{share}  {left} left"
        self.line.show(line, stays)

    def write(self, step: int, split: str, scores: dict[str, float]) -> None:
        """Writes scores to the TensorBoard logs, if there is a folder for them."""
        if self.writer is not None:  # without `log_dir`, TensorBoard need not be installed
            with self.writer.as_default(step=step):
                for name, value in scores.items():
                    tf.summary.scalar(f"{split}/{name}", value)
            self.writer.flush()


# Peak operations per second in dense bfloat16 (V100 and T4: float16), from the vendors' data sheets.
# If more than one name matches, the first one is used.
_PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
          "L4": 121e12, "A10G": 70e12, "A10": 125e12, "V100": 125e12, "T4": 65e12, "TPU v4": 275e12,
          "TPU v5 lite": 197e12, "TPU v5p": 459e12}


def peak() -> float | None:
    """Returns the peak operations per second of all accelerators together; None if there is none, or one is unknown."""
    names = [tf.config.experimental.get_device_details(device).get("device_name", "")
             for kind in ("GPU", "TPU") for device in tf.config.list_physical_devices(kind)]
    # Only whole words match: an L40 is not an L4.
    peaks = [next((peak for key, peak in _PEAKS.items() if re.search(rf"\b{key}\b", name)), 0.0) for name in names]
    return sum(peaks) if peaks and all(peaks) else None


@contextlib.contextmanager
def naming_full_memory(*advice: str) -> Iterator[None]:
    """Turns an error of a device without free memory into an InputError that ends with `advice`."""
    try:
        yield
    except Exception as error:  # TensorFlow and JAX have no class for it: a full disk also exhausts a resource
        if not re.search(r"\bOOM\b|[Oo]ut of memory", str(error)):
            raise
        raise InputError("the memory of the device is full; ", *advice) from None


def enable_determinism() -> None:
    """Makes TensorFlow's operations reproducible bit by bit, on a GPU too, for the rest of the process. They are slower
    on a GPU, and Keras compiles nothing with XLA."""
    keras.utils.set_random_seed(0)  # TensorFlow requires a seed first
    tf.config.experimental.enable_op_determinism()


_strategies: dict[frozenset[str], tf.distribute.Strategy] = {}  # at most one


def devices_scope(devices: Sequence[str] | None, batch_size: int,
                  *batches: TextBatches) -> contextlib.AbstractContextManager:
    """Returns the scope in which to make a model whose training and validation batches are split across devices. Raises
    an InputError if a device does not exist, is repeated, or is another one than in an earlier call; or if the batches
    cannot be divided among the devices."""
    if not devices:
        return contextlib.nullcontext()
    here = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    if not set(devices) <= set(here) or len(set(devices)) < len(devices):
        cure = "; it sees no GPU: see docs/gpu.md" if "GPU" in str(devices) and "GPU" not in str(here) else ""
        raise InputError(Option("devices"), " must be different ones of those that TensorFlow sees, "
                         f"{', '.join(here)}; got {', '.join(devices)}{cure}")
    check_rules(("batch_size", batch_size, f"a multiple of the number of devices, {len(devices)}",
                 batch_size % len(devices) == 0))
    for name, texts in zip(("train", "valid"), batches):
        if len(texts.packed) < batch_size:
            raise InputError(Option(name), " must have at least as many texts as a batch with devices, "
                             f"{batch_size}; got {len(texts.packed)}")
    return mirrored_strategy(devices).scope()


def mirrored_strategy(devices: Sequence[str]) -> tf.distribute.Strategy:
    """Returns the strategy of a set of devices. A process can have one of several devices: a second one would number
    its collective operations from the start again, and TensorFlow would take them for those of the first. Raises an
    InputError if this process has a strategy of several other devices."""
    if len(devices) == 1:
        return tf.distribute.MirroredStrategy(devices)
    if frozenset(devices) not in _strategies:
        for first in _strategies:
            raise InputError(f"several devices must be the same in all runs of a process, {', '.join(sorted(first))}; "
                             f"got {', '.join(devices)}; start another process")
        _strategies[frozenset(devices)] = tf.distribute.MirroredStrategy(devices)
    return _strategies[frozenset(devices)]
