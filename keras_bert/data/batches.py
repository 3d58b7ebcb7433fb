"""Batches of texts of like length, and of several texts a row."""

import itertools
import math

import numpy as np
import tensorflow as tf

from keras_bert.text import pad

# Texts are sorted by length within pools of this many batches, so that order stays random and padding small.
_POOL = 50
UNLABELLED = -1  # the target of a token that has no label


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


def token_batches(lengths, tokens=2048):
    """Batches in order of length with about as many tokens each, for inference without padding: a list of index arrays.

    Args:
        lengths: list of int.
        tokens: of a batch, its last text aside.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    batch = np.cumsum(np.asarray(lengths)[order]) // tokens
    return np.split(order, np.flatnonzero(np.diff(batch)) + 1) if len(order) else []


class TextBatches:
    """Packed texts, batched and padded to their batch's longest.

    Args:
        packed: what `BertTokenizer.pack` returned.
        pad_id: id of [PAD].
        targets: array [texts, ...], or a dict of them; None for texts without.
        length_multiple: padded lengths are multiples of this; more than 1 saves
            compilations where each shape costs one.
        whole: whether an epoch leaves out its last batch where that is a short one,
            which devices could not share out evenly.
    """

    def __init__(self, packed, pad_id, targets=None, length_multiple=1, whole=False):
        self.packed = packed
        self.pad_id = pad_id
        self.targets = targets
        self.length_multiple = length_multiple
        self.whole = whole
        self.lengths = [self._length(row) for row in packed]

    def inputs(self, indices):
        """The input dict of the texts at `indices`."""
        return pad([self.packed[i] for i in indices], self.pad_id, self._padded_length(indices))

    def steps(self, batch_size):
        """Training batches an epoch."""
        return len(self.packed) // batch_size + bool(len(self.packed) % batch_size and not self.whole)

    def training_dataset(self, batch_size, seed, epoch, skip=0):
        """One epoch as a `tf.data.Dataset` of (inputs, targets), without its first `skip` batches. Each batch brings
        its `dropout_seed` (seed, step), a row a text: order and dropout depend on `seed` and the step alone."""
        plan = self._plan(batch_size, np.random.default_rng((seed, epoch)))
        if self.whole:
            plan = [indices for indices in plan if len(indices) == batch_size]
        first = epoch * len(plan)
        return self._dataset([(indices, (seed, first + step)) for step, indices in enumerate(plan)][skip:])

    def validation_dataset(self, batch_size):
        """A `tf.data.Dataset` of (inputs, targets), each text once, in order of length."""
        return self._dataset([(indices, None) for indices in sorted_batches(self.lengths, batch_size)])

    def _plan(self, batch_size, rng):
        return plan_batches(self.lengths, batch_size, rng)

    def _dataset(self, plan):
        def batch(indices, dropout_seed):
            inputs = self.inputs(indices)
            if dropout_seed:
                inputs["dropout_seed"] = np.tile(np.array(dropout_seed, np.int32), (len(indices), 1))
            return inputs, self._targets_of(indices)

        signature = tf.nest.map_structure(
            lambda values: tf.TensorSpec([None] * values.ndim, values.dtype), batch([0], plan[0][1] if plan else None))
        dataset = tf.data.Dataset.from_generator(lambda: itertools.starmap(batch, plan), output_signature=signature)
        return dataset.apply(tf.data.experimental.assert_cardinality(len(plan))).prefetch(2)

    def _length(self, row):
        return len(row[0])

    def _padded_length(self, indices):
        longest = max(self.lengths[i] for i in indices)
        return -(-longest // self.length_multiple) * self.length_multiple

    def _targets_of(self, indices):
        return tf.nest.map_structure(lambda values: values[indices], self.targets)


class TokenBatches(TextBatches):
    """Texts with a target for each token: `targets` is a list of int32 arrays [tokens]; `UNLABELLED` stands behind."""

    def _targets_of(self, indices):
        padded = np.full((len(indices), self._padded_length(indices)), UNLABELLED, np.int32)
        for row, index in enumerate(indices):
            padded[row, :len(self.targets[index])] = self.targets[index]
        return padded


class ChoiceBatches(TextBatches):
    """Texts with several endings: a row of `packed` is a list of what `BertTokenizer.pack` returned, as many in each
    row. The inputs have the shape [batch, choices, seq]."""

    def inputs(self, indices):
        rows = [choice for i in indices for choice in self.packed[i]]
        inputs = pad(rows, self.pad_id, self._padded_length(indices))
        return {name: values.reshape(len(indices), -1, values.shape[1]) for name, values in inputs.items()}

    def _length(self, row):
        return max(len(ids) for ids, _ in row)


class PackedBatches(TextBatches):
    """Texts with a target each, in random batches, each laid into as many rows as all batches have (see
    `layers.PackedLayout`). A rare batch does not fit, and gets twice as many.

    Args:
        packed, pad_id, targets: see `TextBatches`.
        length: of a row, at least the longest text's.
    """

    def __init__(self, packed, pad_id, targets, length):
        super().__init__(packed, pad_id, targets)
        self._length_of_row = length

    def inputs(self, indices):
        """The input dict of the texts at `indices`, see `BertLayer`: int32 [rows, length], with `sequence_ids`, and
        `pooled_positions`, int32 [texts]."""
        length = self._length_of_row
        rows = pack([self.lengths[i] for i in indices], length)
        usual = math.ceil(1.1 * len(indices) * np.mean(self.lengths) / length) + 1
        word_ids = np.full((math.ceil(len(rows) / usual) * usual, length), self.pad_id, np.int32)
        sequence_ids, segment_ids = np.zeros_like(word_ids), np.zeros_like(word_ids)
        pooled_positions = np.empty(len(indices), np.int32)
        for row, texts in enumerate(rows):
            begin = 0
            for number, text in enumerate(texts, 1):
                ids, first_segment = self.packed[indices[text]]
                end = begin + len(ids)
                word_ids[row, begin:end] = ids
                sequence_ids[row, begin:end] = number
                segment_ids[row, begin + first_segment:end] = 1
                pooled_positions[text] = row * length + begin
                begin = end
        return {"input_word_ids": word_ids, "input_mask": np.int32(sequence_ids > 0), "segment_ids": segment_ids,
                "sequence_ids": sequence_ids, "pooled_positions": pooled_positions}

    def _plan(self, batch_size, rng):
        order = rng.permutation(len(self.packed))
        return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]


def pack(lengths, width):
    """Lays texts into rows, each into the first that has room, the longest first (first-fit decreasing).

    Args:
        lengths: list of int.
        width: of a row, at least the longest.

    Returns:
        a list of rows, each a list of indices.
    """
    rows, free = [], []
    for index in np.argsort(lengths, kind="stable")[::-1]:
        row = next((row for row, room in enumerate(free) if room >= lengths[index]), len(rows))
        if row == len(rows):
            rows.append([])
            free.append(width)
        rows[row].append(index)
        free[row] -= lengths[index]
    return rows
