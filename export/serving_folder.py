"""Writes folders for TensorFlow Serving: versions of a raw-text SavedModel, and the configuration of the server."""

import errno
import hashlib
import itertools
import os
import re
import tempfile
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_bert.arguments import Path
from keras_bert.errors import InputError, Option
from keras_bert.files.atomic import atomic_file
from keras_bert.files.digests import EXTRA_DIGESTS, write_digests
from keras_bert.files.paths import version_number, writing
from keras_bert.layers import BertLayer
from keras_bert.models.base import BertTask
from keras_bert.tasks import Task
from keras_bert.tasks.graph import text_specs
from keras_bert.text import Tokenizer

from .text_model import export_text_model, lengths_up_to, task_of

_BATCH_TOKENS = 2048  # the default of `keras-bert serve`
_CHOICES = 4  # per prompt, as in SWAG
_MODELS = """\
model_config_list {{
  config {{
    name: "{name}"  # the model's name in requests
    base_path: "/models/{name}"  # the folder of the versions, as the server sees it: here, mounted in a container
    model_platform: "tensorflow"
  }}
}}
"""
# No pad_variable_length_inputs or allowed_batch_sizes: the model pads texts itself and accepts any batch size.
_BATCHING = """\
# Maximum number of texts per batch: {tokens} tokens of the longest texts. Larger requests are rejected.
max_batch_size {{ value: {size} }}
# Time that the first text of a batch waits for others.
batch_timeout_micros {{ value: 2000 }}
# Maximum number of waiting batches: {queue} texts. Further requests are rejected.
max_enqueued_batches {{ value: {batches} }}
# Batches that run at the same time. Each uses all cores, but one can compute while another is tokenized.
num_batch_threads {{ value: 2 }}
# On x86-64 processors without AVX-512 VNNI, start the server with TF_ENABLE_ONEDNN_OPTS=1 in its environment.
"""


def export_version(model: BertLayer | BertTask, tokenizer: Tokenizer, folder: Path, name: str | None = None,
                   task: Task | None = None, *, max_length: int | None = None,
                   dtype: Literal["float32", "bfloat16"] | None = None, jit_compile: bool = False,
                   **options: Any) -> str:
    """Writes a raw-text SavedModel as the next version in a folder. The version is written atomically, and other
    versions are not changed. Also writes warm-up requests, in the `assets.extra` of the version, and the files
    `models.config` and `batching_parameters.txt`, next to the versions, unless they have been changed by hand.

    Args:
        folder: folder of the versions.
        name: name of the model in requests. Defaults to the name of the folder.
        model, tokenizer, task, max_length, dtype, jit_compile, options: see `export_text_model`, for the errors, too.

    Returns:
        the path of the version.
    """
    folder = os.path.abspath(folder)
    name = name or os.path.basename(folder)
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(Option("name"), f" must consist of letters, digits and . _ -; got {name!r}")
    task = task_of(model, tokenizer, task, {"max_length": max_length, **options})
    max_length, specs = task.max_length, text_specs(task.inputs)
    size = max(1, _BATCH_TOKENS // max_length)
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".version.", dir=folder) as workspace:
            new = os.path.join(workspace, "new")
            export_text_model(model, tokenizer, new, task, dtype=dtype, jit_compile=jit_compile)
            words, rows = [1, max_length], [1, size]
            if jit_compile:  # a request for each shape; texts before the last have one word
                added = tokenizer.special_tokens(len(specs))
                words = [length - added - len(specs) + 1 for length in lengths_up_to(max_length)]
                rows = [min(2**i, size) for i in range((size - 1).bit_length() + 1)]
            _write_requests(os.path.join(new, "assets.extra"), name, specs, words, rows)
            write_digests(new, EXTRA_DIGESTS)
            path = _rename_to_next(new, folder)
            _write_settings(os.path.join(folder, "models.config"), _MODELS.format(name=name))
            _write_settings(os.path.join(folder, "batching_parameters.txt"), _BATCHING.format(
                tokens=_BATCH_TOKENS, size=size, batches=512 // size, queue=512 // size * size))
    return path


def _rename_to_next(version: str, folder: str) -> str:
    """Moves `version` into `folder`, with the number after the last version as its name, or the next free number if
    another process has just used that one. Returns the new path."""
    versions = (number for name in os.listdir(folder) if (number := version_number(name)) is not None)
    number = max(versions, default=0) + 1
    while True:
        try:
            os.rename(version, path := os.path.join(folder, str(number)))
            return path
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        number += 1


def _write_settings(path: str, text: str) -> None:
    """Writes a text below a line with its digest, unless the file's digest shows that somebody has edited it."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            first, _, rest = file.read().partition("\n")
        if _digest(rest) not in first:
            return
    with atomic_file(path) as new, open(new, "w", encoding="utf-8") as file:
        file.write(f"# Written by keras-bert export, which updates it until somebody edits it: {_digest(text)}\n{text}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_requests(folder: str, name: str, specs: list[tf.TensorSpec], words: list[int], rows: list[int]) -> None:
    """Writes `tf_serving_warmup_requests`, a serialized `tensorflow.serving.PredictionLog` for each combination of a
    number of rows and a number of words in the last text, see tensorflow_serving/apis/*.proto."""
    os.makedirs(folder, exist_ok=True)
    model_spec = _field(1, name.encode()) + _field(3, b"serving_default")  # name, signature_name
    with tf.io.TFRecordWriter(os.path.join(folder, "tf_serving_warmup_requests")) as file:
        for row_count, word_count in itertools.product(rows, words):
            texts = [*[b"a"] * (len(specs) - 1), b" ".join([b"a"] * word_count)]
            request = _field(1, model_spec)
            for spec, text in zip(specs, texts):
                tensor = tf.make_tensor_proto(np.full([row_count, _CHOICES][:spec.shape.rank], text, object))
                request += _field(2, _field(1, spec.name.encode()) + _field(2, tensor.SerializeToString()))  # inputs
            file.write(_field(6, _field(1, request)))  # predict_log: request


def _field(number: int, payload: bytes) -> bytes:
    """Encodes a field of bytes, a string or a message in the wire format of protocol buffers."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
