"""The WordPiece tokens of texts, and the characters that each token came from."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_bert.text.graph_tokenizer import GraphTokenizer

_AT_ONCE = 256  # texts; more would use more memory and save no time


@dataclasses.dataclass(frozen=True)
class TokenOffsets:
    """The WordPiece tokens of one text.

    Args:
        ids: int32 [tokens].
        starts, ends: int64 [tokens], the range of characters (code points) of the text that each token came from; the
            end is exclusive. If one character becomes multiple tokens, they all have the same range.
        firsts: int64 [words], the index of the first token of each word. As in BERT, words are split at white space and
            punctuation.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    firsts: np.ndarray


def tokens_with_offsets(texts, tokenizer):
    """Returns a list with the `TokenOffsets` of each text, computed by the tokenizer that exported models contain."""
    texts = [text.encode("utf-8", "ignore") for text in texts]
    found = []
    for begin in range(0, len(texts), _AT_ONCE):
        some = texts[begin:begin + _AT_ONCE]
        ids, starts, ends = _function(tokenizer)(tf.constant(some, tf.string))
        words, pieces = ids.row_splits.numpy(), ids.values.row_splits.numpy()
        flat = [part.flat_values.numpy() for part in (ids, starts, ends)]
        for text, first, last in zip(some, words, words[1:]):
            begin, end = pieces[first], pieces[last]
            characters = _characters(text)
            ids_of, starts_of, ends_of = (part[begin:end] for part in flat)
            found.append(TokenOffsets(ids_of, characters[starts_of], characters[ends_of], pieces[first:last] - begin))
    return found


@functools.lru_cache(maxsize=2)
def _function(tokenizer):
    graph = GraphTokenizer(tokenizer)
    return tf.function(graph.tokenize_with_offsets, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)


def _characters(text):
    """Returns the index of the character that each byte of a UTF-8 text belongs to, followed by the number of
    characters: int64 [bytes + 1]."""
    begins = np.frombuffer(text, np.uint8) & 0xC0 != 0x80
    return np.append(np.cumsum(begins) - 1, begins.sum())
