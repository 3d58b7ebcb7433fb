"""Packing and padding of the token ids of one or two texts into the three inputs of an encoder."""

from collections.abc import Collection
from typing import Literal

import numpy as np

Side = Literal["right", "left"]


def truncate_pair(first: list, second: list, limit: int, side: Side = "right") -> tuple[list, list]:
    """Truncates the longer of two lists, the second if both are equally long, one token at a time at its `side`, until
    both together have at most `limit` tokens (`_truncate_seq_pair` of google-research/bert `run_classifier.py`)."""
    kept = min(len(first), max(limit - len(second), (limit + 1) // 2))
    return truncate(first, kept, side), truncate(second, limit - kept, side)


def truncate(ids: list, limit: int, side: Side) -> list:
    return ids[:limit] if side == "right" else ids[max(len(ids) - limit, 0):]


def pack(first: list[int], second: list[int] | None, cls_id: int, sep_id: int, max_length: int,
         side: Side = "right", separators: int = 1) -> tuple[list[int], int]:
    """Packs ids as [CLS] first [SEP] second [SEP], or a single text as [CLS] first [SEP], truncated at a `side` to
    `max_length` ids. Between two texts are `separators` [SEP]. Returns the ids, and how many belong to segment 0."""
    if second is None:
        return [cls_id, *truncate(first, max_length - 2, side), sep_id], min(len(first), max_length - 2) + 2
    first, second = truncate_pair(first, second, max_length - 2 - separators, side)
    return [cls_id, *first, *[sep_id] * separators, *second, sep_id], len(first) + 1 + separators


def pad(packed: Collection[tuple[list[int], int]], pad_id: int, length: int | None = None) -> dict[str, np.ndarray]:
    """Pads `pack`ed texts to the inputs of `BertLayer`.

    Args:
        length: the padded length. Defaults to the length of the longest text.

    Returns:
        int32 [batch, length]: `input_word_ids`, `input_mask`, `segment_ids`.
    """
    length = length or max((len(ids) for ids, _ in packed), default=0)
    word_ids = np.full((len(packed), length), pad_id, np.int32)
    mask, segment_ids = np.zeros_like(word_ids), np.zeros_like(word_ids)
    for row, (ids, first_segment) in enumerate(packed):
        word_ids[row, :len(ids)] = ids
        mask[row, :len(ids)] = 1
        segment_ids[row, first_segment:len(ids)] = 1
    return {"input_word_ids": word_ids, "input_mask": mask, "segment_ids": segment_ids}


def positions_of(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the positions of the values of some rows, int64 [rows], of a ragged array, one row after the other;
    `counts` are the numbers of values of all of its rows."""
    begins, counts = (np.cumsum(counts) - counts)[rows], counts[rows]
    return np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
