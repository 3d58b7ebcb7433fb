"""A loaded SavedModel, which is called with arrays and describes its signatures as NumPy dtypes and shapes."""

import contextlib
import ctypes
import gc
import json
import os
import re

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.serving.tensors import DEFAULT, STRING, RequestError, Signature, Spec

tf.get_logger().setLevel("ERROR")  # hides that the loader below is deprecated


class SavedModel:
    """A SavedModel in its own session, as TensorFlow Serving runs it. Compared with `tf.saved_model.load`, it loads in
    half the time and a call takes a fifth less; `close` frees the memory.

    Args:
        path: folder of the SavedModel.
        threads: number of TensorFlow's threads. The first model of a process sets it for all models.
        warm_up: True to call `warm_up`.

    Attributes:
        signatures: dict of names to `Signature`s.
        signature_defs: the same as TensorFlow's protocol buffers.
        max_length: maximum number of tokens of a text; 512 if there is no `bert_config.json` in its assets.
        labels: names of the classes, in the order of `probabilities`; empty if there is no `labels.json`.
        has_hangul: True if the vocabulary or a label contains Hangul.

    Raises:
        InputError: the SavedModel cannot be loaded.
    """

    def __init__(self, path, threads, warm_up=False):
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        self._warm_up_file = os.path.join(path, "assets.extra", "tf_serving_warmup_requests")
        self._calls = {}
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.loader.load(self._session, ["serve"], path)
            self.signature_defs = {name: signature for name, signature in meta_graph.signature_def.items()
                                   if name != "__saved_model_init_op"}
            self.signatures = {name: Signature(_specs(signature.inputs), _specs(signature.outputs))
                               for name, signature in self.signature_defs.items()}
            self.max_length = _asset(path, "bert_config.json", {}).get("max_position_embeddings", 512)
            self.labels = _asset(path, "labels.json", [])
            tokens = _asset(path, "vocab.txt", "", read=lambda file: file.read())
            self.has_hangul = bool(re.search("[가-힣]|[\u1100-\u11ff]{2}", f"{tokens}{self.labels}"))
            if warm_up:
                self.warm_up()
        except Exception as error:
            self.close()
            if isinstance(error, (tf.errors.OpError, RuntimeError, ValueError)):  # missing, damaged or not a SavedModel
                raise InputError(f"{path}: cannot be loaded: {str(error):.200}") from None
            raise

    def close(self):
        """Frees the memory and returns it to the system. Otherwise glibc keeps it for later, too fragmented for the
        next model."""
        self._session.close()
        self._session, self._calls = None, {}
        gc.collect()  # a graph has reference cycles
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)

    def warm_up(self):
        """Runs the model once, because the first call is slow: it optimises the graph. If the SavedModel has TensorFlow
        Serving's warm-up requests, runs these."""
        if os.path.exists(self._warm_up_file):
            from tensorflow_serving.apis import prediction_log_pb2  # of the extra `serve`; answering does not need it

            for record in tf.compat.v1.io.tf_record_iterator(self._warm_up_file):
                request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
                self._call(request.model_spec.signature_name or DEFAULT,
                           {column: tf.make_ndarray(tensor) for column, tensor in request.inputs.items()})
        elif all(spec.dtype == STRING and spec.shape for spec in self.signatures[DEFAULT].inputs.values()):
            texts = {column: np.full([size or 1 for size in spec.shape], b"warm up", object)
                     for column, spec in self.signatures[DEFAULT].inputs.items()}
            with contextlib.suppress(RequestError):  # the strings of this model are not texts
                self._call(DEFAULT, texts)

    def run(self, name, requests):
        """Answers requests in one call.

        Args:
            name: name of the signature.
            requests: list of dicts of names to arrays, all with the same `batch_key`.

        Returns:
            A list of dicts of names to arrays, each as if its request had been sent alone.

        Raises:
            RequestError: the model rejects one of the requests.
        """
        if len(requests) == 1:
            return [self._call(name, requests[0])]
        inputs = {column: np.concatenate([request[column] for request in requests]) for column in requests[0]}
        outputs = self._call(name, inputs)
        ends = np.cumsum([count_rows(request) for request in requests])
        return [_cut_padding({column: array[start:end] for column, array in outputs.items()})
                for start, end in zip([0, *ends], ends)]

    def batch_key(self, name, inputs):
        """Returns the batching key of a request. Requests with equal keys may be joined: they have the same signature
        and the same sizes apart from the number of rows.

        A request gets a unique key, and so is never joined, unless it is certain that each output of its signature has
        one row for each row of the inputs and nothing that depends on the other rows.
        """
        signature = self.signatures[name]
        sizes = [array.shape[1:] for array in inputs.values()]
        has_rows = all(spec.shape and spec.shape[0] is None
                       for spec in [*signature.inputs.values(), *signature.outputs.values()])
        if has_rows and len({array.shape[0] for array in inputs.values()}) == 1 and (
                any(sizes) or all(_is_padded(column, signature.outputs) or None not in spec.shape[1:]
                                  for column, spec in signature.outputs.items())):
            return name, *sizes
        return object()

    def count_tokens(self, inputs):
        """Estimates the number of tokens of a request, special tokens included. Counts one token for four bytes, which
        fits English and Korean (less than two syllables). If the inputs are ids, each id is a token."""
        texts = [array for array in inputs.values() if array.dtype == STRING]
        if not texts:
            return max(array.size for array in inputs.values())
        return sum(min(len(text) // 4 + 2, self.max_length) for array in texts for text in array.flat)

    def _call(self, name, inputs):
        signature = self.signatures[name]
        if name not in self._calls:  # `Session.run` instead would spend most of a second on the message of an error
            infos = self.signature_defs[name]
            self._calls[name] = self._session.make_callable(
                [infos.outputs[column].name for column in signature.outputs],
                [infos.inputs[column].name for column in signature.inputs])
        try:
            arrays = self._calls[name](*(inputs[column] for column in signature.inputs))
        except tf.errors.InvalidArgumentError as error:
            message = error.message.removeprefix("Graph execution error:").strip().partition("\n")[0]
            raise RequestError(400, f"the model refuses the inputs: {message[:300]}") from None
        return {column: np.asarray(array) for column, array in zip(signature.outputs, arrays)}


def count_rows(inputs):
    """Returns the first dimension of the inputs; 1 if they have none."""
    return max((array.shape[0] for array in inputs.values() if array.ndim), default=1)


def _specs(infos):
    return {name: Spec(np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype), _shape(info.tensor_shape))
            for name, info in sorted(infos.items())}


def _shape(proto):
    return None if proto.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in proto.dim)


def _asset(path, name, default, read=json.load):
    try:
        with open(os.path.join(path, "assets", name), encoding="utf-8", errors="replace") as file:
            return read(file)
    except FileNotFoundError:
        return default


def _is_padded(column, columns):
    """Returns True if an output is padded along its second axis. Uses the names that export/text_model.py gives: of the
    outputs word_start, word_end, word_label and word_score, word_start is -1 where there is no word."""
    return f"{column.rpartition('_')[0]}_start" in columns


def _cut_padding(outputs):
    """Returns the outputs without the padding that only other requests needed."""
    return {column: array[:, :_width(outputs[f"{column.rpartition('_')[0]}_start"])]
            if _is_padded(column, outputs) and array.ndim == 2 else array for column, array in outputs.items()}


def _width(starts):
    return max(np.flatnonzero((starts >= 0).any(axis=0)), default=-1) + 1
