"""What `fit` shows of a run: a line, and TensorBoard's logs."""

import sys
import time

import keras
import tensorflow as tf


class ProgressLine(keras.callbacks.Callback):
    """Shows epoch, step, loss, accuracy, examples a second and time left: a bar that redraws itself on a terminal, a
    line every ten seconds elsewhere.

    Args:
        progress: the `Progress` of the run, kept up by who trains.
        steps: steps an epoch.
        epochs: epochs of the run.
        batch_size: examples a step.
        stream: where to write; standard error where None.
    """

    def __init__(self, progress, steps, epochs, batch_size, stream=None):
        super().__init__()
        self.progress = progress
        self.steps = steps
        self.epochs = epochs
        self.batch_size = batch_size
        self.stream = stream or sys.stderr
        self.interactive = self.stream.isatty()
        self.started = self.shown = time.monotonic()
        self.first = progress.step

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        if now - self.shown >= (0.2 if self.interactive else 10):
            self.shown = now
            self._show(logs, "\r" if self.interactive else "\n")

    def on_epoch_end(self, epoch, logs=None):
        self._show(logs, "\n")

    def on_test_end(self, logs=None):
        self.stream.write(f"epoch {self.progress.epoch + 1}/{self.epochs} validation: {_scores(logs)}\n")
        self.stream.flush()

    def _show(self, logs, end):
        epoch, step = self.progress.epoch, self.progress.step
        seconds = (time.monotonic() - self.started) / (step - self.first)
        done = step - epoch * self.steps
        filled = round(20 * done / self.steps)
        left = round(seconds * (self.steps * self.epochs - step))
        line = (f"epoch {epoch + 1}/{self.epochs} [{'=' * filled}{' ' * (20 - filled)}] {done}/{self.steps}  "
                f"{_scores(logs)}  {self.batch_size / seconds:.0f} examples/s  {left // 60}:{left % 60:02d} left")
        self.stream.write(f"\x1b[K{line}{end}" if self.interactive else line + end)
        self.stream.flush()


class TensorBoardLog(keras.callbacks.Callback):
    """Writes TensorBoard's logs: the running scores of the epoch every ten steps, the validation's after each epoch.

    Args:
        progress: as of `ProgressLine`.
        folder: where to write.
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
        with self.writer.as_default(step=self.progress.step):
            for name, value in logs.items():
                tf.summary.scalar(f"{split}/{name}", value)


def _scores(logs):
    return "  ".join(f"{name} {value:.4f}" for name, value in logs.items())
