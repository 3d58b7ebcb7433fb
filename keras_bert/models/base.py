"""The base classes of the heads, and `load_model`."""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.arguments import Path
from keras_bert.errors import InputError, first_line
from keras_bert.files.paths import check_model_folder, version_number
from keras_bert.layers.base import FreezableLayer, change_encoder, combine_policies, freeze, own_layers, zero_weights
from keras_bert.layers.bert import BertLayer, Inputs
from keras_bert.types import Tensor


class BertTask(FreezableLayer, keras.Model):
    """Base class of the heads: models on top of an encoder. The constructor of a subclass makes its layers, then calls
    `build`. `frozen` and `dtype` concern the head's own layers: the paths that are not trained, see `BertLayer`, and a
    `DTypePolicyMap` that quantizes; any other dtype is ignored."""

    def __init__(self, bert: BertLayer, frozen: Sequence[str] = (), dtype: Any = None, **kwargs: Any) -> None:
        # With the encoder's policy, Keras scales the loss if the encoder is in mixed_float16.
        super().__init__(dtype=combine_policies(bert.dtype_policy, dtype), **kwargs)
        self.bert = bert
        self._frozen = tuple(frozen)

    @classmethod
    def from_pretrained(cls, name: Path, /, **kwargs: Any) -> Self:
        """Loads a pretrained encoder with this head, see `load_pretrained`."""
        from keras_bert.weights import load_pretrained  # imported here, as weights imports models

        return load_pretrained(name, cls, **kwargs)

    def make_dense(self, name: str, width: int) -> keras.layers.Dense:
        """Returns a dense layer for logits, in float32. Its kernel begins with an untruncated normal distribution, as
        in transformers: a truncated one gives kernels that are 12% smaller and train more slowly."""
        return keras.layers.Dense(
            width, dtype=combine_policies(keras.DTypePolicy("float32"), self.dtype_policy), name=name,
            kernel_initializer=keras.initializers.RandomNormal(stddev=self.bert.config.initializer_range))

    def build(self, *_: Any) -> None:
        for layer in own_layers(self):
            if not layer.built:
                layer.build((None, self.bert.config.hidden_size))
        self.built = True
        freeze(self, self._frozen)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Returns Keras's config, with the optimizer that scales the loss instead of the one inside it."""
        config = super().get_compile_config()
        return config and config | {"optimizer": keras.saving.serialize_keras_object(self.optimizer)}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with the saved optimizer, unchanged: Keras would always scale the loss, and needs an optimizer."""
        config = keras.saving.deserialize_keras_object(config)
        self.compile(**config | {"auto_scale_loss": False})
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "bert": keras.saving.serialize_keras_object(self.bert), "frozen": list(self.frozen)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        bert = keras.saving.deserialize_keras_object(config["bert"], custom_objects=custom_objects)
        return cls(**config | {"bert": bert})


class DropoutTask(BertTask):
    """Base class of the heads that apply dropout and a dense layer, `classifier`, to an output of the encoder;
    `num_classes` is None if the dense layer computes a single value."""

    def __init__(self, bert: BertLayer, dropout: float, num_classes: int | None = None, **kwargs: Any) -> None:
        super().__init__(bert, **kwargs)
        self.dropout = dropout
        self.num_classes = num_classes

    def add_dense(self, name: str = "classifier") -> None:
        """Makes the last layer, as an attribute of this name, and builds the head."""
        setattr(self, name, self.make_dense(name, self.num_classes or 1))
        self.build()

    def encoder_output(self, inputs: Inputs, **options: Any) -> Tensor:
        """Returns what dropout is applied to, by default the pooled output; arguments as in a call."""
        return self.bert.pool(inputs, **options)

    def call(self, inputs: Inputs, training: bool | None = False, seed: Tensor | None = None) -> Tensor:
        seed = self.bert.dropout_seed(inputs, training, seed)
        return self.classifier(self.dropped(self.encoder_output(inputs, training=training, seed=seed), seed))

    def dropped(self, x: Tensor, seed: Tensor | None, number: int = 0) -> Tensor:
        """Returns an output of the encoder after dropout. Each has another `number`."""
        # The encoder folds the numbers from 0 to num_hidden_layers into the seed.
        number += self.bert.config.num_hidden_layers + 1
        # A copy has no Keras mask, with which Keras would weight the loss.
        return ops.copy(kernels.dropout(x, self.dropout, kernels.fold_in(seed, number)))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config() | {"dropout": self.dropout}
        return config if self.num_classes is None else config | {"num_classes": self.num_classes}


def head_weights(model: Any) -> list[keras.Variable]:
    """Returns the weights of a model that are not its encoder's."""
    of_encoder = {id(variable) for variable in model.bert.weights}
    return [variable for variable in model.weights if id(variable) not in of_encoder]


def check_names(model: keras.Model, named: Mapping[str, str], fields: Mapping[str, Any]) -> None:
    """Raises an InputError unless the `named` fields of a task, see `Task`, are as many as the head has classes."""
    for name, size in named.items():
        count = getattr(model, size, None)  # a head of one's own may count otherwise
        if count is not None and len(fields[name]) != count:
            raise InputError(f"{name} must be the names of the {count} classes of this {type(model).__name__}; "
                             f"got {len(fields[name])} names")


def load_model(folder: Path, **changes: Any) -> BertTask:
    """Loads the model in `folder`/model.keras; `changes` are arguments of the `BertLayer` to replace, e.g. `layout`.
    Raises an InputError if there is no such file, or it is incomplete."""
    check_model_folder(folder)
    path = os.path.join(folder, "model.keras")
    if not os.path.exists(path):
        raise InputError(f"{folder}: must be a folder that finetune wrote; {_what_is(folder)}")
    try:
        with zipfile.ZipFile(path) as file:
            config = json.loads(file.read("config.json"))
        change_encoder(config["config"], changes)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not the whole .keras file of a model: {error!r}; copy it again") from None
    config.pop("compile_config", None)
    name, module = config.get("registered_name"), config.get("module")
    package, separator, kind = str(name).partition(">")
    if separator and package != "keras_bert" and keras.saving.get_registered_object(name) is None:
        raise InputError(f"{path}: its model is a {kind!r:.100}; import the module first that defines it, by its own "
                         f"words {module!r:.100}; a command by --import=MODULE")
    try:
        with zero_weights():
            model = keras.saving.deserialize_keras_object(config)
    except (ValueError, TypeError, AttributeError) as error:  # also code that Keras refuses to run
        raise InputError(f"{path}: its model cannot be made: {first_line(error)}") from None
    try:
        keras.saving.load_weights(model, path)
    except (ValueError, KeyError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: the weights cannot be read: {first_line(error)}; copy it again") from None
    return model


def _what_is(folder: Path) -> str:
    """Describes a folder without `model.keras`, and says what to do."""
    names = os.listdir(folder)
    for name, kind in (("saved_model.pb", "SavedModel"), ("model.tflite", "LiteRT folder")):
        if name in names:
            return f"this is a {kind}: pass the folder that it was exported from"
    if versions := {number: name for name in names if (number := version_number(name)) is not None}:
        latest = os.path.join(folder, versions[max(versions)])
        return f"this is a folder of versions: pass one of them, {latest}"
    if "config.json" in names or any(name.endswith(".index") for name in names):
        return (f"if these are weights of another format, convert them: keras-bert convert --model={folder} "
                "--output=… --format=keras_bert; or fine-tune them: keras-bert finetune --train=FILE "
                f"--model={folder} --output=FOLDER")
    return "it has neither model.keras nor model.tflite"
