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
        hidden = ops.logical_or(hidden, _behind(input_mask, directionality))
    return _lowest_where(hidden, dtype)


def _behind(input_mask, directionality):
    """Which tokens a token may not see, bool [seq, seq]."""
    places = ops.arange(ops.shape(input_mask)[1])
    own, other = ops.expand_dims(places, 1), ops.expand_dims(places, 0)
    return ops.greater(other, own) if directionality == "ltr" else ops.less(other, own)


def _lowest_where(hidden, dtype):
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


class PackedLayout(PaddedLayout):
    """Rows of several texts each, one after the other, [rows, seq]; each text sees itself alone (Krell et al., 2021,
    https://arxiv.org/abs/2107.02027). Shapes that XLA compiles once, with little padding.

    Args:
        texts: int32 [rows, seq], the number of the text that a token is of, 0 for padding.
        pooled_positions: int32 [texts], where in the rows, laid end to end, the tokens are that stand for the texts.
        heads, directionality, dtype: see `PaddedLayout`.
    """

    def __init__(self, texts, pooled_positions, heads, directionality, dtype):
        super().__init__(texts, heads, directionality, dtype)
        self._pooled_positions = pooled_positions
        same = ops.equal(ops.expand_dims(texts, 2), ops.expand_dims(texts, 1))
        hidden = ops.logical_not(same)
        if directionality != "bidi":
            hidden = ops.logical_or(hidden, _behind(texts, directionality))
        self._bias = _lowest_where(ops.expand_dims(hidden, 1), dtype)
        self.positions = ops.sum(ops.cast(ops.logical_and(same, _behind(texts, "rtl")), "int32"), axis=2)

    def pooled(self, x):
        return ops.take(ops.reshape(x, (-1, x.shape[2])), self._pooled_positions, axis=0)

    def places(self):
        return None  # the last block computes all tokens, as to look at one takes all of its row

    def split(self, x):
        return self.pooled(x), x[:, :0]
