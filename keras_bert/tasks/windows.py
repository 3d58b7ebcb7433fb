"""Windows over the tokens of a long context, and the tokens of an answer (Devlin et al., 2018, section 4.2;
google-research/bert `run_squad.py`)."""

import numpy as np


def windows(tokens, size, stride):
    """Windows that start at 0, stride, 2 * stride, … until one reaches the end.

    Args:
        tokens: number of tokens of the context; where there are none, one empty window is made.
        size: tokens that a window has at most.
        stride: tokens from one start to the next; at most `size` of them are taken, so that none is left out.

    Returns:
        list of (begin, end).
    """
    stride = min(stride, size)
    return [(begin, min(begin + size, tokens)) for begin in range(0, max(tokens - size, 0) + stride, stride)]


def target(window, answer):
    """Where an answer starts and ends in a window.

    Args:
        window: (begin, end) in tokens of the context.
        answer: its first and last token, or None where there is no answer.

    Returns:
        the positions of both, counted from the window's begin, or None if the window does not hold all of the answer;
        such a window is trained to answer with [CLS].
    """
    begin, end = window
    if answer and begin <= answer[0] and answer[1] < end:
        return answer[0] - begin, answer[1] - begin


def tokens_of(starts, ends, begin, end):
    """The tokens that share a character with the characters [begin, end).

    Args:
        starts, ends: int [tokens], the characters that each token comes from. Tokens may share characters.

    Returns:
        the first and the last token, or None if there is none.
    """
    overlapping = np.flatnonzero(np.maximum(starts, begin) < np.minimum(ends, end))
    return (int(overlapping[0]), int(overlapping[-1])) if overlapping.size else None
