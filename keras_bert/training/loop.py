"""The loop of fine-tuning, which logs, saves and resumes from the last checkpoint; its parts serve pretraining too."""

import contextlib
import importlib.util
import math
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bert import kernels
from keras_bert.arguments import Path, check
from keras_bert.data import TextBatches
from keras_bert.errors import InputError, Option, Stopped
from keras_bert.training.checkpoints import ADVICE, Checkpoints, Progress, Trained
from keras_bert.training.progress import TrainingLog


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


def check_run(function: Callable, arguments: dict[str, Any], *rules: tuple[str, object, str, bool]) -> None:
    """Checks the arguments of `finetune` or `pretrain`, see `check`; those that both have, also against the backend and
    the installed packages."""
    check(function, arguments, *rules,
          ("deterministic", arguments["deterministic"], "left out on the JAX backend, where XLA_FLAGS="
           "--xla_gpu_deterministic_ops=true does it", not (arguments["deterministic"] and kernels.BACKEND == "jax")))
    if arguments["log_dir"] and not importlib.util.find_spec("tensorboard"):
        raise InputError("log_dir needs TensorBoard: pip install tensorboard")


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


@naming_full_memory("try a smaller ", Option("batch_size=…"), " or ", Option("max_length=…"))
def train(model: keras.Model, train_batches: TextBatches, validate: Callable[[Callable[[Any], None]], dict[str, Any]],
          main: str, checkpoints: Checkpoints, *, epochs: int, batch_size: int, seed: int, save_steps: int,
          class_weight: dict[int, float] | None = None, patience: int | None = None, log_dir: Path | None = None
          ) -> Progress:
    """Trains a compiled model from its last checkpoint to the end, then restores the weights of its best epoch. The
    order of the texts and the dropout depend only on `seed` and the step. There is also a checkpoint after each epoch.

    Args:
        model: has a built optimizer.
        validate: scores the model: returns `loss` and the score that `main` names. It calls its argument with the
            outputs of each batch.
        main: name of the score that decides which epoch is best, the highest; of epochs with the same score, the one
            with the lowest loss is best.
        class_weight: weights of the losses of the classes.
        patience: number of epochs without a better score after which training stops; None to train all epochs.

    Raises:
        InputError: the loss or an output is not finite, or a checkpoint cannot be written.
        Stopped: a signal was received; everything is saved.
    """
    model.evaluate(train_batches.validation_dataset(batch_size).take(1), verbose=0)  # creates the metrics' variables
    steps = train_batches.steps(batch_size)
    run = Run(model, checkpoints, steps * epochs, save_steps)
    progress = run.progress
    log, started = TrainingLog(steps * epochs, "examples", log_dir), time.monotonic()

    def show(scores: dict[str, float], stays: bool = False) -> None:
        done = progress.step - progress.epoch * steps
        bar = "=" * round(20 * done / steps)
        scores = {"loss": scores["loss"]} | scores  # the total loss before its parts
        log.show(progress.step, f"epoch {progress.epoch + 1}/{epochs} [{bar:20}] {done}/{steps}", scores, stays)

    def restore_sums(epoch: int, logs: dict[str, float]) -> None:
        for variable, value in zip(model.metrics_variables, sums):
            variable.assign(value)

    def after_step(batch: int, logs: dict[str, float]) -> None:
        progress.step += 1
        run.check_loss(logs["loss"])
        log.count(1, time.monotonic() - started - log.seconds, batch_size)
        show(logs)
        if progress.step % 10 == 0:
            log.write(progress.step, "train", logs)
        run.checkpoint(stop=run.signals)

    def check_outputs(outputs: Any) -> None:
        if not all(np.isfinite(output).all() for output in keras.tree.flatten(outputs)):
            raise InputError(f"the model's outputs must be finite; after step {progress.step} one is not; ", *ADVICE)
        run.checkpoint(stop=run.signals)

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=restore_sums, on_train_batch_end=after_step,
                                              on_epoch_end=lambda epoch, logs: show(logs, stays=True))
    with recorded_signals(run.signals):
        while progress.epoch < epochs and progress.epoch - progress.best_epoch < (patience or epochs):
            epoch, done = progress.epoch, progress.step - progress.epoch * steps
            if done < steps:
                # `fit` resets the metrics' sums; after that, a resumed epoch gets its sums back.
                sums = [float(variable) for variable in model.metrics_variables] if done else ()
                model.fit(train_batches.training_dataset(batch_size, seed, epoch, done), initial_epoch=epoch,
                          epochs=epoch + 1, class_weight=class_weight, callbacks=[callback], shuffle=False, verbose=0)
            if len(progress.history.get("loss", [])) == epoch:  # else the checkpoint had these scores
                progress.add(model.get_metrics_result())
            scores = validate(check_outputs)
            valid = {name: scores[name] for name in ("loss", main)}
            log.show(progress.step, f"epoch {epoch + 1}/{epochs} validation", valid, stays=True)
            log.write(progress.step, "validation", valid)
            progress.add({f"val_{name}": value for name, value in valid.items()})
            ranks = list(zip(progress.history[f"val_{main}"], np.negative(progress.history["val_loss"])))
            if ranks.index(max(ranks)) == epoch:
                progress.best_epoch = progress.epoch
                checkpoints.save_best(model, progress)
            run.checkpoint(stop=run.signals, now=True)
    checkpoints.restore_best(model)
    return progress
