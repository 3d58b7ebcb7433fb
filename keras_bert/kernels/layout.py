"""`Layout`: how the tokens of a batch are arranged while the encoder computes.

Dimensions: B rows of the inputs, S their length, T texts, N heads, H hidden size, D = H / N. `[…, H]` are hidden states
as a layout arranges them; attention sees them as R rows of length L, [R, N, L, D].
"""

import abc

import keras
from keras import ops


class Layout(abc.ABC):
    """An arrangement of the tokens of a batch.

    Attributes:
        position_ids: int32, the position of each token in its text; broadcasts to the shape that `pack` returns.
        bias: the attention bias, added to the scores: [R, 1, L, L]; [R, 1, 1, L] if all tokens of a row see the same.
        attend_pooled: None, or a faster way to attend from the pooled token of each text alone: a function of the
            scaled query [T, H], key and value […, H], and a dropout function; returns the context [T, H] and the
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
        """The tokens whose last hidden states are wanted: the pooled token of each text, and those at `positions`,
        int32 [B, n]. None if the last block should compute all tokens."""

    @abc.abstractmethod
    def select(self, x, queries):
        """The hidden states […, H] of some `queries`, arranged as these are."""

    @abc.abstractmethod
    def pooled(self, x, queries=None):
        """[T, H]: the state that stands for each text; x is […, H], or what `select` returned for `queries`."""

    @abc.abstractmethod
    def split_heads(self, x):
        """Arranges […, H] in rows for attention, [R, N, L, D]."""

    @abc.abstractmethod
    def merge_heads(self, x):
        """The inverse of `split_heads`."""

    def select_bias(self, queries):
        """The rows of `bias` of some `queries`; all of them if None."""
        return self.bias

    def normalize(self, x, norm):
        """`norm(x)`, where `norm` is a `LayerNormalization`."""
        return norm(x)


def attention_bias(visible, directionality, dtype):
    """What to add to attention scores: 0 where a token is visible, elsewhere a number so negative that the softmax
    gives it no weight. The number is finite in every dtype, so that a row in which nothing is visible stays finite.

    Args:
        visible: bool [R, L, L], whether the first token may see the second; or [R, 1, L], the same for all tokens.
        directionality: `bidi`; `ltr` hides what comes after a token, `rtl` what comes before it.
        dtype: of the scores.

    Returns:
        [R, 1, L, L], or [R, 1, 1, L] if it is the same for all tokens.
    """
    if directionality != "bidi":
        later = is_later(ops.shape(visible)[2])
        visible = ops.logical_and(visible, ops.logical_not(later if directionality == "ltr" else ops.transpose(later)))
    # -1e9 is infinite in float16, and infinity minus infinity is no number.
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return ops.where(ops.expand_dims(visible, 1), ops.zeros((), dtype), ops.full((), lowest, dtype))


def is_later(length):
    """bool [length, length]: whether the second position comes after the first."""
    positions = ops.arange(length)
    return ops.greater(positions, ops.expand_dims(positions, 1))
