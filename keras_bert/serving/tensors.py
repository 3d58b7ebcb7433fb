"""TensorFlow Serving's JSON (tensorflow/serving, g3doc/api_rest.md): requests to arrays, and arrays to responses.

Strings are object arrays of bytes. Rows are counted from 1.
"""

import base64
import binascii
import contextlib
import dataclasses
import json
import math
import zlib

import numpy as np
import orjson
from pydantic_core import from_json

DEFAULT = "serving_default"
STRING = np.dtype(object)


class RequestError(Exception):
    """An error for a request that cannot be answered. The client gets the status and the message.

    Args:
        status: HTTP status; the gRPC status is derived from it.
        message: one sentence.
        headers: dict of the response's headers, or None.
    """

    def __init__(self, status, message, headers=None):
        super().__init__(status, message, headers)  # the arguments that pickle needs: Ray sends it between processes
        self.status, self.message, self.headers = status, message, headers


@dataclasses.dataclass(frozen=True)
class Spec:
    """The dtype and shape that a tensor must have.

    Args:
        dtype: NumPy dtype; object for strings.
        shape: tuple with None for dimensions of any size, or None for any shape.
    """

    dtype: np.dtype
    shape: tuple | None

    def fits(self, shape):
        """Returns True if a tensor may have this shape."""
        return self.shape is None or (len(shape) == len(self.shape)
                                      and all(want in (None, size) for want, size in zip(self.shape, shape)))

    def __str__(self):
        sizes = "any shape" if self.shape is None else [size or "any" for size in self.shape]
        return f"{'string' if self.dtype == STRING else self.dtype.name} {sizes}".replace("'", "")


@dataclasses.dataclass(frozen=True)
class Limits:
    """The sizes that a tensor may have. They are checked before it is made, because a few bytes can claim any size.

    Args:
        rows: maximum first dimension.
        values: maximum last dimension of numeric tensors whose shape leaves it open: the encoder's positions.
        size: maximum size in bytes.
        total: maximum number of values of a request as JSON, which are counted before it is parsed, because the parser
            needs memory for each value, and lets no other thread run.
    """

    rows: float = math.inf
    values: float = math.inf
    size: float = math.inf
    total: float = math.inf

    def check(self, where, spec, shape):
        """Raises a `RequestError` if a tensor at `where` must not have this shape."""
        if not spec.fits(shape):
            raise RequestError(400, f"{where}: must be {spec}; got the shape {list(shape)}")
        if shape and shape[0] > self.rows:
            raise RequestError(413, f"a request may have at most {self.rows} instances; got {shape[0]}")
        if len(shape) > 1 and spec.dtype != STRING and spec.shape and spec.shape[-1] is None and (
                shape[-1] > self.values):
            raise RequestError(400, f"{where}: a row may have at most {self.values} values, the positions of the "
                                    f"encoder; got {shape[-1]}")
        if (size := math.prod(shape) * spec.dtype.itemsize) > self.size:
            raise RequestError(413, f"{where}: may have at most {self.size} bytes; got {size}")


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a function of a SavedModel: dicts of names to `Spec`s."""

    inputs: dict
    outputs: dict


def find_signature(signatures, name):
    """Returns the signature of that name.

    Raises:
        RequestError: there is no such signature.
    """
    if not signatures:
        raise RequestError(400, "the model has no signature that can answer")
    if name not in signatures:
        raise RequestError(400, f"signature_name: must be one of {', '.join(sorted(signatures))}; got {show(name)}")
    return signatures[name]


def decompress(body, limit):
    """Returns the content of a gzip body.

    Raises:
        RequestError: the body is not gzip or not complete, or its content has more than `limit` bytes.
    """
    reader, content = zlib.decompressobj(wbits=31), b""  # 31: gzip
    with contextlib.suppress(zlib.error):
        content = reader.decompress(body, limit + 1)
    if len(content) > limit:
        raise RequestError(413, f"the body may have at most {limit} bytes after decompression")
    if not reader.eof:
        raise RequestError(400, "the body must be gzip, as the header Content-Encoding says")
    return content


def read_request(body, signatures, limits=Limits()):
    """Reads the body of a predict request.

    Args:
        body: JSON as bytes.
        signatures: dict of names to `Signature`s.
        limits: `Limits` of the tensors.

    Returns:
        The name of the signature, the inputs as a dict of names to arrays, and True if the request has rows
        ("instances"), in which case the response must have rows too.

    Raises:
        RequestError: the request is wrong; the message names the key and the row, and what was expected.
    """
    request = parse(body, limits.total)
    name = request.get("signature_name", DEFAULT)
    if not isinstance(name, str):
        raise RequestError(400, f"signature_name: must be a string; got {show(name)}")
    specs = find_signature(signatures, name).inputs
    if ("instances" in request) == ("inputs" in request):
        raise RequestError(400, "the request must have one of the keys instances and inputs, and not both")
    is_rows = "instances" in request
    key = "instances" if is_rows else "inputs"
    columns = _columns_of_rows(request[key], specs) if is_rows else _columns(request[key], specs)
    inputs = {column: to_array(columns[column], spec, f"{key}: {column}", limits) for column, spec in specs.items()}
    return name, inputs, is_rows


def write_response(outputs, rows=None):
    """Returns the body of the response to a predict request.

    Args:
        outputs: dict of names to arrays; strings as bytes.
        rows: number of rows ("instances") of the request, so that the response must have as many; None if the request
            had columns ("inputs").

    Returns:
        JSON as bytes. A float is the shortest decimal that reads back as the same float32 or float64; NaN and
        infinities, which JSON does not have, are null (TensorFlow Serving writes NaN). In strings, bytes that are not
        UTF-8 become U+FFFD, but outputs whose name ends in `_bytes` are base64.

    Raises:
        RequestError: the outputs do not have `rows` rows.
    """
    if rows is not None and {array.shape[:1] for array in outputs.values()} != {(rows,)}:
        raise RequestError(
            400, "the outputs do not have one row for each instance: ask with inputs instead of instances")
    columns = {name: to_json_values(name, array) for name, array in outputs.items()}
    if rows is None:
        value = columns if len(columns) > 1 else next(iter(columns.values()))
        return b'{"outputs":%b}' % dump(value)
    items = zip(*columns.values())
    values = (row[0] for row in items) if len(columns) == 1 else (dict(zip(columns, row)) for row in items)
    return b'{"predictions":[%b]}' % b",".join(map(dump, values))


def _count_separators(body):
    """Returns the number of commas and opening brackets, also within strings. NumPy lets other threads run."""
    characters = np.frombuffer(body, np.uint8)
    return sum(int(np.count_nonzero(characters == ord(character))) for character in ",[{")


def parse(body, total):
    """Returns the JSON object in a body.

    Args:
        body: bytes.
        total: maximum number of values, see `Limits`.

    Raises:
        RequestError: there are more values, or the body is not a JSON object.
    """
    if _count_separators(body) > total:
        raise RequestError(413, f"the body may have at most {total} commas and opening brackets, as many as values "
                                "that the model takes")
    try:
        request = from_json(body, cache_strings="keys")
    except ValueError as error:
        raise RequestError(400, f"the body must be JSON in UTF-8: {error}") from None
    if not isinstance(request, dict):
        raise RequestError(400, f"the body must be a JSON object; got {show(request)}")
    return request


def _columns_of_rows(rows, specs):
    """Returns the rows as one list per input. If there is a single input, the rows may be plain values."""
    for name, spec in specs.items():
        if spec.shape == ():
            raise RequestError(400, f"instances: {name}: must be {spec}, without rows: ask with inputs instead of "
                                    "instances")
    if not isinstance(rows, list) or not rows:
        raise RequestError(400, f"instances: must be a list of at least one row; got {show(rows)}")
    if len(specs) == 1 and not _is_object(rows[0]):
        return {name: rows for name in specs}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or row.keys() != specs.keys():
            raise RequestError(400, f"instances: row {number}: must be an object with the keys {', '.join(specs)}; "
                                    f"got {show(row)}")
    return {name: [row[name] for row in rows] for name in specs}


def _columns(columns, specs):
    if len(specs) == 1 and not _is_object(columns):
        return {name: columns for name in specs}
    if not isinstance(columns, dict) or specs.keys() - columns.keys():
        raise RequestError(400, f"inputs: must be an object with the keys {', '.join(specs)}; got {show(columns)}")
    return columns


def _is_object(value):
    """Returns True if a value is an object of named tensors, and not one that represents a binary string."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def to_array(value, spec, where, limits):
    """Converts nested lists to an array.

    Args:
        value: nested lists, one level per axis, or a single value for a tensor without axes.
        spec: the tensor's `Spec`.
        where: keys of the tensor in the request, for messages.
        limits: `Limits` of the tensor.
    """
    if spec.shape and not isinstance(value, list):
        raise RequestError(400, f"{where}: must be a list, {spec}; got {show(value)}")
    shape, leaves = _shape_of_first(value), [value]
    limits.check(where, spec, shape)
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


def _shape_of_first(value):
    """Returns the shape that nested lists have if all lists are as long as the first ones."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return shape


def _row(shape, i):
    """Returns the row of a tensor's i-th value, for messages; an empty string for a tensor without rows."""
    return f": row {i // math.prod(shape[1:]) + 1}" if shape else ""


def _reader(dtype):
    """Returns what error messages call a JSON value of this dtype, and a function that converts such a value and raises
    an error for any other. Raises a `RequestError` if JSON has no such values."""
    if dtype == STRING:
        return 'a string of valid Unicode, or {"b64": base64}', _read_string
    if dtype.kind == "b":
        return "true or false", _only(bool)
    if dtype.kind in "iu":
        return f"a whole number, {dtype.name}", _only(int)
    if dtype.kind == "f":
        return f"a number, {dtype.name}", _float(np.finfo(dtype))
    raise RequestError(400, f"JSON has no {dtype.name}: use gRPC")


def _read_string(value):
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return base64.b64decode(value["b64"], validate=True)
    return _only(str)(value).encode()


def _only(kind):
    """Returns a function that returns a value of exactly this type and raises a TypeError for others."""
    def read(value):
        if type(value) is not kind:  # in Python, True is an int
            raise TypeError
        return value

    return read


def _float(info):
    """Returns a function that accepts only numbers of a dtype with that `np.finfo`."""
    # Slightly more than the maximum, because 3.4028235e+38, the usual decimal for float32's maximum, exceeds it.
    largest = float(info.max) * (1 + float(info.eps) / 4)

    def read(value):
        if type(value) not in (int, float) or largest < abs(value) < math.inf:
            raise ValueError
        return value

    return read


def show(value):
    """Returns a value as text for an error message: truncated JSON, in ASCII so that lone surrogates can be sent; or
    `a list of 5`."""
    if isinstance(value, (dict, list)) and len(value) > 3:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "…"


def to_json_values(name, array):
    """Returns an array in a form that `dump` writes: numbers as an array, all else as nested lists."""
    if array.dtype == STRING:
        if name.endswith("_bytes"):
            return _map(lambda value: {"b64": base64.b64encode(value).decode()}, array)
        return _map(lambda value: value.decode(errors="replace"), array)
    if array.dtype.kind not in "biuf":
        raise RequestError(400, f"JSON has no {array.dtype.name}, which {name} is: use gRPC")
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _map(function, array):
    values = np.empty(array.shape, object)
    values.flat = [function(value) for value in array.flat]
    return values.tolist()


_PIECE = 20_000  # values that are written without a pause, 2 ms, in which no other thread runs


def dump(value):
    """Returns a value as JSON, bytes: dicts and lists, of NumPy's arrays too."""
    if isinstance(value, dict):
        value = {name: orjson.Fragment(dump(item)) for name, item in value.items()}
    elif isinstance(value, np.ndarray) and value.ndim > 1 and value.size > _PIECE:
        return b"[%b]" % b",".join(map(dump, value))
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
