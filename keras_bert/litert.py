"""`LiteRunner`, which runs the model file of a LiteRT folder with `ai-edge-litert` and NumPy, without TensorFlow."""

import collections
import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.processes import available_cores, huge_pages

FILE = "model.tflite"
INPUTS = "input_word_ids", "input_mask", "input_type_ids"
Arrays = dict[str, np.ndarray]
_SHORT = 64  # tokens
_SMALLEST = dict(zip(INPUTS, np.array([0, 1, 0], np.int32).reshape(3, 1, 1)))  # inputs of one token


class _Runner:
    """The model of an interpreter. Its first call packs the weights, which then move into huge pages, see there."""

    def __init__(self, interpreter: Any, waits: bool) -> None:
        self.signature = interpreter.get_signature_runner()
        self._memory: contextlib.AbstractContextManager = huge_pages(waits)

    def __call__(self, arrays: Arrays) -> Arrays:
        memory, self._memory = self._memory, contextlib.nullcontext()
        with memory:
            return self.signature(**arrays)


class LiteRunner:
    """The model of a file, which several threads may call at the same time: each call has an interpreter of its own,
    which lets other threads of Python run. All interpreters read the file that was there first, even if it is replaced.

    Args:
        folder: the folder with `model.tflite`.
        config: the config of the encoder, also an attribute.
        threads: number of cores to use. If None, all of the process.
        one_core_per_call: see `LiteModel.load`.

    Attributes:
        inputs, outputs: what LiteRT says about each input and each output, dicts by name.
        is_int8: True if the file has weights in int8.

    Raises:
        InputError: `ai-edge-litert` is missing, or the folder has no whole model file.
    """

    def __init__(self, folder: str, config: BertConfig, threads: int | None = None,
                 one_core_per_call: bool = False) -> None:
        self._arguments = folder, config, threads, one_core_per_call
        self._path = os.path.join(folder, FILE)
        self.config = config
        self._threads = threads or available_cores()
        self._free = threading.Semaphore(self._threads)
        narrow = [self._interpreter(1) for _ in range(self._threads)]
        interpreter = narrow[0] if one_core_per_call else self._interpreter(self._threads)
        run = _Runner(interpreter, one_core_per_call)  # which is for servers
        self.inputs, self.outputs = run.signature.get_input_details(), run.signature.get_output_details()
        if self.inputs.keys() != set(INPUTS):
            raise InputError(f"{self._path}: the inputs must be {', '.join(INPUTS)}; they are {', '.join(self.inputs)}")
        self.is_int8 = any(detail["dtype"] == np.int8 for detail in interpreter.get_tensor_details())
        try:
            # A file can be damaged beyond its outline.
            run(_SMALLEST)
        except (ValueError, RuntimeError) as error:
            raise self._unreadable(error) from None
        # The interpreters for one core, and the one for all cores, while nobody uses them.
        self._narrow = collections.deque(
            run if other is interpreter else _Runner(other, one_core_per_call) for other in narrow)
        self._wide = self._narrow if one_core_per_call else collections.deque([run])

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), self._arguments  # a copy, also in another process, reads the folder again

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Returns the outputs, by their names, of a batch, computed by all cores if no other call uses them.

        Args:
            inputs: `input_word_ids`, `input_mask` and `input_type_ids`, int32 [batch, seq].

        Raises:
            InputError: an input has another shape or type, or values for which the model has no embedding.
        """
        # For a short text in int8, one core is faster than to wake another.
        is_short = self.is_int8 and np.size(inputs.get(INPUTS[0], ())) <= _SHORT
        return self._run(inputs, self._narrow if is_short else self._wide)

    def warm_up(self) -> None:
        """Runs each interpreter for one core once."""
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(lambda run: run(_SMALLEST), self._narrow))

    def map(self, batches: Sequence[Mapping[str, np.ndarray]]) -> list[Arrays]:
        """Returns the outputs of several batches, each computed by one core."""
        if len(batches) < 2:
            return [self(batch) for batch in batches]
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(lambda batch: self._run(batch, self._narrow), batches))

    def _run(self, inputs: Mapping[str, np.ndarray], pool: collections.deque) -> Arrays:
        arrays = self._checked(inputs)
        batch, length = arrays[INPUTS[0]].shape
        if not batch:
            return {name: np.zeros([0, *(length if size < 0 else size for size in detail["shape_signature"][1:])],
                                   detail["dtype"]) for name, detail in self.outputs.items()}
        with self._free:
            try:
                run = pool.pop()
            except IndexError:  # another call has the one for all cores
                pool = self._narrow
                run = pool.pop()
            try:
                return run(arrays)
            finally:
                pool.append(run)

    def _interpreter(self, threads: int) -> Any:
        Interpreter = import_interpreter()
        if not os.path.exists(self._path):
            raise InputError(f"{self._path}: no such file; pass a folder that export litert wrote")
        try:
            return Interpreter(self._path, num_threads=threads)
        except (ValueError, RuntimeError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> InputError:
        return InputError(f"{self._path}: cannot be read: {' '.join(str(error).split()):.200}; copy the folder again, "
                          "or export the model again")

    def _checked(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Returns the inputs as int32, after the checks that the file lacks: it answers any id and any mask."""
        if inputs.keys() != set(INPUTS):
            raise InputError(f"the inputs must be {', '.join(INPUTS)}; got {', '.join(sorted(inputs))}")
        arrays = {name: np.asarray(inputs[name]) for name in INPUTS}
        shape = arrays[INPUTS[0]].shape
        for array, name, limit in zip(arrays.values(), INPUTS, (self.config.vocab_size, 2,
                                                                self.config.type_vocab_size)):
            if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape != shape:
                raise InputError(f"{name} must be integers [batch, seq], as many as the other inputs have; got "
                                 f"{array.dtype} {list(array.shape)}")
            if array.size and not 0 <= array.min() <= array.max() < limit:
                wrong = array.min() if array.min() < 0 else array.max()
                raise InputError(f"{name} must be at least 0 and below {limit}; got {wrong}")
        if shape[1] > self.config.max_position_embeddings:
            raise InputError(f"inputs must have at most {self.config.max_position_embeddings} tokens, the positions "
                             f"of the encoder; got {shape[1]}")
        if not (is_real := arrays["input_mask"].any(axis=1)).all():
            raise InputError(f"input_mask must have a 1 in each row; row {np.argmin(is_real)} has none")
        return {name: array.astype(np.int32, copy=False) for name, array in arrays.items()}


def is_litert(path: str) -> bool:
    """Returns True for a folder of `export litert`."""
    return os.path.isfile(os.path.join(path, FILE))


def import_interpreter() -> Any:
    """Returns LiteRT's class of interpreters."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        raise InputError("LiteRT needs the package ai-edge-litert: pip install ai-edge-litert") from None
    return Interpreter
