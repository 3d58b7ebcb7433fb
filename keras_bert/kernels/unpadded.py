"""The real tokens of a batch alone, one after the other: no work on padding. TensorFlow only, as the shapes depend on
the values; XLA cannot compile it."""

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from keras_bert.kernels.layout import Layout, attention_bias

# Rows that attention is computed in are at least this long: of several short texts, one after the other.
_SHORTEST_ROW = 64


class UnpaddedLayout(Layout):
    """The real tokens of all texts, one after the other: hidden states are [tokens, H].

    Dense layers and norms see nothing but real tokens, as in Nvidia's FasterTransformer. For attention the texts are
    packed into rows, several short ones in one, each of which sees itself alone (Krell et al., 2021,
    https://arxiv.org/abs/2107.02027).

    Args:
        mask: int32 [B, S], 1 for real tokens.
        heads: number of attention heads.
        directionality, dtype: see `attention_bias`.
        training: whether gradients are wanted, and fast; a SavedModel that held such would warn whoever loads it.
    """

    def __init__(self, mask, heads, directionality, dtype, training):
        if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise ValueError("layout='unpadded' has shapes that depend on the values, which XLA cannot compile; "
                             "use layout='padded' or 'packed'")
        self._heads = heads
        self._shape = tf.shape(mask)
        # The first token stands for its text even if it is none, and a text without any has that one to look at.
        is_first = tf.range(self._shape[1]) == 0
        seen = (mask > 0) | ((tf.reduce_sum(mask, axis=1, keepdims=True) == 0) & is_first)
        kept = seen | is_first
        self._indices = tf.where(kept)  # int64 [tokens, 2]
        self._text, self.position_ids = tf.unstack(tf.cast(self._indices, tf.int32), axis=1)
        self._seen = tf.boolean_mask(seen, kept)
        lengths = tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)
        starts = tf.cumsum(lengths, exclusive=True)
        self._pooled = starts + lengths - 1 if directionality == "ltr" else starts
        self._pack_rows(lengths, starts, directionality, dtype)
        with_gradient = tf.custom_gradient if training else lambda function: lambda x: function(x)[0]
        self._split, self._merge = map(with_gradient, (self._split_heads, self._merge_heads))

    def _pack_rows(self, lengths, starts, directionality, dtype):
        """Packs the texts into rows of one length. Sets `bias`; for each slot of a row and each head `_to_rows`, int32
        [R, N, L], the index of its token and head among those of all tokens, and `_is_token`, bool [R, 1, L, 1], false
        for empty slots; for each token and head `_from_rows`, int32 [tokens, N], its index among the slots of all
        rows."""
        tokens = tf.size(self._text)
        length = tf.maximum(tf.reduce_max(lengths), tf.minimum(tokens, _SHORTEST_ROW))
        row, begin, rows = pack(lengths, length)
        row, column = tf.gather(row, self._text), tf.gather(begin - starts, self._text) + tf.range(tokens)
        source = tf.scatter_nd(tf.stack([row, column], 1), tf.range(1, tokens + 1), [rows, length])  # 0: no token
        head = tf.range(self._heads)
        self._to_rows = tf.maximum(source - 1, 0)[:, None] * self._heads + head[:, None]
        self._is_token = source[:, None, :, None] > 0
        self._from_rows = (row[:, None] * self._heads + head) * length + column[:, None]
        own = tf.gather(tf.concat([[-1], self._text], 0), source)
        other = tf.gather(tf.concat([[-2], tf.where(self._seen, self._text, -2)], 0), source)
        self.bias = attention_bias(own[:, :, None] == other[:, None, :], directionality, dtype)

    def pack(self, ids):
        return tf.gather_nd(ids, self._indices)

    def unpack(self, x):
        return tf.scatter_nd(self._indices, x, tf.cast(tf.concat([self._shape, tf.shape(x)[1:]], 0), tf.int64))

    def queries(self, positions=None):
        return self._pooled

    def select(self, x, queries):
        return tf.gather(x, queries)

    def pooled(self, x, queries=None):
        return self.select(x, self._pooled) if queries is None else x

    def split_heads(self, x):
        return self._split(x)

    def merge_heads(self, x):
        return self._merge(x)

    def normalize(self, x, norm):
        """The one form that TensorFlow's graph optimizer turns into oneDNN's layer normalization: with scales that it
        cannot fold, of a first dimension it does not know."""
        tokens, width = tf.shape(x)[0], x.shape[1]
        normalized, *_ = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x, [1, tokens, width, 1]), scale=tf.fill([tokens], 1.0), offset=tf.fill([tokens], 0.0),
            mean=tf.zeros([0]), variance=tf.zeros([0]), epsilon=norm.epsilon, data_format="NCHW")
        return tf.reshape(normalized, [tokens, width]) * tf.cast(norm.gamma, x.dtype) + tf.cast(norm.beta, x.dtype)

    def attend_pooled(self, query, key, value, dropout):
        """The tokens of each text against its one query; probabilities are [tokens, N]."""
        by_head = [-1, self._heads, query.shape[1] // self._heads]
        scores = tf.reduce_sum(tf.reshape(tf.gather(query, self._text) * key, by_head), axis=2)  # [tokens, N]
        scores = tf.where(self._seen[:, None], tf.cast(scores, tf.float32), -1e9)
        weights = tf.exp(scores - tf.gather(tf.math.segment_max(scores, self._text), self._text))
        weights /= tf.gather(tf.math.segment_sum(weights, self._text), self._text)
        values = tf.reshape(value, by_head) * tf.cast(dropout(weights), value.dtype)[:, :, None]
        return tf.math.segment_sum(tf.reshape(values, tf.shape(value)), self._text), weights

    # From [tokens, H] to [R, N, L, D] and back. The gradient of each is the other: a token that fills empty slots as
    # well gets a gradient of 0 from there. TensorFlow's own gradient would add up all slots.
    def _split_heads(self, x):
        return tf.gather(tf.reshape(x, [-1, x.shape[1] // self._heads]), self._to_rows), self._merge

    def _merge_heads(self, x):
        def gradient(upstream):
            return self._split(upstream) * tf.cast(self._is_token, x.dtype)

        size = x.shape[3]
        return tf.reshape(tf.gather(tf.reshape(x, [-1, size]), self._from_rows), [-1, self._heads * size]), gradient


def pack(lengths, width):
    """Packs texts into rows: in each the longest that is left, and behind it as many of the shortest as fit.

    Args:
        lengths: int32 [texts].
        width: of a row, int32, at least the longest text's.

    Returns:
        (row of each text, int32 [texts]; where it begins in it, int32 [texts]; number of rows, int32).
    """
    texts = tf.size(lengths)
    order = tf.argsort(lengths, direction="DESCENDING")
    longest = tf.gather(lengths, order)
    before = tf.concat([[0], tf.cumsum(longest[::-1])], 0)  # tokens of the n shortest

    def fill(rows, taken, ends):
        last = tf.searchsorted(before, [before[taken] + width - longest[rows]], side="right")[0] - 1
        last = tf.minimum(last, texts - rows - 1)
        return rows + 1, last, ends.write(rows, last)

    rows, taken, ends = tf.while_loop(
        lambda rows, taken, _: rows + taken < texts, fill,
        (0, 0, tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[])))
    # By length, texts are the first of each row, the longest before; and the others, the shortest last.
    first = tf.concat([[0], ends.stack()], 0)  # of the others, those in the rows before
    row_of_other = tf.repeat(tf.range(rows), first[1:] - first[:-1])
    shift = longest[:rows] - tf.gather(before, first[:-1])
    row = tf.concat([tf.range(rows), row_of_other[::-1]], 0)
    begin = tf.concat([tf.zeros_like(shift), (before[:taken] + tf.gather(shift, row_of_other))[::-1]], 0)
    original = tf.argsort(order)
    return tf.gather(row, original), tf.gather(begin, original), rows
