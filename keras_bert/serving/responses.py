"""Conversion of arrays to responses in TensorFlow Serving's JSON (tensorflow/serving, g3doc/api_rest.md)."""

import base64
import json

import numpy as np

from keras_bert.serving.refusal import RequestError
from keras_bert.serving.tensors import STRING


def write_response(outputs, is_rows):
    """Returns the body of the response.

    Args:
        outputs: dict of names to arrays; strings as bytes.
        is_rows: True if the request had rows ("instances"), so that the response must have rows too.

    Returns:
        JSON as bytes. A float is the shortest decimal that reads back as the same value; NaN and infinities are the
        tokens NaN, Infinity and -Infinity, as in TensorFlow Serving. In strings, bytes that are not UTF-8 become
        U+FFFD, but outputs whose name ends in `_bytes` are base64.

    Raises:
        RequestError: `is_rows` is True, and the outputs have no rows or different numbers of rows.
    """
    columns = {name: _to_lists(name, array) for name, array in outputs.items()}
    if not is_rows:
        value = {"outputs": columns if len(columns) > 1 else next(iter(columns.values()))}
    elif len({array.shape[:1] for array in outputs.values()} | {()}) != 2:
        raise RequestError(
            400, "the outputs do not have one row for each instance: ask with inputs instead of instances")
    elif len(columns) == 1:
        value = {"predictions": next(iter(columns.values()))}
    else:
        value = {"predictions": [dict(zip(columns, row)) for row in zip(*columns.values())]}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _to_lists(name, array):
    if array.dtype == STRING:
        if name.endswith("_bytes"):
            return _mapped(lambda value: {"b64": base64.b64encode(value).decode()}, array)
        return _mapped(lambda value: value.decode(errors="replace"), array)
    if array.dtype.kind == "f" and array.dtype.itemsize < 8:
        array = array.astype(str).astype(float)  # 0.2, not 0.20000000298
    elif array.dtype.kind not in "biuf":
        raise RequestError(400, f"JSON has no {array.dtype.name}, which {name} is: use gRPC")
    return array.tolist()


def _mapped(function, array):
    values = np.empty(array.shape, object)
    values.flat = [function(value) for value in array.flat]
    return values.tolist()
