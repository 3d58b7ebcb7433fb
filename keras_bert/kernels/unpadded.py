"""`UnpaddedLayout`, which skips padding: only the real tokens of a batch, one after the other. TensorFlow only, as the
shapes depend on the values; XLA cannot compile it."""

from collections.abc import Callable

import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from keras_bert import kernels
from keras_bert.kernels.layout import Layout, attention_bias

# Minimum length of the rows for attention, which short texts share. Only a batch with fewer tokens has a shorter row.
_SHORTEST_ROW = 64


class UnpaddedLayout(Layout):
    """The layout without padding: the real tokens of all texts, one after the other. Hidden states are [tokens, H].

    Dense layers and norms process only real tokens, as in Nvidia's FasterTransformer. For attention the texts are
    packed into rows; multiple short texts share a row, and each text attends only to itself (Krell et al., 2021,
    https://arxiv.org/abs/2107.02027). Training uses custom gradients, which are faster; a SavedModel that contains them
    would print a warning when it is loaded.
    """

    # Below this number of tokens, `normalize` uses several plain operations, which take less time than oneDNN's layer
    # normalization with its fixed cost of 0.1 ms.
    few_tokens = 256

    def __init__(self, mask: tf.Tensor, heads: int, directionality: str, dtype: str, training: bool | None) -> None:
        if kernels.BACKEND != "tensorflow" or GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise ValueError("layout='unpadded' has shapes that depend on the values, so it runs only on Keras's "
                             f"TensorFlow backend (KERAS_BACKEND is {kernels.BACKEND!r}) and without XLA; use "
                             "layout='padded' or 'packed'")
        self._heads, self._training = heads, training
        self._shape = tf.shape(mask)
        # The first token of each text is kept even if it is padding, so that every text has a pooled token. In a text
        # without real tokens it is also the token that is attended to.
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
        # mypy refuses functions in place of methods; these depend on `training`.
        self.split_heads, self.merge_heads = map(  # type: ignore[method-assign]
            with_gradient, (self._split_heads, self._merge_heads))

    def _pack_rows(self, lengths: tf.Tensor, starts: tf.Tensor, directionality: str, dtype: str) -> None:
        """Packs the texts into rows of L slots for one token each; sets `bias` and the indices of tokens and slots."""
        tokens = tf.size(self._text)
        length = tf.maximum(tf.reduce_max(lengths), tf.minimum(tokens, _SHORTEST_ROW))
        row, begin, rows = assign_rows(lengths, length)
        row, column = tf.gather(row, self._text), tf.gather(begin - starts, self._text) + tf.range(tokens)
        source = tf.scatter_nd(tf.stack([row, column], 1), tf.range(1, tokens + 1), [rows, length])  # 0: empty
        head = tf.range(self._heads)
        # For each slot and head, the index of its token and head among those of all tokens: int32 [R, N, L].
        self._to_rows = tf.maximum(source - 1, 0)[:, None] * self._heads + head[:, None]
        self._is_token = source[:, None, :, None] > 0  # bool [R, 1, L, 1], False for empty slots
        # For each token and head, its index among the slots and heads of all rows: int32 [tokens, N].
        self._from_rows = (row[:, None] * self._heads + head) * length + column[:, None]
        own = tf.gather(tf.concat([[-1], self._text], 0), source)
        other = tf.gather(tf.concat([[-2], tf.where(self._seen, self._text, -2)], 0), source)
        self.bias = attention_bias(own[:, :, None] == other[:, None, :], directionality, dtype)

    def arrange(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather_nd(ids, self._indices)

    def restore(self, x: tf.Tensor) -> tf.Tensor:
        return tf.scatter_nd(self._indices, x, tf.cast(tf.concat([self._shape, tf.shape(x)[1:]], 0), tf.int64))

    def queries(self, positions: tf.Tensor | None = None) -> tf.Tensor:
        return self._pooled

    def select(self, x: tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
        return tf.gather(x, queries)

    def pooled(self, x: tf.Tensor, queries: tf.Tensor | None = None) -> tf.Tensor:
        return self.select(x, self._pooled) if queries is None else x

    def normalize(self, x: tf.Tensor, norm: keras.layers.LayerNormalization) -> tf.Tensor:
        """Applies `norm`; outside training, in the form that is faster for this number of tokens."""
        tokens, width = tf.shape(x)[0], x.shape[1]
        gamma, beta = tf.cast(norm.gamma, x.dtype), tf.cast(norm.beta, x.dtype)

        def fused() -> tf.Tensor:
            """The only form that TensorFlow's graph optimizer replaces by oneDNN's layer normalization: the scales have
            an unknown first dimension, so that the optimizer cannot fold them into constants."""
            normalized, *_ = tf.raw_ops.FusedBatchNormV3(
                x=tf.reshape(x, [1, tokens, width, 1]), scale=tf.fill([tokens], 1.0), offset=tf.fill([tokens], 0.0),
                mean=tf.zeros([0]), variance=tf.zeros([0]), epsilon=norm.epsilon, data_format="NCHW")
            return tf.reshape(normalized, [tokens, width]) * gamma + beta

        def plain() -> tf.Tensor:
            values = tf.cast(x, tf.float32)
            centered = values - tf.reduce_mean(values, axis=1, keepdims=True)
            scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), axis=1, keepdims=True) + norm.epsilon)
            return tf.cast(centered * scale, x.dtype) * gamma + beta

        return fused() if self._training else tf.cond(tokens < self.few_tokens, plain, fused)

    def attend_pooled(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor,
                      drop: Callable[[tf.Tensor], tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Attends from the one query of each text to the tokens of the text; the probabilities are [tokens, N]."""
        by_head = [-1, self._heads, query.shape[1] // self._heads]
        scores = tf.reduce_sum(tf.reshape(tf.gather(query, self._text) * key, by_head), axis=2)  # [tokens, N]
        scores = tf.where(self._seen[:, None], tf.cast(scores, tf.float32), -1e9)
        weights = tf.exp(scores - tf.gather(tf.math.segment_max(scores, self._text), self._text))
        weights /= tf.gather(tf.math.segment_sum(weights, self._text), self._text)
        values = tf.reshape(value, by_head) * tf.cast(drop(weights), value.dtype)[:, :, None]
        return tf.math.segment_sum(tf.reshape(values, tf.shape(value)), self._text), weights

    # These two functions convert [tokens, H] to [R, N, L, D] and back, and each is the gradient of the other. Empty
    # slots hold copies of a token, whose gradient from there is 0. TensorFlow's own gradient would sum over all slots.
    def _split_heads(self, x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return tf.gather(tf.reshape(x, [-1, x.shape[1] // self._heads]), self._to_rows), self.merge_heads

    def _merge_heads(self, x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return self.split_heads(upstream) * tf.cast(self._is_token, x.dtype)

        size = x.shape[3]
        return tf.reshape(tf.gather(tf.reshape(x, [-1, size]), self._from_rows), [-1, self._heads * size]), gradient


def assign_rows(lengths: tf.Tensor, width: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Assigns texts of the given lengths, int32 [texts], to rows of length `width`, which no text exceeds: each row
    gets the longest remaining text, then as many of the shortest as fit. Returns the row of each text and its start in
    the row, both int32 [texts], and the number of rows."""
    texts = tf.size(lengths)
    order = tf.argsort(lengths, direction="DESCENDING")
    longest = tf.gather(lengths, order)
    before = tf.concat([[0], tf.cumsum(longest[::-1])], 0)  # number of tokens in the n shortest texts

    def fill(rows: tf.Tensor, assigned: tf.Tensor, ends: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        last = tf.searchsorted(before, [before[assigned] + width - longest[rows]], side="right")[0] - 1
        last = tf.minimum(last, texts - rows - 1)
        return rows + 1, last, ends.write(rows, last)

    rows, assigned, ends = tf.while_loop(
        lambda rows, assigned, _: rows + assigned < texts, fill,
        (0, 0, tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[])))
    # In order of decreasing length, the first texts of all rows come first, then all other texts. The other texts fill
    # the rows from the shortest on.
    first = tf.concat([[0], ends.stack()], 0)  # number of other texts in the rows before
    row_of_other = tf.repeat(tf.range(rows), first[1:] - first[:-1])
    shift = longest[:rows] - tf.gather(before, first[:-1])
    row = tf.concat([tf.range(rows), row_of_other[::-1]], 0)
    begin = tf.concat([tf.zeros_like(shift), (before[:assigned] + tf.gather(shift, row_of_other))[::-1]], 0)
    original = tf.argsort(order)
    return tf.gather(row, original), tf.gather(begin, original), rows
