"""Scores against scikit-learn and against their definitions taken literally."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from keras_bert.tasks.base import best_threshold
from keras_bert.tasks.classify import score, score_threshold
from keras_bert.tasks.embedding_scores import pair_classification


def answers(seed, texts, classes, unused=0):
    """Random probabilities and right answers; the last `unused` classes are neither."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(classes, 0.2), texts)
    probabilities[:, classes - unused:] = 0
    targets = rng.integers(0, classes - unused, texts)
    sure = rng.random(texts) < 0.5
    probabilities[sure] = 0.9 * np.eye(classes)[targets[sure]] + 0.1 * probabilities[sure]
    return probabilities.astype("float32"), targets


@pytest.mark.parametrize("texts,classes,unused", [(50, 30, 0), (200, 6, 2), (1, 2, 0), (100_000, 2, 0)])
def test_equal_to_scikit_learn(texts, classes, unused):
    probabilities, targets = answers(0, texts, classes, unused)
    labels = [f"label {i}" for i in range(classes)]
    ours = score(labels, probabilities, targets)
    predicted = probabilities.argmax(1)
    report = metrics.classification_report(
        targets, predicted, labels=range(classes), target_names=labels, output_dict=True, zero_division=0)
    for label in labels:
        peer = [report[label][name] for name in ("precision", "recall", "f1-score", "support")]
        assert list(ours["classes"][label].values()) == pytest.approx(peer, abs=1e-12)
    assert ours["accuracy"] == metrics.accuracy_score(targets, predicted)
    assert ours["matthews"] == pytest.approx(metrics.matthews_corrcoef(targets, predicted), abs=1e-12)
    if classes == 2:
        assert ours["f1"] == pytest.approx(metrics.f1_score(targets, predicted, zero_division=0), abs=1e-12)
    assert ours["macro_f1"] == pytest.approx(metrics.f1_score(targets, predicted, average="macro", zero_division=0))
    assert ours["loss"] == pytest.approx(
        -np.log(np.maximum(probabilities[np.arange(texts), targets].astype(float), 1e-12)).mean(), rel=1e-6)
    matrix = metrics.confusion_matrix(targets, predicted, labels=range(classes))
    np.fill_diagonal(matrix, 0)
    assert {(labels.index(a), labels.index(b)): n for a, b, n in ours["confusions"]} == {
        (i, j): matrix[i, j] for i, j in zip(*np.nonzero(matrix))}
    counts = [n for _, _, n in ours["confusions"]]
    assert counts == sorted(counts, reverse=True)
    json.dumps(ours)


def test_calibration_error_by_its_definition():
    probabilities, targets = answers(1, 300, 4)
    scores, right = probabilities.max(1), probabilities.argmax(1) == targets
    expected = 0
    for i in range(15):
        inside = (scores >= i / 15) & ((scores < (i + 1) / 15) | (i == 14))
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - scores[inside].mean())
    assert score(list("abcd"), probabilities, targets)["calibration_error"] == pytest.approx(expected, abs=1e-6)
    sure = np.eye(4, dtype="float32")[targets]
    assert score(list("abcd"), sure, targets)["calibration_error"] == 0


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.7, 0.9, 1.0]), st.booleans()), min_size=1, max_size=30))
@settings(deadline=None, max_examples=50)
def test_the_threshold_has_the_best_f1_of_all(texts):
    scores, reject = (np.array(column) for column in zip(*texts))
    if not reject.any() or reject.all():
        return

    def f1(threshold):
        result = score_threshold(threshold, scores, reject, reject)
        assert result["answered"] - result["wrong"] == sum(~reject[scores >= threshold])
        in_scope = metrics.recall_score(~reject, scores >= threshold)
        assert result["rejected_in_scope"] == pytest.approx(1 - in_scope, abs=1e-12)
        return 2 * result["precision"] * result["recall"] / max(result["precision"] + result["recall"], 1e-9)

    best = best_threshold(scores, reject, np.inf)
    assert f1(best) == pytest.approx(max(f1(t) for t in [*scores, 1.1]), abs=1e-6)


@pytest.mark.parametrize("choose", [
    lambda scores, right: best_threshold(scores, right, np.inf),
    lambda scores, right: best_threshold(scores, right, 0.0),
    lambda scores, right: pair_classification(scores, right)["f1_threshold"],
    lambda scores, right: pair_classification(scores, right)["accuracy_threshold"]])
def test_no_threshold_depends_on_the_last_bits_of_scores(choose):
    """Compared in float32, as NumPy compares its float32 with a float of Python."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        scores = rng.random(rng.integers(2, 12)).astype("float32")
        right = rng.random(len(scores)) < 0.5
        right[:2] = True, False
        threshold = choose(scores, right)
        for towards in np.float32([-1, 2]):
            assert ((np.nextafter(scores, towards) >= threshold) == (scores >= threshold)).all()
