"""The LiteRT folder: a model file for TensorFlow's small runtime, with everything that `keras_bert.LiteModel` needs to
answer texts without TensorFlow. docs/hub_contract.md specifies the inputs and the outputs of `model.tflite`."""

import io
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import flatbuffers
import numpy as np
import tensorflow as tf
from tensorflow.lite.tools import flatbuffer_utils

from keras_bert import models
from keras_bert.arguments import Path, check
from keras_bert.errors import InputError, Option
from keras_bert.files.atomic import atomic_folder
from keras_bert.files.digests import write_digests
from keras_bert.files.paths import saving
from keras_bert.litert import FILE, INPUTS, LiteRunner, import_interpreter
from keras_bert.models.base import BertTask, check_names
from keras_bert.tasks import Embed, Task, save_settings
from keras_bert.tasks.base import Answers
from keras_bert.tasks.calibration import warn_if_unmeasured
from keras_bert.tasks.embed import fields_of
from keras_bert.text import Tokenizer
from keras_bert.text.samples import of_tokens, sample_inputs

from . import writing

_EXACT = 1e-4  # relative to the largest output, or to 1: sums in another order differ less


def export_litert(model: BertTask, tokenizer: Tokenizer, path: Path, task: Task | None = None, *,
                  columns: dict[str, Any] | None = None, dtype: Literal["float32", "int8"] = "float32",
                  overwrite: bool = False) -> dict[str, float]:
    """Writes a LiteRT folder, which [`LiteModel`][keras_bert.LiteModel] reads. Output is written atomically, after the
    outputs of the written file were compared with the model's.

    Args:
        model: a head; a `BertEmbedder` for vectors of texts.
        tokenizer: the `Tokenizer` of the model.
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


def check_litert_export(model: BertTask, tokenizer: Tokenizer, path: Path, overwrite: bool) -> None:
    """Raises an InputError if a model cannot be exported with these arguments."""
    if not isinstance(model, BertTask) or isinstance(model, models.BertFeatureTagger):
        raise InputError("a LiteRT folder needs a model of finetune without LSTMs, or a BertEmbedder; got "
                         f"{type(model).__name__}")
    import_interpreter()  # of the comparison
    writing.check_export(model, tokenizer, path, overwrite)


def write_litert(model: BertTask, tokenizer: Tokenizer, folder: str, task: Task | None = None,
                 columns: dict[str, Any] | None = None, dtype: str = "float32") -> dict[str, float]:
    """Writes the files of `export_litert` into an existing folder; returns the largest differences."""
    task = task or default_task(model, tokenizer)
    if not task.fits(model):
        raise InputError(Option("task"), f" must be the task of the model; got {task.name} for a "
                         f"{type(model).__name__}")
    check_names(model, task.named, vars(task))
    warn_if_unmeasured(task, f"LiteRT {dtype}")
    replica = model.rebuild(dtype="float32", lora_rank=None, layout="padded")

    def answer(*inputs: tf.Tensor) -> Answers:
        return task.outputs_in_graph(replica, inputs)

    content = with_metadata(_convert(answer, dtype, folder), task, tokenizer)
    pathlib.Path(folder, FILE).write_bytes(content)
    config = model.bert.config
    config.to_json(os.path.join(folder, "bert_config.json"))
    tokenizer.save(folder)
    save_settings(task, columns or {}, folder)
    write_digests(folder)

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


def default_task(model: BertTask, tokenizer: Tokenizer, settings: Mapping[str, Any] | None = None) -> Embed:
    """Returns the task of a `BertEmbedder`, with the prompts and the windows in the settings of its weights. Raises an
    InputError for another model."""
    if not isinstance(model, models.BertEmbedder):
        raise InputError(Option("task"), f" must be given for a {type(model).__name__}")
    return Embed(model.bert.config.input_length(None, tokenizer.default_length), **fields_of(settings or {}))


def _convert(answer: Callable, dtype: str, folder: str) -> bytes:
    """Returns the model file of a function of the inputs. Its variables become constants, which LiteRT packs once."""
    signature = [tf.TensorSpec([None, None], tf.int32, name) for name in INPUTS]
    function = tf.function(answer, input_signature=signature, autograph=False).get_concrete_function()
    module = tf.Module()
    module.weights = function.variables
    with tempfile.TemporaryDirectory(dir=folder) as saved:
        with saving():
            tf.saved_model.save(module, saved, function)
        converter = tf.lite.TFLiteConverter.from_saved_model(saved)
        if dtype == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return converter.convert()


_VOCABULARY, _LABELS = ("vocab.txt", 5), ("labels.txt", 2)  # names of files, and their types
_BERT_TOKENIZER = 4  # of the options of a process unit
# What MediaPipe calls the inputs, in the order of `INPUTS`.
_NAMES = dict(zip(INPUTS, ("ids", "mask", "segment_ids")))


def why_not(task: Task, tokenizer: Tokenizer) -> str | None:
    """Returns why MediaPipe cannot run a model from strings, or None if it can."""
    if task.lite_outputs not in ({"probabilities": "BL"}, {"embedding": "BH"}) or len(task.inputs) > 1:
        return "it answers single texts with classes or embeddings only"
    if task.default_prompt:
        return f"it does not put the default prompt, {task.default_prompt!r}, before texts"
    if any("\n" in label or "\r" in label or not label for label in getattr(task, "labels", ())):
        return "it reads one label per line, and a label is empty or has a line break"
    if _VOCABULARY[0] not in tokenizer.files:
        return "it reads vocabularies of WordPiece only"
    if not tokenizer.rules.lower_case:
        return "its tokenizer lower-cases texts, and this vocabulary is cased"
    return None


def with_metadata(content: bytes, task: Task, tokenizer: Tokenizer) -> bytes:
    """Returns a model file with metadata, or as it is if MediaPipe cannot run it."""
    if why_not(task, tokenizer):
        return content
    files = {_VOCABULARY: tokenizer.vocabulary} | ({_LABELS: task.labels} if hasattr(task, "labels") else {})
    model = flatbuffer_utils.convert_bytearray_to_object(content)
    graph = model.subgraphs[0]
    named = {tensor.tensorIndex: tensor.name.decode() for tensor in model.signatureDefs[0].inputs}
    buffer = flatbuffer_utils.schema_fb.BufferT()
    buffer.data = _metadata([_NAMES[named[index]] for index in graph.inputs], task, _LABELS in files)
    model.buffers.append(buffer)
    entry = flatbuffer_utils.schema_fb.MetadataT()
    entry.name, entry.buffer = "TFLITE_METADATA", len(model.buffers) - 1
    model.metadata = [*(model.metadata or ()), entry]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        for (name, _), lines in files.items():
            zipped.writestr(zipfile.ZipInfo(name), "".join(f"{line}\n" for line in lines))  # the same bytes each time
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model)) + archive.getvalue()


def _metadata(inputs: Sequence[str], task: Task, has_labels: bool) -> bytes:
    """Returns the metadata of a file with these inputs and one output, as a flatbuffer."""
    builder = flatbuffers.Builder()

    def offset(value: Any) -> int:
        """Adds a string or a list of tables, and returns its offset; a table is its offset already."""
        if isinstance(value, str):
            return builder.CreateString(value)
        if isinstance(value, list):
            builder.StartVector(4, len(value), 4)
            for table in reversed(value):
                builder.PrependUOffsetTRelative(table)
            return builder.EndVector()
        return value

    def table(fields: dict[int, Any], kinds: dict[int, int] | None = None) -> int:
        """Adds a table of strings, lists, tables and, in `kinds`, one-byte numbers, by field. Returns its offset."""
        offsets = {slot: offset(value) for slot, value in fields.items()}
        builder.StartObject(max({**fields, **(kinds or {})}) + 1)
        for slot, value in offsets.items():
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        for slot, kind in (kinds or {}).items():
            builder.PrependInt8Slot(slot, kind, 0)
        return builder.EndObject()

    def file(name: str, kind: int) -> int:
        return table({0: name}, {2: kind})

    tokenizer = table({1: table({0: [file(*_VOCABULARY)]})}, {0: _BERT_TOKENIZER})
    labels = {6: [file(*_LABELS)]} if has_labels else {}
    graph = table({2: [table({0: name}) for name in inputs],
                   3: [table({0: "probability" if has_labels else "embedding"} | labels)],
                   5: [tokenizer]})
    builder.Finish(table({0: f"BERT, {task.name}", 3: [graph], 7: "1.1.0"}), b"M001")
    return bytes(builder.Output())
