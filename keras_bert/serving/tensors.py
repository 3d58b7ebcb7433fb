"""Conversion of requests in TensorFlow Serving's JSON to arrays (tensorflow/serving, g3doc/api_rest.md).

Strings are object arrays of bytes. Rows are counted from 1.
"""

import base64
import binascii
import dataclasses
import json
import math

import numpy as np

from keras_bert.serving.refusal import RequestError

DEFAULT = "serving_default"
STRING = np.dtype(object)


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
class Signature:
    """The inputs and outputs of a function of a SavedModel: dicts of names to `Spec`s."""

    inputs: dict
    outputs: dict


def find_signature(signatures, name):
    """Returns the signature of that name.

    Raises:
        RequestError: there is no such signature.
    """
    if name not in signatures:
        raise RequestError(400, f"signature_name: must be one of {', '.join(sorted(signatures))}; got {_shown(name)}")
    return signatures[name]


def read_request(body, signatures):
    """Reads the body of a predict request.

    Args:
        body: JSON as bytes.
        signatures: dict of names to `Signature`s.

    Returns:
        The name of the signature, the inputs as a dict of names to arrays, and True if the request has rows
        ("instances"), in which case the response must have rows too.

    Raises:
        RequestError: the request is wrong; the message names the key and the row, and what was expected.
    """
    request = _parse(body)
    name = request.get("signature_name", DEFAULT)
    if not isinstance(name, str):
        raise RequestError(400, f"signature_name: must be a string; got {_shown(name)}")
    specs = find_signature(signatures, name).inputs
    if ("instances" in request) == ("inputs" in request):
        raise RequestError(400, "the request must have one of the keys instances and inputs, and not both")
    is_rows = "instances" in request
    key = "instances" if is_rows else "inputs"
    columns = _columns_of_rows(request[key], specs) if is_rows else _columns(request[key], specs)
    inputs = {column: to_array(columns[column], spec, f"{key}: {column}") for column, spec in specs.items()}
    return name, inputs, is_rows


def _parse(body):
    try:
        request = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body must be UTF-8: {error.reason} at byte {error.start + 1}") from None
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise RequestError(400, f"the body must be JSON: {error}") from None
    except ValueError:  # Python rejects numbers with thousands of digits
        raise RequestError(400, "the body must be JSON: a number is too long") from None
    if not isinstance(request, dict):
        raise RequestError(400, f"the body must be a JSON object; got {_shown(request)}")
    return request


def _columns_of_rows(rows, specs):
    """Returns the rows as one list per input. If there is a single input, the rows may be plain values."""
    if not isinstance(rows, list) or not rows:
        raise RequestError(400, f"instances: must be a list of at least one row; got {_shown(rows)}")
    if len(specs) == 1 and not _is_object(rows[0]):
        return {name: rows for name in specs}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or row.keys() != specs.keys():
            raise RequestError(400, f"instances: row {number}: must be an object with the keys {', '.join(specs)}; "
                                    f"got {_shown(row)}")
    return {name: [row[name] for row in rows] for name in specs}


def _columns(columns, specs):
    if len(specs) == 1 and not _is_object(columns):
        return {name: columns for name in specs}
    if not isinstance(columns, dict) or specs.keys() - columns.keys():
        raise RequestError(400, f"inputs: must be an object with the keys {', '.join(specs)}; got {_shown(columns)}")
    return columns


def _is_object(value):
    """Returns True if a value is an object of named tensors, and not one that represents a binary string."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def to_array(value, spec, place):
    """Converts nested lists to an array.

    Args:
        value: nested lists, one level per axis, or a single value for a tensor without axes.
        spec: the tensor's `Spec`.
        place: position in the request, for messages.
    """
    shape, leaves = [], [value]
    while leaves and isinstance(leaves[0], list):
        size = len(leaves[0])
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, list) or len(leaf) != size:
                raise RequestError(400, f"{place}{_row(shape, i)}: must be a list of {size}, as the first is; "
                                        f"got {_shown(leaf)}")
        leaves = [item for leaf in leaves for item in leaf]
        shape.append(size)
    if not spec.fits(shape):
        raise RequestError(400, f"{place}: must be {spec}; got the shape {shape}")
    kind, read = _reader(spec.dtype)
    array = np.empty(len(leaves), spec.dtype)
    for i, leaf in enumerate(leaves):
        try:
            array[i] = read(leaf)
        except (TypeError, ValueError, OverflowError, binascii.Error):
            raise RequestError(400, f"{place}{_row(shape, i)}: must be {kind}; got {_shown(leaf)}") from None
    return array.reshape(shape)


def _row(shape, i):
    """Returns the row of a tensor's i-th value, for messages; an empty string for a tensor without rows."""
    return f": row {i // math.prod(shape[1:]) + 1}" if shape else ""


def _reader(dtype):
    """Returns what messages call a value of that dtype, and the function that reads such a value or raises an error."""
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
    def read(value):
        if type(value) is not kind:  # in Python, True is an int
            raise TypeError
        return value

    return read


def _float(info):
    # Slightly more than the maximum, because 3.4028235e+38, the usual decimal for float32's maximum, exceeds it.
    largest = float(info.max) * (1 + float(info.eps) / 4)

    def read(value):
        if type(value) not in (int, float) or largest < abs(value) < math.inf:
            raise ValueError
        return value

    return read


def _shown(value):
    """Returns a value for a message, truncated and as ASCII JSON, so that any text can be sent."""
    if isinstance(value, (dict, list)) and len(value) > 3:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "…"
