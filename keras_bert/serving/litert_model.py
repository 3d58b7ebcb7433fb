"""A LiteRT folder with the interface of a raw-text SavedModel, without TensorFlow."""

import math
import time
from collections.abc import Hashable
from typing import Any

import numpy as np

from keras_bert.inference.lite_model import LiteModel, group_outputs, rows_of
from keras_bert.serving.served_model import ServedModel
from keras_bert.serving.tensors import DEFAULT, STRING, Arrays, RequestError, Signature, Spec
from keras_bert.tasks import Task

_TYPES = {"O": "DT_STRING", "f": "DT_FLOAT", "i": "DT_INT32", "b": "DT_BOOL"}  # by the kind of the dtype


class LiteRTModel(ServedModel):
    """A folder of `export litert`. Its only signature is `serving_default`, with the inputs and the outputs that the
    SavedModel of the same model has. Each text is computed alone and at its own length, by an interpreter that nothing
    else uses meanwhile, so requests are neither joined nor padded.

    Args:
        threads: number of cores to use: as many calls may run at the same time.
        timeout_s: maximum duration of a call; None for no limit. LiteRT finishes the input that it computes at that
            time; a long text of a tagger and a long context are several inputs.

    Raises:
        InputError: it cannot be loaded.
    """

    def __init__(self, path: str, threads: int, timeout_s: float | None = None, warm_up: bool = False) -> None:
        self._model = LiteModel.load(path, threads, one_core_per_call=True)
        task, config = self._model.task, self._model.runner.config
        signature = _signature(task, config.hidden_size)
        super().__init__(
            {DEFAULT: signature}, {DEFAULT: _signature_def(signature)}, row_wise={DEFAULT}, padded={DEFAULT},
            config={"max_position_embeddings": config.max_position_embeddings}, labels=getattr(task, "labels", []),
            vocabulary="\n".join(self._model.tokenizer.vocabulary), timeout_s=timeout_s, parallel=threads)
        if warm_up:
            self.warm_up()

    def close(self) -> None:
        del self._model

    def batch_key(self, name: str, inputs: Arrays) -> Hashable:
        return object()

    def split(self, name: str, inputs: Arrays, tokens: np.ndarray, budget: int) -> list[tuple[Arrays, int]]:
        return super().split(name, inputs, tokens, 0)

    def _call(self, name: str, inputs: Arrays, timeout_s: float | None = None) -> Arrays:
        task, specs = self._model.task, self.signatures[name].outputs
        rows = {len(array) for array in inputs.values()}  # {1}, because `split` divides all others that fit together
        if len(rows) > 1:
            raise RequestError(
                400, f"the model refuses the inputs: {' and '.join(task.inputs)} must have the same batch size")
        if rows == {0}:
            return {column: np.zeros([size or 0 for size in spec.shape or ()], spec.dtype)
                    for column, spec in specs.items()}
        if not all(array.size for array in inputs.values()):
            raise RequestError(400, "the model refuses the inputs: choices must not be empty")
        example = task.example(*(_decoded(inputs[column][0]) for column in task.inputs))
        encoded, outputs = task.encode([example], self._model.tokenizer), []
        end = time.monotonic() + (timeout_s or math.inf)
        for row in rows_of(encoded):
            if time.monotonic() > end:
                raise RequestError(504, "the model takes too long for these inputs")
            outputs += self._model.outputs_of_rows([row], 1)
        answer, = task.exported_rows(encoded, group_outputs(encoded, outputs))
        return {column: _array([answer[column]], spec.dtype) for column, spec in specs.items()}


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


def _decoded(text: bytes | np.ndarray) -> Any:
    """Returns a text, or a list of texts. Bytes that are not UTF-8 become U+FFFD, which the tokenizer leaves out, as
    the one in a SavedModel leaves out the bytes."""
    return text.decode(errors="replace") if isinstance(text, bytes) else list(map(_decoded, text))


def _array(values: list, dtype: np.dtype) -> np.ndarray:
    """Returns nested lists, or a list of arrays, as an array; strings as bytes."""
    array = np.array(values, dtype)
    return np.vectorize(str.encode, [STRING])(array) if dtype == STRING else array
