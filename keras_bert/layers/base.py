"""Base classes and helper functions of the layers: configuration, weights, freezing and quantized dtype policies."""

import contextlib
import contextvars
import re
from collections.abc import Iterator, Sequence
from typing import Any, Self

import keras
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from keras_bert.config import BertConfig
from keras_bert.errors import InputError

_HAS_ZEROS = contextvars.ContextVar("_HAS_ZEROS", default=False)


@contextlib.contextmanager
def zero_weights() -> Iterator[None]:
    """Makes layers with zeros for kernels and embedding tables, for weights that are loaded afterwards: drawing the
    random values of BERT-base takes seconds."""
    token = _HAS_ZEROS.set(True)
    try:
        yield
    finally:
        _HAS_ZEROS.reset(token)


class Dense(keras.layers.Dense):
    """A Keras `Dense` layer whose LoRA additions can still be trained after a reload."""

    def load_own_variables(self, store):
        super().load_own_variables(store)
        if self.lora_enabled:  # Keras has just set both factors to zero, so neither would get a gradient
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
        for layer in own_layers(self):
            if not layer.built:
                layer.build((None, None, self.config.hidden_size))
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
        name = self.config.hidden_act
        if name.startswith("gelu"):  # `gelu` is the erf form; `gelu_new` and `gelu_tanh` are the tanh approximation
            return ops.gelu(x, approximate=name != "gelu")
        return getattr(ops, name)(x)

    def _initializer(self):
        return "zeros" if _HAS_ZEROS.get() else keras.initializers.TruncatedNormal(
            stddev=self.config.initializer_range)

    def get_config(self) -> dict:
        return super().get_config() | {"config": self.config.to_dict()} | quantized_dtype(self)


class FreezableLayer(keras.layers.Layer):
    """Base class of `BertLayer` and of the heads. Its config names the frozen layers in it, and it can be copied with
    other arguments of the encoder.

    Attributes:
        _frozen: what `frozen` returns while the whole layer is frozen; set by the constructor of a subclass.
    """

    @property
    def frozen(self) -> tuple[str, ...]:
        """Paths of the frozen layers, as set by the constructor or by a layer's own `trainable`; in a head, those of
        its own layers, without the encoder's."""
        if self.trainable:  # otherwise all layers are frozen; the stored paths apply when it is True again
            self._frozen = frozen_paths(own_layers(self))
        return self._frozen

    @property
    def trainable(self) -> bool:
        return super().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.set_trainable(value, self.frozen)

    def set_trainable(self, value: bool, frozen: Sequence[str]) -> None:
        """Sets `trainable` of all layers, then freezes those with the paths `frozen`."""
        self._frozen = tuple(frozen)
        keras.layers.Layer.trainable.fset(self, value)
        freeze(own_layers(self), self._frozen)

    def rebuild(self, **changes) -> Self:
        """Returns a copy with the same weights, and with some arguments of the `BertLayer` changed, e.g.
        `bert.rebuild(layout="padded")` or `classifier.rebuild(layout="padded")`. LoRA additions are merged into the
        kernels; with `lora_rank=None` the copy has no LoRA."""
        config = self.get_config()
        change_encoder(config, changes)
        with zero_weights():
            copy = type(self).from_config(config)
        for source, target in zip(self._flatten_layers(), copy._flatten_layers(), strict=True):
            weights: dict[str, Any] = {}
            source.save_own_variables(weights)
            # Copies: on JAX, `fit` and `predict` of a model delete the arrays that it was given.
            target.load_own_variables({name: ops.copy(value) for name, value in weights.items()})
        return copy


def change_encoder(config, changes):
    """Replaces arguments of the `BertLayer` in its config, or in that of a head."""
    encoder = config["bert"]["config"] if "bert" in config else config
    encoder |= changes


def quantized_dtype(owner):
    """Returns the `dtype` that the config of a layer needs to recreate the same quantized sublayers.

    Returns:
        a dict to merge into `get_config`: `dtype`, a serialized `DTypePolicyMap`; empty if nothing is quantized.
    """
    policies = DTypePolicyMap(combine_policies(owner.dtype_policy, None).name)
    for layer in (part for own in own_layers(owner) for part in own._flatten_layers()):
        if layer.quantization_mode:
            # The pattern omits the owner's name, which may be different when the layer is recreated.
            pattern = f"(.*/)?{re.escape(layer.path.removeprefix(f'{owner.path}/'))}"
            policy = layer.dtype_policy
            policies[pattern] = policy[layer.path] if isinstance(policy, DTypePolicyMap) else policy
    return {"dtype": keras.dtype_policies.serialize(policies)} if policies else {}


def check_not_quantized(model, action):
    """Raises an InputError if a layer is quantized: its kernel holds integers, whose scales are elsewhere."""
    if any(layer.quantization_mode for layer in model._flatten_layers()):
        raise InputError(f"model must not be quantized; {action} it before you call quantize or to_int8")


def combine_policies(default, policies):
    """Returns the dtype policy `default`; or, if `policies` is a `DTypePolicyMap` or its config, a map with the same
    policies for single layers and `default` for all others. If `default` is a map, only its default policy is used."""
    default = getattr(default, "default_policy", default)
    policies = keras.dtype_policies.get(policies)
    return DTypePolicyMap(default.name, dict(policies)) if isinstance(policies, DTypePolicyMap) else default


def frozen_paths(layers):
    """Returns the paths of the frozen layers and sublayers, e.g. `embeddings` or `block_0/attention/query`."""
    paths = []
    for layer in layers:
        if layer.trainable:
            paths += [f"{layer.name}/{path}" for path in frozen_paths(own_layers(layer))]
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
        layer = next((layer for layer in layers if layer.name == name), None)
        if layer is None:
            names = ", ".join(layer.name for layer in layers)
            raise ValueError(f"frozen must name layers: {names}, or their sublayers as layer/sublayer; got {path!r}")
        if below:
            freeze(own_layers(layer), [below])
        else:
            # True first: Keras ignores the value that `trainable` already has, even if variables have changed since.
            layer.trainable = True
            layer.trainable = False


def own_layers(layer):
    """Returns the direct sublayers, without the encoder of a head and layers that contain it."""
    encoder = getattr(layer, "bert", None)
    return [part for part in layer._flatten_layers(include_self=False, recursive=False)
            if encoder not in part._flatten_layers()]
