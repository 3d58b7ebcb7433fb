"""The tokens of texts, and the characters that each token came from, outside the TensorFlow graph."""

import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from keras_bert.text.packing import positions_of
from keras_bert.text.tokenizer import Tokenizer

_BATCH_SIZE = 1024  # texts that are tokenized together, each of their words once


@dataclasses.dataclass(frozen=True)
class TokenOffsets:
    """The tokens of one text, and the range of characters (code points) that each came from: the same one for
    all tokens of one character. The tokenizer's rules say what the words are."""

    ids: np.ndarray  # int32 [tokens]
    starts: np.ndarray  # int64 [tokens]
    ends: np.ndarray  # int64 [tokens], exclusive
    firsts: np.ndarray  # int64 [words], the index of the first token of each word

    @property
    def heads(self) -> np.ndarray:
        """The indices of the tokens that do not begin with the same character as the one before: int64 [heads]."""
        return np.flatnonzero(np.concatenate([[-1], self.starts[:-1]])[:len(self.starts)] != self.starts)

    def ends_of(self, firsts: np.ndarray) -> np.ndarray:
        """Returns the ends of some parts of the text, int64 [parts], by the indices of their first tokens."""
        return self.ends[np.append(firsts, len(self.ids))[1:] - 1]


def tokens_with_offsets(texts: Iterable[str], tokenizer: Tokenizer,
                        needed: int = sys.maxsize) -> list[TokenOffsets]:
    """Returns the `TokenOffsets` of each text; of a long one perhaps only the `needed` number. Repeated texts are
    processed once, because many questions share a context."""
    texts = [tokenizer.part(text, needed) for text in texts]
    unique = list(dict.fromkeys(texts))
    found: dict[str, TokenOffsets] = {}
    for first in range(0, len(unique), _BATCH_SIZE):
        batch = unique[first:first + _BATCH_SIZE]
        found.update(zip(batch, _tokens_of_batch(batch, tokenizer)))
    return [found[text] for text in texts]


def _tokens_of_batch(texts: list[str], tokenizer: Tokenizer) -> Iterator[TokenOffsets]:
    words_of_texts, *sources = zip(*map(tokenizer.rules.trace_words, texts))
    words = list(itertools.chain.from_iterable(words_of_texts))
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    ids, counts, lengths = tokenizer.spell(list(numbers))
    rows = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
    positions, counts = positions_of(rows, counts), counts[rows]
    ids, lengths = ids[positions], lengths[positions]
    after = np.cumsum(lengths)  # the index of the character of a word that follows each token
    starts, ends = (np.concatenate(part) for part in sources)
    starts, ends = starts[after - lengths], ends[after - 1]

    word_splits = np.cumsum([0, *map(len, words_of_texts)])
    firsts = np.append(0, np.cumsum(counts))
    token_splits = firsts[word_splits]
    for tokens, of_text in zip(map(slice, token_splits, token_splits[1:]), map(slice, word_splits, word_splits[1:])):
        yield TokenOffsets(ids[tokens], starts[tokens], ends[tokens], firsts[of_text] - tokens.start)
