"""The TensorFlow devices that share each batch."""

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from keras_bert.data import TextBatches
from keras_bert.errors import InputError, Option

_strategies: dict[frozenset[str], tf.distribute.Strategy] = {}  # at most one


def strategy_scope(devices: Sequence[str] | None, batch_size: int,
                   *batches: TextBatches) -> contextlib.AbstractContextManager:
    """Returns the scope in which to make a model whose training and validation batches are split across devices.

    Raises:
        InputError: a device does not exist, is repeated, or is another one than in an earlier call; or the batches
            cannot be divided among the devices.
    """
    if not devices:
        return contextlib.nullcontext()
    here = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    if not set(devices) <= set(here) or len(set(devices)) < len(devices):
        raise InputError(Option("devices"), f" must be different ones of {', '.join(here)}; got {', '.join(devices)}")
    if batch_size % len(devices):
        raise InputError(Option("batch_size"),
                         f" must be a multiple of the number of devices, {len(devices)}; got {batch_size}")
    for name, texts in zip(("train", "valid"), batches):
        if len(texts.packed) < batch_size:
            raise InputError(Option(name), " must have at least as many texts as a batch with devices, "
                             f"{batch_size}; got {len(texts.packed)}")
    return mirrored_strategy(devices).scope()


def mirrored_strategy(devices: Sequence[str]) -> tf.distribute.Strategy:
    """Returns the strategy of a set of devices. A process can have one of several devices: a second one would number
    its collective operations from the start again, and TensorFlow would take them for those of the first.

    Raises:
        InputError: this process has a strategy of several other devices.
    """
    if len(devices) == 1:
        return tf.distribute.MirroredStrategy(devices)
    if frozenset(devices) not in _strategies:
        for first in _strategies:
            raise InputError(f"several devices must be the same in all runs of a process, {', '.join(sorted(first))}; "
                             f"got {', '.join(devices)}; start another process")
        _strategies[frozenset(devices)] = tf.distribute.MirroredStrategy(devices)
    return _strategies[frozenset(devices)]
