"""Masking of tokens for masked language modelling (Devlin et al., 2018, section 3.1)."""

import numpy as np

from keras_bert.errors import InputError
from keras_bert.text import Tokenizer

SHARE, MASKED, RANDOM = 0.15, 0.8, 0.1
# The features of masked tokens, each [batch, max_predictions], and their dtypes.
TARGETS = {"masked_lm_positions": np.int32, "masked_lm_ids": np.int32, "masked_lm_weights": np.float32}


class Masking:
    """Chooses 15% of the tokens of each text: 80% of them become [MASK], 10% a random token, and 10% stay unchanged.

    15% is randomly rounded to a whole number of tokens, at least 1 and at most `max_predictions`. Special tokens,
    e.g. [CLS], [UNK] and [unused1], are neither chosen nor used as random tokens.

    All random numbers are an argument, so the examples are the same however they are distributed. (tensorflow-text's
    RandomItemSelector and MaskValuesChooser use TensorFlow's global generator, round each text's 15% up, and use
    special tokens as random tokens too.)

    Args:
        max_predictions: maximum chosen tokens per text.
        whole_word: if True, chooses all tokens of a word or none, and no word of more than `max_predictions` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, max_predictions: int, whole_word: bool = False) -> None:
        if tokenizer.mask_id is None:
            raise InputError("the vocabulary must have [MASK]; keras-bert make-vocab makes such a vocabulary")
        if max_predictions < 1:
            raise InputError(f"max_predictions must be at least 1; got {max_predictions}")
        self.max_predictions = max_predictions
        self.mask_id = tokenizer.mask_id
        self._is_special = tokenizer.is_special
        self._whole_word = whole_word
        self._continues = ~tokenizer.starts_word
        self._tokens = np.flatnonzero(~self._is_special).astype(np.int32)

    @staticmethod
    def noise(rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
        """Draws the random numbers for masking ids [batch, length]: float32 [batch, 3, length]."""
        return rng.random((batch, 3, length), np.float32)

    def __call__(self, ids: np.ndarray, noise: np.ndarray) -> dict[str, np.ndarray]:
        """Masks texts.

        Args:
            ids: int32 [batch, length]. Each text begins with [CLS].
            noise: result of `noise` for this shape, float32 [batch, 3, length].

        Returns:
            `input_word_ids`, int32 [batch, length], the masked texts; and padded with 0, `masked_lm_positions`, in
            ascending order, and `masked_lm_ids`, the original tokens, int32 [batch, max_predictions], and
            `masked_lm_weights`, float32 [batch, max_predictions], 1 for a chosen token.
        """
        choose = self._choose_words if self._whole_word else self._choose_tokens
        chosen = choose(ids, order=noise[:, 0], chance=noise[:, 1, 0])  # position 0 has [CLS], which is never masked
        rows, positions = np.nonzero(chosen)
        targets, action = ids[rows, positions], noise[rows, 1, positions]
        random = self._tokens[(noise[rows, 2, positions] * np.float64(len(self._tokens))).astype(int)]
        masked = ids.copy()
        masked[rows, positions] = np.where(action < MASKED, self.mask_id,
                                        np.where(action < MASKED + RANDOM, random, targets))
        slots = np.arange(len(rows)) - np.searchsorted(rows, np.arange(len(ids)))[rows]
        features = {name: np.zeros((len(ids), self.max_predictions), dtype) for name, dtype in TARGETS.items()}
        for feature, values in zip(features.values(), (positions, targets, 1)):
            feature[rows, slots] = values
        return {"input_word_ids": masked} | features

    def _choose_tokens(self, ids: np.ndarray, order: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Chooses tokens in random order up to 15% of each text: bool [batch, length]. Takes half the time of
        `_choose_words`, which would choose the same if each token were a word."""
        plain = ~self._is_special.take(ids)
        count = plain.sum(axis=1)
        limit = np.minimum(np.floor(SHARE * count + chance).clip(1, self.max_predictions), count)
        positions = np.argsort(np.where(plain, order, 2), axis=1)[:, :self.max_predictions]
        chosen = np.zeros_like(plain)
        np.put_along_axis(chosen, positions, np.arange(positions.shape[1]) < limit[:, None], axis=1)
        return chosen

    def _choose_words(self, ids: np.ndarray, order: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Chooses words in random order, each one that still fits into 15% of its text: bool [batch, length]."""
        plain = ~self._is_special.take(ids)
        first, size = self._words(ids)
        begins = plain & (first == np.arange(ids.shape[1])) & (size <= self.max_predictions)
        shortest = np.where(begins, size, self.max_predictions).min(axis=1)
        limit = np.floor(SHARE * plain.sum(axis=1) + chance).astype(int).clip(shortest, self.max_predictions)
        chosen, rows = np.zeros_like(plain), np.arange(len(ids))
        for position in np.argsort(np.where(begins, order, 2), axis=1).T:
            fits = begins[rows, position] & (size[rows, position] <= limit)
            chosen[rows, position] = fits
            limit -= size[rows, position] * fits
            if not limit.any():
                break
        return np.take_along_axis(chosen, first, axis=1)

    def _words(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the position where each token's word begins, and its number of tokens: both int64 [batch, length]."""
        batch, length = ids.shape
        joins = self._continues[ids]
        joins[:, 1:] &= ~self._is_special[ids[:, :-1]]
        joins[:, 0] = False
        first = np.maximum.accumulate(np.where(joins, 0, np.arange(length)), axis=1)
        word = first + length * np.arange(batch)[:, None]
        return first, np.bincount(word.ravel(), minlength=batch * length)[word]


class NextTokens:
    """The targets of a left-to-right or right-to-left language model, with the interface of `Masking`: each token
    predicts its neighbour, the next one in `ltr`, the previous one in `rtl`, unless that is a special token."""

    def __init__(self, tokenizer: Tokenizer, length: int, directionality: str) -> None:
        self.max_predictions = length - 1
        self._is_special = tokenizer.is_special
        self._step = {"ltr": 1, "rtl": -1}[directionality]

    @staticmethod
    def noise(rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
        return np.empty((batch, 0), np.float32)  # nothing is random

    def __call__(self, ids: np.ndarray, noise: np.ndarray) -> dict[str, np.ndarray]:
        positions = np.arange(self.max_predictions, dtype=np.int32) + (self._step < 0)
        targets = ids[:, positions + self._step]
        return {"input_word_ids": ids, "masked_lm_positions": np.broadcast_to(positions, targets.shape),
                "masked_lm_ids": targets, "masked_lm_weights": (~self._is_special[targets]).astype(np.float32)}
