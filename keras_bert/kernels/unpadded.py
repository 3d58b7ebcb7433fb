"""The real tokens of a batch alone, one after the other: no work on padding. TensorFlow only, as the shapes depend on
the values; XLA cannot compile it."""

import tensorflow as tf

# Rows that attention is computed in are at least this long: of several short texts, one after the other.
_SHORTEST_ROW = 64


class UnpaddedLayout:
    """[tokens], text by text; see `layers.PaddedLayout`, which has the same methods.

    Dense layers and norms see nothing but real tokens, as in Nvidia's FasterTransformer. For attention the texts are
    laid into rows, several short ones in one, each of which sees itself alone (packing: Krell et al., 2021,
    https://arxiv.org/abs/2107.02027).

    Args:
        mask: int32 [batch, seq], 1 for real tokens.
        heads: number of attention heads.
        directionality: see `layers.attention_bias`.
        dtype: of the attention scores.
        training: whether to make gradients fast; a SavedModel that held such would warn whoever loads it.
    """

    def __init__(self, mask, heads, directionality, dtype, training):
        self._heads = heads
        self._shape = tf.shape(mask)
        # The first token stands for its text even if it is none, and a text without any has that one to look at.
        is_first = tf.range(self._shape[1]) == 0
        seen = (mask > 0) | ((tf.reduce_sum(mask, axis=1, keepdims=True) == 0) & is_first)
        laid = seen | is_first
        self._places = tf.where(laid)  # int64 [tokens, 2]
        self._text, self.positions = tf.unstack(tf.cast(self._places, tf.int32), axis=1)
        self._seen = tf.boolean_mask(seen, laid)
        lengths = tf.reduce_sum(tf.cast(laid, tf.int32), axis=1)
        starts = tf.cumsum(lengths, exclusive=True)
        self._pooled = starts + lengths - 1 if directionality == "ltr" else starts
        self._lay_rows(lengths, starts, directionality, dtype)
        with_gradient = tf.custom_gradient if training else lambda function: lambda x: function(x)[0]
        self._split, self._join = map(with_gradient, (self._split_heads, self._join_heads))

    def _lay_rows(self, lengths, starts, directionality, dtype):
        """Lays the texts into rows of one length: `_bias` of the attention scores, [rows, 1, length, length]; of each
        place the token and head, in heads of all tokens, `_to_rows`, int32 [rows, heads, length], and whether there is
        one, `_is_token`, bool [rows, 1, length, 1]; and of each token and head the place, in places of all rows,
        `_from_rows`, int32 [tokens, heads]."""
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
        visible = own[:, None, :, None] == other[:, None, None, :]
        if directionality != "bidi":
            visible = tf.linalg.band_part(visible, *((-1, 0) if directionality == "ltr" else (0, -1)))
        self._bias = tf.where(visible, tf.zeros([], dtype), tf.constant(-1e9, dtype))

    def lay(self, ids):
        return tf.gather_nd(ids, self._places)

    def rows(self, x):
        return tf.scatter_nd(self._places, x, tf.cast(tf.concat([self._shape, tf.shape(x)[1:]], 0), tf.int64))

    def pooled(self, x):
        return self.take(x, self._pooled)

    def places(self):
        return self._pooled

    def take(self, x, places):
        return tf.gather(x, places)

    def split(self, x):
        return x, x[:0]

    def normalize(self, x, norm):
        """The one form that TensorFlow's graph optimizer turns into oneDNN's layer normalization: with scales that it
        cannot fold, of a first dimension it does not know."""
        tokens, width = tf.shape(x)[0], x.shape[1]
        normalized, *_ = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x, [1, tokens, width, 1]), scale=tf.fill([tokens], 1.0), offset=tf.fill([tokens], 0.0),
            mean=tf.zeros([0]), variance=tf.zeros([0]), epsilon=norm.epsilon, data_format="NCHW")
        return tf.reshape(normalized, [tokens, width]) * tf.cast(norm.gamma, x.dtype) + tf.cast(norm.beta, x.dtype)

    def attend(self, query, key, value, places=None, dropout=lambda probabilities: probabilities):
        if places is not None:
            return self._attend_once(query, key, value, dropout)
        query, key, value = map(self._split, (query, key, value))
        probabilities = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + self._bias)
        return self._join(tf.matmul(dropout(probabilities), value)), probabilities

    # From [tokens, hidden] to [rows, heads, length, hidden / heads] and back. The gradient of each is the other: what
    # is gathered twice goes to places without a token, whose gradient is 0. TensorFlow's own would add up all of them.
    def _split_heads(self, x):
        return tf.gather(tf.reshape(x, [-1, x.shape[1] // self._heads]), self._to_rows), self._join

    def _join_heads(self, x):
        def gradient(upstream):
            return self._split(upstream) * tf.cast(self._is_token, x.dtype)

        size = x.shape[3]
        return tf.reshape(tf.gather(tf.reshape(x, [-1, size]), self._from_rows), [-1, self._heads * size]), gradient

    def _attend_once(self, query, key, value, dropout):
        """Attention of one token a text, query [batch, hidden]: the tokens of a text against the one query of it. Its
        probabilities are [tokens, heads]."""
        by_head = [-1, self._heads, query.shape[1] // self._heads]
        scores = tf.reduce_sum(tf.reshape(tf.gather(query, self._text) * key, by_head), axis=2)  # [tokens, heads]
        scores = tf.where(self._seen[:, None], tf.cast(scores, tf.float32), -1e9)
        weights = tf.exp(scores - tf.gather(tf.math.segment_max(scores, self._text), self._text))
        weights /= tf.gather(tf.math.segment_sum(weights, self._text), self._text)
        values = tf.reshape(value, by_head) * tf.cast(dropout(weights), value.dtype)[:, :, None]
        return tf.math.segment_sum(tf.reshape(values, tf.shape(value)), self._text), weights


def pack(lengths, width):
    """Lays texts into rows: in each the longest that is left, and behind it of the shortest as many as fit.

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
