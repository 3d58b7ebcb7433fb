"""The log of a training run."""

import datetime
import re

import tensorflow as tf

from keras_bert.arguments import Path
from keras_bert.terminal import StatusLine

# Peak operations per second in dense bfloat16 (V100 and T4: float16), from the vendors' data sheets.
# If more than one name matches, the first one is used.
_PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
          "L4": 121e12, "A10G": 70e12, "A10": 125e12, "V100": 125e12, "T4": 65e12, "TPU v4": 275e12,
          "TPU v5 lite": 197e12, "TPU v5p": 459e12}


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


def peak() -> float | None:
    """Returns the peak operations per second of all accelerators together; None if there is none, or one is unknown."""
    names = [tf.config.experimental.get_device_details(device).get("device_name", "")
             for kind in ("GPU", "TPU") for device in tf.config.list_physical_devices(kind)]
    # Only whole words match: an L40 is not an L4.
    peaks = [next((peak for key, peak in _PEAKS.items() if re.search(rf"\b{key}\b", name)), 0.0) for name in names]
    return sum(peaks) if peaks and all(peaks) else None
