"""The loop of fine-tuning, which logs, saves and resumes from the last checkpoint."""

import math
import time
from typing import Any

import keras
import numpy as np

from keras_bert.errors import InputError, Option
from keras_bert.lazy import moved
from keras_bert.training.checkpoints import ADVICE, Checkpoints, Progress
from keras_bert.training.options import Options
from keras_bert.training.prepare import Prepared
from keras_bert.training.run import Run, TrainingLog, naming_full_memory, recorded_signals

__getattr__ = moved(__name__, {"enable_determinism": "keras_bert.training:enable_determinism"})  # as in version 0.2


class _Hooks(keras.callbacks.Callback):
    """The hooks of `fit`, which is called once for each epoch."""

    def __init__(self, run: Run, log: TrainingLog, observers: keras.callbacks.CallbackList, options: Options,
                 steps: int) -> None:
        super().__init__()
        self.run, self.log, self.observers, self.progress = run, log, observers, run.progress
        self.epochs, self.batches = options.epochs, options.gradient_accumulation_steps  # of the run, of a step
        self.steps, self.started = steps, time.monotonic()
        self.sizes: list[list[int]] = []  # the number of examples of each batch of each step of the epoch
        self.sums: list[float] = []  # of the metrics, with which a resumed epoch begins

    @property
    def done(self) -> int:
        """The number of finished steps of the epoch."""
        return self.progress.step - self.progress.epoch * self.steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for variable, value in zip(self.run.model.metrics_variables, self.sums):
            variable.assign(value)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        number, sizes = batch % self.batches, self.sizes[self.done]
        if self.batches > 1:
            optimizer: Any = self.run.model.optimizer
            optimizer.examples.assign(sizes[number])
            optimizer.total.assign(sum(sizes) if number + 1 == len(sizes) else 0)
        if number == 0:
            self.observers.on_train_batch_begin(self.done, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step, sizes = self.done, self.sizes[self.done]
        if batch % self.batches + 1 < len(sizes):
            return
        self.progress.step += 1
        self.run.check_loss(logs["loss"])
        self.log.count(1, time.monotonic() - self.started - self.log.seconds, sum(sizes))
        self.observers.on_train_batch_end(step, logs)
        _check_goes_on(self.run.model)
        self.show(logs)
        if self.progress.step % 10 == 0:
            self.log.write(self.progress.step, "train", logs)
        self.run.checkpoint(stop=self.run.signals)

    def show(self, scores: dict[str, float], stays: bool = False) -> None:
        bar = "=" * round(20 * self.done / self.steps)
        title = f"epoch {self.progress.epoch + 1}/{self.epochs} [{bar:20}] {self.done}/{self.steps}"
        self.log.show(self.progress.step, title, {"loss": scores["loss"]} | scores, stays)  # the total loss comes first

    def check_outputs(self, outputs: Any) -> None:
        """Checks the outputs of a batch of validation texts, and saves the state if it is time to."""
        if not all(np.isfinite(output).all() for output in keras.tree.flatten(outputs)):
            raise InputError(f"the model's outputs must be finite; after step {self.progress.step} one is not; ",
                             *ADVICE)
        self.run.checkpoint(stop=self.run.signals)


def _check_goes_on(model: Any) -> None:
    if model.stop_training:
        raise InputError(Option("callbacks"), " must not stop the training; pass ", Option("early_stopping_patience=…"))


def _is_finished(scores: list[float], options: Options) -> bool:
    """Returns whether a run with these main scores is at its end. Patience counts the epochs without a better score, as
    Keras's `EarlyStopping` does; the epoch that is kept may be a later one, with the same score and a lower loss."""
    waited = len(scores) - 1 - scores.index(max(scores)) if scores else 0
    return len(scores) == options.epochs or waited >= (options.early_stopping_patience or options.epochs)


@naming_full_memory("try a smaller ", Option("batch_size=…"), " or ", Option("max_length=…"))
def train(prepared: Prepared, checkpoints: Checkpoints) -> Progress:
    """Trains the prepared model from its last checkpoint to the end, then restores the weights of its best epoch: the
    one with the highest main score; of epochs with the same score, the one with the lowest loss. The order of the texts
    and the dropout depend only on the seed and the step. There is also a checkpoint after each epoch. Raises an
    InputError if the loss or an output is not finite, a checkpoint cannot be written, or a callback stops the training;
    and `Stopped` if a signal was received, after everything is saved."""
    options, model, strategy, valid = prepared.options, prepared.model, prepared.strategy, prepared.valid
    batches, batch_size, epochs = strategy.train_batches, options.batch_size, options.epochs
    batches_per_step, main = options.gradient_accumulation_steps, prepared.task.main_score(valid.examples)
    model.evaluate(batches.validation_dataset(batch_size).take(1), verbose=0)  # creates the metrics' variables
    steps = math.ceil(batches.steps(batch_size) / batches_per_step)  # per epoch
    run = Run(model, checkpoints, steps * epochs, options.save_steps)
    progress, log = run.progress, TrainingLog(steps * epochs, "examples", options.log_dir)
    # Not of `fit`, which is called once for each epoch.
    observers = keras.callbacks.CallbackList(
        list(options.callbacks or ()), model=model, epochs=epochs, steps=steps, verbose=0)
    hooks = _Hooks(run, log, observers, options, steps)
    observers.on_train_begin()
    with recorded_signals(run.signals):
        while not _is_finished(progress.history.get(f"val_{main}", []), options):
            epoch, done = progress.epoch, hooks.done
            observers.on_epoch_begin(epoch)
            if done < steps:
                # `fit` resets the metrics' sums; after that, a resumed epoch gets its sums back.
                hooks.sums = [float(variable) for variable in model.metrics_variables] if done else []
                hooks.sizes = [list(map(len, step)) for step in batches.steps_of_epoch(
                    batch_size, options.seed, epoch, batches_per_step)]
                data = batches.training_dataset(
                    batch_size, options.seed, epoch, done * batches_per_step, batches_per_step)
                model.fit(data, initial_epoch=epoch, epochs=epoch + 1, class_weight=strategy.class_weight,
                          callbacks=[hooks], shuffle=False, verbose=0)
                hooks.show(model.get_metrics_result(), stays=True)
            if len(progress.history.get("loss", [])) == epoch:  # else the checkpoint had these scores
                progress.add(model.get_metrics_result())
            outputs = strategy.outputs(model, batch_size, hooks.check_outputs)
            # With the thresholds that are best for this epoch, as the finished model is scored.
            scores = prepared.task.calibrated(valid, outputs).score(valid, outputs)
            scores = {name: scores[name] for name in ("loss", main)}
            log.show(progress.step, f"epoch {epoch + 1}/{epochs} validation", scores, stays=True)
            log.write(progress.step, "validation", scores)
            progress.add({f"val_{name}": value for name, value in scores.items()})
            observers.on_epoch_end(epoch, progress.newest)
            _check_goes_on(model)
            ranks = list(zip(progress.history[f"val_{main}"], np.negative(progress.history["val_loss"])))
            if ranks.index(max(ranks)) == epoch:
                progress.best_epoch = progress.epoch
                checkpoints.save_best(model, progress)
            run.checkpoint(stop=run.signals, now=True)
    checkpoints.restore_best(model)
    observers.on_train_end(progress.newest)
    return progress
