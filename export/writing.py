"""The functions that all writers of SavedModels share."""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_bert.arguments import Path
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files.atomic import atomic_folder, check_free
from keras_bert.files.digests import EXTRA_DIGESTS, file_digest, write_digests
from keras_bert.files.json_files import write_json
from keras_bert.files.paths import saving
from keras_bert.layers import BertLayer
from keras_bert.layers.base import check_not_quantized
from keras_bert.models.base import BertTask
from keras_bert.text import Tokenizer

Assets = dict[str, tuple[str, Callable[[str], object]]]  # by attribute: a file name, and what writes the file


class CallablePart(tf.Module):
    """A callable part of a SavedModel, which can have attributes. A call runs `function`, a `tf.function`."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        super().__setattr__("__call__", function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.__dict__["__call__"](*arguments, **named)


def check_export(model: BertLayer | BertTask, tokenizer: Tokenizer, path: Path, overwrite: bool) -> None:
    """Raises an `InputError` if a model cannot be exported with these arguments."""
    if keras.backend.backend() != "tensorflow":
        raise InputError("export runs on TensorFlow: run it with KERAS_BACKEND=tensorflow; "
                         f"got {keras.backend.backend()}")
    tokenizer.check_rows("tokenizer", encoder_of(model).config.vocab_size)
    check_free(path, overwrite)
    check_not_quantized(model, "export")


def checked(inputs: Sequence[tf.Tensor], config: BertConfig) -> list[tf.Tensor]:
    """Returns word ids, mask and segment ids after operations that fail if the encoder has no embedding for an id or a
    position. Without these checks, a function compiled by XLA uses the nearest embedding instead."""
    word_ids, _, segment_ids = inputs
    rules = [
        (word_ids, config.vocab_size, "input_word_ids must be at least 0 and below vocab_size"),
        (segment_ids, config.type_vocab_size, "input_type_ids must be at least 0 and below type_vocab_size"),
        (tf.shape(word_ids)[-1], config.max_position_embeddings + 1, "inputs must not exceed max_position_embeddings")]
    with tf.control_dependencies([
            tf.debugging.Assert(tf.reduce_all((values >= 0) & (values < limit)), [message, limit])
            for values, limit, message in rules]):
        return [tf.identity(part) for part in inputs]


def copy_variable(source: keras.Variable, dtype: str, trainable: bool = False, part: str = "bert") -> tf.Variable:
    """Returns a `tf.Variable` with the value of a Keras variable. Its name is the path of the Keras variable, with
    `part` as the name of the outer layer: `bert/block_0/attention/query/kernel`."""
    name = f"{part}/{source.path.split('/', 1)[1]}"
    return tf.Variable(tf.cast(source.value, dtype), trainable=trainable, name=name)


def with_variables(layer: keras.Layer, variables: list[tf.Variable], function: Callable) -> Callable:
    """Returns `function`, which calls a Keras layer, as a function that reads `variables` instead of the layer's
    weights. A module must not refer to the layer itself, because its weights would be saved as well."""
    def call(*arguments: Any, **named: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(layer.weights, variables, strict=True))):
            return function(*arguments, **named)

    return call


def encoder_of(model: BertLayer | BertTask) -> BertLayer:
    return model if isinstance(model, BertLayer) else model.bert


def save(module: tf.Module, path: Path, signatures: dict[str, Callable], tokenizer: Tokenizer,
         assets: Assets, overwrite: bool, row_wise: Iterable[str] = ("serving_default",),
         split_texts: Iterable[str] = (), prompt_tokens: Mapping[str, int] | None = None, **more: Any) -> None:
    """Writes a SavedModel atomically. Adds the attributes `vocab_file` (an asset), `do_lower_case` (a non-trainable
    variable) and those named in `assets` to its root. `row_wise` are the signatures whose requests a server may join
    and split: each row of the outputs depends on the same row of the inputs alone. `split_texts` are those that read a
    long text as several inputs: a server counts all of its tokens. `prompt_tokens` has the number of tokens that a
    signature puts before each text. `more` is written next to these, as JSON."""
    module.do_lower_case = tf.Variable(tokenizer.rules.lower_case, trainable=False, name="do_lower_case")
    with tempfile.TemporaryDirectory() as sources, atomic_folder(path, overwrite) as folder:
        tokenizer.save(sources)
        module.vocab_file = tf.saved_model.Asset(os.path.join(sources, tokenizer.files[0]))
        for attribute, (name, write) in assets.items():
            write(os.path.join(sources, name))
            setattr(module, attribute, tf.saved_model.Asset(os.path.join(sources, name)))
        with saving():
            tf.saved_model.save(module, folder, signatures)
        # TensorFlow ignores `assets.extra`. In the folder of another graph, which has another digest, it has no effect.
        os.makedirs(os.path.join(folder, "assets.extra"))
        write_json(os.path.join(folder, "assets.extra", "keras_bert_row_wise.json"), {
            "saved_model_sha256": file_digest(os.path.join(folder, "saved_model.pb")), "signatures": sorted(row_wise),
            "split_texts": sorted(split_texts),
            "prompt_tokens": {name: count for name, count in (prompt_tokens or {}).items() if count}} | more)
        write_digests(folder, EXTRA_DIGESTS)
