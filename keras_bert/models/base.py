"""What the heads share: an encoder passed in, and how they are made, saved and loaded."""

import json
import os
import zipfile

import keras

from keras_bert import kernels
from keras_bert.errors import InputError
from keras_bert.layers.base import copy_weights, freeze, frozen_paths, merge_policies, quantized_dtype


class BertTask(keras.Model):
    """A head on an encoder. Its variables exist once it is made: a subclass makes its layers, then calls `build`.

    Args:
        bert: a `BertLayer`.
        frozen: names of the head's own layers that training leaves as they are, see `BertLayer.frozen`.
    """

    def __init__(self, bert, frozen=(), **kwargs):
        super().__init__(**kwargs)
        self.bert = bert
        self._frozen = tuple(frozen)

    @classmethod
    def from_pretrained(cls, name, **kwargs):
        """The head on the encoder that `keras_bert.convert.load_pretrained` finds under `name`."""
        from keras_bert.convert import load_pretrained  # convert imports models

        return load_pretrained(name, cls, **kwargs)

    def make_dense(self, name, width):
        """A dense layer for logits: float32, whatever the encoder computes in. Its kernel is drawn from a whole normal
        distribution, as transformers' heads: those of a truncated one are 12% smaller, and learn slower."""
        return keras.layers.Dense(
            width, dtype=self.part_dtype(keras.DTypePolicy("float32")), name=name,
            kernel_initializer=keras.initializers.RandomNormal(stddev=self.bert.config.initializer_range))

    def part_dtype(self, policy):
        """The dtype policy of a part of the head: `policy`, unless the head is made with one that quantizes it."""
        is_map = isinstance(self.dtype_policy, keras.dtype_policies.DTypePolicyMap)
        return merge_policies(policy, self.dtype_policy) if is_map else policy

    def build(self, *_):
        for layer in self.layers:
            if not layer.built:
                layer.build((None, self.bert.config.hidden_size))
        self.freeze_layers()

    def freeze_layers(self):
        """The end of `build`: freezes the layers that the constructor names."""
        self.built = True
        freeze(self._own_layers(), self._frozen)

    def _own_layers(self):
        return [layer for layer in self.layers if self.bert not in layer._flatten_layers()]

    def compile(self, optimizer="rmsprop", *args, auto_scale_loss=True, **kwargs):
        """As Keras's, which scales the loss of a model in mixed_float16; here that is the encoder."""
        optimizer = keras.optimizers.get(optimizer)
        is_ready = optimizer is None or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if auto_scale_loss and not is_ready and self.bert.dtype_policy.name == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        super().compile(optimizer, *args, auto_scale_loss=auto_scale_loss, **kwargs)

    def compile_from_config(self, config):
        """As Keras's, which leaves models with a `compile` of their own uncompiled."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def get_config(self):
        if self.trainable:  # else all are frozen, and these are the ones that stay so
            self._frozen = frozen_paths(self._own_layers())
        return super().get_config() | {
            "bert": keras.saving.serialize_keras_object(self.bert),
            "frozen": list(self._frozen)} | quantized_dtype(self, self._own_layers())

    @classmethod
    def from_config(cls, config, custom_objects=None):
        bert = keras.saving.deserialize_keras_object(config["bert"], custom_objects=custom_objects)
        return cls(**config | {"bert": bert})

    def rebuild(self, **changes):
        """A new model with copies of the weights and an encoder with other arguments, see `BertLayer.rebuild`."""
        copy = type(self).from_config(self.get_config() | {
            "bert": keras.saving.serialize_keras_object(self.bert.rebuild(**changes))})
        copy_weights(self, copy)
        return copy


class DropoutTask(BertTask):
    """A head that reads the encoder's output through dropout.

    Args:
        bert: a `BertLayer`.
        dropout: dropout rate of that output.
    """

    def __init__(self, bert, dropout, **kwargs):
        super().__init__(bert, **kwargs)
        self.dropout = dropout

    def drop(self, x, seed):
        """`x` dropped out; `seed` is the one the encoder got."""
        head = self.bert.config.num_hidden_layers + 1  # the place after the last block's
        return kernels.dropout(x, self.dropout, kernels.fold_in(seed, head))

    def get_config(self):
        return super().get_config() | {"dropout": self.dropout}


def load_model(folder, **changes):
    """The model in `folder`/model.keras, its encoder made with other arguments of `BertLayer`, e.g. `layout`.

    Raises:
        InputError: there is none, or it is not whole.
    """
    path = os.path.join(folder, "model.keras")
    if not os.path.exists(path):
        raise InputError(f"{folder}: a folder that finetune wrote holds model.keras; there is none")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not a whole .keras file")
    with zipfile.ZipFile(path) as file:
        if "config.json" not in file.namelist():
            raise InputError(f"{path}: not a whole .keras file: config.json is missing")
        try:
            config = json.loads(file.read("config.json"))
            encoder = config["config"].get("bert", config)  # without a head, the file is of the encoder itself
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
