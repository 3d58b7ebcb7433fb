"""A loaded model as the server calls it, whatever runs it, and how its requests are joined and divided by rows."""

import abc
import ctypes
import dataclasses
import math
import re
from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from keras_bert.litert import Arrays
from keras_bert.tasks.word_weights import SIGNATURE, find_words

DEFAULT = "serving_default"
STRING = np.dtype(object)
PADDING: dict[str, Any] = {"i": -1, "O": b"", "f": 0}  # by the kind of the dtype, see export/text_model.py
_HANGUL = re.compile("[가-힣]|[\u1100-\u11ff]{2}")


@dataclasses.dataclass(frozen=True)
class Spec:
    """The dtype and shape that a tensor must have. The shape has None for dimensions of any size; None is any shape."""

    dtype: np.dtype
    shape: tuple[int | None, ...] | None

    def fits(self, shape: Sequence[int]) -> bool:
        return self.shape is None or (len(shape) == len(self.shape)
                                      and all(want in (None, size) for want, size in zip(self.shape, shape)))

    def __str__(self) -> str:
        sizes = "any shape" if self.shape is None else [size or "any" for size in self.shape]
        return f"{'string' if self.dtype == STRING else self.dtype.name} {sizes}".replace("'", "")


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a function of a SavedModel, by name."""

    inputs: dict[str, Spec]
    outputs: dict[str, Spec]


Signatures = dict[str, Signature]


class RequestError(Exception):
    """An error for a request that cannot be answered. The client gets the message, one sentence, and the HTTP status or
    the gRPC status that is derived from it."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)  # the arguments that pickle needs: workers of predict raise it
        self.status, self.message, self.headers = status, message, headers


class RowMismatch(Exception):
    """An output of joined requests, or of a part of a request, does not have one row for each row of the inputs."""


class ServedModel(abc.ABC):
    """A loaded model: a `SavedModel` or a `LiteRTModel`.

    Attributes:
        signatures: the signatures that can be called.
        signature_defs: all signatures, as TensorFlow Serving writes them in JSON.
        row_wise: names of the signatures of which each output has one row for each row of the inputs, which does not
            depend on the others.
        labels: the names of the classes, in the order of `probabilities`; [] if there are none.
        threshold: the score below which an answer is not in scope; None if there is none, or it is unknown.
        display: how the server's page shows an answer, see `keras_bert.tasks.base.Display`.
        has_hangul: True if the vocabulary or a label contains Hangul.
        max_length: the longest text in tokens: where texts are cut or, if that is unknown, the encoder's positions.
        max_values: the most values in a row of numbers: the encoder's positions, or infinity if they are unknown.
        parallel: number of calls that may run at the same time.
        is_unmarked: True if version 0.1 or 0.2 of this package has exported it, which did not mark `row_wise`.
    """

    is_unmarked = False

    def __init__(self, signatures: Signatures, signature_defs: dict[str, dict[str, Any]], *, row_wise: Set[str],
                 padded: Set[str], split_texts: Set[str], prompt_tokens: Mapping[str, int], config: Mapping[str, Any],
                 labels: list[str], vocabulary: str, timeout_s: float | None, parallel: int = 1,
                 display: str = "outputs", threshold: float | None = None) -> None:
        """`padded` are the signatures whose outputs are padded as those of export/text_model.py; `split_texts` those
        that are known to split long texts; `prompt_tokens` the number of tokens that a signature puts before each text,
        if it does; `config` is the encoder's, empty if it is unknown; `timeout_s` is the maximum duration of a call,
        None for no limit."""
        self.signatures, self.signature_defs, self.row_wise = signatures, signature_defs, set(row_wise)
        self.labels, self.parallel, self.display, self.threshold = labels, parallel, display, threshold
        self.has_hangul = bool(_HANGUL.search(f"{vocabulary}{labels}"))
        self.max_length: int = config.get("max_position_embeddings", 512)
        self.max_values: float = config.get("max_position_embeddings", math.inf)
        self._padded, self._split_texts, self._prompt_tokens = padded, split_texts, prompt_tokens
        self._timeout_s = timeout_s

    def batching(self, max_tokens: int, pause_s: float) -> tuple[int, float]:
        """Returns the maximum tokens of a call, and the maximum pause after a call of several requests for more of
        them, in seconds, of a server with these settings."""
        return max_tokens, pause_s

    @abc.abstractmethod
    def _call(self, name: str, inputs: Arrays, timeout_s: float | None = None) -> Arrays:
        """Returns the outputs of a signature. Raises a `RequestError` if the model rejects the inputs, or the call
        takes too long."""

    def close(self) -> None:
        """Frees the memory and returns it to the system."""
        trim()

    def warm_up(self) -> None:
        """Runs each signature once, because its first call is slow and may delay others. A signature that fails is left
        to its first caller, who gets the error; but if `serving_default` fails, raises its error."""
        for name in sorted(self.signatures, key=lambda name: (name != DEFAULT, name)):
            try:
                self._warm_up(name)
            except RequestError:  # of a model that wants other values
                continue
            except Exception:
                if name == DEFAULT:
                    raise

    def _warm_up(self, name: str) -> None:
        """Runs a signature with one row of short texts, masks of 1 and other numbers of 0."""
        self._call(name, {
            column: np.full([size or 1 for size in spec.shape or ()],
                            b"warm up" if spec.dtype == STRING else "mask" in column, spec.dtype)
            for column, spec in self.signatures[name].inputs.items()})

    def run(self, name: str, requests: list[Arrays]) -> list[Arrays]:
        """Returns the outputs of requests with the same `batch_key`, each as if its request had been sent alone. Raises
        a `RequestError` if the model rejects one of them, or the call takes too long; and a `RowMismatch` if an output
        of several requests does not have as many rows as they."""
        if len(requests) == 1:
            return [self._call(name, requests[0], self._timeout_s)]
        inputs = {column: np.concatenate([request[column] for request in requests]) for column in requests[0]}
        outputs = self._call(name, inputs, self._timeout_s)
        check_rows(outputs, count_rows(inputs))
        ends = np.cumsum([count_rows(request) for request in requests])
        parts = [{column: array[start:end] for column, array in outputs.items()}
                 for start, end in zip([0, *ends], ends)]
        return [_cut_padding(part) for part in parts] if name in self._padded else parts

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
        return name in self._padded and _starts(column) in self.signatures[name].outputs

    def count_tokens(self, name: str, inputs: Arrays) -> np.ndarray:
        """Estimates the number of tokens of each row, int [rows], special tokens and prompts included. Counts one token
        for four bytes, which fits English and Korean (less than two syllables). If the inputs are ids, each id is a
        token. If a row has several texts of an input, each is paired with the texts of the other inputs. The tokens
        count again for each word that is left out, see `leaves_out_words`."""
        texts = [array for array in inputs.values() if array.dtype == STRING]
        if not texts:
            size = max((array.size for array in inputs.values()), default=0)
            return np.full(count_rows(inputs), size // max(1, count_rows(inputs)))
        leaves_out = self.leaves_out_words(name)
        is_split = name in self._split_texts or not leaves_out and any(  # a tagger and a span finder always do
            column == "start" or column.endswith("_start") for column in self.signatures[name].outputs)
        longest = math.inf if is_split else self.max_length  # a text is truncated, or split into several inputs
        added = 2 + self._prompt_tokens.get(name, 0)
        counts = [np.array([min(len(text) // 4 + added, longest) for text in array.flat], int).reshape(
            (array.shape or (1,))[0], math.prod(array.shape[1:])) for array in texts]
        pairs = max(count.shape[1] for count in counts)
        tokens = np.zeros(count_rows(inputs), int)
        for count in counts:
            tokens[:len(count)] += count.sum(1) * (pairs if count.shape[1] == 1 else 1)
        if not leaves_out:
            return tokens
        variants = np.ones_like(tokens)
        for array in texts:
            variants[:len(array)] += [min(len(find_words(text.decode(errors="replace"))), longest) for text in array]
        return tokens * variants

    def leaves_out_words(self, name: str) -> bool:
        """Returns True for the signature `word_weights`, which answers a row again without each of its words."""
        return name == SIGNATURE and name in self._padded

    def count_attention(self, inputs: Arrays, longest: int) -> int:
        """Returns the size in bytes of the attention that the signature `explain` of export/text_model.py returns for
        a request whose longest row has that many tokens; 0 for other signatures."""
        return 0


def count_rows(inputs: Arrays) -> int:
    """Returns the first dimension of the inputs; 1 if they have none."""
    return max((array.shape[0] for array in inputs.values() if array.ndim), default=1)


def check_rows(outputs: Arrays, rows: int) -> None:
    """Raises a `RowMismatch` if an output has another number of rows."""
    if any(array.shape[:1] != (rows,) for array in outputs.values()):
        raise RowMismatch


def _starts(column: str) -> str:
    """Returns the name of the output that shows where an output is padded along its second axis, if there is one. Uses
    the names of export/text_model.py: of word_start, word_end, word_label and word_score, word_start is -1 where there
    is no word."""
    return f"{column.rpartition('_')[0]}_start"


def _cut_padding(outputs: Arrays) -> Arrays:
    """Returns the outputs without the padding that only other requests needed."""
    return {column: array[:, :_width(outputs[_starts(column)])] if _starts(column) in outputs and array.ndim > 1
            else array for column, array in outputs.items()}


def _pad(arrays: list[np.ndarray], is_padded: bool) -> list[np.ndarray]:
    """Returns arrays with padding, so that all have the length of the longest along the second axis."""
    if not is_padded or arrays[0].ndim < 2:
        return arrays
    width = max(array.shape[1] for array in arrays)
    padding, others = PADDING[arrays[0].dtype.kind], [(0, 0)] * (arrays[0].ndim - 2)
    return [np.pad(array, [(0, 0), (0, width - array.shape[1]), *others], constant_values=padding) for array in arrays]


def _width(starts: np.ndarray) -> int:
    return int(max(np.flatnonzero((starts >= 0).any(axis=0)), default=-1)) + 1


def trim() -> None:
    """Returns free memory to the system, if the C library is glibc."""
    if malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        malloc_trim(0)


def to_lists(array: np.ndarray, errors: str = "replace") -> Any:
    """Returns an array as nested lists, bytes decoded."""
    def decode(value: Any) -> Any:
        return [decode(item) for item in value] if isinstance(value, list) else value.decode(errors=errors)

    return decode(array.tolist()) if array.dtype == STRING else array.tolist()
