"""TensorFlow Serving's JSON (tensorflow/serving, g3doc/api_rest.md): requests to arrays, and arrays to responses.
Strings are object arrays of bytes. Rows are counted from 1."""

import asyncio
import base64
import binascii
import concurrent.futures
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

import numpy as np
import orjson
from pydantic_core import from_json

from keras_bert.files.json_files import declared
from keras_bert.inference.served_model import DEFAULT, STRING, Arrays, RequestError, Signature, Signatures, Spec


class Separators(NamedTuple):
    """The brackets that open a list or an object, and the commas, of JSON outside of its strings."""

    brackets: float
    commas: float


_KEYS = 64  # separators that a request may have besides those of its rows


@dataclasses.dataclass(frozen=True)
class Limits:
    """The largest sizes that a tensor may have. They are checked before it is made, because a few bytes can claim any
    size. The separators of JSON are counted before it is parsed, because the parser needs time and memory for each list
    and each value, and lets no other thread run."""

    rows: float = math.inf  # the first dimension
    values: float = math.inf  # the last dimension of numeric tensors, if their shape leaves it open: positions
    size: float = math.inf  # bytes
    separators: Separators = Separators(math.inf, math.inf)  # of a request as JSON

    def check_shape(self, where: str, spec: Spec, shape: Sequence[int]) -> None:
        """Raises a `RequestError` if the tensor with this name in messages must not have this shape."""
        if not spec.fits(shape):
            raise RequestError(400, f"{where}: must be {spec}; got the shape {list(shape)}")
        if shape and shape[0] > self.rows:
            raise RequestError(413, f"{self.describe_rows()}; got {shape[0]}")
        if len(shape) > 1 and spec.dtype != STRING and spec.shape and spec.shape[-1] is None and (
                shape[-1] > self.values):
            raise RequestError(400, f"{where}: a row may have at most {self.values} values, the positions of the "
                                    f"encoder; got {shape[-1]}")
        if (size := math.prod(shape) * spec.dtype.itemsize) > self.size:
            raise RequestError(413, f"{where}: may have at most {self.size} bytes; got {size}")

    def describe_rows(self) -> str:
        return f"a request may have at most {self.rows} instances (--max_instances)"


def needed_separators(signatures: Signatures, rows: int, positions: float) -> Separators:
    """Returns the separators that a request to one of these signatures has at most, if it has so many rows, and the
    dimensions that a signature leaves open are at most `positions`."""
    lists = values = 0.0
    for signature in signatures.values():
        counts = [_count(spec, positions) for spec in signature.inputs.values()]
        lists = max(lists, rows * (1 + sum(count.brackets for count in counts)))  # a row is an object
        values = max(values, rows * (1 + sum(count.commas + 1 for count in counts)))
    return Separators(lists + _KEYS, values + _KEYS)


def _count(spec: Spec, positions: float) -> Separators:
    """Returns the separators of a row of a tensor."""
    if spec.shape is None:
        return Separators(math.inf, math.inf)
    lists, values = 0.0, 1.0
    for size in spec.shape[1:]:
        lists, values = lists + values, values * (positions if size is None else size)
    return Separators(lists + (values if spec.dtype == STRING else 0), values)  # a string may be an object with base64


def find_signature(signatures: Signatures, name: str) -> Signature:
    """Returns the signature of that name, or raises a `RequestError`."""
    if not signatures:
        raise RequestError(400, "the model has no signature that can answer")
    if name not in signatures:
        raise RequestError(400, f"signature_name: must be one of {', '.join(sorted(signatures))}; got {show(name)}")
    return signatures[name]


Reserve = Callable[[int], object]  # reserves memory for so many bytes, or raises a `RequestError`


def read_request(body: bytes, signatures: Signatures, limits: Limits = Limits(),
                 reserve: Reserve = lambda size: None) -> tuple[str, Arrays, bool]:
    """Returns the signature and the inputs of a predict request, JSON, and True if it has rows ("instances"): then the
    response must have rows, too. A `RequestError` names the key, the row and what was expected."""
    request = parse(body, limits, reserve)
    name = request.get("signature_name", DEFAULT)
    check_rules(("signature_name", name, "a string", isinstance(name, str)))
    name = name or DEFAULT  # as in gRPC, whose messages have "" by default
    specs = find_signature(signatures, name).inputs
    if ("instances" in request) == ("inputs" in request):
        raise RequestError(400, "the request must have one of the keys instances and inputs, and not both")
    is_rows = "instances" in request
    key = "instances" if is_rows else "inputs"
    columns = _columns_of_rows(request[key], specs) if is_rows else _columns(request[key], specs)
    inputs = {column: to_array(columns[column], spec, f"{key}: {column}", limits) for column, spec in specs.items()}
    return name, inputs, is_rows


def write_response(outputs: Arrays, rows: int | None = None, classes: bytes = b"") -> bytes:
    """Returns the body of the response to a predict request, JSON. A float is the shortest decimal that reads back as
    the same float32 or float64; NaN and infinities, which JSON lacks, are null (TensorFlow Serving writes NaN). In
    strings, bytes that are not UTF-8 become U+FFFD, but outputs whose name ends in `_bytes` are base64. `rows` is the
    number of rows ("instances") of the request, None if it had columns ("inputs"); raises a `RequestError` if the
    outputs have another. `classes` are the names of classes, for rows with a number for each."""
    if rows is not None and {array.shape[:1] for array in outputs.values()} != {(rows,)}:
        raise RequestError(
            400, "the outputs do not have one row for each instance: ask with inputs instead of instances")
    columns = {name: to_json_values(name, array) for name, array in outputs.items()}
    if rows is None:
        value = columns if len(columns) > 1 else next(iter(columns.values()))
        return b'{"outputs":%b}' % dump(value)
    items = zip(*columns.values())
    values = (row[0] for row in items) if len(columns) == 1 else (dict(zip(columns, row)) for row in items)
    beside = b',"classes":%b' % classes if classes and {"probabilities", "word_weight"} & {*columns} else b""
    return b'{"predictions":[%b]%b}' % (b",".join(map(dump, values)), beside)


_BLOCK = 2**18  # bytes that are searched at a time
_BYTES, _SEPARATOR = 3, 64  # the memory of JSON, its objects and their arrays, by byte and by separator, in bytes


def count_separators(body: bytes) -> Separators:
    """Counts the separators of valid JSON. Uses NumPy, which lets other threads run."""
    brackets, commas, start, in_string = 0.0, 0.0, 0, False
    while start < len(body):
        block = np.frombuffer(body, np.uint8, min(_BLOCK, len(body) - start), start)
        quotes, slashes = block == ord('"'), np.flatnonzero(block == ord("\\"))
        # The first backslash of a run escapes what follows, so does the third, and so on.
        order = np.arange(len(slashes))
        first = np.maximum.accumulate(np.where(np.diff(slashes, prepend=-2) > 1, order, 0))
        escaped = slashes[(order - first) % 2 == 0] + 1
        quotes[escaped[escaped < len(block)]] = False
        inside = np.logical_xor.accumulate(quotes) ^ in_string
        found = _count_all(np.where(inside, np.uint8(0), block))
        brackets, commas = brackets + found.brackets, commas + found.commas
        in_string = bool(inside[-1])
        start += len(block) + (len(block) in escaped[-1:])
    return Separators(brackets, commas)


def _count_all(characters: np.ndarray) -> Separators:
    """Counts the separators in an array of bytes, also within strings."""
    commas, lists, objects = (int(np.count_nonzero(characters == ord(separator))) for separator in ",[{")
    return Separators(lists + objects, commas)


def parse(body: bytes, limits: Limits, reserve: Reserve) -> dict[str, Any]:
    """Returns the JSON object in a body. Raises a `RequestError` if it is none, has too many separators, or there is no
    memory for it."""
    limit = limits.separators
    count = _count_all(np.frombuffer(body, np.uint8))
    if count.brackets > limit.brackets or count.commas > limit.commas:  # many may be in texts
        count = count_separators(body)
        if count.brackets > limit.brackets or count.commas > limit.commas:
            raise RequestError(413, f"{limits.describe_rows()}, and outside of its texts at most {limit.brackets:.0f} "
                                    f"opening brackets and {limit.commas:.0f} commas, enough for {limits.rows} rows")
    reserve(_BYTES * len(body) + _SEPARATOR * int(count.brackets + count.commas))
    try:
        request = from_json(body, cache_strings="keys")
    except ValueError as error:
        raise RequestError(400, f"the body must be JSON in UTF-8: {error}") from None
    if not isinstance(request, dict):
        raise RequestError(400, f"the body must be a JSON object; got {show(request)}")
    return request


def check_rules(*rules: tuple[str, Any, str, object]) -> None:
    """Raises a `RequestError` for the first broken rule: a key, its value, what that must be, and True if it is."""
    for key, value, rule, holds in rules:
        if not holds:
            raise RequestError(400, f"{key}: must be {rule}; got {show(value)}")


def check_keys(values: Mapping[str, Any], path: str) -> None:
    """Raises a `RequestError` if a key of a request has a value with which other servers would answer differently.
    Unknown keys are ignored, because clients send what only some servers know."""
    keys = declared()[path]
    for key, rule in keys.differences(values).items():
        raise RequestError(400, f"{key}: {rule}; the keys of this request are {', '.join(keys.applied.split())}")


def _columns_of_rows(rows: Any, specs: Mapping[str, Spec]) -> dict[str, list]:
    """Returns the rows as one list per input. If there is a single input, the rows may be plain values."""
    for name, spec in specs.items():
        if spec.shape == ():
            raise RequestError(400, f"instances: {name}: must be {spec}, without rows: ask with inputs instead of "
                                    "instances")
    check_rules(("instances", rows, "a list of at least one row", isinstance(rows, list) and rows))
    if len(specs) == 1 and not _is_object(rows[0]):
        return {name: rows for name in specs}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or row.keys() != specs.keys():
            raise RequestError(400, f"instances: row {number}: must be an object with the keys {', '.join(specs)}; "
                                    f"got {show(row)}")
    return {name: [row[name] for row in rows] for name in specs}


def _columns(columns: Any, specs: Mapping[str, Spec]) -> dict[str, Any]:
    if len(specs) == 1 and not _is_object(columns):
        return {name: columns for name in specs}
    if not isinstance(columns, dict) or specs.keys() - columns.keys():
        raise RequestError(400, f"inputs: must be an object with the keys {', '.join(specs)}; got {show(columns)}")
    return columns


def _is_object(value: Any) -> bool:
    """Returns True if a value is an object of named tensors, and not one that represents a binary string."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def to_array(value: Any, spec: Spec, where: str, limits: Limits) -> np.ndarray:
    """Converts nested lists, one level per axis, or a value without axes. Messages call the tensor `where`."""
    if spec.shape and not isinstance(value, list):
        raise RequestError(400, f"{where}: must be a list, {spec}; got {show(value)}")
    shape, leaves = _shape_of_first(value), [value]
    limits.check_shape(where, spec, shape)
    for axis, size in enumerate(shape):
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, list) or len(leaf) != size:
                raise RequestError(400, f"{where}{_row(shape[:axis], i)}: must be a list of {size}, as the first is; "
                                        f"got {show(leaf)}")
        leaves = [item for leaf in leaves for item in leaf]
    kind, read = _reader(spec.dtype)
    array = np.empty(len(leaves), spec.dtype)
    for i, leaf in enumerate(leaves):
        try:
            array[i] = read(leaf)
        except (TypeError, ValueError, OverflowError, binascii.Error):
            raise RequestError(400, f"{where}{_row(shape, i)}: must be {kind}; got {show(leaf)}") from None
    return array.reshape(shape)


def _shape_of_first(value: Any) -> list[int]:
    """Returns the shape that nested lists have if all lists are as long as the first ones."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return shape


def _row(shape: Sequence[int], i: int) -> str:
    """Returns the row of a tensor's i-th value, for messages; an empty string for a tensor without rows."""
    return f": row {i // math.prod(shape[1:]) + 1}" if shape else ""


def _reader(dtype: np.dtype) -> tuple[str, Callable[[Any], Any]]:
    """Returns what error messages call a JSON value of this dtype, and a function that converts such a value and raises
    an error for any other. Raises a `RequestError` if JSON has no such values."""
    if dtype == STRING:
        return 'a string of valid Unicode, or {"b64": base64}', _read_string
    if dtype.kind not in "biuf":
        raise RequestError(400, f"JSON has no {dtype.name}: use gRPC")
    if dtype.kind != "f":
        kind, rule = (bool, "true or false") if dtype.kind == "b" else (int, f"a whole number, {dtype.name}")
        return rule, functools.partial(_read_number, (kind,), math.inf)
    # Slightly more than the maximum: 3.4028235e+38, the usual decimal for float32's, exceeds it.
    largest = float(np.finfo(dtype).max) * (1 + float(np.finfo(dtype).eps) / 4)
    return f"a number, {dtype.name}", functools.partial(_read_number, (int, float), largest)


def _read_string(value: Any) -> bytes:
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return base64.b64decode(value["b64"], validate=True)
    if type(value) is not str:
        raise TypeError
    return value.encode()


def _read_number(types: Collection[type], largest: float, value: Any) -> Any:
    if type(value) not in types or largest < abs(value) < math.inf:  # in Python, True is an int
        raise ValueError
    return value


def show(value: Any) -> str:
    """Returns a value as text for a message: `a list of 5`, or truncated JSON, with lone surrogates escaped."""
    if isinstance(value, (dict, list)) and len(value) > 3:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= 80 else text[:80] + "…"


def to_json_values(name: str, array: np.ndarray) -> Any:
    """Returns an array in a form that `dump` writes: numbers as an array, all else as nested lists."""
    if array.dtype == STRING:
        values, is_binary = np.empty(array.size, STRING), name.endswith("_bytes")
        values[:] = [{"b64": base64.b64encode(value).decode()} if is_binary else value.decode(errors="replace")
                     for value in array.flat]
        return values.reshape(array.shape).tolist()
    if array.dtype.kind not in "biuf":
        raise RequestError(400, f"JSON has no {array.dtype.name}, which {name} is: use gRPC")
    return np.ascontiguousarray(array) if array.ndim else array[()]


_PIECE = 20_000  # values that are written without a pause, 2 ms, in which no other thread runs


def dump(value: Any) -> bytes:
    """Returns a value as JSON, bytes: dicts and lists, of NumPy's arrays too."""
    if isinstance(value, dict):
        value = {name: orjson.Fragment(dump(item)) for name, item in value.items()}
    elif isinstance(value, np.ndarray) and value.ndim > 1 and value.size > _PIECE:
        return b"[%b]" % b",".join(map(dump, value))
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def count_bytes(outputs: Arrays) -> int:
    """Returns the size of outputs, with 8 bytes per string besides its own."""
    return sum(array.nbytes + (sum(map(len, array.flat)) if array.dtype == STRING else 0) for array in outputs.values())


Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
_SMALL = 10_000  # bytes; converting as much takes less time than starting a thread
_CONVERTERS = concurrent.futures.ThreadPoolExecutor(2, "converter")


async def in_thread_if_large(size: int, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Returns the result of a function. Calls it in a thread if it converts many bytes, so that the event loop can
    answer other requests meanwhile."""
    if size <= _SMALL:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_CONVERTERS, function, *arguments)
