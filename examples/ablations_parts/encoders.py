"""What the ablations fine-tune: encoders as they were pretrained, or others made of them."""

import dataclasses

import keras
from keras import ops

from keras_bert.layers import BertLayer, standardize_inputs


class Wrapper(keras.layers.Layer):
    """What takes the place of one `BertLayer` in fine-tuning.

    Args:
        encoders: `BertLayer`s of one size.
        wide: how many times as wide as theirs its outputs are.
    """

    def __init__(self, *encoders, wide):
        super().__init__()
        self.encoders = encoders
        config = encoders[0].config
        self.config = dataclasses.replace(config, hidden_size=wide * config.hidden_size,
                                          num_attention_heads=wide * config.num_attention_heads)
        self.dropout_seed = encoders[0].dropout_seed
        self.built = True

    def pool(self, inputs, training=False, seed=None):
        """The pooled output alone, as heads ask for it."""
        return self(inputs, training=training, seed=seed)[0]


class SideBySide(Wrapper):
    """Encoders whose outputs are joined."""

    def __init__(self, *encoders):
        super().__init__(*encoders, wide=len(encoders))

    def call(self, inputs, training=False, seed=None):
        outputs = [encoder(inputs, training=training, seed=seed) for encoder in self.encoders]
        return tuple(ops.concatenate(parts, axis=-1) for parts in zip(*outputs))


class WithLstm(Wrapper):
    """A new bidirectional LSTM on the sequence output, as wide in each direction; its last states are pooled."""

    def __init__(self, encoder):
        super().__init__(encoder, wide=2)
        encoder.pooler.trainable = False  # its output is not used
        hidden = encoder.config.hidden_size
        self.lstm = keras.layers.Bidirectional(keras.layers.LSTM(hidden, return_sequences=True, return_state=True))
        self.lstm.build((None, None, hidden))

    def call(self, inputs, training=False, seed=None):
        _, sequence = self.encoders[0](inputs, training=training, seed=seed)
        is_real = ops.cast(standardize_inputs(inputs)[1], "bool")
        sequence, forward, _, backward, _ = self.lstm(sequence, mask=is_real)
        return ops.concatenate([forward, backward], axis=-1), sequence


def as_pretrained(encoder):
    """The encoder itself."""
    return encoder


def untrained(encoder):
    """One with the same configuration and random weights."""
    return BertLayer(encoder.config)
