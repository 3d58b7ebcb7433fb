"""A SavedModel of any exporter, loaded and called as TensorFlow Serving does it; and `Exported`, which answers the
examples of a task with one."""

import copy
import gc
import importlib.util
import itertools
import json
import os
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict

from keras_bert.arguments import AggregationStrategy, Path, check_rules
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, Option
from keras_bert.files.digests import check_files, file_digest
from keras_bert.files.json_files import Record
from keras_bert.inference import served_model
from keras_bert.inference.served_model import DEFAULT, STRING, Arrays, RequestError, ServedModel, Signature, Spec
from keras_bert.tasks import Embed, Span, read_labels, restored, task_with
from keras_bert.tasks.base import Display

_MARK = "keras_bert_row_wise.json"
_VOCABULARIES = "vocab.txt", "tokenizer.json"  # assets, one of which an export has
# Files that are compared when loaded.
_SMALL = "saved_model.pb", *(f"assets/{name}" for name in (*_VOCABULARIES, "labels.json", "bert_config.json"))
_BATCH = 32  # texts that `Exported` answers in a call

tf.get_logger().setLevel("ERROR")  # hides that the loader below is deprecated


class SavedModel(ServedModel):
    """A SavedModel in its own session, as TensorFlow Serving runs it. Compared with `tf.saved_model.load`, it loads in
    half the time and a call takes a fifth less; `close` frees the memory. Raises an InputError if it cannot be loaded.

    Args:
        threads: number of TensorFlow's threads. The first model of a process sets it for all models.
        row_wise: names of signatures that are row-wise in addition to those that the exporter has marked.
        timeout_s: maximum duration of a call; None for no limit. TensorFlow finishes the operation that runs at that
            time, and does not start another.
    """

    def __init__(self, path: str, threads: int, row_wise: Iterable[str] = (), timeout_s: float | None = None,
                 warm_up: bool = False) -> None:
        check_files(path, _SMALL)
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
            tokens = "".join(_asset(path, name, "", read=lambda file: file.read()) for name in _VOCABULARIES)
            in_json = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
            self.task: Any = mark.get("task")
            settings = self.task if isinstance(self.task, dict) else {}
            super().__init__(
                signatures, {name: MessageToDict(signature, **in_json) for name, signature in infos.items()},
                row_wise=signatures.keys() & {*marked, *row_wise}, padded=marked,
                split_texts=set(mark.get("split_texts", ())), prompt_tokens=mark.get("prompt_tokens", {}),
                config=self._config, labels=_asset(path, "labels.json", []), vocabulary=tokens, timeout_s=timeout_s,
                display=mark["display"] if mark.get("display") in typing.get_args(Display) else _display(signatures),
                threshold=settings.get("threshold"))
            if isinstance(length := settings.get("max_length"), int):
                self.max_length = length  # at which texts are truncated
            self.is_unmarked = bool(self._config and tokens and not marked)
            if warm_up:
                self.warm_up()
        except Exception as error:
            self.close()
            if isinstance(error, RequestError):  # of the warm-up
                raise
            raise InputError(f"{path}: cannot be loaded: {str(error):.200}; copy the folder again, or export the model "
                             "again") from None  # a damaged file: any error

    def close(self) -> None:
        """Frees the memory and returns it to the system: glibc would keep it, too fragmented for the next model."""
        self._session.close()
        self._session, self._calls = None, {}
        gc.unfreeze()
        gc.collect()  # a graph has reference cycles
        super().close()

    def warm_up(self) -> None:
        """Runs TensorFlow Serving's warm-up requests, if the SavedModel has them and its messages are installed, then
        each signature once: the first call optimises its graph."""
        if os.path.exists(self._warm_up_file) and importlib.util.find_spec("tensorflow_serving"):
            from tensorflow_serving.apis import prediction_log_pb2

            for record in tf.compat.v1.io.tf_record_iterator(self._warm_up_file):
                request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
                self._call(request.model_spec.signature_name or DEFAULT,
                           {column: tf.make_ndarray(tensor) for column, tensor in request.inputs.items()})
        super().warm_up()

    def count_attention(self, inputs: Arrays, longest: int) -> int:
        if "layers" not in inputs or not self._config:
            return 0
        depth = inputs["layers"].size or self._config["num_hidden_layers"]
        heads, length = self._config["num_attention_heads"], min(longest, self.max_length)
        return 4 * served_model.count_rows(inputs) * depth * heads * length**2

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


def _read_mark(path: str) -> dict[str, Any]:
    """Returns what export/writing.py has written of the signatures, if the file is for this graph: those that are
    row-wise, as `signatures`, those that split texts, as `split_texts`, and the tokens of prompts, `prompt_tokens`;
    since version 0.4 also the settings of the `task` without its labels, and its `display`."""
    mark = _asset(path, _MARK, None, folder="assets.extra")
    is_same = mark and file_digest(os.path.join(path, "saved_model.pb")) == mark["saved_model_sha256"]
    return mark if is_same else {"signatures": []}


def _display(signatures: Mapping[str, Signature]) -> str:
    """Returns how the answers of a SavedModel that does not say it are shown, by the outputs of the built-in tasks."""
    outputs = signatures[DEFAULT].outputs if DEFAULT in signatures else {}
    task = task_with(outputs)
    return task.display if task else "outputs"


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


class Exported:
    """A SavedModel of `keras-bert export text-model` that answers the examples of its task. `threads` is the number of
    TensorFlow's threads; 0 for its default. Raises an InputError if the folder is not such a SavedModel, or the model
    is an encoder without a head."""

    def __init__(self, path: str, threads: int = 0) -> None:
        self._path, self._signature = path, DEFAULT
        self._saved_model = SavedModel(path, threads)
        signature = self._saved_model.signatures.get(DEFAULT)
        settings = Record(path, _MARK, {"task": self._saved_model.task}).get("task", dict | None)
        if settings is None:  # of version 0.3 or older
            task = task_with(signature.outputs if signature else ())
            if not (signature and task):
                found = f"returns {', '.join(signature.outputs)}" if signature else f"has no signature {DEFAULT}"
                raise InputError(f"{path}: must be a SavedModel of export text-model with a task; this one {found}")
            settings = {"task": task.name, "max_length": self._saved_model.max_length} | (
                {"pairs": "text_pair" in signature.inputs} if "pairs" in task.__dataclass_fields__ else {})
        self.task, _ = restored(settings | read_labels(os.path.join(path, "assets")), path)

    def with_prompt(self, prompt_name: str | None) -> Self:
        """Returns a copy that runs the signature of a prompt, or itself if `prompt_name` is None."""
        if prompt_name is None:
            return self
        prompts = [name for name, signature in sorted(self._saved_model.signatures.items())
                   if name not in (DEFAULT, "encode") and "embedding" in signature.outputs]
        check_rules(("prompt_name", prompt_name, f"one of {', '.join(prompts)}" if prompts else
                     f"left out for {self._path}, which has no prompts", prompt_name in prompts))
        prompted = copy.copy(self)
        prompted._signature = prompt_name
        return prompted

    def iterate(self, path: Path | Rows, **columns: Any) -> Iterator:
        return self.task.iterate(path, **columns)

    def answer_with_cuts(self, examples: Sequence, top_k: int = 1,
                         aggregation_strategy: AggregationStrategy | None = None) -> tuple[list | np.ndarray, Counter]:
        """Returns the answers to examples, and no numbers: the SavedModel does not say how many it has cut or split.
        For questions, only the best answer is known; entities are aggregated by the strategy of the export."""
        if aggregation_strategy:
            raise InputError(f"{self._path}: a SavedModel has one aggregation strategy; ",
                             Option("aggregation_strategy"), " needs the folder that finetune wrote")
        if top_k > 1 and isinstance(self.task, Span):
            raise InputError(f"{self._path}: a SavedModel gives one answer to a question; ", Option("top_k"),
                             " needs the folder that finetune wrote")
        answers = []
        for _, examples_alike in itertools.groupby(examples, lambda example: len(getattr(example, "choices", ()))):
            group = list(examples_alike)
            for begin in range(0, len(group), _BATCH):
                outputs, = self._saved_model.run(self._signature, [self._inputs(group[begin:begin + _BATCH])])
                rows = zip(*map(served_model.to_lists, outputs.values()))
                answers += [self.task.answer_of(dict(zip(outputs, row)), top_k) for row in rows]
        if isinstance(self.task, Embed):  # no embeddings are as wide as that of a text
            some = answers or self.answer_with_cuts([self.task.example("")])[0]
            return np.array(some, np.float32)[:len(answers)], Counter()
        return answers, Counter()

    def _inputs(self, examples: Sequence) -> dict[str, np.ndarray]:
        columns = {name: [getattr(example, name) for example in examples] for name in self.task.inputs[1:]}
        columns[self.task.inputs[0]] = [self.task.text(example) for example in examples]
        return {name: np.vectorize(str.encode, [STRING])(np.array(column, STRING)) for name, column in columns.items()}
