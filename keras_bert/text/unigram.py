"""The unigram model of SentencePiece: pieces with scores, of which each word gets those with the largest sum."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import tokenizers

from keras_bert.errors import InputError
from keras_bert.text.charsmap import Charsmap

META = "\u2581"  # begins the first piece of a word
UNKNOWN_PENALTY = 10.0  # what an unknown character scores below the worst piece


class Unigram:
    """Pieces and their scores, by id. `hidden` are the ids of the pieces that no text has: special ones. Scores are
    added in float64, for each word; of equal sums, the one with the longest last piece wins, and so on: as in Hugging
    Face's `tokenizers`. sentencepiece adds in float32, for the whole text."""

    def __init__(self, pieces: Sequence[str], scores: Sequence[float], hidden: Collection[int], unk_id: int) -> None:
        self.pieces, self.scores, self.hidden, self.unk_id = pieces, np.asarray(scores, np.float64), hidden, unk_id
        # No word has a space. A score of 0 does not change the lowest one.
        vocabulary = [(f" {index}", 0.0) if index in hidden else (piece, float(score))
                      for index, (piece, score) in enumerate(zip(pieces, scores))]
        self._model = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id, False))
        self._model.pre_tokenizer = tokenizers.pre_tokenizers.CharDelimiterSplit(" ")

    def ids(self, words: Iterable[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._model.encode_batch_fast(list(words))]


def words(charsmap: Charsmap, text: str) -> str:
    return " ".join(META + word for word in charsmap.normalize(text).split(" ") if word)
