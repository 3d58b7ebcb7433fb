"""`Layout`, how the tokens of a batch are arranged inside the encoder, and `PackedLayout`. Both run on all backends,
because their shapes do not depend on the values; the third layout is in `unpadded.py`.

Dimensions: B rows of the inputs, S their length, T texts, N heads, H hidden size, D = H / N. `[…, H]` are hidden states
in a layout's arrangement; for attention they are arranged as R rows of length L, [R, N, L, D].
"""

from collections.abc import Callable

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.types import Tensor

AttendPooled = Callable[[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]], tuple[Tensor, Tensor]]


class Layout:
    """An arrangement of the tokens of a batch. This class is the layout `padded`: one text per row, with padding, as in
    the inputs. Its subclasses are the other layouts. The mask is int32 [B, S], 1 for real tokens; `visible`, see
    `attention_bias`, is by default True for all real tokens of a row."""

    # None, or a faster `attend` for the pooled token of each text alone, from the scaled query [T, H], key and value
    # […, H] to the context [T, H].
    attend_pooled: AttendPooled | None = None

    def __init__(self, mask: Tensor, heads: int, directionality: str, dtype: str,
                 visible: Tensor | None = None) -> None:
        self._mask = mask
        self._heads = heads
        self._is_ltr = directionality == "ltr"
        # int32, the position of each token in its text; broadcasts to the shape that `arrange` returns.
        self.position_ids = ops.expand_dims(ops.arange(ops.shape(mask)[1]), 0)
        visible = ops.expand_dims(ops.greater(mask, 0), 1) if visible is None else visible
        self.bias = attention_bias(visible, directionality, dtype)

    def arrange(self, ids: Tensor) -> Tensor:
        """Arranges integers [B, S]."""
        return ids

    def restore(self, x: Tensor) -> Tensor:
        """Restores [B, S, H] from […, H]."""
        return x

    def queries(self, positions: Tensor | None = None) -> Tensor | None:
        """Returns the tokens that the last block should compute: the pooled token of each text, and those at
        `positions`, int32 [B, n]. Returns None if it should compute all tokens."""
        pooled = ops.zeros_like(self._mask[:, :1])
        if self._is_ltr:  # only the last real token attends to all others
            indices = ops.arange(ops.shape(self._mask)[1], dtype="int32")
            pooled = ops.max(ops.where(ops.greater(self._mask, 0), indices, 0), axis=1, keepdims=True)
        return pooled if positions is None else ops.concatenate([pooled, positions], axis=1)

    def select(self, x: Tensor, queries: Tensor) -> Tensor:
        """Returns the hidden states […, H] of the tokens `queries`, in the arrangement of `queries`."""
        return kernels.gather(x, queries)

    def pooled(self, x: Tensor, queries: Tensor | None = None) -> Tensor:
        """Returns the hidden state of each text's pooled token, [T, H]; x is […, H], or `select(x, queries)`."""
        return (self.select(x, self.queries()) if self._is_ltr and queries is None else x)[:, 0]

    def split_heads(self, x: Tensor) -> Tensor:
        """Arranges […, H] as rows for attention, [R, N, L, D]."""
        x = ops.reshape(x, (-1, ops.shape(x)[1], self._heads, x.shape[2] // self._heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def merge_heads(self, x: Tensor) -> Tensor:
        """Inverts `split_heads`."""
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, ops.shape(x)[2], self._heads * x.shape[3]))

    def select_bias(self, queries: Tensor | None) -> Tensor:
        """Returns the rows of `bias` for the tokens `queries`; all rows if None."""
        if queries is None or self.bias.shape[2] == 1:
            return self.bias
        return ops.expand_dims(kernels.gather(ops.squeeze(self.bias, 1), queries), 1)

    def normalize(self, x: Tensor, norm: keras.layers.LayerNormalization) -> Tensor:
        return norm(x)


class PackedLayout(Layout):
    """The layout with multiple texts per row, one after the other; each text attends only to itself (Krell et al.,
    2021, https://arxiv.org/abs/2107.02027). XLA compiles the shapes once, and there is little padding. Hidden states
    are [B, S, H]. For `sequence_ids`, int32 [B, S], and `pooled_positions`, int32 [T], see `BertLayer`."""

    def __init__(self, mask: Tensor, heads: int, directionality: str, dtype: str, sequence_ids: Tensor,
                 pooled_positions: Tensor) -> None:
        same = ops.equal(ops.expand_dims(sequence_ids, 2), ops.expand_dims(sequence_ids, 1))
        super().__init__(mask, heads, directionality, dtype, visible=same)
        earlier = ops.transpose(is_later(ops.shape(mask)[1]))
        self.position_ids = ops.sum(ops.cast(ops.logical_and(same, earlier), "int32"), axis=2)
        self._pooled_positions = pooled_positions

    def queries(self, positions: Tensor | None = None) -> None:
        if positions is not None:
            raise ValueError("positions are of rows with one text each; got layout='packed'")
        return None  # one query per text would need a copy of its whole row's keys and values

    def pooled(self, x: Tensor, queries: Tensor | None = None) -> Tensor:
        return ops.take(ops.reshape(x, (-1, x.shape[2])), self._pooled_positions, axis=0)


def attention_bias(visible: Tensor, directionality: str, dtype: str) -> Tensor:
    """Returns the bias to add to attention scores: 0 where a token is visible, elsewhere a number so negative that the
    softmax gives it no weight. The number is finite in every dtype, so that a row without visible tokens stays finite.

    `visible` is bool [R, L, L], True where the first token may attend to the second, and the bias [R, 1, L, L]; or they
    are [R, 1, L] and [R, 1, 1, L], the same for all tokens of a row. The directionality `ltr` also hides the tokens
    after each token, `rtl` the tokens before it."""
    if directionality != "bidi":
        later = is_later(ops.shape(visible)[2])
        visible = ops.logical_and(visible, ops.logical_not(later if directionality == "ltr" else ops.transpose(later)))
    # -1e9 is infinite in float16, and infinity minus infinity is NaN.
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return ops.where(ops.expand_dims(visible, 1), ops.zeros((), dtype), ops.full((), lowest, dtype))


def is_later(length: int | Tensor) -> Tensor:
    """Returns bool [length, length], True where the second position comes after the first."""
    positions = ops.arange(length)
    return ops.greater(positions, ops.expand_dims(positions, 1))
