"""Scores of a classifier."""

import numpy as np

# Guo et al., 2017, section 4.
_CALIBRATION_BINS = 15


def score(labels, probabilities, targets):
    """Scores answers against the right ones.

    Args:
        labels: names of the classes.
        probabilities: float [texts, classes].
        targets: int [texts], the right classes.

    Returns:
        a dict that JSON can hold: `accuracy`; `macro_f1`, over the classes that occur or were answered; `matthews`, the
        correlation coefficient (Gorodkin, 2004), CoLA's score; of two classes `f1`, that of the last one, MRPC's and
        QQP's; `loss`, the mean cross-entropy; `calibration_error`, the expected one over 15 bins (Guo et al., 2017),
        and `calibration`, for each bin that holds texts (mean score, accuracy, texts); `classes`, for each label
        `precision`, `recall`, `f1`, `texts`; `confusions`, (right, answered, texts), most frequent first.
    """
    targets = np.asarray(targets)
    answers = probabilities.argmax(1)
    matrix = np.zeros((len(labels), len(labels)), int)  # [right, answered]
    np.add.at(matrix, (targets, answers), 1)
    right, texts, answered = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    precision, recall = right / np.maximum(answered, 1), right / np.maximum(texts, 1)
    f1 = 2 * right / np.maximum(texts + answered, 1)
    calibration = _calibration(probabilities.max(1), answers == targets)
    wrong = matrix - np.diag(right)
    pairs = sorted(zip(*np.nonzero(wrong)), key=lambda pair: -wrong[pair])
    count = len(targets)
    spread = (count ** 2 - (answered ** 2).sum()) * (count ** 2 - (texts ** 2).sum())
    return {
        "accuracy": float(right.sum() / count),
        "macro_f1": float(f1[texts + answered > 0].mean()),
        "matthews": float((count * right.sum() - texts @ answered) / np.sqrt(spread)) if spread else 0.0,
        **({"f1": float(f1[1])} if len(labels) == 2 else {}),
        "loss": float(-np.log(np.maximum(probabilities[range(len(targets)), targets], 1e-12)).mean()),
        "calibration_error": sum(abs(mean - accuracy) * count for mean, accuracy, count in calibration) / len(targets),
        "calibration": calibration,
        "classes": {label: {"precision": float(precision[i]), "recall": float(recall[i]), "f1": float(f1[i]),
                            "texts": int(texts[i])} for i, label in enumerate(labels)},
        "confusions": [[labels[i], labels[j], int(wrong[i, j])] for i, j in pairs],
    }


def _calibration(scores, right):
    bins = np.minimum((scores * _CALIBRATION_BINS).astype(int), _CALIBRATION_BINS - 1)
    return [[float(scores[bins == i].mean()), float(right[bins == i].mean()), int((bins == i).sum())]
            for i in np.unique(bins)]


def choose_threshold(scores, reject):
    """The threshold below which answers are refused with the best F1.

    Args:
        scores: float [texts], the highest probability of each text.
        reject: bool [texts], whether a text should be refused.

    Returns:
        a float; of several, the one that refuses the fewest.
    """
    order = np.argsort(scores, kind="stable")
    # Refusing the first n of the order; between equal scores there is no threshold.
    refused = np.arange(1, len(scores) + 1)
    f1 = 2 * np.cumsum(reject[order]) / (refused + reject.sum())
    sorted_scores = scores[order]
    f1[:-1][sorted_scores[1:] == sorted_scores[:-1]] = -1
    last = int(f1.argmax())
    return float(sorted_scores[last + 1]) if last + 1 < len(scores) else float(np.nextafter(sorted_scores[-1], 2))


def score_threshold(threshold, scores, reject, stand_in):
    """What a threshold does: a dict of `threshold`, the `precision` and `recall` of its refusals, the number of `texts`
    to refuse, and `stand_in`, whether wrongly answered texts stood in for texts out of scope, as there were none."""
    refused = scores < threshold
    return {"threshold": threshold, "precision": float((refused & reject).sum() / max(refused.sum(), 1)),
            "recall": float((refused & reject).sum() / max(reject.sum(), 1)), "texts": int(reject.sum()),
            "stand_in": stand_in}
