"""Which texts are the same for a model."""

import sys
from collections.abc import Iterable

import numpy as np

from keras_bert.arguments import as_list
from keras_bert.text.packing import truncate
from keras_bert.text.tokenizer import Tokenizer


class SameTexts:
    """Tells which texts are the same for a model: those of which it reads the same tokens.

    Args:
        tokenizer: the model's.
        most: number of tokens of a text that it reads at most; None if it reads all.
    """

    def __init__(self, tokenizer: Tokenizer, most: int | None) -> None:
        self._tokenizer, self._most = tokenizer, sys.maxsize if most is None else most
        self._keys: dict[str, bytes] = {}

    def keys(self, groups: Iterable[Iterable]) -> list[tuple]:
        """Returns for each group of texts, or of lists of texts, a value that is equal for groups of the same texts."""
        lists = [[as_list(texts) for texts in group] for group in groups]
        new = list({text: None for group in lists for texts in group for text in texts if text not in self._keys})
        for text, ids in zip(new, self._tokenizer.ids(new, self._most)):
            self._keys[text] = np.array(truncate(ids, self._most, self._tokenizer.truncation_side), np.int32).tobytes()
        return [tuple(tuple(self._keys[text] for text in texts) for texts in group) for group in lists]
