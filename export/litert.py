"""The LiteRT folder: a model file for TensorFlow's small runtime, with everything that `keras_bert.LiteModel` needs to
answer texts without TensorFlow. docs/hub_contract.md specifies the inputs and the outputs of `model.tflite`.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_bert import models
from keras_bert.arguments import Path, check
from keras_bert.errors import InputError, Option
from keras_bert.files.atomic import atomic_folder
from keras_bert.files.digests import write_digests
from keras_bert.litert import FILE, INPUTS, LiteRunner, import_interpreter
from keras_bert.models.base import BertTask
from keras_bert.tasks import Embed, Task, save_settings
from keras_bert.tasks.base import Answers
from keras_bert.tasks.embed import fields_of
from keras_bert.text import BertTokenizer, save_vocabulary
from keras_bert.text.samples import of_tokens, sample_inputs

from . import litert_metadata, writing

_EXACT = 1e-4  # relative to the largest output, or to 1: sums in another order differ less


def export_litert(model: BertTask, tokenizer: BertTokenizer, path: Path, task: Task | None = None, *,
                  columns: dict[str, Any] | None = None, dtype: Literal["float32", "int8"] = "float32",
                  overwrite: bool = False) -> dict[str, float]:
    """Writes a LiteRT folder, which [`LiteModel`][keras_bert.LiteModel] reads. Output is written atomically, after the
    outputs of the written file were compared with the model's.

    Args:
        model: a head; a `BertEmbedder` for vectors of texts.
        tokenizer: the `BertTokenizer` of the model.
        path: folder to write.
        task: the task of the model, `task` of a `FineTuned`. May be left out for a `BertEmbedder`.
        columns: `columns` of a `FineTuned`.
        dtype: float32; or int8, which takes a quarter of the space and is several times as fast. In int8, each column
            of a kernel has a scale, and each input of a product one when the model runs; nothing is calibrated.
        overwrite: If True, replaces an existing `path`.

    Returns:
        the largest difference of each output from the model's, on texts in several languages.

    Raises:
        InputError: `path` exists or cannot be written, the model is no head or has LSTMs, `ai-edge-litert` is missing,
            Keras does not run on TensorFlow, or the written file gives other outputs.
    """
    check(export_litert, {"dtype": dtype})
    check_litert_export(model, tokenizer, path, overwrite)
    with atomic_folder(path, overwrite) as folder:
        return write_litert(model, tokenizer, folder, task, columns, dtype)


def check_litert_export(model: BertTask, tokenizer: BertTokenizer, path: Path, overwrite: bool) -> None:
    """Raises an InputError if a model cannot be exported with these arguments."""
    if not isinstance(model, BertTask) or isinstance(model, models.BertFeatureTagger):
        raise InputError("a LiteRT folder needs a model of finetune without LSTMs, or a BertEmbedder; got "
                         f"{type(model).__name__}")
    import_interpreter()  # of the comparison
    writing.check_export(model, tokenizer, path, overwrite)


def write_litert(model: BertTask, tokenizer: BertTokenizer, folder: str, task: Task | None = None,
                 columns: dict[str, Any] | None = None, dtype: str = "float32") -> dict[str, float]:
    """Writes the files of `export_litert` into an existing folder; returns the largest differences."""
    task = task or default_task(model, tokenizer)
    _check_task(model, task)
    replica = model.rebuild(dtype="float32", lora_rank=None, layout="padded")

    def answer(*inputs: tf.Tensor) -> Answers:
        return task.outputs_in_graph(replica, inputs)

    content = litert_metadata.with_metadata(_convert(answer, dtype), task, tokenizer)
    with open(os.path.join(folder, FILE), "wb") as file:
        file.write(content)
    config = model.bert.config
    config.to_json(os.path.join(folder, "bert_config.json"))
    save_vocabulary(tokenizer.vocabulary, os.path.join(folder, "vocab.txt"))
    tokenizer.save_settings(folder)
    save_settings(task, columns or {}, folder)
    write_digests(folder, {*os.listdir(folder)} - {"settings.json"})  # which has the thresholds, and may change

    inputs = sample_inputs(tokenizer, config.max_position_embeddings, config.type_vocab_size)
    found = LiteRunner(folder, config)(inputs)
    differences = {}
    for name, expected in answer(*(tf.constant(inputs[name]) for name in INPUTS)).items():
        expected, output = (of_tokens(np.asarray(part), inputs) for part in (expected, found[name]))
        differences[name] = float(np.max(np.abs(output - expected)) / max(1, np.max(np.abs(expected))))
        limit = _EXACT if dtype == "float32" else np.inf
        if not differences[name] <= limit or not np.isfinite(output).all():
            raise InputError(f"the written {FILE} must give the model's {name} within {limit}; "
                             f"the largest difference is {differences[name]}")
    return differences


def _check_task(model: BertTask, task: Task) -> None:
    """Raises an InputError if a model does not give the outputs that a task reads."""
    if not task.fits(model):
        raise InputError(Option("task"), f" must be the task of the model; got {task.name} for a "
                         f"{type(model).__name__}")
    if hasattr(task, "labels"):
        writing.check_labels(model, task.labels)


def default_task(model: BertTask, tokenizer: BertTokenizer, settings: Mapping[str, Any] | None = None) -> Embed:
    """Returns the task of a `BertEmbedder`, with the prompts and the windows in the settings of its weights; raises an
    InputError for another model."""
    if not isinstance(model, models.BertEmbedder):
        raise InputError(Option("task"), f" must be given for a {type(model).__name__}")
    return Embed(model.bert.config.input_length(None, tokenizer.default_length), **fields_of(settings or {}))


def _convert(answer: Callable, dtype: str) -> bytes:
    """Returns the model file of a function of the inputs.

    Its variables become constants first, because LiteRT multiplies faster by constants: it packs them once."""
    signature = [tf.TensorSpec([None, None], tf.int32, name) for name in INPUTS]
    traced = tf.function(answer, input_signature=signature, autograph=False).get_concrete_function()
    frozen = convert_variables_to_constants_v2(traced)
    names = sorted(traced.structured_outputs)  # the order of a dict's outputs in a graph
    module = tf.Module()
    module.serve = tf.function(lambda *inputs: dict(zip(names, frozen(*inputs))), input_signature=signature,
                               autograph=False)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.serve.get_concrete_function()], module)
    if dtype == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()
