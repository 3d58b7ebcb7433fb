"""What the layers share: a configuration, and parts made from it."""

import keras
from keras import ops

from keras_bert.config import BertConfig

_ACTIVATIONS = {
    "gelu": lambda x: ops.gelu(x, approximate=False),
    "gelu_new": lambda x: ops.gelu(x, approximate=True),
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
    "silu": ops.silu,
}


class ConfiguredLayer(keras.layers.Layer):
    """A layer made from a `BertConfig`; gives it to its parts together with its dtype (Keras does not pass that on)."""

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = BertConfig.from_dict(config) if isinstance(config, dict) else config

    def make_dense(self, name, width, activation=None):
        return keras.layers.Dense(
            width, activation=activation, kernel_initializer=self._initializer(), dtype=self.dtype_policy, name=name)

    def make_embedding(self, name, rows):
        return keras.layers.Embedding(
            rows, self.config.hidden_size, embeddings_initializer=self._initializer(), dtype=self.dtype_policy,
            name=name)

    def make_norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.config.layer_norm_eps, dtype=self.dtype_policy, name=name)

    def activate(self, x):
        """The config's `hidden_act`."""
        return _ACTIVATIONS[self.config.hidden_act](x)

    def _initializer(self):
        return keras.initializers.TruncatedNormal(stddev=self.config.initializer_range)

    def get_config(self):
        return super().get_config() | {"config": self.config.to_dict()}
