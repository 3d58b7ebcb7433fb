"""The base classes of the heads, and `load_model`."""

import json
import os
import zipfile
from collections.abc import Sequence
from typing import Any, Self

import keras

from keras_bert import kernels
from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.layers.base import copy_weights, freeze, frozen_paths, merge_policies, quantized_dtype


class BertTask(keras.Model):
    """Base class of the heads: models on top of an encoder. The constructor of a subclass makes its layers, then calls
    `build`, so that all variables exist afterwards.

    Args:
        bert: a `BertLayer`.
        frozen: names of the head's own layers that are not trained, see `BertLayer.frozen`.
    """

    def __init__(self, bert: BertLayer, frozen: Sequence[str] = (), **kwargs) -> None:
        super().__init__(**kwargs)
        self.bert = bert
        self._frozen = tuple(frozen)

    @classmethod
    def from_pretrained(cls, name: Path, **kwargs) -> Self:
        """Loads a pretrained encoder with this head, see `keras_bert.convert.load_pretrained`."""
        from keras_bert.convert import load_pretrained  # imported here, as convert imports models

        return load_pretrained(name, cls, **kwargs)

    def make_dense(self, name: str, width: int) -> keras.layers.Dense:
        """Returns a dense layer for logits, in float32 whatever the encoder's dtype. Its kernel is initialized from an
        untruncated normal distribution, as in transformers: a truncated one gives kernels that are 12% smaller and
        learn more slowly."""
        return keras.layers.Dense(
            width, dtype=self.part_dtype(keras.DTypePolicy("float32")), name=name,
            kernel_initializer=keras.initializers.RandomNormal(stddev=self.bert.config.initializer_range))

    def part_dtype(self, policy: Any) -> Any:
        """Returns the dtype policy of a sublayer: `policy`, unless the head's own policy map quantizes the sublayer."""
        is_map = isinstance(self.dtype_policy, keras.dtype_policies.DTypePolicyMap)
        return merge_policies(policy, self.dtype_policy) if is_map else policy

    def build(self, *_) -> None:
        for layer in self.layers:
            if not layer.built:
                layer.build((None, self.bert.config.hidden_size))
        self.freeze_layers()

    def freeze_layers(self) -> None:
        """Freezes the layers named in the constructor's `frozen`; the last step of `build`."""
        self.built = True
        freeze(self._own_layers(), self._frozen)

    def _own_layers(self):
        return [layer for layer in self.layers if self.bert not in layer._flatten_layers()]

    @property
    def frozen(self) -> tuple[str, ...]:
        """Paths of the head's own layers that are frozen."""
        if self.trainable:  # else all layers are frozen, and these are the ones to keep frozen when it is True again
            self._frozen = frozen_paths(self._own_layers())
        return self._frozen

    @property
    def trainable(self) -> bool:
        return super().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        frozen = self.frozen
        keras.Model.trainable.fset(self, value)  # of all layers
        if value:
            freeze(self._own_layers(), frozen)

    def compile(self, optimizer: Any = "rmsprop", loss: Any = None, loss_weights: Any = None, metrics: Any = None,
                weighted_metrics: Any = None, run_eagerly: bool = False, steps_per_execution: int = 1,
                jit_compile: Any = "auto", auto_scale_loss: bool = True) -> None:
        """Compiles the model as Keras does, but scales the loss if the encoder, not the model, is in mixed_float16."""
        optimizer = keras.optimizers.get(optimizer)
        is_ready = optimizer is None or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if auto_scale_loss and not is_ready and self.bert.dtype_policy.name == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, run_eagerly, steps_per_execution,
                        jit_compile, auto_scale_loss)

    def compile_from_config(self, config: dict) -> None:
        """Compiles the model as it was when it was saved. Keras does not do that for models that override `compile`."""
        config = keras.saving.deserialize_keras_object(config)
        super().compile(**config | {"auto_scale_loss": False})  # the saved optimizer scales the loss, or does not
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict:
        return super().get_config() | {
            "bert": keras.saving.serialize_keras_object(self.bert),
            "frozen": list(self.frozen)} | quantized_dtype(self, self._own_layers())

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        bert = keras.saving.deserialize_keras_object(config["bert"], custom_objects=custom_objects)
        return cls(**config | {"bert": bert})

    def rebuild(self, **changes) -> Self:
        """Returns a new model with copies of the weights and some arguments of the encoder changed, see
        `BertLayer.rebuild`."""
        copy = type(self).from_config(self.get_config() | {
            "bert": keras.saving.serialize_keras_object(self.bert.rebuild(**changes))})
        copy_weights(self, copy)
        return copy


class DropoutTask(BertTask):
    """Base class of the heads that apply dropout to the encoder's output.

    Args:
        bert: a `BertLayer`.
        dropout: dropout rate of that output.
    """

    def __init__(self, bert: BertLayer, dropout: float, **kwargs) -> None:
        super().__init__(bert, **kwargs)
        self.dropout = dropout

    def drop(self, x: Any, seed: Any) -> Any:
        """Applies dropout to `x`; `seed` is the seed that was passed to the encoder."""
        head = self.bert.config.num_hidden_layers + 1  # the next number after the last block's
        return kernels.dropout(x, self.dropout, kernels.fold_in(seed, head))

    def get_config(self) -> dict:
        return super().get_config() | {"dropout": self.dropout}


def load_model(folder, **changes):
    """Loads the model in `folder`/model.keras; `changes` are arguments of the `BertLayer` to replace, e.g. `layout`.

    Raises:
        InputError: there is no such file, or it is incomplete.
    """
    path = os.path.join(folder, "model.keras")
    if not os.path.exists(path):
        what = "model.keras is missing" if os.path.isdir(folder) else "there is no such folder"
        raise InputError(f"{folder}: must be a folder that finetune wrote; {what}")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not a whole .keras file")
    with zipfile.ZipFile(path) as file:
        if "config.json" not in file.namelist():
            raise InputError(f"{path}: not a whole .keras file: config.json is missing")
        try:
            config = json.loads(file.read("config.json"))
            encoder = config["config"].get("bert", config)  # without a head, the file holds the encoder itself
            encoder["config"] |= changes
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: config.json is not that of a model: {error!r}") from None
    config.pop("compile_config", None)
    model = keras.saving.deserialize_keras_object(config)
    try:
        keras.saving.load_weights(model, path)
    except (ValueError, KeyError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: its weights cannot be read: {reason}") from None
    return model
