"""A SavedModel of any exporter, loaded and called as TensorFlow Serving does it."""

import gc
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict

from keras_bert.errors import InputError
from keras_bert.files.digests import file_digest
from keras_bert.serving.memory import trim
from keras_bert.serving.served_model import ServedModel
from keras_bert.serving.tensors import DEFAULT, Arrays, RequestError, Signature, Spec, count_rows
from keras_bert.tasks import TASKS

tf.get_logger().setLevel("ERROR")  # hides that the loader below is deprecated


class SavedModel(ServedModel):
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

    def __init__(self, path: str, threads: int, row_wise: Iterable[str] = (), timeout_s: float | None = None,
                 warm_up: bool = False) -> None:
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
        # These two passes over the graph delay the first answer and speed up no later one.
        passes = config.graph_options.rewrite_options
        passes.memory_optimization, passes.disable_tfg_optimizer = passes.NO_MEM_OPT, True
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        self._warm_up_file = os.path.join(path, "assets.extra", "tf_serving_warmup_requests")
        self._calls: dict[str, Callable[..., list]] = {}
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.loader.load(self._session, ["serve"], path)
            infos = {name: signature for name, signature in meta_graph.signature_def.items()
                     if name != "__saved_model_init_op"}
            # Only signatures of dense tensors can be called.
            signatures = {name: Signature(_specs(signature.inputs), _specs(signature.outputs))
                          for name, signature in infos.items() if _is_dense(signature)}
            mark = _read_mark(path)
            marked = set(mark["signatures"])
            self._config = _asset(path, "bert_config.json", {})
            tokens = _asset(path, "vocab.txt", "", read=lambda file: file.read())
            super().__init__(
                signatures, {name: _to_json(signature) for name, signature in infos.items()},
                row_wise=signatures.keys() & {*marked, *row_wise}, padded=marked,
                split_texts=set(mark.get("split_texts", ())), prompt_tokens=mark.get("prompt_tokens", {}),
                config=self._config,
                labels=_asset(path, "labels.json", []), vocabulary=tokens, timeout_s=timeout_s,
                display=mark.get("display") or _display(signatures))
            self.task: dict[str, Any] | None = mark.get("task")
            self.is_unmarked = bool(self._config and tokens and not marked)
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
        Serving's warm-up requests, and its messages are installed, runs these."""
        if os.path.exists(self._warm_up_file) and importlib.util.find_spec("tensorflow_serving"):
            from tensorflow_serving.apis import prediction_log_pb2

            for record in tf.compat.v1.io.tf_record_iterator(self._warm_up_file):
                request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
                self._call(request.model_spec.signature_name or DEFAULT,
                           {column: tf.make_ndarray(tensor) for column, tensor in request.inputs.items()})
        else:
            super().warm_up()

    def count_attention(self, inputs: Arrays, longest: int) -> int:
        if "layers" not in inputs or not self._config:
            return 0
        depth = inputs["layers"].size or self._config["num_hidden_layers"]
        heads, length = self._config["num_attention_heads"], min(longest, self.max_length)
        return 4 * count_rows(inputs) * depth * heads * length**2

    def _call(self, name: str, inputs: Arrays, timeout_s: float | None = None) -> Arrays:
        signature = self.signatures[name]
        if name not in self._calls:  # `Session.run` instead would spend most of a second on the message of an error
            infos = self.signature_defs[name]
            self._calls[name] = self._session.make_callable(
                [infos["outputs"][column]["name"] for column in signature.outputs],
                [infos["inputs"][column]["name"] for column in signature.inputs], accept_options=True)
        options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * timeout_s)) if timeout_s else None
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


def _to_json(message: Any) -> dict[str, Any]:
    """Returns a protocol buffer in TensorFlow Serving's JSON."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _read_mark(path: str) -> dict[str, Any]:
    """Returns what export/writing.py has written of the signatures, if the file is for this graph: those that are
    row-wise, as `signatures`, those that split texts, as `split_texts`, and the tokens of prompts, `prompt_tokens`;
    since version 0.4 also the settings of the `task` without its labels, and its `display`."""
    mark = _asset(path, "keras_bert_row_wise.json", None, folder="assets.extra")
    is_same = mark and file_digest(os.path.join(path, "saved_model.pb")) == mark["saved_model_sha256"]
    return mark if is_same else {"signatures": []}


def _display(signatures: Mapping[str, Signature]) -> str:
    """Returns how the answers of a SavedModel that does not say it are shown, by the outputs of the built-in tasks."""
    outputs = signatures[DEFAULT].outputs if DEFAULT in signatures else {}
    return next((task.display for task in TASKS.values() if task.output in outputs), "outputs")


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
