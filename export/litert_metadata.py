"""Metadata of a LiteRT file, with which MediaPipe's TextClassifier and TextEmbedder take strings.

The metadata is a flatbuffer of the published schema (metadata_schema.fbs of TensorFlow Lite Support and MediaPipe,
Apache-2.0): the numbers below are those of its fields. The vocabulary and the labels are files in a ZIP archive at the
end of the model file (https://ai.google.dev/edge/litert/models/metadata).
"""

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import flatbuffers
from tensorflow.lite.tools import flatbuffer_utils

from keras_bert.litert import INPUTS
from keras_bert.tasks import Task
from keras_bert.text import BertTokenizer

_VOCABULARY, _LABELS = ("vocab.txt", 5), ("labels.txt", 2)  # names of files, and their types
_BERT_TOKENIZER = 4  # of the options of a process unit
# What MediaPipe calls the inputs, in the order of `INPUTS`.
_NAMES = dict(zip(INPUTS, ("ids", "mask", "segment_ids")))


def why_not(task: Task, tokenizer: BertTokenizer) -> str | None:
    """Returns why MediaPipe cannot run a model from strings, or None if it can."""
    if task.lite_outputs not in ({"probabilities": "BL"}, {"embedding": "BH"}) or len(task.inputs) > 1:
        return "it answers single texts with classes or embeddings only"
    if task.default_prompt:
        return f"it does not put the default prompt, {task.default_prompt!r}, before texts"
    if any("\n" in label or "\r" in label or not label for label in getattr(task, "labels", ())):
        return "it reads one label per line, and a label is empty or has a line break"
    if not tokenizer.rules.lower_case:
        return "its tokenizer lower-cases texts, and this vocabulary is cased"
    return None


def with_metadata(content: bytes, task: Task, tokenizer: BertTokenizer) -> bytes:
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
        """Adds a table of strings, lists and tables, and of `kinds`, numbers of one byte, by the numbers of the fields.
        Returns its offset."""
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
