"""`keras-bert serve` answers as the SavedModels do, over HTTP and over gRPC; those of other exporters, too, whose
outputs may have anything but one row for each row."""

import collections
import concurrent.futures
import json
import pathlib
import re

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving_server import ask_many, assert_same, connections, held, rpc_error, serving, write_echo, write_function
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import classification_pb2, get_model_metadata_pb2, get_model_status_pb2
from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

from keras_bert.inference.served_model import RequestError, Spec
from keras_bert.serving.grpc_api import _to_array
from keras_bert.serving.tensors import Limits, write_response

from conftest import unpack_golden

SECRETS = [f"secret {number} " + "word " * (number % 7) for number in range(20)]


def ragged(text):
    words = tf.strings.split(text)
    return {"words": words.flat_values, "counts": words.row_lengths()}


def share(text):
    """Each row's part of the whole batch."""
    sizes = tf.cast(tf.strings.length(text), tf.float64)
    return {"share": sizes / tf.reduce_sum(sizes), "rows": tf.ones_like(text, tf.int32) * tf.size(text)}


def total(text):
    """A sum over the batch; the size of its dimension, 1, is not known to the signature."""
    return {"total": tf.boolean_mask([tf.reduce_sum(tf.strings.length(text))], tf.constant([True]))}


def scalar(text):
    return {"size": tf.size(text), "joined": tf.strings.reduce_join(text)}


FUNCTIONS = {function.__name__: function for function in (ragged, share, total, scalar)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def record(folder):
    """The inputs and the answers that were recorded when version 0.1 exported the model."""
    return unpack_golden("0.1/text_models/choice", folder)


@pytest.fixture(scope="module")
def server(folder, record):
    echo = write_echo(folder / "echo")
    others = write_function(folder / "others", **FUNCTIONS, constant=lambda: {"value": tf.constant([1, 2])},
                            words=lambda text: {"words": tf.strings.split(text)})
    models = {"chooser": folder / record["inputs"]["path"], "echo": echo, "single": echo, "others": others}
    declared = [f"--row_wise={name}" for name in ("echo:serving_default", "others:ragged", "others:total", "others:no")]
    with serving(models, *declared, "--allowed_host=Models.example", "--allowed_host=proxy.example:80") as server:
        yield server


def test_rest_and_grpc_give_the_numbers_of_the_saved_model(server, record):
    for signature, key, dtype in (("serving_default", "texts", object), ("encode", "ids", np.int32)):
        inputs, answers = record["inputs"][key], record["answers"][signature]
        assert_same(server.predict("chooser", signature_name=signature, inputs=inputs), answers)
        rows = [dict(zip(inputs, row)) for row in zip(*inputs.values())]
        rows = server.predict("chooser", signature_name=signature, instances=rows)
        assert_same({name: [row[name] for row in rows] for name in rows[0]}, answers)
        response = server.rpc("chooser", {name: np.array(column, dtype) for name, column in inputs.items()},
                              spec={"signature_name": signature})
        assert (response.model_spec.version.value, response.model_spec.signature_name) == (1, signature)
        assert_same({name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}, answers)
    assert list(server.rpc("echo", {"text": ["a"]}, output_filter=["version"]).outputs) == ["version"]


def test_status_and_metadata_are_as_tensorflow_serving_writes_them(server):
    status = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert server.ask("/v1/models/chooser/versions/1")[:2] == (200, {"model_version_status": [status]})
    of_openai, = [model for model in server.ask("/v1/models")[1]["data"] if model["id"] == "chooser"]
    assert server.ask("/v1/models/chooser")[:2] == (200, of_openai | {"model_version_status": [status]})
    code, answer, _ = server.ask("/v1/models/chooser/metadata")
    assert code == 200 and answer["model_spec"] == {"name": "chooser", "signature_name": "", "version": "1"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == {"serving_default", "encode"}
    choices = signatures["serving_default"]["inputs"]["choices"]
    assert choices["dtype"] == "DT_STRING" and choices["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}] * 2, "unknown_rank": False}
    status = server.call(ModelServiceStub, "GetModelStatus", get_model_status_pb2.GetModelStatusRequest(
        model_spec={"name": "chooser"})).model_version_status
    assert [(item.version, item.state, item.status.error_code) for item in status] == [(1, 30, 0)]
    metadata = server.call(PredictionServiceStub, "GetModelMetadata", get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec={"name": "chooser"}, metadata_field=["signature_def"]))
    packed = get_model_metadata_pb2.SignatureDefMap()
    assert metadata.metadata["signature_def"].Unpack(packed) and packed.signature_def.keys() == signatures.keys()


def tensor(**fields):
    return {"text": tf.make_tensor_proto(["a"])} | fields


@pytest.mark.parametrize("spec,inputs,code,message", [
    ({"name": "no"}, tensor(), "NOT_FOUND", "there is no model of this name"),
    ({"version_label": "x"}, tensor(), "INVALID_ARGUMENT", "no labels"),
    ({}, tensor(x=tf.make_tensor_proto(1)), "INVALID_ARGUMENT", "input names must be text; got text, x"),
    ({}, tensor(text=tf.make_tensor_proto([1])), "INVALID_ARGUMENT", "must be string [any]; got int32"),
    ({}, tensor(text=tf.make_tensor_proto("a")), "INVALID_ARGUMENT", "got the shape []"),
    ({}, tensor(text=tf.make_tensor_proto("a", shape=[1 << 40])), "INVALID_ARGUMENT", "1024 instances"),
    *(({}, tensor(text=TensorProto(dtype=number)), "INVALID_ARGUMENT", f"string [any]; got {name}")
      for number, name in ((0, "invalid"), (20, "resource"), (34, "34"), (107, "string_ref"), (-7, "-7"))),
    ({}, tensor(text=TensorProto(dtype=7, tensor_shape={"dim": [{"size": 1}] * 100_000})),
     "INVALID_ARGUMENT", "text: a shape may have at most 254 dimensions; got 100000"),
    ({}, {f"각\n{number}": TensorProto() for number in range(10_000)}, "INVALID_ARGUMENT",
     "input names must be text; got 각 0, 각 1, 각 10, "),
    ({"signature_name": "각" * 10_000}, tensor(), "INVALID_ARGUMENT", "must be one of serving_default"),
])
def test_grpc_faults_have_the_standard_codes(server, spec, inputs, code, message):
    got, details = rpc_error(server.rpc, "echo", inputs, spec=spec)
    assert (got, message in details, len(details) <= 400) == (code, True, True), details


def test_any_tensor_is_an_array_or_a_fault_of_the_client():
    """Random fields of random tensors, against the array that TensorFlow makes of those that are taken."""
    random, counts = np.random.default_rng(0), collections.Counter()
    specs = [Spec(np.dtype(dtype), shape) for dtype in (object, np.int32, np.float32, bool)
             for shape in (None, (None,), (None, 3))]
    for turn in range(3000):
        spec, size = specs[turn % len(specs)], int(random.integers(4))
        dtype = tf.as_dtype(spec.dtype).as_datatype_enum if turn % 2 else int(random.integers(-1, 130))
        proto = TensorProto(dtype=dtype, tensor_shape={
            "dim": [{"size": int(random.choice([-1, 0, 1, 2, 3, 2**40, 2**62]))} for _ in range(random.integers(4))]})
        if turn % 3:
            for field, value in (("string_val", b"a"), ("int_val", 1), ("float_val", 1.0), ("bool_val", True)):
                getattr(proto, field).extend([value] * int(random.integers(4)))
        else:
            proto.tensor_content = random.bytes(4 * size)
        try:
            array = _to_array("text", proto, spec, Limits(size=1000))
        except RequestError as error:
            assert error.status in (400, 413) and "\n" not in error.message
            counts[error.status] += 1
        else:
            np.testing.assert_array_equal(array, tf.make_ndarray(proto))
            assert array.dtype == spec.dtype and spec.fits(array.shape)
            counts["array"] += 1
    assert min(counts[kind] for kind in (400, 413, "array")) > 50


def test_grpc_health_knows_each_model_and_other_methods_are_unimplemented(server):
    assert {server.health(service) for service in ("", "echo", "chooser")} == {"SERVING"}
    assert rpc_error(server.health, "no")[0] == "NOT_FOUND"
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        assert next(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())).status == 1
    request = classification_pb2.ClassificationRequest()
    assert rpc_error(server.call, PredictionServiceStub, "Classify", request)[0] == "UNIMPLEMENTED"


def test_grpc_repeats_the_last_value_of_a_compact_tensor():
    for values, wanted in (([b"a", b"b"], [b"a", b"b", b"b", b"b"]), ([], 4 * [b""])):
        compact = tf.make_tensor_proto(np.array(values, object), tf.string)
        compact.tensor_shape.dim[0].size = 4
        assert _to_array("text", compact, Spec(np.dtype(object), (None,)), Limits()).tolist() == wanted


def alone(function, texts):
    """The answer to a request alone, as JSON."""
    outputs = {name: np.array(output) for name, output in function(tf.constant(texts)).items()}
    return json.loads(write_response(outputs))["outputs"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_concurrent_requests_get_what_they_would_get_alone(server, name):
    requests = [SECRETS[number:number + 1 + number % 3] for number in range(12)]
    expected = [alone(FUNCTIONS[name], texts) for texts in requests]

    def client(number):
        (connection,) = connections(server, 1)
        return [server.predict("others", connection, inputs=texts, signature_name=name)
                for texts in requests[number:] + requests[:number]]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number, answers in enumerate(pool.map(client, range(8))):
            assert answers == expected[number:] + expected[:number]


def test_declared_signatures_run_in_batches_until_one_has_other_rows(server, tmp_path):
    def sizes(name):
        """Of the batches of requests that come while the model runs another."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool, held(server, tmp_path / name, name):
            rows = [pool.submit(server.predict, name, instances=[f"{i}"]) for i in range(8)]
            server.wait_metric(f'queue_requests{{model="{name}"}}', 8)
        return {row.result()[0]["batch"] for row in rows}

    assert (sizes("single"), sizes("echo")) == ({1}, {8})
    stopped = [event["signature"] for event in server.events(event="not row-wise")]
    assert len(set(stopped)) == len(stopped) and set(stopped) <= {"ragged", "total"}
    assert [event["event"] for event in server.events(model="echo") if "event" in event] == ["loading", "available"]
    available = {event["model"]: event["row_wise"] for event in server.events(event="available")}
    assert available == {"chooser": [], "echo": ["serving_default"], "single": [], "others": ["ragged", "total"]}


def test_signatures_that_do_not_fit(server):
    assert server.predict("others", signature_name="constant", inputs={}) == [1, 2]
    names = ", ".join(sorted([*FUNCTIONS, "constant"]))
    for name, message in (
            ("", f'signature_name: must be one of {names}; got "serving_default"'),
            ("words", f'signature_name: must be one of {names}; got "words"'),
            ("ragged", "ask with inputs instead of instances"), ("total", "ask with inputs instead of instances")):
        status, answer, _ = server.ask("/v1/models/others:predict", {"instances": ["a b", "c"], "signature_name": name})
        assert status == 400 and message in answer["error"]
    signatures = server.ask("/v1/models/others/metadata")[1]["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == {*FUNCTIONS, "constant", "words"}
    warnings = server.wait(lambda: len(found := server.events(event="warning")) == 3 and found)
    assert {(event["model"], event["version"], event["message"]) for event in warnings} == {
        ("others", 1, "the signature words is left out: its inputs and outputs must be dense tensors"),
        ("others", 1, f"--row_wise=others:no: there is no such signature; there are {names}"),
        ("chooser", 1, "its requests run one by one, because version 0.1 or 0.2 exported it: export it again, or "
                       "start the server with --row_wise=chooser:serving_default")}


def test_each_of_many_concurrent_requests_gets_its_own(server):
    ask_many(server, 16 * 36, clients=16, fails=lambda turn: turn % 9 == 8)
    assert not any("secret" in line for line in server.lines)


def test_the_log_says_what_happened_and_the_metrics_count_it(server):
    tokens, before = 'tokens_total{model="echo"}', server.metrics()
    server.predict("echo", instances=["a private matter", "sleep 0.05", "", "", ""])  # no other test sends five
    line, = server.wait(lambda: server.events(instances=5))
    assert line.pop("process") in server.workers()
    assert line | {"time": 0, "queue_ms": 0, "compute_ms": 0, "total_ms": 0, "bytes": 0} == {
        "time": 0, "method": "POST", "path": "/v1/models/echo:predict", "client": "127.0.0.1", "model": "echo",
        "version": 1, "instances": 5, "queue_ms": 0, "compute_ms": 0, "status": 200, "bytes": 0, "total_ms": 0}
    assert 45 < line["compute_ms"] <= line["total_ms"] and line["queue_ms"] >= 0 and line["bytes"] > 50
    server.wait_metric('queue_requests{model="echo"}', 0)  # written now and then
    after = server.metrics()
    _, text, headers = server.ask("/metrics")
    assert headers["content-type"].startswith("text/plain; version=")
    root, names = pathlib.Path(__file__).parents[1], {*re.findall(r"^# TYPE (\w+)", text, re.M)}
    assert {*re.findall(r"`(keras_bert_\w+)", (root / "docs/operating.md").read_text())} == names
    alerts = (root / "examples/prometheus-rules.yml").read_text().replace("_bucket", "")
    assert {*re.findall(r"\bkeras_bert_\w+", alerts)} < names
    of_echo = len(server.events(model="echo", status=200, method="POST"))
    assert after['requests_total{code="200",method="predict",model="echo"}'] == of_echo
    assert after['version_workers{model="echo",version="1"}'] == 1
    tokens_of_texts = (16 // 4 + 2) + (10 // 4 + 2) + 3 * 2  # of four bytes each, and two special ones
    assert after[tokens] - before.get(tokens, 0) == tokens_of_texts
    assert "private" not in json.dumps(server.lines)


def test_names_of_other_sites_are_not_answered_without_a_token(server):
    """DNS rebinding: a page of evil.example that finds this server at its own name."""
    for host, status in (("evil.example", 421), ("evil.example:80", 421), ("localhost.evil.example", 421),
                         ("", 200), ("localhost", 200), ("LOCALHOST:8501", 200), ("localhost:", 200),
                         ("127.0.0.1:1", 200), ("[::1]:8501", 200), ("10.0.0.5", 200), ("models.example.", 200),
                         ("proxy.example", 200), ("proxy.example:81", 200), ("x.models.example", 421)):
        for path in ("/", "/v1/models", "/healthz", "/metrics"):
            assert server.ask(path, headers={"Host": host})[0] == status, host
    error = server.ask("/", headers={"Host": "evil.example:80"})[1]["error"]
    assert "start it with --allowed_host=evil.example, or" in error


def test_without_a_token_the_openapi_document_declares_none(server):
    document = server.ask("/openapi.json")[1]
    assert "securitySchemes" not in document["components"] and "security" not in document
