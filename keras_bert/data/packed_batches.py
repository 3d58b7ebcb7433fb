"""Batches of one shape, for compilers: several texts in a row."""

import math

import numpy as np

from keras_bert.data.batches import TextBatches


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
