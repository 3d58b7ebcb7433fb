"""What the layers share: a configuration, parts made from it, and dtype policies that survive quantization."""

import itertools
import re

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
    """Keras's dense layer, whose LoRA still learns after a reload."""

    def load_own_variables(self, store):
        super().load_own_variables(store)
        if self.lora_enabled:  # Keras sets both factors to zero, and then neither has a gradient
            self.lora_kernel_a.assign(keras.initializers.HeUniform()(self.lora_kernel_a.shape, "float32"))

    def quantize(self, mode=None, type_check=True, config=None):
        return super().quantize(mode, type_check=False, config=config)  # the check refuses subclasses


class ConfiguredLayer(keras.layers.Layer):
    """A layer made from a `BertConfig`; gives it to its parts together with its dtype (Keras does not pass that on)."""

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = BertConfig.from_dict(config) if isinstance(config, dict) else config

    def build(self, *_):
        """Makes the variables of all parts, which read hidden states unless they are built already."""
        for part in _parts(self):
            if not part.built:
                part.build((None, None, self.config.hidden_size))
        self.built = True

    def make_dense(self, name, width, activation=None):
        return Dense(
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
        return super().get_config() | {"config": self.config.to_dict()} | quantized_dtype(self, [self])


def quantized_dtype(owner, layers):
    """The `dtype` that a config needs so that `owner` is made with the same quantized parts again.

    Args:
        owner: a layer.
        layers: the layers to look for quantized ones in.

    Returns:
        a dict for `get_config`: of `dtype`, a serialized `DTypePolicyMap`; empty if nothing is quantized.
    """
    policies = {}
    for layer in itertools.chain.from_iterable(layer._flatten_layers() for layer in layers):
        if layer.quantization_mode:
            # The pattern leaves out the owner's name, which may be another next time.
            pattern = f"(.*/)?{re.escape(layer.path.removeprefix(f'{owner.path}/'))}"
            policy = layer.dtype_policy
            policies[pattern] = policy[layer.path] if isinstance(policy, DTypePolicyMap) else policy
    return {"dtype": keras.dtype_policies.serialize(merge_policies(owner.dtype_policy, policies))} if policies else {}


def merge_policies(default, policies):
    """A `DTypePolicyMap` of the policies in a dict or another map; `default` for all other layers."""
    default = getattr(default, "default_policy", default)
    return DTypePolicyMap(default.name, dict(policies))


def copy_weights(source, target):
    """Gives a layer the weights of another one of the same class; LoRA's additions are added to the kernels."""
    for theirs, ours in zip(source._flatten_layers(), target._flatten_layers(), strict=True):
        store = {}
        theirs.save_own_variables(store)
        ours.load_own_variables(store)


def frozen_paths(layers):
    """The paths of the layers that are frozen, among some and below them: `embeddings`, `block_0/attention/query`."""
    paths = []
    for layer in layers:
        if layer.trainable:
            paths += [f"{layer.name}/{path}" for path in frozen_paths(_parts(layer))]
        else:
            paths.append(layer.name)
    return tuple(paths)


def freeze(layers, paths):
    """Freezes layers by their paths, see `frozen_paths`.

    Raises:
        ValueError: there is no layer at a path.
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
            found[0].trainable = False


def _parts(layer):
    return layer._flatten_layers(include_self=False, recursive=False)
