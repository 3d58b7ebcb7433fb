"""The epochs of a run: trained, scored, saved, and taken up again where they were left."""

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
def noted_signals():
    """Gives a list that Ctrl-C and SIGTERM are noted in; a second one acts at once. Python lets only the main thread
    do so: elsewhere the list stays empty."""
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
    """Checks what any training run asks of this installation."""
    on_jax = kernels.BACKEND == "jax"
    check_rules(("deterministic", deterministic, "left out on the JAX backend, where XLA_FLAGS="
                 "--xla_gpu_deterministic_ops=true does it", not (deterministic and on_jax)))
    if log_dir and not importlib.util.find_spec("tensorboard"):
        raise InputError('log_dir needs TensorBoard: pip install "keras-bert-hub[report]"')


def enable_determinism():
    """Makes TensorFlow's operations give the same bits each time, on a GPU too, for the rest of the process. They are
    slower there, and Keras compiles nothing with XLA."""
    keras.utils.set_random_seed(0)  # TensorFlow wants one first
    tf.config.experimental.enable_op_determinism()


def compiles():
    """Whether batches keep to few shapes, each of which XLA compiles: on JAX, and with TensorFlow on a GPU. Whether XLA
    is used is left to Keras (`jit_compile="auto"`): it is not under op determinism, nor on several devices."""
    return kernels.BACKEND == "jax" or bool(tf.config.list_physical_devices("GPU"))


def train(model, train_batches, validate, main, checkpoints, *, epochs, batch_size, seed, save_steps,
          class_weight=None, patience=None, log_dir=None):
    """Trains a compiled model from its last checkpoint to the end, and leaves it with the weights of its best epoch.

    Args:
        model: compiled, its optimizer built.
        train_batches: `TextBatches`.
        validate: function that scores the model, a dict with `loss` and `main`; it calls its argument with the outputs
            of each batch.
        main: the score that tells which epoch is best; of several that are equal, the one with the lowest loss.
        checkpoints: `Checkpoints` of this run.
        epochs, batch_size, seed: as of `finetune`; order and dropout follow from `seed` and the step.
        save_steps: steps between two checkpoints; there is one after each epoch in any case.
        class_weight: dict of class numbers to weights of their losses.
        patience: epochs without a better score after which to stop; None never does.
        log_dir: folder for TensorBoard's logs, or None.

    Returns:
        the `Progress`, its history complete.

    Raises:
        InputError: the loss or an output is not a number, or a checkpoint cannot be written.
        Stopped: a signal came; all is saved.
    """
    model.evaluate(train_batches.validation_dataset(batch_size).take(1), verbose=0)  # makes the metrics' variables
    progress = checkpoints.restore_last(model)
    steps = train_batches.steps(batch_size)
    if progress.step:
        print(f"going on from step {progress.step} of {steps * epochs}", file=sys.stderr)
    with noted_signals() as received:
        watch = _Watch(checkpoints, progress, save_steps, received)
        watch.set_model(model)  # which `fit` would, but an epoch may only have its scores left to do
        callbacks = [watch, ProgressLine(progress, steps, epochs, batch_size)]
        if log_dir:
            callbacks.append(TensorBoardLog(progress, log_dir))
        while progress.epoch < epochs and not _exhausted(progress, patience):
            epoch, done = progress.epoch, progress.step - progress.epoch * steps
            if done < steps:
                watch.metrics = [float(variable) for variable in model.metrics_variables] if done else None
                model.fit(train_batches.training_dataset(batch_size, seed, epoch, done), initial_epoch=epoch,
                          epochs=epoch + 1, class_weight=class_weight, callbacks=callbacks, shuffle=False, verbose=0)
            if len(progress.history.get("loss", [])) == epoch:  # else it stood in the checkpoint
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
    """Keeps up the progress, saves it, and stops the run on a signal or a loss that is no number."""

    def __init__(self, checkpoints, progress, save_steps, received):
        super().__init__()
        self.checkpoints = checkpoints
        self.progress = progress
        self.save_steps = save_steps
        self.received = received
        self.saved = progress.step
        self.metrics = None  # sums to go on from in the middle of an epoch: `fit` begins with new ones

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
        """Ends the run if an output in validation is not a number; and if a signal has come, when all is saved."""
        if not all(np.isfinite(output).all() for output in keras.tree.flatten(outputs)):
            raise InputError(f"the model's outputs must be finite; at step {self.progress.step} one is not; {ADVICE}")
        if self.received:
            self.save()
        self.check_signals()

    def save(self):
        """Saves the state and the progress."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # within `fit` the variables are behind
        self.checkpoints.save_last(self.model, self.progress)
        self.saved = self.progress.step

    def check_signals(self):
        """Ends the run if a signal has come."""
        if self.received:
            raise Stopped(self.received[0], f"stopped at step {self.progress.step}, all is saved; the same command "
                                            "goes on from there")


def _best_epoch(history, main):
    """The epoch with the highest score, of several the one with the lowest loss; counted from 1."""
    scores = list(zip(history[f"val_{main}"], (-loss for loss in history["val_loss"])))
    return scores.index(max(scores)) + 1


def _exhausted(progress, patience):
    return patience is not None and progress.epoch - progress.best_epoch >= patience
