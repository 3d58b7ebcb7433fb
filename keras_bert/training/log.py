"""The log of a training run."""

import datetime

import tensorflow as tf

from keras_bert.arguments import Path
from keras_bert.terminal import StatusLine


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
        if self.writer is None:  # without `log_dir`, TensorBoard need not be installed
            return
        with self.writer.as_default(step=step):
            for name, value in scores.items():
                tf.summary.scalar(f"{split}/{name}", value)
        self.writer.flush()
