"""A loaded SavedModel, which is called with arrays and describes its signatures as NumPy dtypes and shapes."""

import contextlib
import gc
import json
import math
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.files.digests import file_digest
from keras_bert.serving.memory import trim
from keras_bert.serving.tensors import DEFAULT, STRING, Arrays, RequestError, Signature, Spec

tf.get_logger().setLevel("ERROR")  # hides that the loader below is deprecated
_PADDING: dict[str, Any] = {"i": -1, "O": b"", "f": 0}  # by the kind of the dtype, see export/text_model.py


class RowMismatch(Exception):
    """An output of joined requests, or of a part of a request, does not have one row for each row of the inputs."""


class SavedModel:
    """A SavedModel in its own session, as TensorFlow Serving runs it. Compared with `tf.saved_model.load`, it loads in
    half the time and a call takes a fifth less; `close` frees the memory.

    Args:
        threads: number of TensorFlow's threads. The first model of a process sets it for all models.
        row_wise: names of signatures that are row-wise in addition to those that the exporter has marked.
        timeout_s: maximum duration of a call; None for no limit. TensorFlow finishes the operation that runs at that
            time, and does not start another.

    Raises:
        InputError: it cannot be loaded.
    """

    parallel = 1  # calls at the same time

    def __init__(self, path: str, threads: int, row_wise: Iterable[str] = (), timeout_s: float | None = None,
                 warm_up: bool = False) -> None:
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
        # These two passes over the graph delay the first answer and speed up no later one.
        passes = config.graph_options.rewrite_options
        passes.memory_optimization, passes.disable_tfg_optimizer = passes.NO_MEM_OPT, True
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        self._warm_up_file = os.path.join(path, "assets.extra", "tf_serving_warmup_requests")
        self._calls: dict[str, Callable[..., list]] = {}
        self._options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * (timeout_s or 0)))
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.loader.load(self._session, ["serve"], path)
            self.signature_defs = {name: signature for name, signature in meta_graph.signature_def.items()
                                   if name != "__saved_model_init_op"}
            # Only signatures of dense tensors can be called.
            self.signatures = {name: Signature(_specs(signature.inputs), _specs(signature.outputs))
                               for name, signature in self.signature_defs.items() if _is_dense(signature)}
            self._marked = _marked(path)
            # Those of which each output has one row for each row of the inputs, which does not depend on the others.
            self.row_wise = self.signatures.keys() & {*self._marked, *row_wise}
            self._config = _asset(path, "bert_config.json", {})
            # The longest text in tokens, and the most values in a row of numbers: the encoder's positions.
            self.max_length: int = self._config.get("max_position_embeddings", 512)
            self.max_values: float = self._config.get("max_position_embeddings", math.inf)
            self.labels: list[str] = _asset(path, "labels.json", [])  # in the order of `probabilities`
            tokens = _asset(path, "vocab.txt", "", read=lambda file: file.read())
            # This package has exported it, but without a mark of this graph, as versions 0.1 and 0.2 did.
            self.is_unmarked = bool(self._config and tokens and not self._marked)
            self.has_hangul = bool(re.search("[가-힣]|[\u1100-\u11ff]{2}", f"{tokens}{self.labels}"))
            if warm_up:
                self.warm_up()
        except Exception as error:
            self.close()
            if isinstance(error, (tf.errors.OpError, RuntimeError, ValueError)):  # missing, damaged or not a SavedModel
                raise InputError(f"{path}: cannot be loaded: {str(error):.200}") from None
            raise

    def close(self) -> None:
        """Frees the memory and returns it to the system: glibc would keep it, too fragmented for the next model."""
        self._session.close()
        self._session, self._calls = None, {}
        gc.unfreeze()
        gc.collect()  # a graph has reference cycles
        trim()

    def warm_up(self) -> None:
        """Runs the model once, because the first call is slow: it optimises the graph. If the SavedModel has TensorFlow
        Serving's warm-up requests, runs these."""
        if os.path.exists(self._warm_up_file):
            from tensorflow_serving.apis import prediction_log_pb2  # of the extra `serve`; answering does not need it

            for record in tf.compat.v1.io.tf_record_iterator(self._warm_up_file):
                request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
                self._call(request.model_spec.signature_name or DEFAULT,
                           {column: tf.make_ndarray(tensor) for column, tensor in request.inputs.items()})
        else:
            self._warm_up(DEFAULT)

    def warm_up_explain(self) -> None:
        """Runs the signature `explain` of export/text_model.py once, if there is one. Its first call takes longer than
        the first answer, and only the server's page needs it."""
        self._warm_up("explain")

    def _warm_up(self, name: str) -> None:
        """Runs a signature with a short text for each input but `layers`; not if its inputs are something else."""
        if name not in self.signatures:
            return
        specs = self.signatures[name].inputs
        if all(spec.shape and (spec.dtype == STRING or column == "layers") for column, spec in specs.items()):
            inputs = {column: np.full([size or 1 for size in spec.shape or ()],
                                      b"warm up" if spec.dtype == STRING else 0, spec.dtype)
                      for column, spec in specs.items()}
            with contextlib.suppress(RequestError):  # the strings of this model are not texts
                self._call(name, inputs)

    def run(self, name: str, requests: list[Arrays]) -> list[Arrays]:
        """Returns the outputs of requests with the same `batch_key`, each as if its request had been sent alone.

        Raises:
            RequestError: the model rejects one of the requests, or the call takes too long.
            RowMismatch: there are several requests, and an output does not have as many rows as they.
        """
        if len(requests) == 1:
            return [self._call(name, requests[0], self._options)]
        inputs = {column: np.concatenate([request[column] for request in requests]) for column in requests[0]}
        outputs = self._call(name, inputs, self._options)
        check_rows(outputs, count_rows(inputs))
        ends = np.cumsum([count_rows(request) for request in requests])
        parts = [{column: array[start:end] for column, array in outputs.items()}
                 for start, end in zip([0, *ends], ends)]
        return [_cut_padding(part) for part in parts] if name in self._marked else parts

    def batch_key(self, name: str, inputs: Arrays) -> Hashable:
        """Returns the batching key of a request. Requests with equal keys may be joined: they have the same signature
        and the same sizes apart from the number of rows. A request that must not be joined gets a unique key."""
        return (name, *(array.shape[1:] for array in inputs.values())) if self._is_divisible(name, inputs) else object()

    def split(self, name: str, inputs: Arrays, tokens: np.ndarray, budget: int) -> list[tuple[Arrays, int]]:
        """Divides a request into parts of at most `budget` tokens, or of one row; not if it must not be divided.
        Returns the inputs and the tokens of each. `tokens` has those of each row; `join` joins the outputs."""
        if tokens.sum() <= budget or not self._is_divisible(name, inputs):
            return [(inputs, int(tokens.sum()))]
        parts, start, size = [], 0, 0
        for row, count in enumerate([*tokens, math.inf]):
            if row > start and size + count > budget:
                parts.append(({column: array[start:row] for column, array in inputs.items()}, int(size)))
                start, size = row, 0
            size += count
        return parts

    def join(self, name: str, parts: list[Arrays]) -> Arrays:
        """Returns the outputs of a request from those of its parts: padded as if it had not been divided. Raises
        `RowMismatch` if the parts do not fit together."""
        if len(parts) == 1:
            return parts[0]
        try:
            return {column: np.concatenate(_pad([part[column] for part in parts], self._is_padded(name, column)))
                    for column in parts[0]}
        except ValueError:
            raise RowMismatch from None

    def _is_divisible(self, name: str, inputs: Arrays) -> bool:
        """Returns True if requests like this one may be joined and divided: the signature is row-wise, and what is
        known of the shapes of its outputs does not depend on the other rows."""
        if name not in self.row_wise:
            return False
        signature = self.signatures[name]
        sizes = [array.shape[1:] for array in inputs.values()]
        has_rows = all(spec.shape and spec.shape[0] is None
                       for spec in [*signature.inputs.values(), *signature.outputs.values()])
        return has_rows and len({array.shape[0] for array in inputs.values()}) == 1 and (
            any(sizes) or all(self._is_padded(name, column) or spec.shape and None not in spec.shape[1:]
                              for column, spec in signature.outputs.items()))

    def _is_padded(self, name: str, column: str) -> bool:
        return name in self._marked and _starts(column) in self.signatures[name].outputs

    def count_tokens(self, name: str, inputs: Arrays) -> np.ndarray:
        """Estimates the number of tokens of each row, int [rows], special tokens included. Counts one token for four
        bytes, which fits English and Korean (less than two syllables). If the inputs are ids, each id is a token. If a
        row has several texts of an input, each is paired with the texts of the other inputs."""
        texts = [array for array in inputs.values() if array.dtype == STRING]
        if not texts:
            size = max((array.size for array in inputs.values()), default=0)
            return np.full(count_rows(inputs), size // max(1, count_rows(inputs)))
        is_split = any(column == "start" or column.endswith("_start") for column in self.signatures[name].outputs)
        longest = math.inf if is_split else self.max_length  # a text is truncated, or split into several inputs
        counts = [np.array([min(len(text) // 4 + 2, longest) for text in array.flat], int).reshape(
            (array.shape or (1,))[0], math.prod(array.shape[1:])) for array in texts]
        pairs = max(count.shape[1] for count in counts)
        tokens = np.zeros(count_rows(inputs), int)
        for count in counts:
            tokens[:len(count)] += count.sum(1) * (pairs if count.shape[1] == 1 else 1)
        return tokens

    def count_attention(self, inputs: Arrays, longest: int) -> int:
        """Returns the size in bytes of the attention that the signature `explain` of export/text_model.py returns for
        a request whose longest row has that many tokens; 0 for other signatures."""
        if "layers" not in inputs or not self._config:
            return 0
        depth = inputs["layers"].size or self._config["num_hidden_layers"]
        heads, length = self._config["num_attention_heads"], min(longest, self.max_length)
        return 4 * count_rows(inputs) * depth * heads * length**2

    def _call(self, name: str, inputs: Arrays, options: Any = None) -> Arrays:
        signature = self.signatures[name]
        if name not in self._calls:  # `Session.run` instead would spend most of a second on the message of an error
            infos = self.signature_defs[name]
            self._calls[name] = self._session.make_callable(
                [infos.outputs[column].name for column in signature.outputs],
                [infos.inputs[column].name for column in signature.inputs], accept_options=True)
        try:
            arrays = self._calls[name](*(inputs[column] for column in signature.inputs), options=options)
        except tf.errors.InvalidArgumentError as error:
            message = error.message.removeprefix("Graph execution error:").strip().partition("\n")[0]
            raise RequestError(400, f"the model refuses the inputs: {message[:300]}") from None
        except tf.errors.DeadlineExceededError:
            raise RequestError(504, "the model takes too long for these inputs") from None
        except tf.errors.ResourceExhaustedError:
            raise RequestError(503, "the model has no memory for these inputs now", {"Retry-After": "1"}) from None
        return {column: np.asarray(array, spec.dtype)
                for (column, spec), array in zip(signature.outputs.items(), arrays)}


def count_rows(inputs: Arrays) -> int:
    """Returns the first dimension of the inputs; 1 if they have none."""
    return max((array.shape[0] for array in inputs.values() if array.ndim), default=1)


def count_bytes(outputs: Arrays) -> int:
    """Returns the size of outputs, with 8 bytes per string besides its own."""
    return sum(array.nbytes + (sum(map(len, array.flat)) if array.dtype == STRING else 0) for array in outputs.values())


def check_rows(outputs: Arrays, rows: int) -> None:
    """Raises a `RowMismatch` if an output has another number of rows."""
    if any(array.shape[:1] != (rows,) for array in outputs.values()):
        raise RowMismatch


def _marked(path: str) -> list[str]:
    """Returns the signatures that export/writing.py has marked as row-wise, if the file is for this graph."""
    mark = _asset(path, "keras_bert_row_wise.json", None, folder="assets.extra")
    if mark is None:
        return []
    is_same = file_digest(os.path.join(path, "saved_model.pb")) == mark["saved_model_sha256"]
    return mark["signatures"] if is_same else []


def _is_dense(signature: Any) -> bool:
    """Returns True if no input or output is a ragged or sparse tensor, which consists of several tensors."""
    return all(info.WhichOneof("encoding") == "name"
               for infos in (signature.inputs, signature.outputs) for info in infos.values())


def _specs(infos: Mapping[str, Any]) -> dict[str, Spec]:
    return {name: Spec(np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype), _shape(info.tensor_shape))
            for name, info in sorted(infos.items())}


def _shape(proto: Any) -> tuple[int | None, ...] | None:
    return None if proto.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in proto.dim)


def _asset(path: str, name: str, default: Any, read: Callable[[Any], Any] = json.load, folder: str = "assets") -> Any:
    try:
        with open(os.path.join(path, folder, name), encoding="utf-8", errors="replace") as file:
            return read(file)
    except FileNotFoundError:
        return default


def _starts(column: str) -> str:
    """Returns the name of the output that shows where an output is padded along its second axis, if there is one. Uses
    the names of export/text_model.py: of word_start, word_end, word_label and word_score, word_start is -1 where there
    is no word."""
    return f"{column.rpartition('_')[0]}_start"


def _cut_padding(outputs: Arrays) -> Arrays:
    """Returns the outputs without the padding that only other requests needed."""
    return {column: array[:, :_width(outputs[_starts(column)])] if _starts(column) in outputs and array.ndim == 2
            else array for column, array in outputs.items()}


def _pad(arrays: list[np.ndarray], is_padded: bool) -> list[np.ndarray]:
    """Returns arrays with padding, so that all have the length of the longest along the second axis."""
    if not is_padded or arrays[0].ndim != 2:
        return arrays
    width = max(array.shape[1] for array in arrays)
    padding = _PADDING[arrays[0].dtype.kind]
    return [np.pad(array, [(0, 0), (0, width - array.shape[1])], constant_values=padding) for array in arrays]


def _width(starts: np.ndarray) -> int:
    return int(max(np.flatnonzero((starts >= 0).any(axis=0)), default=-1)) + 1
