"""The word pieces of texts, and which characters each came from."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_bert.text.graph_tokenizer import GraphTokenizer

_AT_ONCE = 256  # texts; more take memory and no less time


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of one text.

    Args:
        ids: int32 [pieces].
        starts, ends: int64 [pieces], the characters of the text (code points) that each piece came from, the end
            exclusive; of a character that makes several pieces, the same.
        firsts: int64 [words], the first piece of each word as BERT cuts them, at white space and punctuation.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    firsts: np.ndarray


def pieces_of(texts, tokenizer):
    """The `Pieces` of each text, by the tokenizer that exported models hold: a list."""
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
            found.append(Pieces(ids_of, characters[starts_of], characters[ends_of], pieces[first:last] - begin))
    return found


@functools.lru_cache(maxsize=2)
def _function(tokenizer):
    graph = GraphTokenizer(tokenizer)
    return tf.function(graph.tokenize_with_offsets, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)


def _characters(text):
    """The character that each byte of a UTF-8 text belongs to, and the number of characters: int64 [bytes + 1]."""
    begins = np.frombuffer(text, np.uint8) & 0xC0 != 0x80
    return np.append(np.cumsum(begins) - 1, begins.sum())
