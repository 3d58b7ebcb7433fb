"""TensorFlow Serving's JSON, by the examples of its document (tensorflow/serving, g3doc/api_rest.md)."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keras_bert.inference.served_model import STRING, RequestError, Signature, Spec
from keras_bert.serving import tensors
from keras_bert.serving.tensors import Limits, read_request, write_response

TEXT = Signature({"text": Spec(STRING, (None,))}, {})
IDS = Signature({"ids": Spec(np.dtype("int32"), (None, 1, 2))}, {})
NAMED = Signature({"tag": Spec(STRING, (None,)), "signal": Spec(np.dtype("int64"), (None, None)),
                   "sensor": Spec(np.dtype("float32"), (None, 2, 2))}, {})
SIGNATURES = {"serving_default": TEXT, "ids": IDS, "named": NAMED,
              "any": Signature({"x": Spec(np.dtype("float32"), None)}, {}),
              "flag": Signature({"x": Spec(np.dtype("bool"), ())}, {})}
ROWS = [{"tag": "foo", "signal": [1, 2, 3, 4, 5], "sensor": [[1, 2], [3, 4]]},
        {"tag": "bar", "signal": [3, 4, 1, 2, 5], "sensor": [[4, 5], [6, 8]]}]
COLUMNS = {"tag": ["foo", "bar"], "signal": [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]],
           "sensor": [[[1, 2], [3, 4]], [[4, 5], [6, 8]]]}


def read(**request):
    return read_request(json.dumps(request).encode(), SIGNATURES)


def test_the_documented_requests():
    for request, is_rows in (({"instances": ["foo", "bar", "baz"]}, True), ({"inputs": ["foo", "bar", "baz"]}, False),
                             ({"inputs": {"text": ["foo", "bar", "baz"]}, "signature_name": ""}, False),
                             ({"instances": [{"text": "foo"}, {"text": "bar"}, {"text": "baz"}]}, True)):
        name, inputs, rows = read(**request)
        assert (name, rows, inputs["text"].tolist()) == ("serving_default", is_rows, [b"foo", b"bar", b"baz"])
    _, inputs, _ = read(signature_name="ids", instances=[[[1, 2]], [[3, 4]]])
    assert inputs["ids"].dtype == np.int32 and inputs["ids"].tolist() == [[[1, 2]], [[3, 4]]]
    for request in ({"instances": ROWS}, {"inputs": COLUMNS}):
        _, inputs, _ = read(signature_name="named", **request)
        assert inputs["tag"].tolist() == [b"foo", b"bar"] and inputs["sensor"].dtype == np.float32
        assert inputs["signal"].tolist() == COLUMNS["signal"] and inputs["sensor"].tolist() == COLUMNS["sensor"]


def test_binary_strings_and_the_tokens_that_json_lacks():
    assert read(instances=[{"b64": "aW1hZ2UgYnl0ZXM="}, "b"])[1]["text"].tolist() == [b"image bytes", b"b"]
    assert read(instances=[{"text": {"b64": "/w=="}}])[1]["text"].tolist() == [b"\xff"]
    values = read_request(b'{"signature_name": "any", "inputs": [1.0, -3.14, NaN, Infinity, -Infinity, 1e3]}',
                          SIGNATURES)[1]["x"]
    np.testing.assert_array_equal(values, np.float32([1, -3.14, np.nan, np.inf, -np.inf, 1000]))
    assert read(signature_name="flag", inputs=True)[1]["x"].tolist() is True


@pytest.mark.parametrize("body,message", [
    ("", "the body must be JSON in UTF-8: EOF"),
    (b'{"instances": ["\xff"]}', "the body must be JSON in UTF-8: invalid unicode code point"),
    ("[1]", "the body must be a JSON object; got [1]"), ("[" * 100_000, "recursion limit exceeded"),
    ('{"instances": [%s]}' % ("9" * 5000), "number out of range"),
    ("{}", "one of the keys instances and inputs"), ('{"instances": ["a"], "inputs": ["a"]}', "and not both"),
    ('{"instances": []}', "instances: must be a list of at least one row; got []"),
    ('{"instances": ["a", 5]}', 'instances: text: row 2: must be a string of valid Unicode, or {"b64": base64}; got 5'),
    ('{"instances": ["\\ud800"]}', "unexpected end of hex escape at line 1 column 23"),
    ('{"instances": [null]}', "got null"), ('{"instances": [{"b64": "?"}]}', "row 1: must be a string"),
    ('{"instances": [{"b64": 5}]}', "row 1: must be a string"), ('{"instances": ["a", {"x": 1}]}', "row 2: must be"),
    ('{"instances": [["a"]]}', "instances: text: must be string [any]; got the shape [1, 1]"),
    ('{"signature_name": "ids", "instances": [[[1, 2]], "b"]}', 'ids: row 2: must be a list of 1, as the first is; '),
    ('{"instances": [{"txt": "a"}]}', "row 1: must be an object with the keys text; got"),
    ('{"inputs": {"txt": ["a"]}}', "inputs: must be an object with the keys text; got"),
    ('{"inputs": "a"}', 'inputs: text: must be a list, string [any]; got "a"'),
    ('{"signature_name": "flag", "instances": [true]}', "instances: x: must be bool [], without rows: ask with inputs"),
    ('{"signature_name": 1, "instances": [1]}', "signature_name: must be a string; got 1"),
    ('{"signature_name": "no", "instances": [1]}', "signature_name: must be one of any, flag, ids, named, serving_d"),
    ('{"signature_name": "ids", "instances": [[[1, 2]], [[3, 4.5]]]}', "ids: row 2: must be a whole number, int32"),
    ('{"signature_name": "ids", "instances": [[[1, 2147483648]]]}', "row 1: must be a whole number, int32; got 2147"),
    ('{"signature_name": "ids", "instances": [[[1, 2], [3, 4]]]}', "must be int32 [any, 1, 2]; got the shape"),
    ('{"signature_name": "any", "inputs": 1e39}', "inputs: x: must be a number, float32; got 1e+39"),
    ('{"signature_name": "any", "inputs": ["1"]}', 'x: row 1: must be a number, float32; got "1"'),
    ('{"signature_name": "flag", "inputs": 1}', "inputs: x: must be true or false; got 1"),
    ('{"signature_name": "named", "instances": ["a"]}', "row 1: must be an object with the keys tag, signal, sensor"),
])
def test_bad_requests_are_named(body, message):
    with pytest.raises(RequestError) as refused:
        read_request(body if isinstance(body, bytes) else body.encode(), SIGNATURES)
    assert refused.value.status == 400 and message in refused.value.message and len(refused.value.message) < 300


VALUES = st.recursive(st.none() | st.integers() | st.text(st.sampled_from('a\\",[{é')),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


def separators(value):
    """The opening brackets and commas that a value needs."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if items is None:
        return np.array([0, 0])
    return np.array([1, max(0, len(items) - 1)]) + sum(map(separators, items))


@settings(max_examples=50, deadline=None)
@given(VALUES, st.booleans(), st.integers(1, 9))
def test_separators_are_counted_outside_of_strings(value, ascii_only, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "_BLOCK", block)
        assert tensors.count_separators(json.dumps(value, ensure_ascii=ascii_only).encode()) == tuple(separators(value))


def test_more_values_than_the_model_takes_are_refused_before_they_are_parsed(monkeypatch):
    texts = {"serving_default": TEXT}
    limits = Limits(rows=5, separators=tensors.needed_separators(texts, 5, 512))
    body = json.dumps({"instances": [{"text": {"b64": ""}}] * 5, "signature_name": "serving_default"}).encode()
    assert read_request(body, texts, limits)[1]["text"].tolist() == [b""] * 5
    commas = json.dumps({"inputs": ["a, [b], {c} \\\"" * 1000]}).encode()
    assert read_request(commas, texts, limits)[1]["text"].tolist() == [b'a, [b], {c} \\"' * 1000]
    monkeypatch.setattr(tensors, "from_json", None)
    for item in (b"[]", b"1"):
        with pytest.raises(RequestError) as refused:
            read_request(b'{"instances": [%b]}' % (item + b",") * 700_000, texts, limits)
        assert (refused.value.status, refused.value.message) == (
            413, "a request may have at most 5 instances (--max_instances), and outside of its texts at most 74 "
            "opening brackets and 79 commas, enough for 5 rows")


@pytest.mark.parametrize("name,row", [
    ("ids", [[1, 2]]), ("any", None), ("flag", None),
    ("named", {"tag": {"b64": ""}, "signal": [1, 2, 3], "sensor": [[1, 2], [3, 4]]})])
def test_the_limit_of_separators_fits_the_largest_request(name, row):
    needed = tensors.needed_separators({name: SIGNATURES[name]}, 4, 3)
    if row is None:
        assert needed == ((math.inf, math.inf) if name == "any" else (68, 76))
    else:
        used = separators({"instances": [row] * 4})
        assert (used <= needed).all() and (needed <= 3 * used + 64).all()


def test_a_model_may_have_no_signature():
    with pytest.raises(RequestError, match="the model has no signature that can answer"):
        read_request(b'{"instances": ["a"]}', {})


def test_the_documented_responses():
    one = {"y": np.float32([3.5, 4, 5.5])}
    two = {"y": np.float32([.2, 4]), "label_bytes": np.array([b"a", b"\xff"], STRING)}
    assert write_response(one, 3) == b'{"predictions":[3.5,4.0,5.5]}'
    assert write_response(one) == b'{"outputs":[3.5,4.0,5.5]}'
    assert json.loads(write_response(two, 2)) == {"predictions": [
        {"y": 0.2, "label_bytes": {"b64": "YQ=="}}, {"y": 4.0, "label_bytes": {"b64": "/w=="}}]}
    assert json.loads(write_response(two)) == {"outputs": {
        "y": [0.2, 4.0], "label_bytes": [{"b64": "YQ=="}, {"b64": "/w=="}]}}
    odd, texts = np.float32([np.nan, np.inf, -np.inf]), np.array(["집".encode(), b"\xff"], STRING)
    assert write_response({"y": odd}) == b'{"outputs":[null,null,null]}'
    assert write_response({"y": texts}, 2).decode() == '{"predictions":["집","\ufffd"]}'


@pytest.mark.parametrize("outputs", [{"y": np.float32(3)}, {"y": np.zeros(2), "z": np.zeros(3)}])
def test_rows_need_outputs_that_have_as_many(outputs):
    with pytest.raises(RequestError, match="ask with inputs instead of instances"):
        write_response(outputs, 3)


@pytest.mark.parametrize("dtype,above", [("float16", 65520), ("float32", 3.4028236e38), ("float64", 10**400)])
def test_the_largest_numbers_are_read_and_no_larger_ones(dtype, above):
    signatures = {"serving_default": Signature({"x": Spec(np.dtype(dtype), (None,))}, {})}
    array = np.array([np.finfo(dtype).max, np.finfo(dtype).min])
    body = write_response({"inputs": array}).replace(b"outputs", b"inputs")
    assert read_request(body, signatures)[1]["x"].tolist() == array.tolist()
    with pytest.raises(RequestError, match="row 1: must be a number"):
        read_request(json.dumps({"inputs": [above]}).encode(), signatures)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_tensors_go_and_come_back(data):
    dtype = data.draw(st.sampled_from([np.dtype(name) for name in ("bool", "int8", "uint8", "int32", "int64", "uint64",
                                                                   "float16", "float32", "float64")] + [STRING]))
    shape = data.draw(arrays.array_shapes(min_dims=1, max_dims=3, max_side=4))
    if dtype == STRING:
        size = math.prod(shape)
        texts = data.draw(st.lists(st.text(), min_size=size, max_size=size))
        array = np.empty(shape, STRING)
        array.flat = [text.encode() for text in texts]
    else:
        finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
        array = data.draw(arrays.arrays(dtype, shape, elements=finite))
    spec = Spec(dtype, (None,) * len(shape))
    sent = json.loads(write_response({"x": array}))["outputs"]
    for request in ({"inputs": {"x": sent}}, {"instances": sent}):
        _, inputs, is_rows = read_request(json.dumps(request).encode(), {"serving_default": Signature({"x": spec}, {})})
        assert inputs["x"].dtype == dtype
        np.testing.assert_array_equal(inputs["x"], array)
        assert is_rows == ("instances" in request)
