"""`Layout`: how the tokens of a batch are arranged inside the encoder.

Dimensions: B rows of the inputs, S their length, T texts, N heads, H hidden size, D = H / N. `[…, H]` are hidden states
in a layout's arrangement; for attention they are arranged as R rows of length L, [R, N, L, D].
"""

import abc

import keras
from keras import ops


class Layout(abc.ABC):
    """An arrangement of the tokens of a batch.

    Attributes:
        position_ids: int32, the position of each token in its text; broadcasts to the shape that `pack` returns.
        bias: the attention bias, added to the scores: [R, 1, L, L], or [R, 1, 1, L] if it is the same for all tokens.
        attend_pooled: None, or a faster attention for the pooled token of each text only. It is a function of the
            scaled query [T, H], key and value […, H] and a dropout function; it returns the context [T, H] and the
            probabilities.
    """

    attend_pooled = None

    @abc.abstractmethod
    def pack(self, ids):
        """Arranges integers [B, S]."""

    @abc.abstractmethod
    def unpack(self, x):
        """Restores [B, S, H] from […, H]."""

    @abc.abstractmethod
    def queries(self, positions=None):
        """Returns the tokens that the last block should compute: the pooled token of each text, and those at
        `positions`, int32 [B, n]. Returns None if it should compute all tokens."""

    @abc.abstractmethod
    def select(self, x, queries):
        """Returns the hidden states […, H] of the tokens `queries`, in the arrangement of `queries`."""

    @abc.abstractmethod
    def pooled(self, x, queries=None):
        """Returns the hidden state of each text's pooled token, [T, H]; x is […, H], or the result of `select` for
        `queries`."""

    @abc.abstractmethod
    def split_heads(self, x):
        """Arranges […, H] as rows for attention, [R, N, L, D]."""

    @abc.abstractmethod
    def merge_heads(self, x):
        """Inverts `split_heads`."""

    def select_bias(self, queries):
        """Returns the rows of `bias` for the tokens `queries`; all rows if None."""
        return self.bias

    def normalize(self, x, norm):
        """Applies `norm`, a `LayerNormalization`, to `x`."""
        return norm(x)


def attention_bias(visible, directionality, dtype):
    """Returns the bias to add to attention scores: 0 where a token is visible, elsewhere a number so negative that the
    softmax gives it no weight. The number is finite in every dtype, so that a row without visible tokens stays finite.

    Args:
        visible: bool [R, L, L], True where the first token may attend to the second; or [R, 1, L] if this is the same
            for all tokens of a row.
        directionality: `bidi` hides nothing else; `ltr` hides the tokens after each token, `rtl` those before it.
        dtype: dtype of the scores.

    Returns:
        [R, 1, L, L], or [R, 1, 1, L] if the bias is the same for all tokens of a row.
    """
    if directionality != "bidi":
        later = is_later(ops.shape(visible)[2])
        visible = ops.logical_and(visible, ops.logical_not(later if directionality == "ltr" else ops.transpose(later)))
    # -1e9 is infinite in float16, and infinity minus infinity is NaN.
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return ops.where(ops.expand_dims(visible, 1), ops.zeros((), dtype), ops.full((), lowest, dtype))


def is_later(length):
    """Returns bool [length, length], True where the second position comes after the first."""
    positions = ops.arange(length)
    return ops.greater(positions, ops.expand_dims(positions, 1))
