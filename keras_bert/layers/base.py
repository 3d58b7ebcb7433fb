"""Base classes and helper functions of the layers: configuration, weights, freezing and quantized dtype policies."""

import itertools
import re
from typing import Any

import keras
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from keras_bert.config import BertConfig

_ACTIVATIONS = {
    "gelu": lambda x: ops.gelu(x, approximate=False),
    "gelu_new": lambda x: ops.gelu(x, approximate=True),
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
    "silu": ops.silu,
}


class Dense(keras.layers.Dense):
    """A Keras `Dense` layer whose LoRA additions can still be trained after a reload."""

    def load_own_variables(self, store):
        super().load_own_variables(store)
        if self.lora_enabled:  # Keras sets both factors to zero, so neither would get a gradient
            self.lora_kernel_a.assign(keras.initializers.HeUniform()(self.lora_kernel_a.shape, "float32"))

    def quantize(self, mode=None, type_check=True, config=None):
        return super().quantize(mode, type_check=False, config=config)  # the type check rejects subclasses


class ConfiguredLayer(keras.layers.Layer):
    """Base class of the layers that are made from a `BertConfig`.

    Passes the config and its own dtype policy to its sublayers, because Keras does not pass the dtype policy on.
    """

    def __init__(self, config: BertConfig | dict, **kwargs) -> None:
        super().__init__(**kwargs)
        self.config = BertConfig.from_dict(config) if isinstance(config, dict) else config

    def build(self, *_) -> None:
        """Builds the sublayers for inputs of width `hidden_size`; one with another width must be built before."""
        for part in _parts(self):
            if not part.built:
                part.build((None, None, self.config.hidden_size))
        self.built = True

    def make_dense(self, name: str, width: int, activation: Any = None) -> keras.layers.Dense:
        return Dense(
            width, activation=activation, kernel_initializer=self._initializer(), dtype=self.dtype_policy, name=name)

    def make_embedding(self, name: str, rows: int) -> keras.layers.Embedding:
        return keras.layers.Embedding(
            rows, self.config.hidden_size, embeddings_initializer=self._initializer(), dtype=self.dtype_policy,
            name=name)

    def make_norm(self, name: str) -> keras.layers.LayerNormalization:
        return keras.layers.LayerNormalization(
            epsilon=self.config.layer_norm_eps, dtype=self.dtype_policy, name=name)

    def activate(self, x: Any) -> Any:
        """Applies the config's `hidden_act`."""
        return _ACTIVATIONS[self.config.hidden_act](x)

    def _initializer(self):
        return keras.initializers.TruncatedNormal(stddev=self.config.initializer_range)

    def get_config(self) -> dict:
        return super().get_config() | {"config": self.config.to_dict()} | quantized_dtype(self, [self])


def quantized_dtype(owner, layers):
    """Returns the `dtype` that the config of `owner` needs to recreate the same quantized sublayers.

    Args:
        owner: a layer.
        layers: the layers to search for quantized ones, including their sublayers.

    Returns:
        a dict to merge into `get_config`: `dtype`, a serialized `DTypePolicyMap`; empty if nothing is quantized.
    """
    policies = {}
    for layer in itertools.chain.from_iterable(layer._flatten_layers() for layer in layers):
        if layer.quantization_mode:
            # The pattern omits the owner's name, which may be different when the layer is recreated.
            pattern = f"(.*/)?{re.escape(layer.path.removeprefix(f'{owner.path}/'))}"
            policy = layer.dtype_policy
            policies[pattern] = policy[layer.path] if isinstance(policy, DTypePolicyMap) else policy
    return {"dtype": keras.dtype_policies.serialize(merge_policies(owner.dtype_policy, policies))} if policies else {}


def merge_policies(default, policies):
    """Returns a `DTypePolicyMap` with the policies of a dict or another map, and `default` for all other layers."""
    default = getattr(default, "default_policy", default)
    return DTypePolicyMap(default.name, dict(policies))


def copy_weights(source, target):
    """Copies the weights of a layer to another layer of the same class, with LoRA additions merged into the kernels."""
    for theirs, ours in zip(source._flatten_layers(), target._flatten_layers(), strict=True):
        store = {}
        theirs.save_own_variables(store)
        ours.load_own_variables(store)


def frozen_paths(layers):
    """Returns the paths of the frozen layers and sublayers, e.g. `embeddings` or `block_0/attention/query`."""
    paths = []
    for layer in layers:
        if layer.trainable:
            paths += [f"{layer.name}/{path}" for path in frozen_paths(_parts(layer))]
        else:
            paths.append(layer.name)
    return tuple(paths)


def freeze(layers, paths):
    """Freezes the layers and sublayers with the given paths, see `frozen_paths`.

    Raises:
        ValueError: no layer has one of the paths.
    """
    for path in paths:
        name, _, below = path.partition("/")
        found = [layer for layer in layers if layer.name == name]
        if not found:
            names = ", ".join(layer.name for layer in layers)
            raise ValueError(f"frozen must name layers: {names}, or with a / what is in them; got {path!r}")
        if below:
            freeze(_parts(found[0]), [below])
        else:
            # Two steps: Keras ignores the value that the layer already has, even if LoRA has changed its variables.
            found[0].trainable = True
            found[0].trainable = False


def _parts(layer):
    return layer._flatten_layers(include_self=False, recursive=False)
