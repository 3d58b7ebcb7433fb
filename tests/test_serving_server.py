"""`keras-bert serve` answers as the SavedModels do, over HTTP and over gRPC."""

import collections
import concurrent.futures
import json
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving_server import connections, serving, write_echo
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_bert.serving.grpc_api import _to_array
from keras_bert.serving.tensors import Limits, RequestError, Spec

from conftest import unpack_golden

TEXTS = ["play some music", "", "turn the lamp off please " * 20, "각각의 집 é!", "\0 \ufffd \u200b", "what time is it"]
MODELS = {"tagger": "tag", "span": "span"}  # names here, and those of the records of what version 0.1 exported


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def records(folder):
    """The inputs and the answers that were recorded when the models were exported."""
    return {name: unpack_golden(f"0.1/text_models/{task}", folder) for name, task in MODELS.items()}


@pytest.fixture(scope="module")
def server(folder, records):
    models = {name: folder / record["inputs"]["path"] for name, record in records.items()}
    with serving(models | {"echo": write_echo(folder / "echo")}, "--row_wise=echo:serving_default",
                 "--allowed_host=Models.example", "--allowed_host=proxy.example:80") as server:
        yield server


def assert_same(arrays, wanted):
    """Floats within rounding, the rest exactly. The records are from another processor, which added float32 numbers in
    another order. This changes a few of the last bits, here 6e-7 of a logit of 3.3."""
    assert arrays.keys() == wanted.keys()
    for name, want in wanted.items():
        got, want = np.asarray(arrays[name]), np.asarray(want)
        assert got.shape == want.shape
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
        else:
            assert (np.char.decode(got.astype("S"), "utf-8") if got.dtype == object else got).tolist() == want.tolist()


@pytest.mark.parametrize("name", MODELS)
def test_rest_gives_the_numbers_of_the_saved_model(server, records, name):
    inputs, ids, answers = records[name]["inputs"]["texts"], records[name]["inputs"]["ids"], records[name]["answers"]
    assert_same(server.predict(name, inputs=inputs), answers["serving_default"])
    rows = server.predict(name, instances=[dict(zip(inputs, row)) for row in zip(*inputs.values())])
    assert_same({key: [row[key] for row in rows] for key in rows[0]}, answers["serving_default"])
    outputs = server.predict(name, signature_name="encode", inputs=ids)
    expected = answers["encode"]
    assert_same(outputs if len(expected) > 1 else dict.fromkeys(expected, outputs), expected)
    assert server.ask(f"/v1/models/{name}/versions/1:predict", {"inputs": inputs})[0] == 200


def test_rest_and_grpc_give_odd_texts_back(server):
    assert [row["echo"] for row in server.predict("echo", instances=TEXTS)] == TEXTS
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    request = predict_pb2.PredictRequest(model_spec={"name": "echo"}, inputs={"text": tf.make_tensor_proto(TEXTS)})
    assert [text.decode() for text in tf.make_ndarray(stub.Predict(request).outputs["echo"])] == TEXTS


@pytest.mark.parametrize("name", MODELS)
def test_grpc_gives_the_numbers_of_the_saved_model(server, records, name):
    inputs, answers = records[name]["inputs"], records[name]["answers"]
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    for signature, given in (("serving_default", inputs["texts"]), ("encode", inputs["ids"])):
        request = predict_pb2.PredictRequest(model_spec={"name": name, "signature_name": signature}, inputs={
            key: tf.make_tensor_proto(value, None if signature == "serving_default" else tf.int32)
            for key, value in given.items()})
        response = stub.Predict(request)
        assert (response.model_spec.version.value, response.model_spec.signature_name) == (1, signature)
        assert_same({key: tf.make_ndarray(tensor) for key, tensor in response.outputs.items()}, answers[signature])
    request.output_filter.append("probabilities" if name != "span" else "start_logits")
    assert list(stub.Predict(request).outputs) == list(request.output_filter)


def test_status_and_metadata_are_as_tensorflow_serving_writes_them(server):
    status = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("/v1/models/span", "/v1/models/span/versions/1"):
        assert server.ask(path)[:2] == (200, {"model_version_status": [status]})
    code, answer, _ = server.ask("/v1/models/span/metadata")
    assert code == 200 and answer["model_spec"] == {"name": "span", "signature_name": "", "version": "1"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == {"serving_default", "encode", "explain"}
    question = signatures["serving_default"]["inputs"]["question"]
    assert question["dtype"] == "DT_STRING" and question["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
    spec = model_pb2.ModelSpec(name="span")
    status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(
        get_model_status_pb2.GetModelStatusRequest(model_spec=spec)).model_version_status
    assert [(item.version, item.state, item.status.error_code) for item in status] == [(1, 30, 0)]
    metadata = prediction_service_pb2_grpc.PredictionServiceStub(channel).GetModelMetadata(
        get_model_metadata_pb2.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"]))
    packed = get_model_metadata_pb2.SignatureDefMap()
    assert metadata.metadata["signature_def"].Unpack(packed) and packed.signature_def.keys() == signatures.keys()


def tensor(**fields):
    return {"text": tf.make_tensor_proto(["a"])} | fields


@pytest.mark.parametrize("spec,inputs,code,message", [
    ({"name": "no"}, tensor(), "NOT_FOUND", "there is no model of this name"),
    ({"name": "echo", "version": {"value": 7}}, tensor(), "NOT_FOUND", "echo has no version 7"),
    ({"name": "echo", "version_label": "x"}, tensor(), "INVALID_ARGUMENT", "no labels"),
    ({"name": "echo", "signature_name": "x"}, tensor(), "INVALID_ARGUMENT", "must be one of serving_default"),
    ({"name": "echo"}, {}, "INVALID_ARGUMENT", "inputs: must be text"),
    ({"name": "echo"}, tensor(x=tf.make_tensor_proto(1)), "INVALID_ARGUMENT", "got text, x"),
    ({"name": "echo"}, tensor(text=tf.make_tensor_proto([1])), "INVALID_ARGUMENT", "must be string [any]; got int32"),
    ({"name": "echo"}, tensor(text=tf.make_tensor_proto("a")), "INVALID_ARGUMENT", "got the shape []"),
    ({"name": "echo"}, tensor(text=tf.make_tensor_proto("a", shape=[1 << 40])), "INVALID_ARGUMENT", "1024 instances"),
    ({"name": "echo"}, tensor(text=tf.make_tensor_proto(["fail"])), "INVALID_ARGUMENT", "a text says fail"),
    *(({"name": "echo"}, tensor(text=TensorProto(dtype=number)), "INVALID_ARGUMENT", f"string [any]; got {name}")
      for number, name in ((0, "invalid"), (20, "resource"), (21, "variant"), (34, "34"), (107, "string_ref"),
                           (121, "variant_ref"), (-7, "-7"))),
    ({"name": "echo"}, tensor(text=TensorProto(dtype=7, tensor_shape={"dim": [{"size": 1}] * 100_000})),
     "INVALID_ARGUMENT", "text: a shape may have at most 254 dimensions; got 100000"),
    ({"name": "echo"}, {f"각\n{number}": TensorProto() for number in range(10_000)}, "INVALID_ARGUMENT",
     "inputs: must be text; got 각 0, 각 1, 각 10, "),
    ({"name": "echo", "signature_name": "각" * 10_000}, tensor(), "INVALID_ARGUMENT", "must be one of serving_default"),
])
def test_grpc_faults_have_the_standard_codes(server, spec, inputs, code, message):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    with pytest.raises(grpc.RpcError) as error:
        stub.Predict(predict_pb2.PredictRequest(model_spec=spec, inputs=inputs))
    details = error.value.details()
    assert (error.value.code().name, message in details, len(details) <= 400) == (code, True, True), details


def test_any_tensor_is_an_array_or_a_fault_of_the_client():
    """Random fields of random tensors, against the array that TensorFlow makes of those that are taken."""
    random, counts = np.random.default_rng(0), collections.Counter()
    specs = [Spec(np.dtype(dtype), shape) for dtype in (object, np.int32, np.float32, bool)
             for shape in (None, (None,), (None, 3))]
    for turn in range(5000):
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


def test_grpc_health_knows_each_model(server):
    stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    for service in ("", "echo", "tagger"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == 1  # SERVING
    with pytest.raises(grpc.RpcError) as error:
        stub.Check(health_pb2.HealthCheckRequest(service="no"))
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    first = next(watch := stub.Watch(health_pb2.HealthCheckRequest(service="echo")))
    watch.cancel()
    assert first.status == 1


def test_grpc_repeats_the_last_value_of_a_compact_tensor(server, records):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    for values, wanted in (([b"a", b"b"], [b"a", b"b", b"b", b"b"]), ([], 4 * [b""])):
        compact = tf.make_tensor_proto(np.array(values, object), tf.string)
        compact.tensor_shape.dim[0].size = 4
        response = stub.Predict(predict_pb2.PredictRequest(model_spec={"name": "echo"}, inputs={"text": compact}))
        assert tf.make_ndarray(response.outputs["echo"]).tolist() == wanted
    request = predict_pb2.PredictRequest(model_spec={"name": "tagger", "signature_name": "encode"}, inputs={
        name: tf.make_tensor_proto(1, tf.int32, [3, 5]) for name in records["tagger"]["inputs"]["ids"]})
    assert all(len(tensor.int_val) == 1 for tensor in request.inputs.values())
    response = stub.Predict(request)
    assert [dim.size for dim in response.outputs["probabilities"].tensor_shape.dim][:2] == [3, 5]


def test_other_methods_of_grpc_are_unimplemented(server):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    with pytest.raises(grpc.RpcError) as error:
        stub.Classify(classification_pb2.ClassificationRequest())
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.RpcError) as error:
        stub.Predict(predict_pb2.PredictRequest(model_spec={"name": "echo"}, inputs={
            "text": tf.make_tensor_proto(["sleep 2"])}), timeout=0.1)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.slow
def test_each_of_2000_concurrent_requests_gets_its_own(server):
    def client(number):
        (connection,) = connections(server, 1)
        for turn in range(63):
            texts = [f"secret {number} {turn} {'x' * (number * turn % 50)} {i}" for i in range(1 + turn % 3)]
            if turn % 9 == 8:
                status, answer, _ = server.ask("/v1/models/echo:predict", {"instances": [*texts, "fail"]},
                                               connection=connection)
                assert status == 400 and "a text says fail" in answer["error"]
            else:
                rows = server.predict("echo", instances=texts, connection=connection)
                assert [row["echo"] for row in rows] == texts
                yield rows[0]["batch"]

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        batches = [size for sizes in pool.map(lambda number: list(client(number)), range(32)) for size in sizes]
    assert len(batches) == 32 * 56 and max(batches) > 10
    assert not any("secret" in line for line in server.lines)


def test_what_a_tagger_answers_does_not_depend_on_who_else_asks(server):
    """Each answer is padded to its own longest text, not to that of its batch."""
    texts = ["play", "play some music", "what time is it? turn the light off, please."]
    alone = [server.predict("tagger", inputs=[text]) for text in texts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        many = list(pool.map(lambda i: server.predict("tagger", inputs=[texts[i % 3]]), range(120)))
    for i, answer in enumerate(many):
        assert_same(answer, {key: np.asarray(value) for key, value in alone[i % 3].items()})


@pytest.mark.slow
def test_a_large_body_does_not_stop_the_event_loop(server):
    (connection,), worst = connections(server, 1), 0
    body = b'{"inputs": [' + b"1," * 7_000_000 + b"1]}"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.ask, "/v1/models/tagger:predict", body)
        while not answer.done():
            start = time.monotonic()
            assert server.ask("/healthz", connection=connection)[0] == 200
            worst = max(worst, time.monotonic() - start)
    assert answer.result()[0] == 413 and "commas" in answer.result()[1]["error"] and worst < 0.5


def metrics_of(server):
    """The samples, a dict of text, and the headers."""
    status, text, headers = server.ask("/metrics")
    assert status == 200
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")), headers


def test_the_log_says_what_happened_and_the_metrics_count_it(server):
    tokens = 'keras_bert_tokens_total{model="echo"}'
    before = float(metrics_of(server)[0].get(tokens, 0))
    server.predict("echo", instances=["a private matter", "sleep 0.05", "", "", ""])  # no other test sends five
    line, = server.wait(lambda: [line for line in server.events() if line.get("instances") == 5])
    assert line | {"time": 0, "queue_ms": 0, "compute_ms": 0, "total_ms": 0, "bytes": 0} == {
        "time": 0, "method": "POST", "path": "/v1/models/echo:predict", "client": "127.0.0.1", "model": "echo",
        "version": 1, "instances": 5, "queue_ms": 0, "compute_ms": 0, "status": 200, "bytes": 0, "total_ms": 0}
    assert 45 < line["compute_ms"] <= line["total_ms"] and line["queue_ms"] >= 0 and line["bytes"] > 50
    idle = 'keras_bert_queue_requests{model="echo"}'  # written now and then, so perhaps before the request was answered
    server.wait(lambda: metrics_of(server)[0][idle] == "0.0")
    values, headers = metrics_of(server)
    assert headers["content-type"].startswith("text/plain; version=")
    of_echo = sum(line.get("model") == "echo" and line["status"] == 200 and line["method"] == "POST"
                  for line in server.events() if "status" in line)
    assert float(values['keras_bert_requests_total{code="200",method="predict",model="echo"}']) == of_echo
    assert values['keras_bert_version_workers{model="echo",version="1"}'] == "1.0"
    tokens_of_texts = (16 // 4 + 2) + (10 // 4 + 2) + 3 * 2  # of four bytes each, and two special ones
    assert float(values[tokens]) - before == tokens_of_texts
    assert "private" not in json.dumps(server.lines)


def test_the_log_says_that_a_version_is_loading(server):
    """Warming up can take minutes."""
    server.wait(lambda: ["loading", "available"] == [
        event["event"] for event in server.events() if event.get("model") == "echo" and "event" in event])


def test_exports_of_old_versions_give_a_warning(server):
    def warnings():
        return {event["model"]: event["message"] for event in server.events() if event.get("event") == "warning"}

    server.wait(lambda: len(warnings()) == 2)
    for name in ("tagger", "span"):
        assert warnings()[name] == ("its requests run one by one, because version 0.1 or 0.2 exported it: export it "
                                    f"again, or start the server with --row_wise={name}:serving_default")


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
    assert "securitySchemes" not in document["components"] and "security" not in json.dumps(document["paths"])
