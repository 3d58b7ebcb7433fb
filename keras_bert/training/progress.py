"""A progress line for `fit`."""

import sys
import time

import keras


class Progress(keras.callbacks.Callback):
    """Shows epoch, step, loss, accuracy, examples a second and time left: a bar that redraws itself on a terminal, a
    line every ten seconds elsewhere."""

    def __init__(self, batch_size, stream=None):
        super().__init__()
        self.batch_size = batch_size
        self.stream = stream or sys.stderr
        self.interactive = self.stream.isatty()

    def on_train_begin(self, logs=None):
        self.started = self.shown = time.monotonic()
        self.done = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        now = time.monotonic()
        if now - self.shown >= (0.2 if self.interactive else 10):
            self.shown = now
            self._show(batch + 1, logs, "\r" if self.interactive else "\n")

    def on_epoch_end(self, epoch, logs=None):
        self._show(self.params["steps"], logs, "\n")

    def _show(self, step, logs, end):
        steps, epochs = self.params["steps"], self.params["epochs"]
        seconds = (time.monotonic() - self.started) / self.done
        filled = round(20 * step / steps)
        scores = "  ".join(f"{name} {value:.4f}" for name, value in logs.items())
        left = round(seconds * (steps * epochs - self.done))
        line = (f"epoch {self.epoch + 1}/{epochs} [{'=' * filled}{' ' * (20 - filled)}] {step}/{steps}  {scores}  "
                f"{self.batch_size / seconds:.0f} examples/s  {left // 60}:{left % 60:02d} left")
        self.stream.write(f"\x1b[K{line}{end}" if self.interactive else line + end)
        self.stream.flush()
