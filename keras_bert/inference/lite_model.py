"""The folder that `export litert` writes, which answers without TensorFlow: `LiteModel` and, with the interface of a
raw-text SavedModel, `LiteRTModel`."""

import codecs
import dataclasses
import itertools
import math
import os
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from keras_bert.arguments import Count, Path, check
from keras_bert.config import BertConfig
from keras_bert.data.batches import ChoiceBatches
from keras_bert.errors import InputError
from keras_bert.files.digests import check_files
from keras_bert.inference import served_model
from keras_bert.inference.served_model import DEFAULT, STRING, RequestError, ServedModel, Signature, Spec
from keras_bert.inference.task_model import TaskModel
from keras_bert.litert import FILE, Arrays, LiteRunner
from keras_bert.tasks import SETTINGS, Encoded, Task, read_settings, word_weights
from keras_bert.text import Tokenizer, load_tokenizer, pad

_BATCH = 8  # rows; larger batches are not faster
_TOKENS = 1024  # of a batch
_LOADS = 10  # attempts
_SMALLEST = np.finfo(np.float32).tiny
_HALF_STEP = 2.0**-25  # half of the distance from 1 to the next lower float32
# Tokens, estimated, of a call. A call of several texts costs Python and its threads less for each; with more texts in
# one, the first would wait longer for the last.
_CALL_TOKENS = 128
_TYPES = {"O": "DT_STRING", "f": "DT_FLOAT", "i": "DT_INT32", "b": "DT_BOOL"}  # by the kind of the dtype


@dataclasses.dataclass(frozen=True)
class LiteModel(TaskModel):
    """A model that TensorFlow's small runtime LiteRT runs: the interface of `FineTuned`, and its answers. Needs only
    `ai-edge-litert`, `tokenizers` and NumPy. Several threads may use a model at the same time.

    Args:
        runner: the model file.
        tokenizer, task, columns: see `TaskModel`.
    """

    runner: LiteRunner
    tokenizer: Tokenizer
    task: Task
    columns: dict[str, str | list[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, threads: Count | None = None, one_core_per_call: bool = False) -> Self:
        """Reads the folder that `export litert` wrote.

        Args:
            threads: number of cores to use. If None, all.
            one_core_per_call: If False, a call that is alone uses all cores. If True, each call uses one, which takes
                less memory, and less time if there are as many calls at the same time as cores.

        Raises:
            InputError: the folder was not written by `export litert`, or `ai-edge-litert` is not installed.
        """
        check(cls.load, locals())
        for _ in range(_LOADS):
            before = _identity(folder)
            config = BertConfig.from_json(os.path.join(folder, "bert_config.json"))
            task, columns = read_settings(folder)
            runner = LiteRunner(os.fspath(folder), config, threads, one_core_per_call)
            model = cls(runner, load_tokenizer(folder), task, columns)
            if _identity(folder) == before:
                model._check(folder)
                return model
        raise InputError(f"{os.fspath(folder)}: was replaced again and again while it was read; load it again")

    def _check(self, folder: Path) -> None:
        """Raises an InputError if the files of a folder do not belong together."""
        found, wanted = (", ".join(sorted(names)) for names in (self.runner.outputs, self.task.lite_outputs))
        if found != wanted:
            raise InputError(f"{os.fspath(folder)}: {FILE} must have the outputs of the task {self.task.name}, "
                             f"{wanted}; got {found}; export the model again")
        for name, axes in self.task.lite_outputs.items():
            file, field = {"L": ("labels.json", "labels"), "T": (SETTINGS, "tags")}.get(axes[-1], ("", ""))
            count, names = self.runner.outputs[name]["shape_signature"][-1], getattr(self.task, field, None)
            if names is not None and count != len(names):
                raise InputError(f"{os.fspath(folder)}: {file} must have a name for each of the {name} of {FILE} "
                                 f"({count}); got {len(names)}; export the model again")
        self.tokenizer.check_rows(folder, self.runner.config.vocab_size)
        check_files(folder, ("labels.json", *self.tokenizer.files[1:], "bert_config.json", SETTINGS))

    @property
    def runtime(self) -> str:
        return f"LiteRT {'int8' if self.runner.is_int8 else 'float32'}"

    def outputs(self, encoded: Encoded, batch_size: int | None = None) -> list:
        return group_outputs(encoded, self.outputs_of_rows(rows_of(encoded), batch_size or _BATCH))

    def outputs_of_rows(self, rows: Sequence[tuple[list[int], int]], batch_size: int) -> list:
        """Returns the output of the Keras model for each row of `Tokenizer.pack`. Batches are of rows of the same
        length, because LiteRT computes padding too; and small, because each interpreter keeps the memory of its largest
        batch."""
        by_length: dict[int, list[int]] = {}
        for index, (ids, _) in enumerate(rows):
            by_length.setdefault(len(ids), []).append(index)
        batches = []
        for length, same in by_length.items():
            size = max(1, min(batch_size, _TOKENS // length))
            batches += [same[begin:begin + size] for begin in range(0, len(same), size)]
        outputs: list = [None] * len(rows)
        for indices, batch in zip(batches, self.runner.map([self._inputs(rows, indices) for indices in batches])):
            for index, row in zip(indices, self._logits(batch)):
                outputs[index] = row
        return outputs

    def output_of_row(self, row: tuple[list[int], int]) -> Any:
        """Returns the output of the Keras model for a row, computed alone."""
        return self._logits(self.runner(self._inputs([row], [0])))[0]

    def _inputs(self, rows: Sequence[tuple[list[int], int]], indices: Sequence[int]) -> Arrays:
        inputs = pad([rows[index] for index in indices], self.tokenizer.pad_id)
        inputs["input_type_ids"] = inputs.pop("segment_ids")
        return inputs

    def _logits(self, outputs: Arrays) -> list:
        """Returns the output of the Keras model for each row of a batch."""
        if len(outputs) > 1:
            return [dict(zip(outputs, row)) for row in zip(*outputs.values())]
        array, = outputs.values()
        match self.task.activation:
            case "softmax":
                array = np.log(np.maximum(array, _SMALLEST))
            case "sigmoid":
                array = np.log(np.maximum(array, _SMALLEST)) - np.log(np.maximum(1 - array, _HALF_STEP))
        return list(array)


def rows_of(encoded: Encoded) -> Sequence[tuple[list[int], int]]:
    """Returns the rows of `Tokenizer.pack` that are computed, one after the other."""
    return list(itertools.chain.from_iterable(encoded.rows)) if _has_groups(encoded) else encoded.rows


def group_outputs(encoded: Encoded, outputs: list) -> list:
    """Returns the output for each element of `encoded.rows` from those of `rows_of`."""
    following = iter(outputs)
    return [np.stack([next(following) for _ in group]) for group in encoded.rows] if _has_groups(encoded) else outputs


def _has_groups(encoded: Encoded) -> bool:
    return issubclass(encoded.batches, ChoiceBatches)


def _identity(folder: Path) -> list[tuple[int, int, int, int]]:
    """Returns what changes if a folder of `export litert`, or its model file, is replaced. Raises an InputError if it
    is not such a folder."""
    if not os.path.exists(path := os.path.join(folder, FILE)):
        found = f"{FILE} is missing" if os.path.isdir(folder) else "there is no such folder"
        raise InputError(f"{os.fspath(folder)}: must be a folder that export litert wrote; {found}")
    entries = os.stat(folder), os.stat(path)
    return [(entry.st_dev, entry.st_ino, entry.st_size, entry.st_mtime_ns) for entry in entries]


class LiteRTModel(ServedModel):
    """A folder of `export litert`. Its signatures are `serving_default`, those of its prompts, and `word_weights`, with
    the inputs and the outputs that the SavedModel of the same model has. A call computes its texts one after the other,
    each at its own length, by an interpreter that nothing else uses meanwhile. No text is padded, or changes another's
    outputs. Raises an InputError if a file is not as it was exported, or the folder cannot be loaded.

    Args:
        threads: number of cores to use: as many calls may run at the same time.
        timeout_s: maximum duration of a call; None for no limit. LiteRT finishes the input that it computes at that
            time; a text that is split into windows is several inputs.
    """

    def __init__(self, path: str, threads: int, timeout_s: float | None = None, warm_up: bool = False) -> None:
        check_files(path)  # first, because a damaged model file can crash the worker
        self._model = LiteModel.load(path, threads, one_core_per_call=True)
        task, config = self._model.task, self._model.runner.config
        self._tasks = {name: task.with_prompt(name) for name in task.named_prompts} | {DEFAULT: task}
        signatures = dict.fromkeys(self._tasks, _signature(task, config.hidden_size))
        if task.weighed:
            self._tasks[word_weights.SIGNATURE] = task
            signatures[word_weights.SIGNATURE] = _signature(task, config.hidden_size, word_weights.OUTPUTS)
        prompts = [task.default_prompt for task in self._tasks.values()]
        super().__init__(
            signatures, {name: _signature_def(signature) for name, signature in signatures.items()},
            row_wise=set(self._tasks), padded=set(self._tasks), split_texts=set(self._tasks) if task.windows else set(),
            prompt_tokens=dict(zip(self._tasks, map(len, self._model.tokenizer.ids(prompts)))),
            config={"max_position_embeddings": config.max_position_embeddings}, labels=getattr(task, "labels", []),
            vocabulary="\n".join(self._model.tokenizer.vocabulary), timeout_s=timeout_s, parallel=threads,
            display=task.display, threshold=getattr(task, "threshold", None))
        self.max_length = task.max_length  # at which texts are truncated
        if warm_up:
            self.warm_up()

    def close(self) -> None:
        del self._model
        super().close()

    def warm_up(self) -> None:
        """Runs all interpreters once, which all signatures share: the first call of each packs the weights."""
        self._model.runner.warm_up()
        self._warm_up(DEFAULT)

    def batching(self, max_tokens: int, pause_s: float) -> tuple[int, float]:
        return min(max_tokens, _CALL_TOKENS), 0.0

    def _call(self, name: str, inputs: Arrays, timeout_s: float | None = None) -> Arrays:
        task, specs = self._tasks[name], self.signatures[name].outputs
        if len({len(array) for array in inputs.values()}) > 1:
            raise RequestError(
                400, f"the model refuses the inputs: {' and '.join(task.inputs)} must have the same batch size")
        if any(array.shape[1:] == (0,) for array in inputs.values()):
            raise RequestError(400, "the model refuses the inputs: choices must not be empty")
        columns = [served_model.to_lists(inputs[column], _ERRORS) for column in task.inputs]
        end = time.monotonic() + (timeout_s or math.inf)

        def compute(encoded: Encoded) -> list:
            rows, outputs = rows_of(encoded), {}
            # By length, because LiteRT plans its memory again whenever the length changes.
            for index in sorted(range(len(rows)), key=lambda index: len(rows[index][0])):
                if time.monotonic() > end:
                    raise RequestError(504, "the model takes too long for these inputs")
                outputs[index] = self._model.output_of_row(rows[index])
            return group_outputs(encoded, [outputs[index] for index in range(len(rows))])

        tokenizer = self._model.tokenizer
        if name == word_weights.SIGNATURE:
            answers = [word_weights.weigh(task, tokenizer, texts, compute)[0] for texts in zip(*columns)]
        else:
            encoded = task.encode([task.example(*row) for row in zip(*columns)], tokenizer)
            answers = task.exported_rows(encoded, compute(encoded))
        return {column: _column([answer[column] for answer in answers], spec) for column, spec in specs.items()}


def _signature(task: Task, hidden_size: int, outputs: dict[str, tuple[type, str]] | None = None) -> Signature:
    """Returns the signature of `outputs`, by default the task's."""
    sizes = {"L": word_weights.output_size(task) if outputs else len(getattr(task, "labels", [])), "H": hidden_size}
    return Signature(
        {name: Spec(STRING, (None, None) if name == "choices" else (None,)) for name in sorted(task.inputs)},
        {name: Spec(STRING if dtype is str else np.dtype(dtype), tuple(map(sizes.get, axes)))
         for name, (dtype, axes) in sorted((outputs or task.exported_outputs).items())})


def _signature_def(signature: Signature) -> dict[str, Any]:
    """Returns a signature as TensorFlow Serving's JSON. Tensors have the names of the inputs and outputs."""
    return {"inputs": {name: _tensor_info(name, spec) for name, spec in signature.inputs.items()},
            "outputs": {name: _tensor_info(name, spec) for name, spec in signature.outputs.items()},
            "method_name": "tensorflow/serving/predict", "defaults": {}}


def _tensor_info(name: str, spec: Spec) -> dict[str, Any]:
    sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in spec.shape or ()]
    return {"name": name, "dtype": _TYPES[spec.dtype.kind], "tensor_shape": {"dim": sizes, "unknown_rank": False}}


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Replaces bytes that are not UTF-8 by U+FFFD, which the tokenizer leaves out, as a SavedModel does the bytes.
    Positions in characters are those of a SavedModel, which counts all bytes that may begin a character."""
    assert isinstance(error, UnicodeDecodeError)
    is_continuation = error.object[error.start] & 0xC0 == 0x80
    return "" if is_continuation else "\ufffd", error.end


_ERRORS = "keras_bert.positions"
codecs.register_error(_ERRORS, _replace)


def _column(values: list, spec: Spec) -> np.ndarray:
    """Returns the values of an output for each row as an array; shorter lists are padded as in a SavedModel, and
    strings become bytes."""
    if spec.dtype == STRING:
        values = [value.encode() if isinstance(value, str) else list(map(str.encode, value)) for value in values]
    _, *sizes = spec.shape or ()
    if not sizes:
        return np.array(values, spec.dtype)
    width = sizes[0] if sizes[0] is not None else max(map(len, values), default=0)
    array: Any = np.full((len(values), width, *sizes[1:]), served_model.PADDING.get(spec.dtype.kind), spec.dtype)
    for row, value in zip(array, values):
        row[:len(value)] = value
    return array
