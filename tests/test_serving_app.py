"""The application: its OpenAPI document against a running server, its access rules, and its log; OpenAI's
interface for embeddings and those for re-ranking, against what the official clients need; and the clients of
examples/clients."""

import base64
import contextlib
import errno
import json
import logging
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import jsonschema
import numpy as np
import prometheus_client
import pytest
import tensorflow as tf
from serving_server import connections, serving, write_echo

from keras_bert.errors import InputError
from keras_bert.serving import app, embeddings, logs, settings, supervisor
from keras_bert.serving.tensors import Limits

MODEL, VERSION = "/v1/models/{name}", "/v1/models/{name}/versions/{version}"
EMBEDDINGS, TOKEN = "/v1/embeddings", {"Authorization": "Bearer a secret"}
TEXTS = ["a", "four", "각각"]
# What the Python client sends for `client.embeddings.create(model="words", input=TEXTS)`, openai 3.57.0.
SENT = {"input": TEXTS, "model": "words", "encoding_format": "base64"}
CLIENTS = pathlib.Path(__file__).parents[1] / "examples/clients"
SENTENCES = ["play 🎵 'some' \"music\"\\", "각각의 집\né", ""]


class Lengths(tf.Module):
    """Returns the number of bytes and of characters of a text, and 2; divided by their norm, if it counts tokens too.
    "nan" has an embedding that is not finite."""

    def __init__(self, counts):
        super().__init__()
        self._counts = counts

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def __call__(self, text):
        counts = [tf.strings.length(text), tf.strings.length(text, unit="UTF8_CHAR"), 2 * tf.ones_like(text, tf.int32)]
        vectors = tf.cast(tf.stack(counts, axis=1), tf.float32)
        vectors = tf.where(tf.equal(text, "nan")[:, None], float("nan"), vectors)
        if not self._counts:
            return {"embedding": vectors}
        return {"embedding": tf.linalg.l2_normalize(vectors, axis=1), "tokens": counts[0]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def query(self, text):
        return self(tf.strings.join(["q: ", text]))


class Ranker(tf.Module):
    """Returns the number of bytes of both texts as the logit, with the opposite sign."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair")])
    def __call__(self, text, text_pair):
        logit = -tf.cast(tf.strings.length(text) + tf.strings.length(text_pair), tf.float32)
        return {"logit": logit, "score": tf.sigmoid(logit)}


def vectors_of(texts):
    return np.array([[len(text.encode()), len(text), 2] for text in texts], np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "token").write_text("a secret")
    for name, counts in (("words", True), ("plain", False)):
        model = Lengths(counts)
        signatures = {"serving_default": model.__call__.get_concrete_function()}
        if counts:
            signatures["query"] = model.query.get_concrete_function()
        tf.saved_model.save(model, str(folder / name), signatures)
    tf.saved_model.save(ranker := Ranker(), str(folder / "ranker"), ranker.__call__.get_concrete_function())
    models = {"words": folder / "words", "plain": folder / "plain", "ranker": folder / "ranker",
              "echo": write_echo(folder / "echo")}
    with serving(models, "--max_body_mb=0.1", "--max_instances=5", "--max_characters=50",
                 f"--token_file={folder}/token") as server:
        yield server


@pytest.fixture(scope="module")
def document(server):
    return server.ask("/openapi.json", headers=TOKEN)[1]


def validate(document, schema, value):
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def concrete(path):
    return path.format(name="echo", version=1)


@pytest.mark.parametrize("path,method,body,status", [
    (f"{MODEL}:predict", "POST", {"instances": ["a", {"b64": "YQ=="}]}, 200),
    (f"{MODEL}:predict", "POST", {"inputs": {"text": ["a"]}, "signature_name": "serving_default"}, 200),
    (f"{VERSION}:predict", "POST", {"instances": [{"text": "a"}]}, 200),
    (f"{MODEL}:predict", "POST", {"instances": [1]}, 400),
    ("/v1/embeddings", "POST", {"model": "echo", "input": "a"}, 400),
    (f"{MODEL}:predict", "POST", {"instances": ["a" * 200_000]}, 413),
    (f"{MODEL}:classify", "POST", {}, 400), (f"{VERSION}:regress", "POST", {}, 400),
    (MODEL, "GET", None, 200), (VERSION, "GET", None, 200),
    (f"{MODEL}/metadata", "GET", None, 200), (f"{VERSION}/metadata", "GET", None, 200),
    ("/v1/models", "GET", None, 200), ("/metrics", "GET", None, 200), ("/healthz", "GET", None, 200),
    ("/readyz", "GET", None, 200),
])
def test_the_server_answers_as_its_openapi_document_says(server, document, path, method, body, status):
    operation = document["paths"][path][method.lower()]
    if status == 200 and body:
        validate(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
    got, answer, headers = server.ask(concrete(path), body, method, TOKEN)
    assert got == status
    content, = operation["responses"][str(status)]["content"].items()
    assert headers["content-type"].startswith(content[0])
    validate(document, content[1]["schema"], answer)


@pytest.mark.parametrize("body", [
    {}, {"instances": []}, {"instances": "a"}, {"instances": [None]}, {"instances": ["a"], "inputs": ["a"]},
    {"instances": ["a"], "signature_name": 1}, {"inputs": None}, {"instances": [{"text": {"b64": 5}}]}])
def test_what_the_schema_forbids_is_rejected(server, document, body):
    schema = document["paths"][f"{MODEL}:predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    with pytest.raises(jsonschema.ValidationError):
        validate(document, schema, body)
    assert server.ask(concrete(f"{MODEL}:predict"), body, headers=TOKEN)[0] == 400


def test_the_document_declares_paths_parameters_and_errors(document):
    assert document["paths"].keys() == {
        *(path + end for path in (MODEL, VERSION) for end in ("", ":predict", ":classify", ":regress", "/metadata")),
        "/v1/models", "/v1/embeddings", "/rerank", "/v1/rerank", "/v2/rerank", "/healthz", "/readyz", "/metrics"}
    answered = {path.replace(":int", ""): method for path, (method, _) in (app.PROTECTED | app.PUBLIC).items()}
    assert {path: method.upper() for path, operations in document["paths"].items() for method in operations} | {
        "/openapi.json": "GET"} == answered
    error = {"$ref": "#/components/schemas/Error"}
    for path, operations in document["paths"].items():
        (operation,) = operations.values()
        names = [parameter["name"] for parameter in operation.get("parameters", [])]
        assert sorted(names) == [name for name in ("name", "version") if f"{{{name}}}" in path]
        assert all(parameter["in"] == "path" and parameter["required"] for parameter in operation.get("parameters", []))
        if path == "/v1/embeddings" or path.startswith("/v1/models/"):
            schema = {"$ref": "#/components/schemas/OpenAIError"} if path == "/v1/embeddings" else error
            failures = {status: response["content"]["application/json"]["schema"]
                        for status, response in operation["responses"].items() if status != "200"}
            assert failures == dict.fromkeys(
                ("400", "401", "404", "408", "413", "414", "415", "421", "429", "500", "503", "504", "default"), schema)
    text = json.dumps(document)
    assert all(f'"#/components/schemas/{name}"' in text for name in document["components"]["schemas"])
    operations = [operation["operationId"] for operations in document["paths"].values()
                  for operation in operations.values()]
    assert len(operations) == len(set(operations))


def test_what_declares_the_token_needs_it(server, document):
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            is_protected = path not in ("/healthz", "/readyz")
            assert operation.get("security") == ([{"token": []}] if is_protected else None)
            status = server.ask(concrete(path), {} if method == "post" else None)[0]
            assert (status == 401) == is_protected, path
    assert server.ask("/openapi.json")[0] == server.ask("/nowhere")[0] == 401


def test_unauthorised_bodies_are_not_read(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(b"POST /v1/models/echo:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert sock.recv(100).startswith(b"HTTP/1.1 401 ")


@pytest.mark.slow
def test_every_line_of_the_log_is_json_and_what_does_not_end_is_not_waited_for(tmp_path):
    """Also those of uvicorn: about a request that is not HTTP, an upgrade, and a request that outlives the server."""
    with serving({"echo": write_echo(tmp_path / "echo")}, "--grace_s=0.5") as server:
        upgrade = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n"
        for data in (b"hello\r\n\r\n", upgrade):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
                sock.sendall(data)
                assert sock.recv(100)
        (connection,) = connections(server, 1)
        connection.request("POST", "/v1/models/echo:predict", '{"instances": ["sleep 200", "secret"]}')
        time.sleep(0.4)
        start = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - start < 20  # by itself it waits for 25
        response = connection.getresponse()
        assert response.status == 503 and "--grace_s" in json.load(response)["error"]
        server.reader.join(10)
    assert [line.startswith("keras-bert: ") for line in server.lines][:3] == [True, True, False]
    events = server.events()
    assert all("time" in event and ("method" in event or "event" in event or "logger" in event) for event in events)
    messages = [event["message"] for event in events if event.get("logger") == "uvicorn.error"]
    assert "Invalid HTTP request received." in messages and "Unsupported upgrade request." in messages
    assert any("timeout graceful shutdown exceeded" in message for message in messages)
    assert "secret" not in "".join(server.lines)


def test_the_log_has_no_messages_of_exceptions():
    def record(message, *arguments, error=None):
        made = logging.LogRecord("some.library", logging.ERROR, __file__, 1, message, arguments,
                                 error and (type(error), error, error.__traceback__))
        return json.loads(logs.JsonFormatter().format(made))

    with contextlib.suppress(ValueError):
        raise (error := ValueError("a private text"))
    fields = record("failed\nTraceback: %s", "a private text", error=error)
    at, = fields.pop("at")
    assert at.startswith(f"{__file__}:") and fields.pop("time").endswith("+00:00")
    assert fields == {"level": "ERROR", "logger": "some.library", "message": "failed", "error": "ValueError"}
    assert record({"event": "available"}).keys() == {"time", "event"}


def test_what_libraries_write_becomes_json_and_a_full_disk_is_tried_again(monkeypatch, caplog):
    written = []

    def write(descriptor, line):
        """The disk has room for five bytes at a time, and none at first."""
        written.append(line[:5] if written else b"")
        if not written[-1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(written[-1])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        patched.setattr(time, "sleep", lambda _: None)
        supervisor._copy_log([b'{"time": "now"}\n', b"F0000 a crash\n", b"{not \xff\n"])
    assert b"".join(written) == b'{"time": "now"}\n' and caplog.messages == ["F0000 a crash", "{not \ufffd"]


def test_a_full_pipe_drops_whole_lines():
    reader, writer = os.pipe()
    name = "keras_bert_dropped_log_lines_total"
    before, handler, sent = prometheus_client.REGISTRY.get_sample_value(name), logs.PipeHandler(writer), 0
    with open(reader, "rb") as lines:
        def send():
            nonlocal sent
            handler.emit(logging.LogRecord("", 0, "", 0, {"number": sent, "text": "x" * 5000}, (), None))
            sent += 1
            return prometheus_client.REGISTRY.get_sample_value(name) - before

        while not send():
            pass
        assert [json.loads(lines.readline())["number"] for _ in range(5)] == [0, 1, 2, 3, 4]
        dropped = send()  # the rest of the line of which the pipe had only the beginning is written first
        os.close(writer)
        numbers = [json.loads(line)["number"] for line in lines]
    assert numbers == [*range(5, sent - 2), sent - 1] and dropped == 1 and sent > 100


def test_ipv6_addresses_have_brackets():
    assert settings.format_address("::1", 80) == "[::1]:80" and settings.format_address("a.b", 80) == "a.b:80"


def test_the_flag_of_an_address_that_cannot_be_served_is_named():
    with socket.create_server(("127.0.0.1", 0)) as used, pytest.raises(InputError) as error:
        supervisor._bind("127.0.0.1", used.getsockname()[1], "grpc_port")
    assert "; choose another with --grpc_port, or any free one with --grpc_port=0" in str(error.value)
    for host in ("192.0.2.1", "no host"):  # an address for documentation, and no name
        with pytest.raises(InputError, match=f"^{host}:8501: cannot be served: .*; choose another with --host$"):
            supervisor._bind(host, 8501, "port")


def test_folders_beyond_int64_are_not_versions(tmp_path):
    """TensorFlow Serving's messages have no larger numbers."""
    for name in ("7", "20260101120000000000", str(2**63), str(2**63 - 1)):
        (tmp_path / name).mkdir()
    assert settings.find_versions(tmp_path).keys() == {7, 2**63 - 1}


def test_with_a_token_all_names_are_answered(server):
    assert server.ask("/v1/models", headers=TOKEN | {"Host": "evil.example"})[0] == 200


@pytest.mark.slow
def test_it_listens_on_ipv6(tmp_path):
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        with serving({"echo": write_echo(tmp_path / "echo")}, "--host=::1") as server:
            assert f"http://[::1]:{server.port}/" in server.lines[0] and f"gRPC at [::1]:{server.grpc_port};" in (
                server.lines[0])
            assert server.predict("echo", instances=["a"])[0]["echo"] == "a"


def embed(server, body, **more):
    return server.ask(EMBEDDINGS, body, **{"headers": TOKEN} | more)


def test_what_the_python_client_sends_and_reads(server):
    status, answer, headers = embed(server, SENT)
    assert status == 200 and "compute;dur=" in headers["server-timing"]
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "words")
    assert [(row["object"], row["index"]) for row in answer["data"]] == [("embedding", row) for row in range(3)]
    found = [np.frombuffer(base64.b64decode(row["embedding"]), "float32") for row in answer["data"]]  # as the client
    np.testing.assert_allclose(found, unit(vectors_of(TEXTS)), rtol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 11, "total_tokens": 11}


def test_numbers_are_the_default_and_one_text_is_a_list_of_one(server):
    unknown = {"encoding_format": None, "user": "somebody", "drop_params": True, "task": None}
    for more in ({}, {"encoding_format": "float"}, unknown):
        status, answer, _ = embed(server, {"model": "plain", "input": "four"} | more)
        assert status == 200 and len(answer["data"]) == 1
        np.testing.assert_allclose(answer["data"][0]["embedding"], unit(vectors_of(["four"]))[0], rtol=1e-6)


def test_tokens_that_a_model_does_not_count_are_estimated_and_it_says_so(server):
    assert embed(server, {"model": "plain", "input": ["four", "a" * 40]})[1]["usage"] == {
        "prompt_tokens": 15, "total_tokens": 15, "estimated": True}


@pytest.mark.parametrize("model", ["plain", "words"])
@pytest.mark.parametrize("count", [1, 2, 3, None])
def test_vectors_of_any_number_of_dimensions_have_the_length_1(server, model, count):
    _, answer, _ = embed(server, {"model": model, "input": TEXTS, "dimensions": count})
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], unit(vectors_of(TEXTS)[:, :count]),
                               rtol=1e-6)


def test_vectors_of_the_model_itself():
    request = embeddings.Request(json.dumps({"model": "plain", "input": TEXTS, "dimensions": 2}).encode(),
                                 Limits(), lambda size: None)
    answer = json.loads(request.response({"embedding": vectors_of(TEXTS)}, 1, no_normalize=True))
    assert [row["embedding"] for row in answer["data"]] == vectors_of(TEXTS)[:, :2].tolist()


def test_a_prompt_is_a_signature(server):
    _, answer, _ = embed(server, {"model": "words", "input": TEXTS, "prompt_name": "query"})
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]],
                               unit(vectors_of([f"q: {text}" for text in TEXTS])), rtol=1e-6)


def test_values_that_are_not_finite_are_null(server):
    assert set(embed(server, {"model": "plain", "input": "nan"})[1]["data"][0]["embedding"]) == {None}


def test_embeddings_are_as_the_openapi_document_says(server, document):
    operation = document["paths"][EMBEDDINGS]["post"]
    validate(document, operation["requestBody"]["content"]["application/json"]["schema"], SENT)
    for body in (SENT, {"model": "plain", "input": "a"}, {"model": "no", "input": "a"}, {}):
        status, answer, _ = embed(server, body)
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        validate(document, schema, answer)


@pytest.mark.parametrize("body,status,param,code,message", [
    ({"model": "words"}, 400, "input", None, "input: must be a string or a list of at least one string; got null"),
    ({"model": "words", "input": []}, 400, "input", None, "input: must be a string or a list of at least one string"),
    ({"model": "words", "input": [15339, 1917]}, 400, "input", None, "got token ids, but the model has a tokenizer of"),
    ({"model": "words", "input": [[15339], [1917]]}, 400, "input", None, "check_embedding_ctx_length=False"),
    ({"model": "words", "input": ["a", None]}, 400, "input", None, "input: row 2: must be a string of valid Unicode"),
    ({"model": "words", "input": ["a", ["a"]]}, 400, "input", None, "input: row 2: must be a string of valid Unicode"),
    ({"model": "words", "input": ["a"] * 6}, 413, None, None, "at most 5 instances (--max_instances); got 6"),
    ({"model": "words", "input": ["a", "a" * 51]}, 413, "input", None, "input: row 2: a text may have at most 50 char"),
    ({"input": "a"}, 400, "model", None, "model: must be the name of a model; got null"),
    ({"model": "no", "input": "a"}, 404, None, "model_not_found", "no model of this name; there are words, plain, ra"),
    ({"model": "echo", "input": "a"}, 400, "model", None, "model: echo computes no embeddings: its serving_def"),
    ({"model": "words", "input": "a", "encoding_format": "hex"}, 400, "encoding_format", None, "float or base64; got"),
    ({"model": "words", "input": "a", "dimensions": 0}, 400, "dimensions", None, "a whole number, at least 1; got 0"),
    ({"model": "words", "input": "a", "dimensions": True}, 400, "dimensions", None, "a whole number, at least 1; got "),
    ({"model": "words", "input": "a", "dimensions": 4}, 400, "dimensions", None, "must be at most 3, those of the mod"),
    ({"model": "words", "input": "a", "prompt_name": "no"}, 400, "prompt_name", None, "must be one of query; got \"no"),
    ({"model": "plain", "input": "a", "prompt_name": "query"}, 400, "prompt_name", None, "left out: plain has no prom"),
    ({"model": "words", "input": "a", "task": "x"}, 400, None, None, 'task: must be left out; the keys of '),
    ({"model": "words", "input": "a", "prompt_name": 1}, 400, "prompt_name", None, "must be a string; got 1"),
    (b"{", 400, None, None, "the body must be JSON in UTF-8"),
])
def test_errors_have_openais_form_and_one_line(server, body, status, param, code, message):
    got, answer, _ = embed(server, body)
    assert got == status and answer.keys() == {"error"}
    error = answer["error"]
    assert error == {"message": error["message"], "type": "invalid_request_error", "param": param, "code": code}
    assert message in error["message"] and "\n" not in error["message"]


def test_errors_before_the_endpoint_have_openais_form_too(server):
    for status, code, more in ((401, "invalid_api_key", {"headers": {}}), (405, None, {"method": "GET"}),
                               (413, None, {"headers": TOKEN | {"Content-Length": str(2**30)}})):
        got, answer, _ = embed(server, SENT, **more)
        assert (got, answer["error"]["code"]) == (status, code) and answer["error"]["message"]


def test_the_log_and_the_metrics_of_embeddings(server):
    def found():
        return [event for event in server.events() if (event.get("path"), event.get("instances")) == (EMBEDDINGS, 5)]

    embed(server, {"model": "words", "input": ["a"] * 5})  # no other test sends five texts
    server.wait(found)
    event = found()[-1]
    assert (event["model"], event["version"], event["status"], event["method"]) == ("words", 1, 200, "POST")
    assert event["compute_ms"] > 0 and "input" not in json.dumps(event)
    metrics = server.ask("/metrics", headers=TOKEN)[1]
    assert 'keras_bert_requests_total{code="200",method="embeddings",model="words"}' in metrics


@pytest.mark.slow
def test_the_official_client(server):
    openai = pytest.importorskip("openai", reason="needs openai: pip install openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="a secret", max_retries=0) as client:
        created = client.embeddings.create(model="words", input=TEXTS)
        np.testing.assert_allclose([row.embedding for row in created.data], unit(vectors_of(TEXTS)), rtol=1e-6)
        assert (created.model, created.usage.prompt_tokens, created.usage.total_tokens) == ("words", 11, 11)
        short = client.embeddings.create(model="words", input="four", dimensions=2, encoding_format="float")
        np.testing.assert_allclose(short.data[0].embedding, [0.5**0.5] * 2, rtol=1e-6)
        assert {(model.id, model.object) for model in client.models.list()} == {
            ("words", "model"), ("plain", "model"), ("ranker", "model"), ("echo", "model")}
        with pytest.raises(openai.NotFoundError) as info:
            client.embeddings.create(model="no", input="a")
        assert (info.value.code, info.value.type) == ("model_not_found", "invalid_request_error")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="the token in the header Authorization is wrong"):
            client.embeddings.create(model="words", input="a")


DOCUMENTS = ["three", "a", "각"]  # 5, 1 and 3 bytes
SCORES = (1 / (1 + np.exp([2.0, 4.0, 6.0]))).tolist()  # of the query "?", the best document first


def test_text_embeddings_inferences_form(server):
    query = {"query": "?", "texts": DOCUMENTS}
    truncated = {"truncate": True, "truncation_direction": "Right"}
    for more, scores in (({}, SCORES), (truncated | {"raw_scores": False}, SCORES),
                         ({"raw_scores": True}, [-2, -4, -6])):
        status, answer, headers = server.ask("/rerank", query | more, headers=TOKEN)
        assert status == 200 and [row["index"] for row in answer] == [1, 2, 0] and "compute" in headers["server-timing"]
        assert [row["score"] for row in answer] == pytest.approx(scores) and "text" not in answer[0]
    _, answer, _ = server.ask("/rerank", query | {"return_text": True}, headers=TOKEN)
    assert [row["text"] for row in answer] == ["a", "각", "three"]


@pytest.mark.parametrize("path,documents,texts", [
    ("/v1/rerank", DOCUMENTS, ["a", "각"]), ("/v1/rerank", [{"text": text} for text in DOCUMENTS], ["a", "각"]),
    ("/v2/rerank", DOCUMENTS, [None, None])])
def test_jinas_and_coheres_form(server, path, documents, texts):
    body = {"model": "ranker", "query": "?", "documents": documents, "top_n": 2}
    status, answer, _ = server.ask(path, body, headers=TOKEN)
    assert status == 200 and answer["model"] == "ranker" and answer["usage"]["total_tokens"] > 0
    assert [row["index"] for row in answer["results"]] == [1, 2]
    assert [row["relevance_score"] for row in answer["results"]] == pytest.approx(SCORES[:2])
    assert [row.get("document", {}).get("text") for row in answer["results"]] == texts
    ignored = {"max_tokens_per_doc": 9, "raw_scores": True, "priority": 1, "rank_fields": None}
    _, answer, _ = server.ask(path, body | ignored | {"return_documents": False, "top_n": None}, headers=TOKEN)
    assert [row["relevance_score"] for row in answer["results"]] == pytest.approx(SCORES)
    assert len(answer["results"]) == 3 and all("document" not in row for row in answer["results"])


def test_rankings_are_as_the_openapi_document_says(server, document):
    for path, key in (("/rerank", "texts"), ("/v1/rerank", "documents"), ("/v2/rerank", "documents")):
        operation = document["paths"][path]["post"]
        for body, wanted in (({"query": "?", key: DOCUMENTS}, 200), ({"query": "?"}, 400)):
            status, answer, _ = server.ask(path, body, headers=TOKEN)
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert status == wanted and jsonschema.Draft202012Validator(schema).is_valid(body) == (wanted == 200)
            validate(document, operation["responses"][str(status)]["content"]["application/json"]["schema"], answer)


@pytest.mark.parametrize("path,change,status,message", [
    ("/rerank", {"query": None}, 400, "query: must be a string; got null"),
    ("/rerank", {"texts": []}, 400, "texts: must be a list of at least one string; got []"),
    ("/rerank", {"texts": ["a", 1]}, 400, "texts: row 2: must be a string of valid Unicode"),
    ("/rerank", {"raw_scores": 1}, 400, "raw_scores: must be true or false; got 1"),
    ("/rerank", {"model": "words"}, 400, "model: words does not re-rank: its serving_default must take text and tex"),
    ("/rerank", {"model": "no"}, 404, "there is no model of this name; there are words, plain, ranker, echo"),
    ("/rerank", {"texts": ["a"] * 6}, 413, "a request may have at most 5 instances (--max_instances); got 6"),
    ("/rerank", {"texts": ["a", "a" * 51]}, 413, "texts: row 2: a text may have at most 50 characters; got 51"),
    ("/v1/rerank", {"documents": ["a" * 51]}, 413, "documents: row 1: a text may have at most 50 characters; got 51"),
    ("/v2/rerank", {"query": "a" * 51}, 413, "query: row 1: a text may have at most 50 characters; got 51"),
    ("/v1/rerank", {"documents": "a"}, 400, "documents: must be a list of at least one string; got \"a\""),
    ("/v2/rerank", {"documents": [{"text": "a"}]}, 400, "documents: row 1: must be a string of valid Unicode"),
    ("/v2/rerank", {"top_n": 0}, 400, "top_n: must be a whole number, at least 1; got 0"),
    ("/rerank", {"top_n": 1}, 400, 'top_n: must be left out; the keys of this request are model, query, texts,'),
    ("/v1/rerank", {"top_k": 1}, 400, 'top_k: must be left out; the keys of this request are model, query, docu'),
    ("/v2/rerank", {"rank_fields": ["title"]}, 400, 'rank_fields: must be left out; the keys of this request are '),
])
def test_wrong_requests_for_rankings(server, path, change, status, message):
    body = {"query": "?", "texts" if path == "/rerank" else "documents": DOCUMENTS} | change
    got, answer, _ = server.ask(path, body, headers=TOKEN)
    assert got == status and message in answer["error"] and "\n" not in answer["error"]


@pytest.mark.slow
def test_coheres_client(server):
    cohere = pytest.importorskip("cohere", reason="needs cohere: pip install cohere")
    for client in (cohere.Client, cohere.ClientV2):
        asked = client(api_key="a secret", base_url=f"http://127.0.0.1:{server.port}")
        found = asked.rerank(model="ranker", query="?", documents=DOCUMENTS, top_n=2)
        assert [row.index for row in found.results] == [1, 2]
        assert [row.relevance_score for row in found.results] == pytest.approx(SCORES[:2])


def run_client(*command, token="a secret", **options):
    return subprocess.run(map(str, command), capture_output=True, text=True, env=os.environ | {"TOKEN": token},
                          timeout=300, **options)


@pytest.mark.parametrize("script,port,refused", [
    ("rest.py", "port", "401: {\"error\":"),
    pytest.param("rpc.py", "grpc_port", "UNAUTHENTICATED: the token in the metadata", marks=pytest.mark.slow)])
def test_a_python_client(server, script, port, refused):
    address = f"{'http://' if port == 'port' else ''}127.0.0.1:{getattr(server, port)}"
    answered = run_client(sys.executable, CLIENTS / script, address, "echo", *SENTENCES)
    assert answered.returncode == 0, answered.stderr
    assert [json.loads(line)["echo"] for line in answered.stdout.splitlines()] == SENTENCES
    answered = run_client(sys.executable, CLIENTS / script, address, "echo", '{"text": "a"}')
    assert json.loads(answered.stdout)["echo"] == "a"
    answered = run_client(sys.executable, CLIENTS / script, address, "echo", "a", token="another")
    assert (answered.returncode, answered.stdout) == (1, "") and refused in answered.stderr.splitlines()[-1]


def test_a_python_client_without_a_server():
    answered = run_client(sys.executable, CLIENTS / "rest.py", "http://127.0.0.1:9", "echo", "a")
    assert (answered.returncode, answered.stderr) == (1, "http://127.0.0.1:9: [Errno 111] Connection refused\n")
    assert run_client(sys.executable, CLIENTS / "rest.py").stderr.startswith("usage: ")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
@pytest.mark.slow
def test_the_shell_client(server):
    command = [CLIENTS / "rest.sh", f"http://127.0.0.1:{server.port}", "echo"]
    answered = run_client(*command, input=json.dumps({"instances": SENTENCES}))
    assert [row["echo"] for row in json.loads(answered.stdout)["predictions"]] == SENTENCES
    answered = run_client(*command, input="{}", token="")
    assert answered.returncode == 22 and "Authorization" in json.loads(answered.stdout)["error"]
