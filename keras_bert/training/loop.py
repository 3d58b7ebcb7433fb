"""The loop of fine-tuning, which logs, saves and resumes from the last checkpoint."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_bert.arguments import Path
from keras_bert.data import TextBatches
from keras_bert.errors import InputError, Option
from keras_bert.training.checkpoints import ADVICE, Checkpoints, Progress
from keras_bert.training.run import Run, TrainingLog, naming_full_memory, recorded_signals
from keras_bert.training.run import enable_determinism as enable_determinism  # its place in version 0.2


class _Steps(keras.callbacks.Callback):
    """The steps of a run: what happens before and after each batch of `fit`, which is called once for each epoch."""

    def __init__(self, run: Run, log: TrainingLog, observers: keras.callbacks.CallbackList, epochs: int, steps: int,
                 accumulation_steps: int) -> None:
        super().__init__()
        self.run, self.log, self.observers, self.progress = run, log, observers, run.progress
        self.epochs, self.steps, self.accumulation_steps = epochs, steps, accumulation_steps
        self.started = time.monotonic()
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
        number, sizes = batch % self.accumulation_steps, self.sizes[self.done]
        if self.accumulation_steps > 1:
            optimizer: Any = self.run.model.optimizer
            optimizer.examples.assign(sizes[number])
            optimizer.total.assign(sum(sizes) if number + 1 == len(sizes) else 0)
        if number == 0:
            self.observers.on_train_batch_begin(self.done, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step, sizes = self.done, self.sizes[self.done]
        if batch % self.accumulation_steps + 1 < len(sizes):
            return
        self.progress.step += 1
        self.run.check_loss(logs["loss"])
        self.log.count(1, time.monotonic() - self.started - self.log.seconds, sum(sizes))
        self.observers.on_train_batch_end(step, logs)
        check_goes_on(self.run.model)
        self.show(logs)
        if self.progress.step % 10 == 0:
            self.log.write(self.progress.step, "train", logs)
        self.run.checkpoint(stop=self.run.signals)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.show(logs, stays=True)

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


def check_goes_on(model: Any) -> None:
    if model.stop_training:
        raise InputError(Option("callbacks"), " must not stop the training; pass ",
                         Option("early_stopping_patience=…"))


@naming_full_memory("try a smaller ", Option("batch_size=…"), " or ", Option("max_length=…"))
def train(model: keras.Model, train_batches: TextBatches, validate: Callable[[Callable[[Any], None]], dict[str, Any]],
          main: str, checkpoints: Checkpoints, *, epochs: int, batch_size: int, seed: int, save_steps: int,
          accumulation_steps: int = 1, class_weight: dict[int, float] | None = None, patience: int | None = None,
          log_dir: Path | None = None, callbacks: Sequence[keras.callbacks.Callback] = ()) -> Progress:
    """Trains a compiled model from its last checkpoint to the end, then restores the weights of its best epoch. The
    order of the texts and the dropout depend only on `seed` and the step. There is also a checkpoint after each epoch.

    Args:
        model: has a built optimizer, an `AccumulatingAdamW` if `accumulation_steps` is above 1.
        validate: scores the model: returns `loss` and the score that `main` names. It calls its argument with the
            outputs of each batch.
        main: name of the score that decides which epoch is best, the highest; of epochs with the same score, the one
            with the lowest loss is best.
        accumulation_steps: number of batches per step. The last step of an epoch has those that are left.
        class_weight: weights of the losses of the classes.
        patience: number of epochs without a better score after which training stops; None to train all epochs.
        callbacks: observers, see `finetune`.

    Raises:
        InputError: the loss or an output is not finite, a checkpoint cannot be written, or a callback stops the
            training.
        Stopped: a signal was received; everything is saved.
    """
    model.evaluate(train_batches.validation_dataset(batch_size).take(1), verbose=0)  # creates the metrics' variables
    steps = math.ceil(train_batches.steps(batch_size) / accumulation_steps)
    run = Run(model, checkpoints, steps * epochs, save_steps)
    progress, log = run.progress, TrainingLog(steps * epochs, "examples", log_dir)
    # Not of `fit`, which is called once for each epoch.
    observers = keras.callbacks.CallbackList(list(callbacks), model=model, epochs=epochs, steps=steps, verbose=0)
    of_steps = _Steps(run, log, observers, epochs, steps, accumulation_steps)
    observers.on_train_begin()
    with recorded_signals(run.signals):
        while progress.epoch < epochs and progress.epoch - progress.best_epoch < (patience or epochs):
            epoch, done = progress.epoch, of_steps.done
            observers.on_epoch_begin(epoch)
            if done < steps:
                # `fit` resets the metrics' sums; after that, a resumed epoch gets its sums back.
                of_steps.sums = [float(variable) for variable in model.metrics_variables] if done else []
                of_steps.sizes = [list(map(len, step)) for step in train_batches.steps_of_epoch(
                    batch_size, seed, epoch, accumulation_steps)]
                model.fit(train_batches.training_dataset(
                    batch_size, seed, epoch, done * accumulation_steps, accumulation_steps), initial_epoch=epoch,
                    epochs=epoch + 1, class_weight=class_weight, callbacks=[of_steps], shuffle=False, verbose=0)
            if len(progress.history.get("loss", [])) == epoch:  # else the checkpoint had these scores
                progress.add(model.get_metrics_result())
            scores = validate(of_steps.check_outputs)
            valid = {name: scores[name] for name in ("loss", main)}
            log.show(progress.step, f"epoch {epoch + 1}/{epochs} validation", valid, stays=True)
            log.write(progress.step, "validation", valid)
            progress.add({f"val_{name}": value for name, value in valid.items()})
            observers.on_epoch_end(epoch, progress.newest)
            check_goes_on(model)
            ranks = list(zip(progress.history[f"val_{main}"], np.negative(progress.history["val_loss"])))
            if ranks.index(max(ranks)) == epoch:
                progress.best_epoch = progress.epoch
                checkpoints.save_best(model, progress)
            run.checkpoint(stop=run.signals, now=True)
    checkpoints.restore_best(model)
    observers.on_train_end(progress.newest)
    return progress
