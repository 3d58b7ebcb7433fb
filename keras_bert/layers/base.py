"""Base classes and helper functions of the layers: configuration, weights, freezing and quantized dtype policies."""

import contextlib
import contextvars
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import keras
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from keras_bert.config import BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.types import Tensor

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

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        if self.lora_enabled:  # Keras has just set both factors to zero, so neither would get a gradient
            self.lora_kernel_a.assign(keras.initializers.HeUniform()(self.lora_kernel_a.shape, "float32"))

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # the type check rejects subclasses


class QuantizableLayer(keras.layers.Layer):
    """Base class of the layers whose config recreates quantized sublayers."""

    def get_config(self) -> dict[str, Any]:
        """Returns Keras's config, in which `dtype` is a serialized `DTypePolicyMap` if a sublayer is quantized."""
        policies = DTypePolicyMap(combine_policies(self.dtype_policy, None).name)
        for layer in (part for own in own_layers(self) for part in own._flatten_layers()):
            if layer.quantization_mode:
                # The pattern omits this layer's name, which may be different when it is recreated.
                pattern = f"(.*/)?{re.escape(layer.path.removeprefix(f'{self.path}/'))}"
                policy = layer.dtype_policy
                policies[pattern] = policy[layer.path] if isinstance(policy, DTypePolicyMap) else policy
        return super().get_config() | ({"dtype": keras.dtype_policies.serialize(policies)} if policies else {})


class ConfiguredLayer(QuantizableLayer):
    """Base class of the layers made from a `BertConfig`. Passes its dtype policy to its sublayers; Keras does not."""

    def __init__(self, config: BertConfig | dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = BertConfig.from_dict(config) if isinstance(config, dict) else config

    def build(self, *_: Any) -> None:
        """Builds the sublayers for inputs of width `hidden_size`; one with another width must be built before."""
        for layer in own_layers(self):
            if not layer.built:
                layer.build((None, None, self.config.hidden_size))
        self.built = True

    def make_dense(self, name: str, width: int, activation: str | None = None) -> keras.layers.Dense:
        return Dense(
            width, activation=activation, kernel_initializer=self._initializer(), dtype=self.dtype_policy, name=name)

    def make_embedding(self, name: str, rows: int) -> keras.layers.Embedding:
        return keras.layers.Embedding(
            rows, self.config.embedding_width, self._initializer(), dtype=self.dtype_policy, name=name)

    def make_norm(self, name: str) -> keras.layers.LayerNormalization:
        return keras.layers.LayerNormalization(epsilon=self.config.layer_norm_eps, dtype=self.dtype_policy, name=name)

    def activate(self, x: Tensor) -> Tensor:
        """Applies the config's `hidden_act`."""
        name = self.config.hidden_act
        if name.startswith("gelu"):  # `gelu` is the erf form; `gelu_new` and `gelu_tanh` are the tanh approximation
            return ops.gelu(x, approximate=name != "gelu")
        if name == "silu":  # TensorFlow's function with a gradient of its own cannot be exported to LiteRT
            return x * ops.sigmoid(x)
        return getattr(ops, name)(x)

    def _initializer(self) -> str | keras.initializers.Initializer:
        return "zeros" if _HAS_ZEROS.get() else keras.initializers.TruncatedNormal(stddev=self.config.initializer_range)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"config": self.config.to_dict()}


class FreezableLayer(QuantizableLayer):
    """Base class of `BertLayer` and of the heads: layers whose config names the frozen ones in them."""

    _frozen: tuple[str, ...]  # what `frozen` returns while the whole layer is frozen; a subclass's constructor sets it

    @property
    def frozen(self) -> tuple[str, ...]:
        """Paths of the frozen layers, set by the constructor or a layer's `trainable`; a head's omit the encoder."""
        if self.trainable:  # otherwise all layers are frozen; the stored paths apply when it is True again
            self._frozen = tuple(_frozen_paths(self))
        return self._frozen

    @property
    def trainable(self) -> bool:
        return super().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.set_trainable(value, self.frozen)

    def set_trainable(self, value: bool, frozen: Sequence[str]) -> None:
        """Sets `trainable` of all layers, then freezes those with the paths `frozen`."""
        if isinstance(frozen, str):
            raise InputError(f"frozen must be a list of names; got {frozen!r}; pass [{frozen!r}]")
        self._frozen = tuple(frozen)
        keras.layers.Layer.trainable.fset(self, value)
        freeze(self, frozen)

    def rebuild(self, **changes: Any) -> Self:
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


def change_encoder(config: dict[str, Any], changes: dict[str, Any]) -> None:
    """Replaces arguments of the `BertLayer` in its own config or in a head's."""
    (config["bert"]["config"] if "bert" in config else config).update(changes)


def check_not_quantized(model: keras.Model, action: str) -> None:
    """Raises an InputError if a layer is quantized: its kernel holds integers, whose scales are elsewhere."""
    if any(layer.quantization_mode for layer in model._flatten_layers()):
        raise InputError(Option("model"), f" must not be quantized; {action} it before you call quantize")


def combine_policies(default: keras.DTypePolicy, policies: Any) -> keras.DTypePolicy:
    """Returns the dtype policy `default`; or, if `policies` is a `DTypePolicyMap` or its config, a map with the same
    policies for single layers and `default` for all others. If `default` is a map, only its default policy is used."""
    default = getattr(default, "default_policy", default)
    policies = keras.dtype_policies.get(policies)
    return DTypePolicyMap(default.name, dict(policies)) if isinstance(policies, DTypePolicyMap) else default


def _frozen_paths(owner: keras.layers.Layer) -> Iterator[str]:
    """Yields the paths of the frozen sublayers, e.g. `embeddings` or `block_0/attention/query`."""
    for layer in own_layers(owner):
        if layer.trainable:
            yield from (f"{layer.name}/{path}" for path in _frozen_paths(layer))
        else:
            yield layer.name


def freeze(owner: keras.layers.Layer, paths: Iterable[str]) -> None:
    """Freezes the sublayers with the given paths, see `_frozen_paths`; an InputError names a path without a layer."""
    layers = {layer.name: layer for layer in own_layers(owner)}
    for path in paths:
        name, _, below = path.partition("/")
        if name not in layers:
            raise InputError(f"frozen must name layers: {', '.join(layers)}, or their sublayers as layer/sublayer; "
                             f"got {path!r}")
        layer = layers[name]
        if below:
            freeze(layer, [below])
        else:
            # True first: Keras ignores the value that `trainable` already has, even if variables have changed since.
            layer.trainable = True
            layer.trainable = False


def own_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns the direct sublayers, without the encoder of a head and layers that contain it."""
    encoder = getattr(layer, "bert", None)
    return [part for part in layer._flatten_layers(include_self=False, recursive=False)
            if encoder not in part._flatten_layers()]
