"""Multi-head self-attention."""

import functools

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.layers.base import ConfiguredLayer


@keras.saving.register_keras_serializable("keras_bert")
class SelfAttention(ConfiguredLayer):
    """Scaled dot-product attention over `num_attention_heads` heads, with its output projection (Vaswani et al., 2017,
    section 3.2).

    Args:
        config: a `BertConfig`.

    Call arguments:
        x: [batch, seq, hidden], or as the layout has it.
        layout: a `PaddedLayout`, or one like it.
        seed: int32 [2], or None for no dropout.
        places: the tokens that attend, int32 [batch, n]; all where None, and n is seq.

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

    def call(self, x, layout, seed=None, places=None):
        query = self.query(x if places is None else layout.take(x, places))
        context, probabilities = layout.attend(
            ops.multiply(query, self.config.head_size**-0.5), self.key(x), self.value(x),
            places, functools.partial(kernels.dropout, rate=self.config.attention_probs_dropout_prob, seed=seed))
        return self.output_dense(context), probabilities
