"""The metrics of questions and answers, against the Model Garden's evaluators and by their definitions."""

import json
import string

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_bert.tasks.squad import best_null_threshold, exact_match, f1, korquad_scores, squad_scores

from conftest import Peer

evaluator_v1 = Peer("official.nlp.tools.squad_evaluate_v1_1")
evaluator_v2 = Peer("official.nlp.tools.squad_evaluate_v2_0")
# Answers of nothing but what is left out, signs that are none in ASCII, letters that change with their case.
PIECES = ["", " ", "\t", "\u3000", "\u00a0", "the", "The", "a", "an", "A.", "then", "cat", "Cat", "cats", "dog", ".",
          "-", "'s", "«", "”", "。", "—", "Ｃａｔ", "ＴＨＥ", "é", "e\u0301", "É", "İ", "ß", "Σ", "고양이",
          "고양이의", "가", "\u1100\u1161", "한국", "猫", "🎵", "12", "1,2", "\u200b", "《", "〈", "‘", "’", "(",
          "<", "_", "a_b"]
TEXTS = (st.lists(st.sampled_from(PIECES), max_size=6).flatmap(lambda parts: st.sampled_from(["", " "]).map(
    lambda space: space.join(parts))) | st.text(max_size=8))
WORDS = st.lists(st.sampled_from(["cat", "dog", "고양이", "12", "the"]), max_size=4).map(
    lambda words: " ".join(["x", *words]))
ANSWERS = st.lists(TEXTS, min_size=1, max_size=4)


def questions(golds, *others):
    """A few questions: lists of the right answers, of predictions and of whatever else."""
    return st.lists(st.tuples(golds, *others), min_size=1, max_size=12).map(lambda rows: [list(c) for c in zip(*rows)])


def dataset(golds):
    """Questions as SQuAD's files have them, named by their numbers."""
    return [{"paragraphs": [{"qas": [{"id": i, "answers": [{"text": text} for text in answers]}]}]}
            for i, answers in enumerate(golds)]


def official_v1(golds, predictions):
    return evaluator_v1.evaluate(dataset(golds), dict(enumerate(predictions)))


def official_v2(golds, predictions, null_differences=None):
    nulls = null_differences and dict(enumerate(null_differences))
    return evaluator_v2.evaluate(dataset(golds), dict(enumerate(predictions)), nulls)


@pytest.mark.peers
@settings(deadline=None)
@given(questions(ANSWERS, TEXTS))
@example([[["the"], ["a", "cat"], ["cat cat dog"]], ["an", ".", "dog cat cat cat"]])
def test_answerable_questions_score_as_v1_1(rows):
    golds, predictions = rows
    official = official_v1(golds, predictions)
    assert squad_scores(golds, predictions) == pytest.approx(
        {"exact_match": 100 * official["exact_match"], "f1": 100 * official["final_f1"]}, abs=1e-9)
    for answers, prediction in zip(golds, predictions):
        one = official_v1([answers], [prediction])
        assert exact_match(answers, prediction) == one["exact_match"]
        assert f1(answers, prediction) == pytest.approx(one["final_f1"], abs=1e-12)


@pytest.mark.peers
@settings(deadline=None)
@given(questions(ANSWERS | st.just([]), TEXTS), TEXTS)
@example([[["the"], ["a", "cat"], ["cat"]], ["", ".", "an"]], "the")
def test_unanswerable_questions_score_as_v2_0(rows, prediction):
    golds, predictions = [*rows[0], []], [*rows[1], prediction]
    official = official_v2(golds, predictions)
    names = {"exact": "exact_match", "f1": "f1"} | {
        name: name for name in ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1") if name in official}
    assert squad_scores(golds, predictions) == pytest.approx(
        {ours: official[name] for name, ours in names.items()}, abs=1e-9)
    assert exact_match([], prediction) == f1([], prediction) == official_v2([[]], [prediction])["exact"] / 100
    json.dumps(squad_scores(golds, predictions))


@pytest.mark.parametrize("golds, prediction, expected", [
    (["The Cat's"], " cats.", (1, 1)),
    (["cat dog", "dog"], "dog dog", (0, 2 / 3)),
    (["고양이"], "고양이의", (0, 0)),
    (["«cat»"], "cat", (0, 0)),
    (["the"], "A", (1, 0)),  # of v1.1
    ([], "the", (1, 1)),
    ([], "", (1, 1)),
    ([], "cat", (0, 0)),
])
def test_scores_by_hand(golds, prediction, expected):
    assert (exact_match(golds, prediction), f1(golds, prediction)) == pytest.approx(expected)


# Thresholds.

DIFFERENCES = st.integers(-5, 5).map(lambda i: i / 4)


@pytest.mark.peers
@settings(deadline=None)
@given(st.lists(st.tuples(ANSWERS | st.just([]), TEXTS), min_size=1, max_size=12), st.randoms())
def test_the_best_f1_is_the_official_one(rows, random):
    golds, answers = zip(*rows)
    differences = random.sample(range(-100, 100), len(rows))
    best = best_null_threshold(golds, answers, differences)[1]
    assert best == pytest.approx(official_v2(golds, answers, differences)["final_f1"], abs=1e-9)


@pytest.mark.peers
@settings(deadline=None)
@given(questions(st.lists(WORDS, max_size=3), WORDS | st.just(""), DIFFERENCES))
@example([[["x"], [], []], ["x", "x", "x"], [0.5, 0.5, -1]])
def test_the_threshold_reaches_its_f1_and_none_is_better(rows):
    golds, answers, differences = rows

    def reached(threshold):
        predictions = ["" if difference > threshold else text for text, difference in zip(answers, differences)]
        return official_v2(golds, predictions)["f1"]

    threshold, best = best_null_threshold(golds, answers, differences)
    assert reached(threshold) == pytest.approx(best, abs=1e-9)
    assert best == pytest.approx(max(map(reached, [-10, *differences])), abs=1e-9)


def test_thresholds_by_hand():
    golds, answers = [["cat"], [], ["cat"], []], ["cat", "cat", "cat dog", ""]
    assert best_null_threshold(golds, answers, [-3.5, 2, 1, 9]) == pytest.approx((1, 100 * (1 + 2 / 3 + 2) / 4))
    # -3.5 is as good.
    assert best_null_threshold(golds, answers, [-3.5, -4, -5, 9]) == pytest.approx((-5, 100 * (2 / 3 + 2) / 4))
    threshold, best = best_null_threshold([[], ["cat"]], ["dog", "dog"], np.float32([-7, -5]))
    assert threshold < -7 and best == 50  # nothing is answered


# KorQuAD: the published script replaces quotes and brackets by spaces, lower-cases, deletes ASCII punctuation and joins
# at single spaces; exact match compares the strings, F1 the multisets of characters but spaces.

def korquad(gold, prediction):
    def normalized(text):
        kept = ("" if character in set(string.punctuation) else character for character in "".join(
            " " if character in "'\"《》<>〈〉()‘’" else character for character in text).lower())
        return " ".join("".join(kept).split())

    gold, prediction = normalized(gold), normalized(prediction)
    right, found = gold.replace(" ", ""), prediction.replace(" ", "")
    same = sum(min(right.count(character), found.count(character)) for character in set(right))
    return gold == prediction, 2 * same / max(len(right) + len(found), 1)


@settings(deadline=None)
@given(questions(ANSWERS, TEXTS))
def test_korquad_by_its_description(rows):
    golds, predictions = rows
    best = [np.max([korquad(gold, prediction) for gold in answers], axis=0) for answers, prediction in zip(*rows)]
    exact, overlap = 100 * np.mean(best, axis=0)
    assert korquad_scores(golds, predictions) == pytest.approx({"exact_match": exact, "f1": overlap}, abs=1e-9)


@pytest.mark.parametrize("gold, prediction, exact, overlap", [
    ("《나비》의 꿈", "나비 의 꿈", 100, 100),  # a bracket parts words
    ("나비.의 꿈", "나비의 꿈", 100, 100),  # a full stop does not
    ("The BBC", "bbc", 0, 200 * 3 / 9),  # articles count
    ("가가나", "가나나", 0, 200 / 3),
    ("나비”", "나비", 0, 80),  # KorQuAD keeps this quotation mark
])
def test_korquad_by_hand(gold, prediction, exact, overlap):
    assert korquad_scores([[gold]], [prediction]) == pytest.approx({"exact_match": exact, "f1": overlap})
    assert korquad_scores([["없음", gold]], [prediction])["exact_match"] == exact


def test_each_korquad_sign_parts_words():
    signs = "'\"《》<>〈〉()‘’"
    assert korquad_scores([[f"나{sign}비"] for sign in signs], ["나 비"] * 12)["exact_match"] == 100
