"""One block of the encoder."""

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.layers.attention import SelfAttention
from keras_bert.layers.base import ConfiguredLayer


@keras.saving.register_keras_serializable("keras_bert")
class EncoderBlock(ConfiguredLayer):
    """Attention, add and norm, feed-forward, add and norm (Vaswani et al., 2017, figure 1, left).

    Args:
        config: a `BertConfig`.

    Call arguments:
        x: [batch, seq, hidden], or as the layout has it.
        layout: a `PaddedLayout`, or one like it.
        seed: int32 [2], or None for no dropout.
        places: the tokens to go on with, int32 [batch, n]; all where None, and n is seq.

    Returns:
        (output [batch, n, hidden], attention probabilities [batch, heads, n, seq]), compute dtype.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        config = self.config
        self.attention = SelfAttention(config, dtype=self.dtype_policy, name="attention")
        self.attention_norm = self.make_norm("attention_norm")
        self.intermediate = self.make_dense("intermediate", config.intermediate_size)
        self.output_dense = self.make_dense("output_dense", config.hidden_size)
        self.output_norm = self.make_norm("output_norm")

    def build(self, *_):
        hidden = (None, None, self.config.hidden_size)
        for layer in (self.attention, self.attention_norm, self.intermediate, self.output_norm):
            layer.build(hidden)
        self.output_dense.build((None, None, self.config.intermediate_size))
        self.built = True

    def call(self, x, layout, seed=None, places=None):
        rate = self.config.hidden_dropout_prob
        attended, probabilities = self.attention(x, layout=layout, seed=kernels.fold_in(seed, 0), places=places)
        x = x if places is None else layout.take(x, places)
        attended = kernels.dropout(attended, rate, kernels.fold_in(seed, 1))
        x = layout.normalize(ops.add(x, attended), self.attention_norm)
        expanded = self.activate(self.intermediate(x))
        output = kernels.dropout(self.output_dense(expanded), rate, kernels.fold_in(seed, 2))
        return layout.normalize(ops.add(x, output), self.output_norm), probabilities
