"""The WordPiece tokens of texts, and the characters that each token came from, outside the TensorFlow graph."""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from keras_bert.text.rules import CONTEXTUAL, Rules
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import CONTINUES

_BATCH_SIZE = 1024  # texts that are tokenized together, each of their words once


@dataclasses.dataclass(frozen=True)
class TokenOffsets:
    """The WordPiece tokens of one text, and the range of characters (code points) that each came from: the same one for
    all tokens of one character. As in BERT, words are split at white space and punctuation."""

    ids: np.ndarray  # int32 [tokens]
    starts: np.ndarray  # int64 [tokens]
    ends: np.ndarray  # int64 [tokens], exclusive
    firsts: np.ndarray  # int64 [words], the index of the first token of each word


def tokens_with_offsets(texts: Iterable[str], tokenizer: BertTokenizer,
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


def _tokens_of_batch(texts: list[str], tokenizer: BertTokenizer) -> Iterator[TokenOffsets]:
    words_of_texts, *sources = zip(*(_words(text, tokenizer.rules) for text in texts))
    words = list(itertools.chain.from_iterable(words_of_texts))
    ids_of = _ids_of_words(dict.fromkeys(words), tokenizer)
    ids = np.array(list(itertools.chain.from_iterable(map(ids_of.__getitem__, words))), np.int32)
    lengths, starts_word = (of_tokens[ids] for of_tokens in _vocabulary_arrays(tokenizer))
    firsts = np.flatnonzero(starts_word)
    for word in np.flatnonzero(ids[firsts] == tokenizer.unk_id).tolist():
        lengths[firsts[word]] = len(words[word])
    after = np.cumsum(lengths)  # the index of the character of a word that follows each token
    starts, ends = (np.concatenate(part) for part in sources)
    starts, ends = starts[after - lengths], ends[after - 1]

    word_splits = np.cumsum([0, *map(len, words_of_texts)])
    token_splits = np.append(firsts, len(ids))[word_splits]
    for tokens, of_text in zip(map(slice, token_splits, token_splits[1:]), map(slice, word_splits, word_splits[1:])):
        yield TokenOffsets(ids[tokens], starts[tokens], ends[tokens], firsts[of_text] - tokens.start)


def _ids_of_words(words: Collection[str], tokenizer: BertTokenizer) -> dict[str, list[int]]:
    ids = tokenizer.wordpiece.encode_batch_fast([" ".join(words)])[0].ids
    _, starts_word = _vocabulary_arrays(tokenizer)
    splits = [*np.flatnonzero(starts_word[np.array(ids, np.int32)]).tolist(), len(ids)]
    return {word: ids[first:end] for word, first, end in zip(words, splits, splits[1:])}


def _words(text: str, rules: Rules) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Returns the words, and the start and end of what each of their characters came from, int64 [characters]."""
    words = text.translate(rules.table)
    if CONTEXTUAL in words:
        traced = rules.trace(text)
        spans = [(start, end) for character, start, end in traced if not character.isspace()]
        starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
        return "".join(part.character for part in traced).split(), starts, ends
    code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.frombuffer(rules.table.lengths, np.uint8)[code_points]
    starts = np.repeat(np.arange(len(text)), lengths)
    return words.split(), starts, starts + 1


@functools.lru_cache(maxsize=2)
def _vocabulary_arrays(tokenizer: BertTokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of characters of each token, int64 [tokens]; and which ones start a word, bool [tokens]."""
    continues = [token.startswith(CONTINUES) for token in tokenizer.vocabulary]
    lengths = [len(token.removeprefix(CONTINUES)) for token in tokenizer.vocabulary]
    return np.array(lengths), ~np.array(continues)
