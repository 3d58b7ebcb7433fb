"""Multi-head self-attention."""

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.layers.base import ConfiguredLayer


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


@keras.saving.register_keras_serializable("keras_bert")
class SelfAttention(ConfiguredLayer):
    """Scaled dot-product attention over `num_attention_heads` heads, with its output projection (Vaswani et al., 2017,
    section 3.2).

    Args:
        config: a `BertConfig`.

    Call arguments:
        x: [batch, seq, hidden].
        bias: [batch, 1, 1, seq] or [batch, 1, seq, seq], added to the scores (`attention_bias`).
        seed: int32 [2], or None for no dropout.
        positions: int32 [batch, n], the tokens that attend; all where None, and n is seq.

    Returns:
        (output [batch, n, hidden], probabilities [batch, heads, n, seq] before dropout), compute dtype.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        hidden = self.config.hidden_size
        self.query = self.make_dense("query", hidden)
        self.key = self.make_dense("key", hidden)
        self.value = self.make_dense("value", hidden)
        self.output_dense = self.make_dense("output_dense", hidden)

    def build(self, *_):
        for dense in (self.query, self.key, self.value, self.output_dense):
            dense.build((None, None, self.config.hidden_size))
        self.built = True

    # B batch, S sequence, N heads, D head size, H hidden = N * D.
    def call(self, x, bias, seed=None, positions=None):
        attending = x
        if positions is not None:
            attending = kernels.gather(x, positions)
            if self.config.directionality != "bidi":
                bias = ops.expand_dims(kernels.gather(ops.squeeze(bias, 1), positions), 1)
        query = self._split_heads(ops.multiply(self.query(attending), self.config.head_size**-0.5))  # [B, N, S, D]
        key = self._split_heads(self.key(x))
        value = self._split_heads(self.value(x))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # [B, N, S, S]
        probabilities = ops.softmax(ops.add(scores, bias))
        dropped = kernels.dropout(probabilities, self.config.attention_probs_dropout_prob, seed)
        return self.output_dense(self._join_heads(ops.matmul(dropped, value))), probabilities

    def _split_heads(self, x):
        shape = (-1, ops.shape(x)[1], self.config.num_attention_heads, self.config.head_size)
        return ops.transpose(ops.reshape(x, shape), (0, 2, 1, 3))

    def _join_heads(self, x):
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, ops.shape(x)[2], self.config.hidden_size))
