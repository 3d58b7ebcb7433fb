"""Progress lines, TensorBoard logs, and the share of the devices' peak speed that a run reaches."""

import re
import time

import keras
import tensorflow as tf

from keras_bert.terminal import StatusLine


class ProgressLine(keras.callbacks.Callback):
    """A callback that shows epoch, step, loss, accuracy, examples per second and time left during `fit`.

    Args:
        progress: the `Progress` of the run, which the training loop updates.
        steps: steps per epoch.
        epochs: epochs of the run.
        batch_size: examples per step.
        stream: stream to write to. Defaults to standard error.
    """

    def __init__(self, progress, steps, epochs, batch_size, stream=None):
        super().__init__()
        self.progress = progress
        self.steps = steps
        self.epochs = epochs
        self.batch_size = batch_size
        self.line = StatusLine(stream)
        self.started = time.monotonic()
        self.first = progress.step

    def on_train_batch_end(self, batch, logs=None):
        if self.line.is_due():
            self._show(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._show(logs, stays=True)

    def on_test_end(self, logs=None):
        self.line.show(f"epoch {self.progress.epoch + 1}/{self.epochs} validation: {_scores(logs)}", stays=True)

    def _show(self, logs, stays=False):
        epoch, step = self.progress.epoch, self.progress.step
        seconds = (time.monotonic() - self.started) / (step - self.first)
        done = step - epoch * self.steps
        filled = round(20 * done / self.steps)
        left = round(seconds * (self.steps * self.epochs - step))
        line = (f"epoch {epoch + 1}/{self.epochs} [{'=' * filled}{' ' * (20 - filled)}] {done}/{self.steps}  "
                f"{_scores(logs)}  {self.batch_size / seconds:.0f} examples/s  {left // 60}:{left % 60:02d} left")
        self.line.show(line, stays)


class TensorBoardLog(keras.callbacks.Callback):
    """A callback that writes TensorBoard logs: the epoch's running scores every ten steps, the validation scores after
    each epoch.

    Args:
        progress: see `ProgressLine`.
        folder: folder to write to.
    """

    def __init__(self, progress, folder):
        super().__init__()
        self.progress = progress
        self.writer = tf.summary.create_file_writer(folder)

    def on_train_batch_end(self, batch, logs=None):
        if self.progress.step % 10 == 0:
            self._write("train", logs)

    def on_test_end(self, logs=None):
        self._write("validation", logs)
        self.writer.flush()

    def _write(self, split, logs):
        _write_scores(self.writer, split, self.progress.step, logs)


class PretrainingLog:
    """The log of a pretraining run: shows step, scores, tokens per second, share of the devices' peak speed and time
    left, and writes TensorBoard logs.

    Args:
        total: steps of the run.
        cost: function of an example's length that returns the floating point operations per token.
        peak: peak speed of all devices together in operations per second; None if unknown.
        log_dir: folder for TensorBoard logs, or None.
        stream: stream to write to. Defaults to standard error.
    """

    def __init__(self, total, cost, peak=None, log_dir=None, stream=None):
        self.total = total
        self.cost = cost
        self.peak = peak
        self.line = StatusLine(stream)
        self.seconds = self.tokens = self.steps = self.operations = 0
        self.writer = tf.summary.create_file_writer(log_dir) if log_dir else None

    def begin(self, progress):
        """Starts the log. If the run is resumed, shows the step that it resumes from."""
        self.progress = progress
        if progress.step:
            self.line.show(f"going on from step {progress.step} of {self.total}", stays=True)

    def stepped(self, scores, steps, seconds, phase):
        """Counts `steps` steps of a phase, which took `seconds` each, and shows the progress if it is time to."""
        self.steps += steps
        self.seconds += steps * seconds
        tokens = steps * phase.batch_size * phase.seq_length
        self.tokens += tokens
        self.operations += tokens * self.cost(phase.seq_length)
        if self.line.is_due():
            self._show("step", scores)

    def point(self, split, scores):
        """Logs the scores of a point of the curve; shows them if they are of held-out examples."""
        if split == "valid":
            self._show("held out, step", scores, stays=True)
        if self.writer:
            _write_scores(self.writer, split, self.progress.step, scores)
            self.writer.flush()

    @property
    def rate(self):
        """Tokens per second, padding included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def _show(self, name, scores, stays=False):
        line = f"{name} {self.progress.step}/{self.total}  {_scores(scores)}"
        if self.steps:
            left = round(self.seconds / self.steps * (self.total - self.progress.step))
            share = f"  {self.operations / self.seconds / self.peak:.1%} of peak" if self.peak else ""
            line += f"  {self.rate:.0f} tokens/s{share}  {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
        self.line.show(line, stays)


def _write_scores(writer, split, step, scores):
    with writer.as_default(step=step):
        for name, value in scores.items():
            tf.summary.scalar(f"{split}/{name}", value)


def _scores(logs):
    return "  ".join(f"{name} {value:.4f}" for name, value in logs.items())


# Peak operations per second in dense bfloat16 (V100 and T4: float16), without sparsity, from the vendors' data sheets.
# If more than one name matches, the first one is used.
_PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
          "L4": 121e12, "A10G": 70e12, "A10": 125e12, "V100": 125e12, "T4": 65e12, "TPU v4": 275e12,
          "TPU v5 lite": 197e12, "TPU v5p": 459e12}


def cost_of_token(config, seq_length):
    """Returns the floating point operations to train on one token, forward and backward: 6 for each weight that it is
    multiplied by; and in each block, for each token that it attends to, 12 for each element of its vector.

    Args:
        config: a `BertConfig`.
        seq_length: tokens per example.
    """
    hidden = config.hidden_size
    block = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    head = (hidden**2 + hidden * config.vocab_size) * 0.15  # the share of the tokens that are predicted
    return 6 * (config.num_hidden_layers * block + head) + 12 * config.num_hidden_layers * hidden * seq_length


def peak():
    """Returns the peak operations per second of all accelerators of this process together; None if there is none, or if
    one is unknown."""
    peaks = [_peak_of(tf.config.experimental.get_device_details(device).get("device_name", ""))
             for kind in ("GPU", "TPU") for device in tf.config.list_physical_devices(kind)]
    return sum(peaks) if peaks and None not in peaks else None


def _peak_of(name):
    """Returns the peak operations per second of the accelerator with the driver's `name`, or None. Only whole words
    match: an L40 is not an L4."""
    return next((peak for key, peak in _PEAKS.items() if re.search(rf"\b{key}\b", name)), None)
