"""Batches of texts of similar length, of several texts per example, and with multiple texts per row."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bert.text import pad

if TYPE_CHECKING:
    import tensorflow as tf

# Texts are sorted by length within pools of this many batches, which keeps the order random and the padding small.
_POOL = 50
UNLABELLED = -1  # the target of a token without a label
Indices = Sequence[int] | np.ndarray
# The indices of a batch, (seed, number) for its dropout, and the indices of all batches of its step.
_Batch = tuple[Indices, tuple[int, int] | None, Indices]


def plan_batches(lengths: Sequence[int], batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns the indices of random batches of texts of similar length; every index occurs once."""
    sizes, order = np.asarray(lengths), rng.permutation(len(lengths))
    pools = [order[i:i + _POOL * batch_size] for i in range(0, len(order), _POOL * batch_size)]
    by_length = np.concatenate([pool[np.argsort(sizes[pool], kind="stable")] for pool in pools])
    batches = [by_length[i:i + batch_size] for i in range(0, len(by_length), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def sorted_batches(lengths: Sequence[int], batch_size: int) -> list[np.ndarray]:
    """Returns the indices of batches in order of length, for inference."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]


def token_batches(lengths: Sequence[int], tokens: int = 2048) -> list[np.ndarray]:
    """Returns the indices of batches in order of length, for inference without padding. Each batch has about `tokens`
    tokens; its last text may exceed them."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    batch = np.cumsum(np.asarray(lengths)[order]) // tokens
    return np.split(order, np.flatnonzero(np.diff(batch)) + 1) if len(order) else []


class TextBatches:
    """Batches of tokenized texts, each padded to its longest text.

    Args:
        packed: result of `Tokenizer.pack`.
        pad_id: id of [PAD].
        targets: array [texts, ...] or dict of such arrays; None if the texts have no targets.
        length_multiple: the padded lengths are multiples of this, for fewer shapes if each one is compiled separately.
        drop_remainder: if True, an epoch skips a short last batch, which devices could not share evenly.
    """

    def __init__(self, packed: Sequence, pad_id: int, targets: Any = None, length_multiple: int = 1,
                 drop_remainder: bool = False) -> None:
        self.packed = packed
        self.pad_id = pad_id
        self.targets = targets
        self.length_multiple = length_multiple
        self.drop_remainder = drop_remainder
        self.lengths = [self._length(row) for row in packed]

    def inputs(self, indices: Indices) -> dict[str, np.ndarray]:
        """Returns the input dict of the texts at `indices`."""
        return pad([self.packed[i] for i in indices], self.pad_id, self._padded_length(indices))

    def steps(self, batch_size: int) -> int:
        """Returns the number of training batches per epoch."""
        return len(self.packed) // batch_size + bool(len(self.packed) % batch_size and not self.drop_remainder)

    def steps_of_epoch(self, batch_size: int, seed: int, epoch: int, accumulation_steps: int = 1
                       ) -> list[list[np.ndarray]]:
        """Returns the indices of the batches of each step: `accumulation_steps` batches, of the last step the rest."""
        plan = self._plan(batch_size, np.random.default_rng((seed, epoch)))
        if self.drop_remainder:
            plan = [indices for indices in plan if len(indices) == batch_size]
        return [plan[begin:begin + accumulation_steps] for begin in range(0, len(plan), accumulation_steps)]

    def training_dataset(self, batch_size: int, seed: int, epoch: int, skip: int = 0, accumulation_steps: int = 1
                         ) -> "tf.data.Dataset":
        """Returns one epoch as a `tf.data.Dataset` of (inputs, targets), without its first `skip` batches.

        The inputs contain `dropout_seed`, int32 [batch, 2], with (seed, batch) in each row, so order and dropout depend
        only on `seed` and the number of the batch. The mean of the losses of a step's batches, each weighted by its
        number of examples, is the loss of all of them as one batch.
        """
        batches = [(indices, whole) for step in self.steps_of_epoch(batch_size, seed, epoch, accumulation_steps)
                   for whole in [np.concatenate(step)] for indices in step]
        return self._dataset([(indices, (seed, number), whole)
                              for number, (indices, whole) in enumerate(batches, epoch * len(batches))][skip:])

    def validation_dataset(self, batch_size: int) -> "tf.data.Dataset":
        """Returns a `tf.data.Dataset` of (inputs, targets), with each text once, in order of length."""
        return self._dataset([(indices, None, indices) for indices in sorted_batches(self.lengths, batch_size)])

    def _plan(self, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
        return plan_batches(self.lengths, batch_size, rng)

    def _dataset(self, plan: Sequence[_Batch]) -> "tf.data.Dataset":
        import tensorflow as tf  # here alone: batches for inference need NumPy alone

        def batch(indices: Indices, dropout_seed: tuple[int, int] | None, step: Indices) -> tuple:
            inputs = self.inputs(indices)
            if dropout_seed:
                inputs["dropout_seed"] = np.tile(np.array(dropout_seed, np.int32), (len(indices), 1))
            targets = self._targets_of(indices)
            return inputs, targets, *self._weights_of(targets, step)

        indices, dropout_seed, _ = plan[0] if plan else ([0], None, [0])
        first = batch(indices[:1], dropout_seed, indices[:1])
        signature = tf.nest.map_structure(lambda values: tf.TensorSpec([None] * values.ndim, values.dtype), first)
        dataset = tf.data.Dataset.from_generator(lambda: itertools.starmap(batch, plan), output_signature=signature)
        return dataset.apply(tf.data.experimental.assert_cardinality(len(plan))).prefetch(2)

    def _length(self, row: Any) -> int:
        return len(row[0])

    def _padded_length(self, indices: Indices) -> int:
        longest = max(self.lengths[i] for i in indices)
        return -(-longest // self.length_multiple) * self.length_multiple

    def _targets_of(self, indices: Indices) -> Any:
        if isinstance(self.targets, dict):
            return {name: values[indices] for name, values in self.targets.items()}
        return self.targets[indices]

    def _weights_of(self, targets: Any, step: Indices) -> tuple:
        """Returns the weights of a batch's losses, or nothing if they are equal. `step` has all indices of its step."""
        return ()


class TokenBatches(TextBatches):
    """Batches with a target per token: `targets` is a list of int32 arrays [tokens], padded with `UNLABELLED`. The
    datasets also contain weights, float32 [batch, tokens], with which a mean over all tokens is one over the labelled
    tokens of the whole step, however many batches and devices it is split across."""

    def _targets_of(self, indices: Indices) -> np.ndarray:
        padded = np.full((len(indices), self._padded_length(indices)), UNLABELLED, np.int32)
        for row, index in enumerate(indices):
            padded[row, :len(self.targets[index])] = self.targets[index]
        return padded

    def _weights_of(self, targets: np.ndarray, step: Indices) -> tuple[np.ndarray, ...]:
        labelled = sum(np.count_nonzero(self.targets[index] != UNLABELLED) for index in step)
        return ((targets != UNLABELLED) * (targets.shape[1] * len(step) / max(labelled, 1))).astype(np.float32),


class MixedBatches(TextBatches):
    """Batches with several targets: `targets` is a dict of arrays, one target per text, and of lists as those of
    `TokenBatches`. All targets have weights, those per text equal ones."""

    def __init__(self, packed: Sequence, pad_id: int, targets: dict[str, Any] | None = None, *options: Any) -> None:
        super().__init__(packed, pad_id, targets, *options)
        self._parts = {name: (TokenBatches if isinstance(values, list) else TextBatches)(
            packed, pad_id, values, *options) for name, values in (targets or {}).items()}

    def _targets_of(self, indices: Indices) -> dict[str, np.ndarray]:
        return {name: part._targets_of(indices) for name, part in self._parts.items()}

    def _weights_of(self, targets: dict[str, np.ndarray], step: Indices) -> tuple[dict[str, np.ndarray]]:
        equal = np.ones(len(next(iter(targets.values()))), np.float32)
        return {name: (part._weights_of(targets[name], step) or (equal,))[0] for name, part in self._parts.items()},


class ChoiceBatches(TextBatches):
    """Batches of examples with several rows, those of choices or of texts to compare: each entry of `packed` is a list
    of results of `Tokenizer.pack`. The inputs have the shape [batch, choices, seq]; an entry with fewer choices
    than another repeats its last one."""

    def inputs(self, indices: Indices) -> dict[str, np.ndarray]:
        most = max(len(self.packed[i]) for i in indices)
        rows = [choice for i in indices for choice in (*self.packed[i], *self.packed[i][-1:] * most)[:most]]
        inputs = pad(rows, self.pad_id, self._padded_length(indices))
        return {name: values.reshape(len(indices), -1, values.shape[1]) for name, values in inputs.items()}

    def _length(self, row: Any) -> int:
        return max(len(ids) for ids, _ in row)


class LabelPairBatches(ChoiceBatches):
    """Training batches of pairs that each epoch draws from labelled texts: every text with another one of its label,
    if there is one, and with one of another label (as SetFit: Tunstall et al., 2022, https://arxiv.org/abs/2209.11055).

    The inputs have the shape [batch, 2, seq]; the targets are float32 [batch], 1 for equal labels, otherwise 0.

    Args:
        packed: for each text, a list of its one result of `Tokenizer.pack`.
        targets: int [texts], the numbers of the labels, at least two different ones.
    """

    def inputs(self, indices: Indices) -> dict[str, np.ndarray]:
        """Returns the input dict of texts, or of pairs of texts for indices [batch, 2]."""
        inputs = super().inputs(np.ravel(indices))
        return {name: values.reshape(len(indices), -1, values.shape[2]) for name, values in inputs.items()}

    def steps(self, batch_size: int) -> int:
        return math.ceil(len(self._pairs(np.random.default_rng(0))) / batch_size)

    def validation_dataset(self, batch_size: int) -> "tf.data.Dataset":
        """Returns a `tf.data.Dataset` of (inputs, targets) of pairs that are the same each time."""
        return self._dataset([(pairs, None, pairs) for pairs in self._plan(batch_size, np.random.default_rng(0))])

    def _plan(self, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
        pairs = self._pairs(rng)
        return [pairs[indices] for indices in plan_batches(np.max(np.array(self.lengths)[pairs], 1), batch_size, rng)]

    def _pairs(self, rng: np.random.Generator) -> np.ndarray:
        """Draws the pairs of an epoch: int [pairs, 2], always as many."""
        order = np.argsort(self.targets, kind="stable")  # the texts of a label follow one another
        labels, texts = self.targets[order], np.arange(len(order))
        begin, end = (np.searchsorted(labels, labels, side) for side in ("left", "right"))
        count = end - begin
        # The next texts of the label, in a circle; and those before and after the texts of the label.
        same = begin + (texts - begin + rng.integers(1, np.maximum(count, 2))) % count
        other = rng.integers(0, len(texts) - count)
        other += count * (other >= begin)
        return order[np.concatenate([np.stack([texts, same], 1)[count > 1], np.stack([texts, other], 1)])]

    def _targets_of(self, indices: Indices) -> np.ndarray:
        return np.equal(*self.targets[indices].T).astype(np.float32)


class SameLabelBatches(LabelPairBatches):
    """Like `LabelPairBatches`, but only with the pairs of one label, for losses that compare each pair with the others
    of its batch. The targets are int [batch, 2], the label of the pair twice."""

    def _pairs(self, rng: np.random.Generator) -> np.ndarray:
        pairs = super()._pairs(rng)
        return pairs[np.equal(*self.targets[pairs].T)]

    def _targets_of(self, indices: Indices) -> np.ndarray:
        return self.targets[indices]


class PackedBatches(TextBatches):
    """Random batches of texts with one target each, packed with multiple texts per row (see `layers.PackedLayout`). All
    batches of one size have the same number of rows; a rare one that does not fit gets twice as many.

    Args:
        packed, pad_id, targets: see `TextBatches`.
        length: length of a row, at least that of the longest text.
        pools_last: if True, the pooled token of a text is its last one instead of [CLS].
    """

    def __init__(self, packed: Sequence, pad_id: int, targets: Any, length: int, pools_last: bool = False) -> None:
        super().__init__(packed, pad_id, targets)
        self._length_of_row = length
        self._pools_last = pools_last

    def inputs(self, indices: Indices) -> dict[str, np.ndarray]:
        """Returns the input dict of the texts at `indices`, see `BertLayer`: int32 [rows, length], also
        `sequence_ids`; and `pooled_positions`, int32 [texts]."""
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
                pooled_positions[text] = row * length + (end - 1 if self._pools_last else begin)
                begin = end
        return {"input_word_ids": word_ids, "input_mask": (sequence_ids > 0).astype(np.int32),
                "segment_ids": segment_ids, "sequence_ids": sequence_ids, "pooled_positions": pooled_positions}

    def _plan(self, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
        order = rng.permutation(len(self.packed))
        return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]


def pack(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Packs texts into rows of `width` tokens, the longest text first, each into the first row with enough space
    (first-fit decreasing). Returns the indices of the texts of each row. No text may be longer than a row."""
    rows: list[list[int]] = []
    free: list[int] = []
    for index in np.argsort(lengths, kind="stable")[::-1]:
        row = next((row for row, room in enumerate(free) if room >= lengths[index]), len(rows))
        if row == len(rows):
            rows.append([])
            free.append(width)
        rows[row].append(index)
        free[row] -= lengths[index]
    return rows
