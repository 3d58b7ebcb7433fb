"""The official scores of answers to questions: SQuAD v1.1 and v2.0 (Rajpurkar et al., 2016, 2018; `evaluate-v1.1.py`
and `evaluate-v2.0.py`), KorQuAD 1.0 (Lim et al., 2019; `evaluate-v1.0.py`).

The right answers of a question, `golds`, are a list of str, empty where it is unanswerable. The prediction "" says that
there is no answer.
"""

import re
import string
from collections import Counter

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KORQUAD_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def squad_words(text):
    """The words that SQuAD's metrics compare: in lower case, without ASCII punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(golds, prediction, units=squad_words):
    """Whether an answer is right.

    Args:
        golds: list of str.
        prediction: str.
        units: function of a str to the sequence of what is compared.

    Returns:
        1.0 if the prediction has the units of a right answer, or has none where there is no right answer, else 0.0.
    """
    return float(units(prediction) in map(units, golds or [""]))


def f1(golds, prediction, units=squad_words):
    """How many units an answer shares with a right one, in whatever order.

    Args:
        As of `exact_match`.

    Returns:
        the F1, from 0 to 1, with the right answer that fits best; `exact_match` where there is none.
    """
    if not golds:
        return exact_match(golds, prediction, units)
    predicted = units(prediction)
    return max(2 * (Counter(predicted) & Counter(gold)).total() / max(len(predicted) + len(gold), 1)
               for gold in map(units, golds))


def squad_scores(golds, predictions):
    """The scores of SQuAD v2.0 if a question is unanswerable, else those of v1.1. The two differ where an answer has no
    words, only articles say.

    Args:
        golds: list of list of str.
        predictions: list of str.

    Returns:
        dict of percentages: `exact_match`, `f1`; of v2.0 also `NoAns_exact` and `NoAns_f1` of the unanswerable
        questions, `HasAns_exact` and `HasAns_f1` of the others if there are any.
    """
    answerable = np.array([bool(answers) for answers in golds])
    if answerable.all():
        return _means(_scores(golds, predictions))
    scores = _scores(_with_words(golds), predictions)
    means = _means(scores) | _means(scores[~answerable], "NoAns_exact", "NoAns_f1")
    return means | _means(scores[answerable], "HasAns_exact", "HasAns_f1") if answerable.any() else means


def best_null_threshold(golds, answers, null_differences):
    """The threshold for no answer that is best for the F1 of SQuAD v2.0, as its `find_best_thresh`. Unlike there, it
    never lies between equal differences, which no threshold can part.

    Args:
        golds: list of list of str.
        answers: list of str, the best spans.
        null_differences: float [questions], the null score less the best span's.

    Returns:
        (threshold, F1): an answer is null where its difference is greater than the threshold, the lowest of several
        (below all differences if nothing is to be answered); the F1 in percent. To answer an unanswerable question
        counts as wrong, even with articles alone.
    """
    gains = [f1(with_words, answer) if gold else -bool(answer)
             for gold, with_words, answer in zip(golds, _with_words(golds), answers)]
    thresholds, place = np.unique(null_differences, return_inverse=True)
    totals = np.cumsum([sum(not gold for gold in golds), *np.bincount(place, gains)])
    best = totals.argmax()
    return float([thresholds[0] - 1, *thresholds][best]), float(100 * totals[best] / len(golds))


def korquad_scores(golds, predictions):
    """The scores of KorQuAD 1.0, where F1 is over characters and articles count.

    Args:
        golds: list of list of str, none empty.
        predictions: list of str.

    Returns:
        dict of percentages: `exact_match`, `f1`.
    """
    return _means(_scores(golds, predictions, _korquad_words, _korquad_characters))


def _scores(golds, predictions, words=squad_words, units=squad_words):
    """Exact match and F1 of each question: float [questions, 2]."""
    return np.array([(exact_match(answers, prediction, words), f1(answers, prediction, units))
                     for answers, prediction in zip(golds, predictions)])


def _means(scores, exact="exact_match", overlap="f1"):
    return dict(zip((exact, overlap), (100 * scores.mean(0)).tolist()))


def _with_words(golds):
    """The right answers that SQuAD v2.0 counts."""
    return [list(filter(squad_words, answers)) for answers in golds]


def _korquad_words(text):
    return text.translate(_KORQUAD_SPACES).lower().translate(_PUNCTUATION).split()


def _korquad_characters(text):
    return "".join(_korquad_words(text))
