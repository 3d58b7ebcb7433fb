"""A LiteRT folder with the interface of a raw-text SavedModel, without TensorFlow."""

import codecs
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_bert.inference import served_model
from keras_bert.inference.lite_model import LiteModel, check_files, group_outputs, rows_of
from keras_bert.inference.served_model import DEFAULT, STRING, Arrays, RequestError, ServedModel, Signature, Spec
from keras_bert.tasks import Task

# Tokens, estimated, of a call. A call of several texts costs Python and its threads less for each; with more texts in
# one, the first would wait longer for the last.
_CALL_TOKENS = 128
_TYPES = {"O": "DT_STRING", "f": "DT_FLOAT", "i": "DT_INT32", "b": "DT_BOOL"}  # by the kind of the dtype


class LiteRTModel(ServedModel):
    """A folder of `export litert`. Its signatures are `serving_default` and those of its prompts, with the inputs and
    the outputs that the SavedModel of the same model has. A call computes its texts one after the other, each at its
    own length, by an interpreter that nothing else uses meanwhile. No text is padded, or changes the outputs of
    another.

    Args:
        threads: number of cores to use: as many calls may run at the same time.
        timeout_s: maximum duration of a call; None for no limit. LiteRT finishes the input that it computes at that
            time; a text that is split into windows is several inputs.

    Raises:
        InputError: a file is not as it was exported, or the folder cannot be loaded.
    """

    def __init__(self, path: str, threads: int, timeout_s: float | None = None, warm_up: bool = False) -> None:
        check_files(path)  # first, because a damaged model file can crash the worker
        self._model = LiteModel.load(path, threads, one_core_per_call=True)
        task, config = self._model.task, self._model.runner.config
        signature = _signature(task, config.hidden_size)
        self._tasks = {name: task.with_prompt(name) for name in task.named_prompts} | {DEFAULT: task}
        prompts = [task.default_prompt for task in self._tasks.values()]
        super().__init__(
            dict.fromkeys(self._tasks, signature), dict.fromkeys(self._tasks, _signature_def(signature)),
            row_wise=set(self._tasks), padded=set(self._tasks), split_texts=set(self._tasks) if task.windows else set(),
            prompt_tokens=dict(zip(self._tasks, map(len, self._model.tokenizer.ids(prompts)))),
            config={"max_position_embeddings": config.max_position_embeddings}, labels=getattr(task, "labels", []),
            vocabulary="\n".join(self._model.tokenizer.vocabulary), timeout_s=timeout_s, parallel=threads,
            display=task.display)
        self.max_length = task.max_length  # at which texts are truncated
        if warm_up:
            self.warm_up()

    def close(self) -> None:
        del self._model
        super().close()

    def warm_up(self) -> None:
        """Runs all interpreters once: the first call of each packs the weights, which takes so long that the calls, at
        the same time, get one each."""
        with ThreadPoolExecutor(self.parallel) as pool:
            list(pool.map(self._warm_up, [DEFAULT] * self.parallel))

    def batching(self, max_tokens: int, pause_s: float) -> tuple[int, float]:
        return min(max_tokens, _CALL_TOKENS), 0.0

    def _call(self, name: str, inputs: Arrays, timeout_s: float | None = None) -> Arrays:
        task, specs = self._tasks[name], self.signatures[name].outputs
        if len({len(array) for array in inputs.values()}) > 1:
            raise RequestError(
                400, f"the model refuses the inputs: {' and '.join(task.inputs)} must have the same batch size")
        if any(array.shape[1:] == (0,) for array in inputs.values()):
            raise RequestError(400, "the model refuses the inputs: choices must not be empty")
        columns = [_decoded(inputs[column]) for column in task.inputs]
        encoded = task.encode([task.example(*row) for row in zip(*columns)], self._model.tokenizer)
        rows, outputs = rows_of(encoded), {}
        end = time.monotonic() + (timeout_s or math.inf)
        # By length, because LiteRT plans its memory again whenever the length changes.
        for index in sorted(range(len(rows)), key=lambda index: len(rows[index][0])):
            if time.monotonic() > end:
                raise RequestError(504, "the model takes too long for these inputs")
            outputs[index] = self._model.output_of_row(rows[index])
        answers = task.exported_rows(encoded, group_outputs(encoded, [outputs[index] for index in range(len(rows))]))
        return {column: _column([answer[column] for answer in answers], spec) for column, spec in specs.items()}


def _signature(task: Task, hidden_size: int) -> Signature:
    sizes = {"L": len(getattr(task, "labels", [])), "H": hidden_size}
    return Signature(
        {name: Spec(STRING, (None, None) if name == "choices" else (None,)) for name in sorted(task.inputs)},
        {name: Spec(STRING if dtype is str else np.dtype(dtype), tuple(map(sizes.get, axes)))
         for name, (dtype, axes) in sorted(task.exported_outputs.items())})


def _signature_def(signature: Signature) -> dict[str, Any]:
    """Returns a signature as TensorFlow Serving's JSON. Tensors have the names of the inputs and outputs."""
    return {"inputs": {name: _tensor_info(name, spec) for name, spec in signature.inputs.items()},
            "outputs": {name: _tensor_info(name, spec) for name, spec in signature.outputs.items()},
            "method_name": "tensorflow/serving/predict", "defaults": {}}


def _tensor_info(name: str, spec: Spec) -> dict[str, Any]:
    sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in spec.shape or ()]
    return {"name": name, "dtype": _TYPES[spec.dtype.kind], "tensor_shape": {"dim": sizes, "unknown_rank": False}}


def _decoded(texts: np.ndarray) -> list:
    """Returns strings of bytes as nested lists of str. Bytes that are not UTF-8 become U+FFFD, which the tokenizer
    leaves out, as the one in a SavedModel leaves out the bytes."""
    return [text.decode(errors=_ERRORS) if isinstance(text, bytes) else _decoded(text) for text in texts]


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Replaces bytes that are not UTF-8 so that positions in characters are those of a SavedModel, which counts all
    bytes that may begin a character."""
    assert isinstance(error, UnicodeDecodeError)
    is_continuation = error.object[error.start] & 0xC0 == 0x80
    return "" if is_continuation else "\ufffd", error.end


_ERRORS = "keras_bert.positions"
codecs.register_error(_ERRORS, _replace)


def _column(values: list, spec: Spec) -> np.ndarray:
    """Returns the values of an output for each row as an array; shorter lists are padded as in a SavedModel, and
    strings become bytes."""
    if spec.dtype == STRING:
        values = [_encoded(value) for value in values]
    _, *sizes = spec.shape or ()
    if not sizes:
        return np.array(values, spec.dtype)
    width = sizes[0] if sizes[0] is not None else max(map(len, values), default=0)
    array = np.full((len(values), width), served_model.PADDING.get(spec.dtype.kind), spec.dtype)
    for row, value in zip(array, values):
        row[:len(value)] = value
    return array


def _encoded(value: str | list[str]) -> Any:
    return value.encode() if isinstance(value, str) else [text.encode() for text in value]
