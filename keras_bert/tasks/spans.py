"""The best answers of a context by the logits of its windows (Devlin et al., 2018, sections 4.2 and 4.3;
google-research/bert `run_squad.py`)."""

import numpy as np


def best_spans(start_logits, end_logits, windows, n=20, max_answer_length=30):
    """The n best spans of tokens (i, j), i <= j < i + max_answer_length, of those that some window holds.

    A span's score is the logit of start i plus the logit of end j, in the window where that is highest. Of equal
    scores, the smaller i comes first, then the smaller j.

    Args:
        start_logits, end_logits: for each window float [tokens] of the context alone: place k is token begin + k; what
            stands behind the window's end is not read.
        windows: list of (begin, end) in tokens; the last one reaches the context's end.

    Returns:
        (spans, scores): list of (i, j), fewer than n if there are no more; float [spans] of the logits' dtype.
    """
    scores = np.full((windows[-1][1], max_answer_length), -np.inf, start_logits[0].dtype)  # [i, j - i]
    for (begin, end), starts, ends in zip(windows, start_logits, end_logits):
        ends = np.pad(ends[:end - begin], (0, max_answer_length), constant_values=-np.inf)
        ends = np.lib.stride_tricks.sliding_window_view(ends, max_answer_length)[:end - begin]
        np.maximum(scores[begin:end], starts[:end - begin, None] + ends, out=scores[begin:end])
    scores = scores.ravel()
    best = np.flatnonzero(scores > -np.inf)
    if len(best) > n:  # sorting them all would take ten times as long
        best = best[scores[best] >= np.partition(scores[best], -n)[-n]]
    best = best[np.argsort(-scores[best], kind="stable")][:n]
    first, more = np.divmod(best, max_answer_length)
    return list(zip(first.tolist(), (first + more).tolist())), scores[best]


def null_score(cls_start, cls_end):
    """The score of no answer: the lowest over the windows.

    Args:
        cls_start, cls_end: float [windows], the logits of [CLS].

    Returns:
        a float.
    """
    return float((cls_start + cls_end).min())


def probabilities(scores, null=None):
    """The softmax of the best spans' scores, and of the null score where there may be no answer.

    Args:
        scores: float [spans].
        null: the null score, or None.

    Returns:
        float64 [spans], or [spans + 1] where the last one is null's.
    """
    scores = np.append(np.asarray(scores, float), [] if null is None else null)
    powers = np.exp(scores - scores.max(initial=-np.inf))
    return powers / powers.sum()
