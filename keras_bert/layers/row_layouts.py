"""`PaddedLayout` and `PackedLayout`, for all backends, as their shapes do not depend on the values; the third layout is
`kernels.UnpaddedLayout`."""

from keras import ops

from keras_bert import kernels
from keras_bert.kernels.layout import Layout, attention_bias, is_later


class PaddedLayout(Layout):
    """The layout with one text per row and with padding, as in the inputs: hidden states are [B, S, H].

    Args:
        mask: int32 [B, S], 1 for real tokens.
        heads: number of attention heads.
        directionality, dtype: see `attention_bias`.
    """

    def __init__(self, mask, heads, directionality, dtype):
        self._mask = mask
        self._heads = heads
        self._is_ltr = directionality == "ltr"
        self.position_ids = ops.expand_dims(ops.arange(ops.shape(mask)[1]), 0)
        self.bias = attention_bias(self._visible(), directionality, dtype)

    def _visible(self):
        return ops.expand_dims(ops.greater(self._mask, 0), 1)

    def pack(self, ids):
        return ids

    def unpack(self, x):
        return x

    def queries(self, positions=None):
        pooled = ops.zeros_like(self._mask[:, :1])
        if self._is_ltr:  # only the last real token attends to all others
            places = ops.arange(ops.shape(self._mask)[1], dtype="int32")
            pooled = ops.max(ops.where(ops.greater(self._mask, 0), places, 0), axis=1, keepdims=True)
        return pooled if positions is None else ops.concatenate([pooled, positions], axis=1)

    def select(self, x, queries):
        return kernels.gather(x, queries)

    def pooled(self, x, queries=None):
        return (self.select(x, self.queries()) if self._is_ltr and queries is None else x)[:, 0]

    def select_bias(self, queries):
        if queries is None or self.bias.shape[2] == 1:
            return self.bias
        return ops.expand_dims(kernels.gather(ops.squeeze(self.bias, 1), queries), 1)

    def split_heads(self, x):
        x = ops.reshape(x, (-1, ops.shape(x)[1], self._heads, x.shape[2] // self._heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def merge_heads(self, x):
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, ops.shape(x)[2], self._heads * x.shape[3]))


class PackedLayout(PaddedLayout):
    """The layout with multiple texts per row, one after the other; each text attends only to itself (Krell et al.,
    2021, https://arxiv.org/abs/2107.02027). XLA compiles the shapes once, and there is little padding. Hidden states
    are [B, S, H].

    Args:
        mask, heads, directionality, dtype: see `PaddedLayout`.
        sequence_ids: int32 [B, S], the number of the text that each token belongs to, from 1; 0 for padding.
        pooled_positions: int32 [T], the index of each text's pooled token among all B * S tokens.
    """

    def __init__(self, mask, heads, directionality, dtype, sequence_ids, pooled_positions):
        self._same = ops.equal(ops.expand_dims(sequence_ids, 2), ops.expand_dims(sequence_ids, 1))
        self._pooled_positions = pooled_positions
        super().__init__(mask, heads, directionality, dtype)
        earlier = ops.transpose(is_later(ops.shape(mask)[1]))
        self.position_ids = ops.sum(ops.cast(ops.logical_and(self._same, earlier), "int32"), axis=2)

    def _visible(self):
        return self._same

    def queries(self, positions=None):
        if positions is not None:
            raise ValueError("positions are of rows with one text each; got layout='packed'")
        return None  # one query per text would need a copy of its whole row's keys and values

    def pooled(self, x, queries=None):
        return ops.take(ops.reshape(x, (-1, x.shape[2])), self._pooled_positions, axis=0)
