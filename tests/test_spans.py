"""Windows, the tokens of answers and the best spans, against their definitions taken literally."""

import json
import re
import time
import timeit

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from keras_bert.tasks.base import log_softmax
from keras_bert.tasks.squad import best_spans, target, tokens_of, windows
from keras_bert.text import BertTokenizer
from keras_bert.text.offsets import tokens_with_offsets

from conftest import REAL

SIZES = st.integers(1, 600)


@settings(deadline=None)
@given(st.integers(0, 5000), SIZES, SIZES)
@example(0, 5, 3)
@example(5, 5, 3)
@example(6, 5, 9)
@example(5000, 1, 1)
def test_windows_hold_every_token_and_none_is_superfluous(tokens, size, stride):
    cuts = windows(tokens, size, stride)
    assert [begin for begin, _ in cuts] == [i * min(stride, size) for i in range(len(cuts))]
    assert all(end - begin == size and end < tokens for begin, end in cuts[:-1])
    assert all(begin <= end for (begin, _), (_, end) in zip(cuts[1:], cuts))
    assert cuts[-1][1] == tokens and cuts[-1][1] - cuts[-1][0] in range(min(tokens, 1), size + 1)


@settings(deadline=None)
@given(st.data(), st.integers(1, 5000), SIZES, SIZES)
def test_targets_point_at_whole_answers_alone(data, tokens, size, stride):
    first = data.draw(st.integers(0, tokens - 1))
    last = data.draw(st.integers(first, min(tokens, first + size + 1) - 1))
    answer, cuts = range(first, last + 1), windows(tokens, size, stride)
    targets = [target(window, (first, last)) for window in cuts]
    for (begin, end), place in zip(cuts, targets):
        inside = range(begin, end)
        assert (place is not None) == (first in inside and last in inside)
        assert place is None or inside[place[0]:place[1] + 1] == answer
    assert any(targets) or len(answer) > size - min(stride, size) + 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=6), st.integers(0, 20), st.integers(0, 20))
@example([(0, 1), (0, 1), (0, 1), (2, 3)], 0, 1)  # three tokens of one character
@example([(0, 1), (2, 3)], 4, 4)  # nothing, in the midst of a token
def test_tokens_of_a_range_by_brute_force(tokens, begin, end):
    """`tokens` are (characters between the start of the one before and the start, characters)."""
    starts = np.cumsum([step for step, _ in tokens], dtype=int)
    ends = starts + np.array([size for _, size in tokens], int)
    shared = [i for i, token in enumerate(map(range, starts, ends)) if set(token) & set(range(begin, end))]
    assert tokens_of(starts, ends, begin, end) == ((shared[0], shared[-1]) if shared else None)


def test_answers_and_korean_words_are_found_again():
    tokenizer = BertTokenizer(REAL / "vocab/bert-base-multilingual-cased/vocab.txt", lower_case=False)
    articles = json.loads((REAL / "qa/xquad/xquad.en.json").read_text(encoding="utf-8"))["data"]
    ranges = {paragraph["context"]: [(answer["answer_start"], answer["answer_start"] + len(answer["text"]))
                                     for qa in paragraph["qas"] for answer in qa["answers"]]
              for article in articles for paragraph in article["paragraphs"]}
    with open(REAL / "corpora/ko/rust_book_ko.txt", encoding="utf-8") as file:
        ranges |= {line: [word.span() for word in re.finditer(r"\S+", line)] for line in file}
    wrong = []
    for (text, places), tokens in zip(ranges.items(), tokens_with_offsets(list(ranges), tokenizer), strict=True):
        for begin, end in places:
            first, last = tokens_of(tokens.starts, tokens.ends, begin, end)
            if (found := text[tokens.starts[first]:tokens.ends[last]]) != text[begin:end]:
                wrong.append((found, text[begin:end]))
    assert sum(map(len, ranges.values())) > 8000
    assert wrong == []


def naive_best_spans(start_logits, end_logits, cuts, n, max_answer_length):
    best = {}
    for (begin, end), starts, ends in zip(cuts, start_logits, end_logits):
        for i in range(begin, end):
            for j in range(i, min(i + max_answer_length, end)):
                best[i, j] = max(best.get((i, j), -np.inf), starts[i - begin] + ends[j - begin])
    spans = sorted(best, key=lambda span: (-best[span], span))[:n]
    return spans, [best[span] for span in spans]


def random_logits(cuts, seed, levels, dtype="float32"):
    """Logits of so many values, with NaN behind the windows' ends."""
    most = max(end - begin for begin, end in cuts) + 2
    logits = np.random.default_rng(seed).integers(0, levels, (2, len(cuts), most)).astype(dtype) * 0.37 - 40
    for row, (begin, end) in enumerate(cuts):
        logits[:, row, end - begin:] = np.nan
    return logits.astype(dtype)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 30), st.integers(1, 30), st.integers(1, 40), st.integers(1, 40),
       st.sampled_from([1, 3, 10**6]), st.sampled_from(["float32", "float64"]), st.integers(0, 2**32))
@example(0, 5, 3, 20, 30, 3, "float32", 0)
@example(60, 10, 3, 1, 1, 1, "float32", 0)
def test_best_spans_by_brute_force(tokens, size, stride, n, max_answer_length, levels, dtype, seed):
    cuts = windows(tokens, size, stride)
    logits = random_logits(cuts, seed, levels, dtype)
    spans, scores = best_spans(*logits, cuts, n, max_answer_length)
    assert (spans, scores.tolist()) == naive_best_spans(*logits, cuts, n, max_answer_length)
    assert scores.dtype == dtype


@pytest.mark.parametrize("levels", [1, 10**6])
def test_long_documents_take_milliseconds(levels):
    cuts = windows(5000, 253, 122)
    assert len(cuts) == 40
    logits = random_logits(cuts, 0, levels)
    seconds = timeit.repeat(lambda: best_spans(*logits, cuts), timer=time.process_time, repeat=5, number=1)
    assert min(seconds) < 0.05  # ten times what it takes; pair by pair, in Python, it would take seconds


@settings(deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20))
def test_probabilities_are_the_softmax(scores):
    np.testing.assert_allclose(np.exp(log_softmax(scores)), softmax(scores), rtol=1e-11, atol=1e-300)
