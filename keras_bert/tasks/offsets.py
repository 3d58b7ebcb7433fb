"""The WordPiece tokens of texts, and the characters that each token came from."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_bert.text.graph_tokenizer import GraphTokenizer

_BATCH_SIZE = 256  # larger batches use more memory and save no time


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
    """Returns a list with the `TokenOffsets` of each text, computed by the tokenizer that exported models contain.
    Repeated texts are processed only once, because many questions share a context."""
    texts = [text.encode() for text in texts]
    unique, found = list(dict.fromkeys(texts)), {}
    for offset in range(0, len(unique), _BATCH_SIZE):
        batch = unique[offset:offset + _BATCH_SIZE]
        ids, starts, ends = _function(tokenizer)(tf.constant(batch, tf.string))
        words, tokens = ids.row_splits.numpy(), ids.values.row_splits.numpy()
        flat_ids, flat_starts, flat_ends = (part.flat_values.numpy() for part in (ids, starts, ends))
        for text, first, last in zip(batch, words, words[1:]):
            some, characters = slice(tokens[first], tokens[last]), _characters(text)
            found[text] = TokenOffsets(flat_ids[some], characters[flat_starts[some]], characters[flat_ends[some]],
                                       tokens[first:last] - tokens[first])
    return [found[text] for text in texts]


@functools.lru_cache(maxsize=2)
def _function(tokenizer):
    graph = GraphTokenizer(tokenizer)
    return tf.function(graph.tokenize_with_offsets, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)


def _characters(text):
    """Returns the index of the character that each byte of a UTF-8 text belongs to, followed by the number of
    characters: int64 [bytes + 1].

    `characters` in export/text_heads.py does the same for a batch as TensorFlow operations, because a SavedModel cannot
    run NumPy; tests/test_decoding.py compares the two."""
    begins = np.frombuffer(text, np.uint8) & 0xC0 != 0x80
    return np.append(np.cumsum(begins) - 1, begins.sum())
