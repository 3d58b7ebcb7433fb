"""Packed texts to batches of like length."""

import numpy as np
import tensorflow as tf

from keras_bert.text import pad

# Texts are sorted by length within pools of this many batches, so that order stays random and padding small.
_POOL = 50


def plan_batches(lengths, batch_size, rng):
    """Random batches of like length: every index once, each batch's lengths close together.

    Args:
        lengths: list of int.
        rng: `numpy.random.Generator`; the same state gives the same plan.

    Returns:
        a list of index arrays.
    """
    lengths = np.asarray(lengths)
    order = rng.permutation(len(lengths))
    pools = [order[i:i + _POOL * batch_size] for i in range(0, len(order), _POOL * batch_size)]
    by_length = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
    batches = [by_length[i:i + batch_size] for i in range(0, len(by_length), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def sorted_batches(lengths, batch_size):
    """Batches in order of length, for inference: a list of index arrays."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]


class TextBatches:
    """Packed texts, batched and padded to their batch's longest.

    Args:
        packed: what `BertTokenizer.pack` returned.
        pad_id: id of [PAD].
        labels: int array [texts], or None.
        length_multiple: padded lengths are multiples of this; more than 1 saves
            compilations where each shape costs one.
        whole: whether an epoch leaves out its last batch where that is a short one,
            which devices could not share out evenly.
    """

    def __init__(self, packed, pad_id, labels=None, length_multiple=1, whole=False):
        self.packed = packed
        self.pad_id = pad_id
        self.labels = labels
        self.length_multiple = length_multiple
        self.whole = whole
        self.lengths = [len(ids) for ids, _ in packed]

    def inputs(self, indices):
        """The input dict of the texts at `indices`."""
        longest = max(self.lengths[i] for i in indices)
        length = -(-longest // self.length_multiple) * self.length_multiple
        return pad([self.packed[i] for i in indices], self.pad_id, length)

    def steps(self, batch_size):
        """Training batches an epoch."""
        return len(self.packed) // batch_size + bool(len(self.packed) % batch_size and not self.whole)

    def training_dataset(self, batch_size, seed, epoch, skip=0):
        """One epoch as a `tf.data.Dataset` of (inputs, labels), without its first `skip` batches. Each batch brings its
        `dropout_seed` (seed, step), a row a text: order and dropout depend on `seed` and the step alone."""
        plan = plan_batches(self.lengths, batch_size, np.random.default_rng((seed, epoch)))
        if self.whole:
            plan = [indices for indices in plan if len(indices) == batch_size]

        def batches():
            for step, indices in enumerate(plan[skip:], epoch * len(plan) + skip):
                seeds = np.tile(np.array([seed, step], np.int32), (len(indices), 1))
                yield self.inputs(indices) | {"dropout_seed": seeds}, self.labels[indices]

        return self._dataset(batches, len(plan) - skip, dropout_seed=tf.TensorSpec([None, 2], tf.int32))

    def validation_dataset(self, batch_size):
        """A `tf.data.Dataset` of (inputs, labels), each text once, in order of length."""

        plan = sorted_batches(self.lengths, batch_size)

        def batches():
            for indices in plan:
                yield self.inputs(indices), self.labels[indices]

        return self._dataset(batches, len(plan))

    def _dataset(self, batches, cardinality, **more_inputs):
        tokens = tf.TensorSpec([None, None], tf.int32)
        inputs = {"input_word_ids": tokens, "input_mask": tokens, "segment_ids": tokens} | more_inputs
        signature = (inputs, tf.TensorSpec([None], tf.int32))
        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
        return dataset.apply(tf.data.experimental.assert_cardinality(cardinality)).prefetch(2)
