"""Writes folders for TensorFlow Serving: versions of a raw-text SavedModel, and the configuration of the server."""

import errno
import hashlib
import itertools
import os
import re
import tempfile

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.files import writing

from .text_model import export_text_model, lengths_up_to, make_head

_BATCH_TOKENS = 2048  # the default of `keras-bert serve`
_CHOICES = 4  # per prompt, as in SWAG
_MODELS = """\
model_config_list {{
  config {{
    # What requests call it.
    name: "{name}"
    # The folder of the versions, as the server sees it: here where it is mounted in a container.
    base_path: "/models/{name}"
    model_platform: "tensorflow"
  }}
}}
"""
_BATCHING = """\
# Most texts that are run together: of the longest, {tokens} tokens. A request with more is refused.
max_batch_size {{ value: {size} }}
# How long the first text of a batch waits for others.
batch_timeout_micros {{ value: 2000 }}
# How many batches may wait: {queue} texts. What comes then is refused.
max_enqueued_batches {{ value: {batches} }}
# Batches that run at once; each uses all cores, but while the words of one are looked up, another can compute.
num_batch_threads {{ value: 2 }}
# On x86-64 processors without AVX-512 VNNI, start the server with TF_ENABLE_ONEDNN_OPTS=1 in its environment.
# No pad_variable_length_inputs: strings have no length. No allowed_batch_sizes: the model takes any, and more are work.
"""


def export_version(model, tokenizer, serving_dir, name=None, *, max_length=128, dtype="float32", jit_compile=False,
                   **options):
    """Writes a raw-text SavedModel as the next version in a folder. The version is written atomically, and other
    versions are not changed. Also writes warm-up requests, in the `assets.extra` of the version, and the files
    `models.config` and `batching_parameters.txt`, next to the versions, unless they have been changed by hand.

    Args:
        serving_dir: the folder.
        name: name of the model in requests. Defaults to the name of the folder.
        model, tokenizer, max_length, dtype, jit_compile, options: see `export_text_model`.

    Returns:
        the path of the version.

    Raises:
        InputError: see `export_text_model`.
    """
    serving_dir = os.path.abspath(serving_dir)
    name = name or os.path.basename(serving_dir)
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(f"name must be of letters, digits and . _ -; got {name!r}")
    head, size = make_head(model, options), max(1, _BATCH_TOKENS // max_length)
    settings = {"models.config": _MODELS.format(name=name), "batching_parameters.txt": _BATCHING.format(
        tokens=_BATCH_TOKENS, size=size, batches=512 // size, queue=512 // size * size)}
    with writing(serving_dir):
        os.makedirs(serving_dir, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".version.", dir=serving_dir) as workspace:
            new = os.path.join(workspace, "new")
            export_text_model(
                model, tokenizer, new, max_length=max_length, dtype=dtype, jit_compile=jit_compile, **options)
            words, rows = [1, max_length], [1, size]
            if jit_compile:  # one for each shape; texts before the last have one word, and [SEP] follows each
                words = [length - 2 * len(head.texts) for length in lengths_up_to(max_length)]
                rows = [min(2**i, size) for i in range((size - 1).bit_length() + 1)]
            _write_requests(os.path.join(new, "assets.extra"), name, head.texts, words, rows)
            path = _rename_to_next(new, serving_dir)
            for file, text in settings.items():
                _write_settings(os.path.join(serving_dir, file), text, workspace)
    return path


def _rename_to_next(folder, serving_dir):
    """Renames a folder to the number after the last version, or to the next free one if it has just been taken."""
    number = max([0, *(int(name) for name in os.listdir(serving_dir) if name.isascii() and name.isdecimal())])
    while True:
        number += 1
        try:
            os.rename(folder, path := os.path.join(serving_dir, str(number)))
            return path
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise


def _write_settings(path, text, workspace):
    """Writes a text below a line with its digest. Keeps a file whose digest does not match: a person has changed it."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            first, _, rest = file.read().partition("\n")
        if _digest(rest) not in first:
            return
    with open(new := os.path.join(workspace, "settings"), "w", encoding="utf-8") as file:
        file.write(f"# Written by keras-bert export, which renews it while it is as it was: {_digest(text)}\n"
                   f"{text}")
    os.replace(new, path)


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_requests(folder, name, specs, words, rows):
    """Writes `tf_serving_warmup_requests`, one request for each combination of a number of rows and a number of words
    in the last text; the other texts have one word."""
    os.makedirs(folder)
    with tf.io.TFRecordWriter(os.path.join(folder, "tf_serving_warmup_requests")) as file:
        for row_count, word_count in itertools.product(rows, words):
            texts = [*[b"a"] * (len(specs) - 1), b" ".join([b"a"] * word_count)]
            file.write(_prediction_log(name, {
                spec.name: np.full([row_count, _CHOICES][:spec.shape.rank], text, object)
                for spec, text in zip(specs, texts)}))


def _prediction_log(name, inputs):
    """Returns a request as a serialized `tensorflow.serving.PredictionLog`, see tensorflow_serving/apis/*.proto."""
    request = _field(1, _field(1, name.encode()) + _field(3, b"serving_default"))  # model_spec: name, signature_name
    for key, array in inputs.items():
        tensor = tf.make_tensor_proto(array).SerializeToString()
        request += _field(2, _field(1, key.encode()) + _field(2, tensor))  # inputs: key, value
    return _field(6, _field(1, request))  # predict_log: request


def _field(number, payload):
    """Encodes a field of bytes, a string or a message in the wire format of protocol buffers."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
