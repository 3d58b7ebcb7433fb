"""The training loop of fine-tuning: trains and scores epochs, writes checkpoints and resumes from them."""

import contextlib
import importlib.util
import math
import signal
import sys
import threading

import keras
import numpy as np
import tensorflow as tf

from keras_bert import kernels
from keras_bert.arguments import check_rules
from keras_bert.errors import InputError, Stopped
from keras_bert.training.checkpoints import ADVICE
from keras_bert.training.progress import ProgressLine, TensorBoardLog


@contextlib.contextmanager
def recorded_signals():
    """Context manager that yields a list, to which Ctrl-C and SIGTERM append their signal numbers instead of ending the
    process. A second signal of the same kind is handled as usual. Python allows signal handlers only in the main
    thread: in other threads the list stays empty."""
    received = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number, _):
        received.append(number)
        signal.signal(number, previous[number])

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def check_run(log_dir, deterministic):
    """Checks the arguments of a training run that depend on the backend and on installed packages."""
    on_jax = kernels.BACKEND == "jax"
    check_rules(("deterministic", deterministic, "left out on the JAX backend, where XLA_FLAGS="
                 "--xla_gpu_deterministic_ops=true does it", not (deterministic and on_jax)))
    if log_dir and not importlib.util.find_spec("tensorboard"):
        raise InputError('log_dir needs TensorBoard: pip install "keras-bert-hub[report]"')


def enable_determinism():
    """Makes TensorFlow's operations reproducible bit by bit, on a GPU too, for the rest of the process. They are slower
    on a GPU, and Keras compiles nothing with XLA."""
    keras.utils.set_random_seed(0)  # TensorFlow requires a seed first
    tf.config.experimental.enable_op_determinism()


def prefers_few_shapes():
    """Returns True if batches should have few different shapes, because XLA compiles each one: on JAX, and with
    TensorFlow on a GPU. Keras decides if XLA is used (`jit_compile="auto"`): not under op determinism, and not on
    multiple devices."""
    return kernels.BACKEND == "jax" or bool(tf.config.list_physical_devices("GPU"))


def train(model, train_batches, validate, main, checkpoints, *, epochs, batch_size, seed, save_steps,
          class_weight=None, patience=None, log_dir=None):
    """Trains a compiled model from its last checkpoint to the end, then restores the weights of its best epoch.

    Args:
        model: a compiled model with a built optimizer.
        train_batches: `TextBatches`.
        validate: function that scores the model and returns a dict with `loss` and the score that `main` names. Its
            argument is a function, which it calls with the outputs of each batch.
        main: name of the score that decides which epoch is best, the highest; of epochs with the same score, the one
            with the lowest loss is best.
        checkpoints: `Checkpoints` of this run.
        epochs, batch_size, seed: see `finetune`; the order of the texts and the dropout depend only on `seed` and the
            step.
        save_steps: steps between two checkpoints; there is also one after each epoch.
        class_weight: dict of class numbers to weights of their losses.
        patience: number of epochs without a better score after which training stops; None to train all epochs.
        log_dir: folder for TensorBoard logs, or None.

    Returns:
        the `Progress` with the complete history.

    Raises:
        InputError: the loss or an output is not finite, or a checkpoint cannot be written.
        Stopped: a signal was received; everything is saved.
    """
    model.evaluate(train_batches.validation_dataset(batch_size).take(1), verbose=0)  # creates the metrics' variables
    progress = checkpoints.restore_last(model)
    steps = train_batches.steps(batch_size)
    if progress.step:
        print(f"going on from step {progress.step} of {steps * epochs}", file=sys.stderr)
    with recorded_signals() as received:
        watch = _Watch(checkpoints, progress, save_steps, received)
        watch.set_model(model)  # `fit` may not run: a resumed epoch may only need its scores
        callbacks = [watch, ProgressLine(progress, steps, epochs, batch_size)]
        if log_dir:
            callbacks.append(TensorBoardLog(progress, log_dir))
        while progress.epoch < epochs and not _exhausted(progress, patience):
            epoch, done = progress.epoch, progress.step - progress.epoch * steps
            if done < steps:
                watch.metrics = [float(variable) for variable in model.metrics_variables] if done else None
                model.fit(train_batches.training_dataset(batch_size, seed, epoch, done), initial_epoch=epoch,
                          epochs=epoch + 1, class_weight=class_weight, callbacks=callbacks, shuffle=False, verbose=0)
            if len(progress.history.get("loss", [])) == epoch:  # else the checkpoint had these scores
                progress.add(model.get_metrics_result())
            scores = validate(watch.check_outputs)
            valid = {name: scores[name] for name in ("loss", main)}
            for callback in callbacks[1:]:
                callback.on_test_end(valid)
            progress.add({f"val_{name}": value for name, value in valid.items()})
            if _best_epoch(progress.history, main) == progress.epoch:
                progress.best_epoch = progress.epoch
                checkpoints.save_best(model, progress)
            watch.save()
            watch.check_signals()
    checkpoints.restore_best(model)
    return progress


class _Watch(keras.callbacks.Callback):
    """The callback that counts steps, writes checkpoints, and stops the run on a signal or a non-finite loss."""

    def __init__(self, checkpoints, progress, save_steps, received):
        super().__init__()
        self.checkpoints = checkpoints
        self.progress = progress
        self.save_steps = save_steps
        self.received = received
        self.saved = progress.step
        self.metrics = None  # sums to restore when an epoch is resumed, because `fit` resets them

    def on_epoch_begin(self, epoch, logs=None):
        if self.metrics:
            for variable, value in zip(self.model.metrics_variables, self.metrics):
                variable.assign(value)

    def on_train_batch_end(self, batch, logs=None):
        self.progress.step += 1
        if not math.isfinite(logs["loss"]):
            raise InputError(f"the loss must be a finite number; at step {self.progress.step} it is {logs['loss']}; "
                             f"the last checkpoint is of step {self.saved}; {ADVICE}")
        if self.received or self.progress.step - self.saved >= self.save_steps:
            self.save()
        self.check_signals()

    def check_outputs(self, outputs):
        """Ends the run if a validation output is not finite, or, after saving everything, if a signal was received."""
        if not all(np.isfinite(output).all() for output in keras.tree.flatten(outputs)):
            raise InputError(f"the model's outputs must be finite; at step {self.progress.step} one is not; {ADVICE}")
        if self.received:
            self.save()
        self.check_signals()

    def save(self):
        """Saves the state and the progress."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # during `fit` the variables have old values
        self.checkpoints.save_last(self.model, self.progress)
        self.saved = self.progress.step

    def check_signals(self):
        """Ends the run if a signal was received."""
        if self.received:
            raise Stopped(self.received[0], f"stopped at step {self.progress.step}, all is saved; the same command "
                                            "goes on from there")


def _best_epoch(history, main):
    """Returns the epoch with the highest score, counted from 1; of epochs with the same score, the one with the lowest
    loss."""
    scores = list(zip(history[f"val_{main}"], (-loss for loss in history["val_loss"])))
    return scores.index(max(scores)) + 1


def _exhausted(progress, patience):
    return patience is not None and progress.epoch - progress.best_epoch >= patience
