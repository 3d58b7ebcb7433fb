"""The functions that all writers of SavedModels share."""

import os
import tempfile

import keras
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.files import atomic_folder
from keras_bert.layers import BertLayer
from keras_bert.text import save_vocabulary

DTYPES = ("float32", "bfloat16")


class Callable(tf.Module):
    """A callable part of a SavedModel. A call runs the `tf.function` that is the instance's attribute `__call__`."""

    def __call__(self, *arguments, **named):
        return self.__dict__["__call__"](*arguments, **named)


def needs_tensorflow():
    """Raises an `InputError` if Keras runs on another backend, whose variables cannot be written."""
    if keras.backend.backend() != "tensorflow":
        raise InputError("export writes a TensorFlow SavedModel: run it with KERAS_BACKEND=tensorflow; "
                         f"got {keras.backend.backend()}")


def check_dtype(dtype):
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")


def check_vocabulary(tokenizer, config):
    """Raises an `InputError` if the vocabulary has tokens for which the encoder has no embedding."""
    if len(tokenizer.vocabulary) > config.vocab_size:
        raise InputError(f"the vocabulary must have at most vocab_size ({config.vocab_size}) pieces; "
                         f"it has {len(tokenizer.vocabulary)}; take the tokenizer of these weights")


def checked(inputs, config):
    """Returns word ids, mask and segment ids after operations that fail if the encoder has no embedding for an id or a
    position. A function compiled by XLA would use the nearest embedding instead."""
    word_ids, _, segment_ids = inputs
    rules = [
        (word_ids, config.vocab_size, "input_word_ids must be at least 0 and below vocab_size"),
        (segment_ids, config.type_vocab_size, "input_type_ids must be at least 0 and below type_vocab_size"),
        (tf.shape(word_ids)[-1], config.max_position_embeddings + 1, "inputs must not exceed max_position_embeddings")]
    with tf.control_dependencies([
            tf.debugging.Assert(tf.reduce_all((values >= 0) & (values < limit)), [message, limit])
            for values, limit, message in rules]):
        return [tf.identity(part) for part in inputs]


def variable_name(variable, part="bert"):
    """Returns a variable's path, with `part` as the name of its layer: `bert/block_0/attention/query/kernel`."""
    return f"{part}/{variable.path.split('/', 1)[1]}"


def encoder_of(model):
    """Returns the encoder of a head, or the encoder itself."""
    return model if isinstance(model, BertLayer) else model.bert


def plain_copy(model, dtype, layout="padded"):
    """Returns a new model like `model`, without LoRA and with an encoder of this dtype. Its weights are not copied."""
    bert = BertLayer(encoder_of(model).config, dtype=dtype, layout=layout)
    if isinstance(model, BertLayer):
        return bert
    return type(model).from_config(model.get_config() | {"bert": keras.saving.serialize_keras_object(bert)})


def exportable(model):
    """Returns the model; or, if its encoder has LoRA, a copy with the low-rank additions merged into the kernels.

    Raises:
        InputError: the model is quantized.
    """
    if any(layer.quantization_mode for layer in model._flatten_layers()):
        raise InputError("a quantized model cannot be exported; export it before model.quantize")
    return model.rebuild(lora_rank=None) if encoder_of(model).lora_rank else model


def save(module, path, signatures, tokenizer, assets, overwrite):
    """Writes a SavedModel atomically, with the vocabulary and the casing of its tokenizer.

    Args:
        module: the root, a `tf.Module`. The attributes `vocab_file` (an asset), `do_lower_case` (a non-trainable
            variable) and those named in `assets` are added to it.
        path: folder to write.
        signatures: dict of concrete functions.
        tokenizer: a `BertTokenizer`.
        assets: dict from an attribute to a tuple of a file name and a function that writes the file to a path.
        overwrite: If True, replaces an existing `path`.
    """
    module.do_lower_case = tf.Variable(tokenizer.rules.lower_case, trainable=False, name="do_lower_case")
    vocabulary = ("vocab.txt", lambda file: save_vocabulary(tokenizer.vocabulary, file))
    with tempfile.TemporaryDirectory() as sources, atomic_folder(path, overwrite) as folder:
        for attribute, (name, write) in {"vocab_file": vocabulary, **assets}.items():
            write(os.path.join(sources, name))
            setattr(module, attribute, tf.saved_model.Asset(os.path.join(sources, name)))
        try:
            tf.saved_model.save(module, folder, signatures)
        except tf.errors.OpError as error:  # e.g. a full disk
            raise InputError(f"{path}: cannot be written: {error.message.rpartition('; ')[2]}") from None
