"""Masking: its shares over millions of tokens, what it never touches, whole words, and that its chance is its own."""

import itertools

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.pretraining.masking import Masking
from keras_bert.text import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]"]
PLAIN = ["[", "]", "the", *(f"word{i}" for i in range(17)), *(f"##s{i}" for i in range(20))]
PAD, UNK, CLS, SEP, MASK = range(5)
TOKENIZER = BertTokenizer(SPECIAL + PLAIN)


def random_texts(batch, length, seed=0, special=0.0):
    """[CLS] and plain pieces, a share of them replaced by special ones; the last is [SEP]."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(len(SPECIAL), len(TOKENIZER.vocabulary), (batch, length)).astype(np.int32)
    ids = np.where(rng.random(ids.shape) < special, rng.integers(0, len(SPECIAL), ids.shape), ids).astype(np.int32)
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


def mask(masking, ids, seed=0):
    return masking(ids, masking.noise(np.random.default_rng(seed), *ids.shape))


def chosen(features):
    """The chosen places of each text: a list of lists."""
    return [places[weights > 0].tolist()
            for places, weights in zip(features["masked_lm_positions"], features["masked_lm_weights"])]


def shares(batches, vocabulary):
    """(chosen of the plain tokens, masked of the chosen, replaced by a random piece, left as they were).

    A random piece may be the one that was there: of V plain pieces, one in V.
    """
    is_plain = np.array([not (piece.startswith("[") and piece.endswith("]") and len(piece) > 2)
                         for piece in vocabulary])
    mask_id, plain, counts = vocabulary.index("[MASK]"), 0, np.zeros(3)
    for ids, features in batches:
        plain += is_plain[ids].sum()
        weights = features["masked_lm_weights"] > 0
        now = np.take_along_axis(features["input_word_ids"], features["masked_lm_positions"], 1)[weights]
        before = features["masked_lm_ids"][weights]
        counts += ((now == mask_id).sum(), ((now != mask_id) & (now != before)).sum(), (now == before).sum())
    total, hidden = counts.sum(), counts[1] / (is_plain.sum() - 1)
    assert plain > 1_000_000
    return total / plain, counts[0] / total, (counts[1] + hidden) / total, (counts[2] - hidden) / total


@pytest.mark.parametrize("whole_word", [False, True])
def test_15_percent_by_80_10_10(whole_word):
    masking = Masking(TOKENIZER, 20, whole_word)
    batches = ((ids, mask(masking, ids, seed)) for seed in range(8) for ids in [random_texts(4096, 128, seed, 0.05)])
    assert shares(batches, TOKENIZER.vocabulary) == pytest.approx((0.15, 0.8, 0.1, 0.1), abs=0.002)


def unmask(features):
    """The ids as they were before masking, a token at a time."""
    ids = features["input_word_ids"].copy()
    for row, places in enumerate(chosen(features)):
        for slot, place in enumerate(places):
            ids[row, place] = features["masked_lm_ids"][row, slot]
    return ids


def words_of(ids):
    """The places of each word, straight from the definition; a special piece is no part of a word."""
    words = []
    for place, piece in enumerate(TOKENIZER.vocabulary[i] for i in ids):
        if piece in SPECIAL:
            words.append(None)
        elif piece.startswith("##") and words[-1]:
            words[-1].append(place)
        else:
            words.append([place])
    return [word for word in words if word]


@pytest.mark.parametrize("whole_word", [False, True])
def test_the_targets_restore_the_text_and_special_pieces_stay(whole_word):
    ids = random_texts(1000, 60, special=0.4)
    features = mask(Masking(TOKENIZER, 12, whole_word), ids)
    assert (features["input_word_ids"] != ids).any(axis=1).mean() > 0.9
    assert (unmask(features) == ids).all()
    assert all(places == sorted(set(places)) for places in chosen(features))
    parts = [word for row, places in zip(ids, chosen(features)) for word in words_of(row)
             if 0 < len(set(word) & set(places)) < len(word)]
    assert bool(parts) != whole_word
    unused = features["masked_lm_weights"] == 0
    assert unused.any() and (np.diff(features["masked_lm_weights"], axis=1) <= 0).all()
    assert not features["masked_lm_positions"][unused].any() and not features["masked_lm_ids"][unused].any()
    assert features["masked_lm_ids"][~unused].min() >= len(SPECIAL)
    assert set(features["input_word_ids"][ids >= len(SPECIAL)].tolist()) == {
        MASK, *range(len(SPECIAL), len(SPECIAL + PLAIN))}
    assert {name: (values.dtype.name, values.shape[1]) for name, values in features.items()} == {
        "input_word_ids": ("int32", 60), "masked_lm_positions": ("int32", 12), "masked_lm_ids": ("int32", 12),
        "masked_lm_weights": ("float32", 12)}


@pytest.mark.parametrize("max_predictions", [1, 3, 20])
def test_whole_words_are_whole(max_predictions):
    ids, longest = random_texts(2000, 64, special=0.05), 0
    for row, places in zip(ids, chosen(mask(Masking(TOKENIZER, max_predictions, whole_word=True), ids))):
        words = words_of(row)
        whole = [word for word in words if set(word) & set(places)]
        assert sorted(itertools.chain.from_iterable(whole)) == places
        assert len(places) <= max_predictions
        assert places or min(map(len, words)) > max_predictions
        longest = max([longest, *map(len, whole)])
    assert longest == max_predictions if max_predictions < 20 else longest > 3


@pytest.mark.parametrize("plain, max_predictions, fewest, most, mean", [
    (10, 20, 1, 2, 1.5), (25, 20, 3, 4, 3.75), (40, 20, 6, 6, 6), (2, 20, 1, 1, 1), (100, 7, 7, 7, 7),
    (100, 1, 1, 1, 1),
])
def test_how_many_are_chosen(plain, max_predictions, fewest, most, mean):
    ids = np.full((20_000, plain + 8), PAD, np.int32)
    ids[:, :plain + 2] = random_texts(len(ids), plain + 2)
    counts = mask(Masking(TOKENIZER, max_predictions), ids)["masked_lm_weights"].sum(axis=1)
    assert (counts.min(), counts.max()) == (fewest, most)
    assert counts.mean() == pytest.approx(mean, abs=0.02)


def test_every_token_has_the_same_chance():
    features = mask(Masking(TOKENIZER, 20), random_texts(50_000, 22))
    places = features["masked_lm_positions"][features["masked_lm_weights"] > 0]
    assert np.bincount(places, minlength=22)[1:-1] / 50_000 == pytest.approx(np.full(20, 0.15), abs=0.008)  # 5 sigma
    now = np.take_along_axis(features["input_word_ids"], features["masked_lm_positions"], axis=1)
    random = now[(features["masked_lm_weights"] > 0) & (now != MASK) & (now != features["masked_lm_ids"])]
    counts = np.bincount(random, minlength=len(SPECIAL + PLAIN))[len(SPECIAL):]
    assert abs(counts - counts.mean()).max() < 5 * counts.mean() ** 0.5


@pytest.mark.parametrize("whole_word", [False, True])
def test_a_text_is_masked_alike_in_any_batch(whole_word):
    masking = Masking(TOKENIZER, 9, whole_word)
    ids = random_texts(97, 48, special=0.1)
    noise = masking.noise(np.random.default_rng(3), *ids.shape)
    together = masking(ids, noise)
    for size in (1, 10, 96):
        parts = [masking(ids[i:i + size], noise[i:i + size]) for i in range(0, len(ids), size)]
        for name, values in together.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
    again = mask(masking, ids, seed=4)
    assert (again["masked_lm_positions"] != together["masked_lm_positions"]).any(axis=1).mean() > 0.9


def test_a_text_without_plain_pieces_stays_as_it_is():
    ids = np.array([[CLS, UNK, SEP, PAD, PAD], [CLS, 8, SEP, PAD, PAD]], np.int32)
    features = mask(Masking(TOKENIZER, 2), ids)
    assert chosen(features) == [[], [1]] and (features["input_word_ids"][0] == ids[0]).all()


def test_bad_arguments():
    with pytest.raises(InputError, match=r"must have \[MASK\]"):
        Masking(BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"]), 20)
    with pytest.raises(InputError, match="max_predictions must be at least 1; got 0"):
        Masking(TOKENIZER, 0)
