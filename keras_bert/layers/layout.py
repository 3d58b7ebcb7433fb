"""How the tokens of a batch lie. `PaddedLayout` is the rows of the inputs, `kernels.UnpaddedLayout`, which has the same
methods, the real tokens alone, one after the other."""

import keras
from keras import ops

from keras_bert import kernels


def attention_bias(input_mask, directionality, dtype):
    """What to add to attention scores so that padding gets no weight, nor what a token may not see: 0, or a large
    negative number, finite so that a row of padding alone stays finite.

    Args:
        input_mask: int32 [batch, seq].
        directionality: `bidi`; `ltr` hides what comes after a token, `rtl` what comes before it.
        dtype: of the scores.

    Returns:
        [batch, 1, 1, seq], or [batch, 1, seq, seq] where it depends on the token.
    """
    hidden = ops.expand_dims(ops.equal(input_mask, 0), (1, 2))
    if directionality != "bidi":
        places = ops.arange(ops.shape(input_mask)[1])
        own, other = ops.expand_dims(places, 1), ops.expand_dims(places, 0)
        hidden = ops.logical_or(hidden, ops.greater(other, own) if directionality == "ltr" else ops.less(other, own))
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return ops.multiply(ops.cast(hidden, dtype), ops.cast(lowest, dtype))


class PaddedLayout:
    """Rows with their padding, [batch, seq].

    Args:
        mask: int32 [batch, seq], 1 for real tokens.
        heads: number of attention heads.
        directionality: see `attention_bias`.
        dtype: of the attention scores.

    Attributes:
        positions: int32 [1, seq], of each token in its text.
    """

    def __init__(self, mask, heads, directionality, dtype):
        self._mask = mask
        self._heads = heads
        self._directionality = directionality
        self._bias = attention_bias(mask, directionality, dtype)
        self.positions = ops.expand_dims(ops.arange(ops.shape(mask)[1]), 0)

    def lay(self, ids):
        """Integers [batch, seq] as the tokens lie."""
        return ids

    def rows(self, x):
        """What lies as the tokens do, as [batch, seq, width]."""
        return x

    def pooled(self, x):
        """[batch, width] of x [batch, seq, width], of the tokens that stand for the texts."""
        return self.take(x, self._pooled())[:, 0] if self._directionality == "ltr" else x[:, 0]

    def places(self, *positions):
        """The tokens that stand for the texts, and those at `positions`, int32 [batch, n]: int32 [batch, 1 + n]."""
        return ops.concatenate([self._pooled(), *positions], axis=1)

    def take(self, x, places):
        """[batch, n, width] of x [batch, seq, width], where `places` are int32 [batch, n]."""
        return kernels.gather(x, places)

    def split(self, x):
        """What lies as `places` do in two: what is pooled [batch, width], and the rest [batch, n, width]."""
        return x[:, 0], x[:, 1:]

    def _pooled(self):
        if self._directionality == "ltr":
            return ops.maximum(ops.sum(self._mask, axis=1, keepdims=True) - 1, 0)
        return ops.zeros_like(self._mask[:, :1])

    def normalize(self, x, norm):
        """`norm(x)`, a `LayerNormalization`."""
        return norm(x)

    def attend(self, query, key, value, places=None, dropout=lambda probabilities: probabilities):
        """Scaled dot-product attention (Vaswani et al., 2017, section 3.2).

        Args:
            query: [batch, n, hidden], scaled.
            key, value: [batch, seq, hidden].
            places: int32 [batch, n], which tokens the queries are of; all where None, and n is seq.
            dropout: a function of the probabilities.

        Returns:
            (context [batch, n, hidden], probabilities [batch, heads, n, seq] before dropout).
        """
        bias = self._bias
        if places is not None and self._directionality != "bidi":
            bias = ops.expand_dims(kernels.gather(ops.squeeze(bias, 1), places), 1)
        query, key, value = (self._split_heads(x) for x in (query, key, value))
        probabilities = ops.softmax(ops.add(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), bias))
        return self._join_heads(ops.matmul(dropout(probabilities), value)), probabilities

    # [batch, seq, hidden] and [batch, heads, seq, hidden / heads].
    def _split_heads(self, x):
        x = ops.reshape(x, (-1, ops.shape(x)[1], self._heads, x.shape[2] // self._heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, x):
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, ops.shape(x)[2], self._heads * x.shape[3]))
