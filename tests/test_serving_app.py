"""The application: its OpenAPI document against a running server, its access rules, and its log; OpenAI's
interface for embeddings and those for re-ranking, against what the official clients need; and the clients of
examples/clients."""

import base64
import contextlib
import errno
import importlib.util
import json
import logging
import os
import pathlib
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time

import jsonschema
import numpy as np
import prometheus_client
import pytest
from serving_server import held, instances, limited_server, refused, serving, write_echo

import keras_bert
from keras_bert.files.json_files import declared
from keras_bert.serving import app, embeddings, logs, settings, supervisor
from keras_bert.serving.tensors import Limits

ECHO, EMBED = "/v1/models/echo", "/v1/embeddings"
PREDICT = f"{ECHO}:predict"
TEXTS = ["a", "four", "각각"]
# What the Python client sends for `client.embeddings.create(model="words", input=TEXTS)`, openai 3.57.0.
SENT = {"input": TEXTS, "model": "words", "encoding_format": "base64"}
DOCUMENTS = ["three", "a", "각"]  # 5, 1 and 3 bytes
SCORES = (1 / (1 + np.exp([2.0, 4.0, 6.0]))).tolist()  # of the query "?", the best document first
CLIENTS = pathlib.Path(__file__).parents[1] / "examples/clients"
SENTENCES = ["play 🎵 'some' \"music\"\\", "각각의 집\né", "", "\0 \ufffd \u200b"]


def vectors_of(texts):
    return np.array([[len(text.encode()), len(text), 2] for text in texts], np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def server():
    return limited_server()


@pytest.fixture(scope="module")
def document(server):
    """The document, with the parts to which it refers instead of references, except for schemas, and stricter: objects
    have no other properties than it says."""
    served = server.ask("/openapi.json")[1]

    def replace(value):
        kind, name = value.get("$ref", "///").split("/")[2:]
        if kind and kind != "schemas":
            return served["components"][kind][name]
        return {"additionalProperties": False, **value} if "properties" in value else value

    return json.loads(json.dumps(served), object_hook=replace)


@pytest.fixture(scope="module")
def operations(document):
    """What the document says of paths of the model echo, and of methods."""
    return {(path.format(name="echo", version=1), method.upper()): operation
            for path, methods in document["paths"].items() for method, operation in methods.items()}


def validate(document, schema, value):
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def request_schema(operation):
    return operation["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.parametrize("path,body,status,message", [
    (PREDICT, {"instances": ["a", {"b64": "YQ=="}]}, 200, ""),
    (PREDICT, {"inputs": {"text": ["a"]}, "signature_name": "serving_default"}, 200, ""),
    (f"{ECHO}/versions/1:predict", {"instances": [{"text": "a"}]}, 200, ""),
    *((path, None, 200, "") for path in (ECHO, f"{ECHO}/metadata", f"{ECHO}/versions/1", f"{ECHO}/versions/1/metadata",
                                         "/v1/models", "/metrics", "/healthz", "/readyz", "/openapi.json", "/")),
    (EMBED, SENT, 200, ""), (EMBED, {"model": "plain", "input": "a"}, 200, ""),
    ("/rerank", {"query": "?", "texts": DOCUMENTS}, 200, ""),
    ("/v1/rerank", {"query": "?", "documents": DOCUMENTS}, 200, ""),
    ("/v2/rerank", {"query": "?", "documents": DOCUMENTS}, 200, ""),
    (PREDICT, b"x" * 200_000, 413, "the body may have at most 104857 bytes (--max_body_mb)"),
    (PREDICT, instances(*["a"] * 6), 413, "a request may have at most 5 instances (--max_instances); got 6"),
    (PREDICT, instances("a", "각" * 200, "각" * 201), 413,
     "row 3: a text may have at most 200 characters (--max_characters); got 201"),
    (PREDICT, instances("a", "fail"), 400, "the model refuses the inputs: "),
    (PREDICT, b"[" * 90_000, 413, "74 opening brackets"),
    (PREDICT, instances(1), 400, "instances: text: row 1: must be a string"),
    (PREDICT, None, 405, "this path takes POST"),
    ("/healthz", {}, 405, "path takes GET and HEAD"),
    ("/v1/models/no:predict", {}, 404, "there is no model of this name; there are words, plain, ranker, echo, busy"),
    (f"{ECHO}/versions/2:predict", {}, 404, "echo has no version 2"),
    (f"{ECHO}/versions/x:predict", {}, 404, "there is nothing at this path"),
    (f"{ECHO}/versions/{2**64}", None, 404, "echo has no version 18"),
    (f"{ECHO}/versions/{'9' * 5000}:predict", {}, 414, "1000 characters"),
    (f"{ECHO}:classify", {}, 400, "echo takes no tf.Example"),
    (f"{ECHO}/versions/1:regress", {}, 400, "echo takes no tf.Example"),
    ("/v1/models/", None, 404, "there is nothing at this path"),
    (EMBED, None, 405, "this path takes POST"),
    (EMBED, b"x" * 200_000, 413, "the body may have at most 104857 bytes (--max_body_mb)"),
    (EMBED, {"input": "a"}, 400, "model: must be the name of a model; got null"),
    (EMBED, {"model": "no", "input": "a"}, 404, "there is no model of this name"),
    (EMBED, {"model": "echo", "input": "a"}, 400, "model: echo computes no embeddings"),
    (EMBED, {"model": "words", "input": []}, 400, "input: must be a string or a list of at least one string; got []"),
    (EMBED, {"model": "words", "input": [15339, 1917]}, 400, "input: must be texts; got token ids"),
    (EMBED, {"model": "words", "input": [[15339], [1917]]}, 400, "check_embedding_ctx_length=False"),
    (EMBED, {"model": "words", "input": ["a", None]}, 400, "input: row 2: must be a string of valid Unicode"),
    (EMBED, {"model": "words", "input": ["a", "a" * 201]}, 413, "input: row 2: a text may have at most 200 char"),
    (EMBED, {"model": "words", "input": "a", "encoding_format": "hex"}, 400, "encoding_format: must be float or base"),
    (EMBED, {"model": "words", "input": "a", "dimensions": 0}, 400, "dimensions: must be a whole number, at least 1"),
    (EMBED, {"model": "words", "input": "a", "dimensions": True}, 400, "dimensions: must be a whole number, at least"),
    (EMBED, {"model": "words", "input": "a", "dimensions": 4}, 400, "dimensions: must be at most 3, those of the mod"),
    (EMBED, {"model": "words", "input": "a", "prompt_name": 1}, 400, "prompt_name: must be a string; got 1"),
    (EMBED, {"model": "words", "input": "a", "prompt_name": "no"}, 400, "prompt_name: must be one of query; got"),
    (EMBED, {"model": "plain", "input": "a", "prompt_name": "a"}, 400, "prompt_name: must be left out: plain has no"),
    (EMBED, {"model": "words", "input": "a", "task": "x"}, 400, "task: must be left out; got 'x'; the keys of "),
    ("/rerank", {"query": None, "texts": ["a"]}, 400, "query: must be a string; got null"),
    ("/rerank", {"query": "?", "texts": []}, 400, "texts: must be a list of at least one string; got []"),
    ("/rerank", {"query": "?", "texts": ["a", 1]}, 400, "texts: row 2: must be a string of valid Unicode"),
    ("/rerank", {"query": "?", "texts": ["a"], "raw_scores": 1}, 400, "raw_scores: must be true or false; got 1"),
    ("/rerank", {"query": "?", "texts": ["a"], "model": "words"}, 400, "model: words does not re-rank"),
    ("/rerank", {"query": "?", "texts": ["a"], "top_n": 1}, 400, "top_n: must be left out; got 1; the keys of this"),
    ("/v1/rerank", {"query": "?", "documents": ["a" * 201]}, 413, "documents: row 1: a text may have at most 200"),
    ("/v2/rerank", {"query": "?" * 201, "documents": ["a"]}, 413, "query: row 1: a text may have at most 200"),
    ("/v2/rerank", {"query": "?", "documents": [{"text": "a"}]}, 400, "documents: row 1: must be a string of valid"),
    ("/v2/rerank", {"query": "?", "documents": ["a"], "top_n": 0}, 400, "top_n: must be a whole number, at least 1"),
    ("/v1/rerank", {"query": "?", "documents": ["a"], "top_k": 1}, 400, "top_k: must be left out; got 1; the keys of"),
    ("/v2/rerank", {"query": "?", "documents": ["a"], "rank_fields": ["title"]}, 400, "rank_fields: must be left out"),
    ("/v1/rerank", {"query": "?", "documents": ["a"], "use_activation": False}, 400, "use_activation: must be True"),
    ("/v2/rerank", {"query": "?", "documents": ["a"], "max_tokens_per_doc": 9}, 400, "max_tokens_per_doc: must be lef"),
    ("/rerank", {"query": "?", "texts": ["a"], "truncation_direction": "Left"}, 400, "truncation_direction: must be R"),
    (EMBED, {"model": "words", "input": "a", "normalize": False}, 400, "normalize: must be True; got False"),
])
def test_each_route_answers_or_refuses_as_documented(server, document, operations, path, body, status, message):
    """Of the rules about tensors there is one case; tests/test_serving_tensors.py has the others. HEAD is GET without
    the body."""
    answer = got, content, headers = server.ask(path, body)
    assert got == status
    method = "GET" if body is None else "POST"
    if operation := operations.get((path, method)):
        (media_type, schema), = operation["responses"][str(status)]["content"].items()
        assert headers["content-type"].startswith(media_type)
        validate(document, schema["schema"], content)
        if status == 200 and body:
            validate(document, request_schema(operation), body)
    if method == "GET":
        head = server.ask(path, method="HEAD")
        assert head[:2] == (status, "") and head[2].keys() == headers.keys()
        assert path == "/metrics" or head[2]["content-length"] == headers["content-length"]
    assert status == 200 or message in (said := refused(answer)[1])
    if status != 200 and path == EMBED:
        begin = said.partition(":")[0]
        param = begin if begin in ("input", "model", "encoding_format", "dimensions", "prompt_name") else None
        assert content["error"] == {"message": said, "type": "invalid_request_error", "param": param,
                                    "code": "model_not_found" if status == 404 else None}


def test_what_the_schema_forbids(document, operations):
    """The server rejects it, too: tests/test_serving_tensors.py."""
    for body in ({}, {"instances": []}, {"instances": "a"}, {"instances": [None]}, {"instances": ["a"], "inputs": []},
                 {"instances": ["a"], "signature_name": 1}, {"inputs": None}, {"instances": [{"text": {"b64": 5}}]}):
        with pytest.raises(jsonschema.ValidationError):
            validate(document, request_schema(operations[PREDICT, "POST"]), body)


@pytest.mark.parametrize("headers,message", [
    ({}, "the header Authorization must be 'Bearer TOKEN'"),
    ({"Authorization": "Bearer token"}, "the token in the header Authorization is wrong"),
    ({"Authorization": "a secret"}, "must be 'Bearer TOKEN'"),
    ({"Authorization": "Basic a secret"}, "must be 'Bearer TOKEN'")])
def test_without_the_token_only_health_is_told(server, operations, headers, message):
    others = [(path, "GET") for path in (PREDICT, "/openapi.json", "/v1/models/", "/healthz/", "/nowhere")]
    for path, method in [*operations, *others]:
        answer = server.ask(path, method=method, headers=headers)
        if path in app.PUBLIC:
            assert answer[:2] == (200, "ok")
        else:
            status, said = refused(answer)
            assert status == 401 and message in said and answer[2]["www-authenticate"] == "Bearer"
            assert path != EMBED or answer[1]["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.litert"])
def test_the_health_check_of_the_images(server, name):
    text = (pathlib.Path(__file__).parents[1] / name).read_text().replace("\\\n", "")
    program, *arguments = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.M)[1])
    assert program == "python"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        ports = server.port, closed.getsockname()[1]
    healthy = [not subprocess.run([sys.executable, *[argument.replace("8501", str(port)) for argument in arguments]],
                                  capture_output=True).returncode for port in ports]
    assert healthy == [True, False]


def test_the_scheme_of_the_token_may_be_in_any_case_and_all_names_are_answered(server):
    assert server.ask("/v1/models", headers={"Authorization": "bearer a secret", "Host": "evil.example"})[0] == 200


def test_the_page_needs_no_token_and_loads_nothing_from_elsewhere(server):
    for path, kind, start in (("/", "text/html; charset=utf-8", "<!doctype html>"),
                              ("/page.css", "text/css; charset=utf-8", ":root"),
                              ("/page.js", "text/javascript; charset=utf-8", "/** The page")):
        status, text, headers = server.ask(path, headers={})
        assert (status, headers["content-type"], headers["x-content-type-options"]) == (200, kind, "nosniff")
        assert text.startswith(start) and "http" not in text.replace("http://www.w3.org/2000/svg", "")
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert {policy[f"{what}-src"] for what in ("script", "style", "connect")} == {"'self'"}
    answer = server.ask("/v1/models")[1]
    assert answer["models"] == [model["id"] for model in answer["data"]] == ["words", "plain", "ranker", "echo", "busy"]
    assert time.time() - 36_000 < answer["data"][0]["created"] <= time.time()
    headers = server.ask(PREDICT, instances("sleep 0.05"))[2]
    queue, compute = re.fullmatch(r"queue;dur=([\d.]+), compute;dur=([\d.]+)", headers["server-timing"]).groups()
    assert float(queue) >= 0 and float(compute) > 45


def test_the_document_declares_each_route_with_its_keys_parameters_and_errors(server, document):
    answered = {path.replace(":int", ""): method for path, (method, _) in (app.PROTECTED | app.PUBLIC).items()}
    assert {path: method.upper() for path, operations in document["paths"].items() for method in operations} | {
        "/openapi.json": "GET"} == answered
    for path, operations in document["paths"].items():
        (operation,) = operations.values()
        assert operation.get("security", document["security"]) == [{"token": []}] * (path not in app.PUBLIC)
        found = sorted((each["name"], each["in"], each["required"]) for each in operation.get("parameters", []))
        assert found == [(name, "path", True) for name in ("name", "version") if f"{{{name}}}" in path]
        if path == EMBED or path.startswith("/v1/models/"):
            schema = {"$ref": f"#/components/schemas/{'OpenAIError' if path == EMBED else 'Error'}"}
            failures = {status: response["content"]["application/json"]["schema"]
                        for status, response in operation["responses"].items() if status != "200"}
            assert failures == dict.fromkeys(
                ("400", "401", "404", "408", "413", "414", "415", "421", "429", "500", "503", "504", "default"), schema)
    served = server.ask("/openapi.json")[1]
    assert served["info"].pop("version") == keras_bert.__version__
    written = pathlib.Path(app.__file__).with_name("openapi.json").read_text()
    assert served == json.loads(written)
    assert all(f'"#/components/{kind}/{name}"' in written for kind, parts in served["components"].items()
               for name in parts if kind != "securitySchemes")
    for path, keys in declared().items():
        if path.startswith("/"):
            assert request_schema(document["paths"][path]["post"])["properties"].keys() == {*keys.applied.split()}
    names = [operation["operationId"] for operations in document["paths"].values() for operation in operations.values()]
    assert len(names) == len(set(names))


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.slow("a request that outlives the server, an address of IPv6, and lines of uvicorn in the log")
def test_every_line_of_the_log_is_json_and_what_does_not_end_is_not_waited_for(tmp_path):
    """Also that of uvicorn about a request that outlives the server, and those of requests that are not HTTP."""
    (tmp_path / "token").write_text("a token")
    host, shown = ("::1", "[::1]") if has_ipv6() else ("127.0.0.1", "127.0.0.1")
    with serving({"echo": write_echo(tmp_path / "echo")}, "--grace_s=0.5", f"--token_file={tmp_path}/token",
                 f"--host={host}", headers={"Authorization": "Bearer a token"}) as server:
        assert f"http://{shown}:{server.port}/" in server.lines[0]
        assert f"gRPC at {shown}:{server.grpc_port};" in server.lines[0]
        with socket.create_connection((host, server.port), timeout=60) as sock:
            sock.sendall(b"hello\r\n\r\n")
            assert sock.recv(100)
        with held(server, tmp_path / "secret") as answer:
            assert server.stop() == 0
            status, body, _ = answer.result()
        assert status == 503 and "--grace_s" in body["error"]
        server.reader.join(10)
    assert [line.startswith("keras-bert: ") for line in server.lines][:3] == [True, True, False]
    events = server.events()
    assert all("time" in event and ("method" in event or "event" in event or "logger" in event) for event in events)
    messages = [event["message"] for event in events if event.get("logger") == "uvicorn.error"]
    assert [event["status"] for event in events if event.get("path") == ""] == [400]
    assert any("timeout graceful shutdown exceeded" in message for message in messages)
    assert "secret" not in "".join(server.lines[2:])


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
    assert fields.pop("process") == os.getpid()
    assert fields == {"level": "ERROR", "logger": "some.library", "message": "failed", "error": "ValueError"}
    assert record({"event": "available"}).keys() == {"time", "process", "event"}


def test_what_libraries_write_becomes_json_and_a_full_disk_is_tried_again(monkeypatch, caplog):
    written = []

    def write(descriptor, line):
        """The disk has room for five bytes at a time, and none at first."""
        written.append(line[:5] if written else b"")
        if not written[-1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(written[-1])

    with monkeypatch.context() as patched, caplog.at_level(logging.INFO, "keras_bert.serving"):
        patched.setattr(os, "write", write)
        patched.setattr(time, "sleep", lambda _: None)
        supervisor._copy_log([b'{"time": "now"}\n', b"F0000 a crash\n", b"{not \xff\n"], 7)
    assert b"".join(written) == b'{"time": "now"}\n'
    logged = [json.loads(logs.JsonFormatter().format(record)) for record in caplog.records]
    assert [(line["process"], line["message"]) for line in logged] == [(7, "F0000 a crash"), (7, "{not \ufffd")]


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
    assert numbers == [*range(5, sent - 2), sent - 1] and dropped == 1 and sent > 9


def test_ipv6_addresses_have_brackets():
    assert settings.format_address("::1", 80) == "[::1]:80" and settings.format_address("a.b", 80) == "a.b:80"


def test_folders_beyond_int64_are_not_versions(tmp_path):
    """TensorFlow Serving's messages have no larger numbers."""
    for name in ("7", "20260101120000000000", str(2**63), str(2**63 - 1)):
        (tmp_path / name).mkdir()
    assert settings.find_versions(tmp_path).keys() == {7, 2**63 - 1}


def test_what_the_python_client_sends_and_reads(server):
    status, answer, headers = server.ask(EMBED, SENT)
    assert status == 200 and "compute;dur=" in headers["server-timing"]
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "words")
    assert [(row["object"], row["index"]) for row in answer["data"]] == [("embedding", row) for row in range(3)]
    found = [np.frombuffer(base64.b64decode(row["embedding"]), "float32") for row in answer["data"]]  # as the client
    np.testing.assert_allclose(found, unit(vectors_of(TEXTS)), rtol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    server.wait(lambda: server.events(path=EMBED, model="words", version=1, status=200, method="POST", instances=3))
    assert 'requests_total{code="200",method="embeddings",model="words"}' in server.metrics()


UNKNOWN = {"encoding_format": None, "user": "somebody", "drop_params": True, "task": None}


@pytest.mark.parametrize("request_,texts,count", [
    ({"model": "plain", "input": "four", "encoding_format": "float"}, ["four"], None),
    ({"model": "plain", "input": "four"} | UNKNOWN, ["four"], None),
    ({"model": "plain", "input": TEXTS, "dimensions": 1}, TEXTS, 1),
    ({"model": "words", "input": TEXTS, "dimensions": 2}, TEXTS, 2),
    ({"model": "plain", "input": TEXTS, "dimensions": 3}, TEXTS, 3),
    ({"model": "words", "input": TEXTS, "prompt_name": "query"}, [f"q: {text}" for text in TEXTS], None)])
def test_vectors_of_any_number_of_dimensions_have_the_length_1(server, request_, texts, count):
    _, answer, _ = server.ask(EMBED, request_)
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], unit(vectors_of(texts)[:, :count]),
                               rtol=1e-5)


def test_estimated_tokens_are_marked_and_values_that_are_not_finite_are_null(server):
    answer = server.ask(EMBED, {"model": "plain", "input": ["nan", "a" * 40]})[1]
    assert answer["usage"] == {"prompt_tokens": 14, "total_tokens": 14, "estimated": True}
    assert set(answer["data"][0]["embedding"]) == {None} != set(answer["data"][1]["embedding"])


def test_vectors_of_the_model_itself():
    request = embeddings.Request(json.dumps({"model": "plain", "input": TEXTS, "dimensions": 2}).encode(),
                                 Limits(), lambda size: None, no_normalize=True)
    answer = json.loads(request.response("plain", {"embedding": vectors_of(TEXTS)}, 1))
    assert [row["embedding"] for row in answer["data"]] == vectors_of(TEXTS)[:, :2].tolist()


@pytest.mark.slow("what the client of OpenAI sends and reads")
@pytest.mark.skipif(not importlib.util.find_spec("openai"), reason="needs openai: pip install openai")
def test_the_official_client(server):
    import openai

    with openai.OpenAI(api_key="a secret", base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0) as client:
        created = client.embeddings.create(model="words", input=TEXTS)
        np.testing.assert_allclose([row.embedding for row in created.data], unit(vectors_of(TEXTS)), rtol=1e-6)
        assert (created.model, created.usage.prompt_tokens, created.usage.total_tokens) == ("words", 11, 11)
        assert [model.id for model in client.models.list()] == ["words", "plain", "ranker", "echo", "busy"]
        assert client.models.retrieve("words") == client.models.list().data[0]
        with pytest.raises(openai.NotFoundError, match="model_not_found"):
            client.embeddings.create(model="no", input="a")
        with pytest.raises(openai.AuthenticationError, match="the token in the header Authorization is wrong"):
            client.with_options(api_key="wrong").embeddings.create(model="words", input="a")


def test_text_embeddings_inferences_form(server):
    query = {"query": "?", "texts": DOCUMENTS}
    truncated = {"truncate": True, "truncation_direction": "Right"}
    for more, scores in (({}, SCORES), (truncated | {"raw_scores": False}, SCORES),
                         ({"raw_scores": True}, [-2, -4, -6])):
        status, answer, headers = server.ask("/rerank", query | more)
        assert status == 200 and [row["index"] for row in answer] == [1, 2, 0] and "compute" in headers["server-timing"]
        assert [row["score"] for row in answer] == pytest.approx(scores) and "text" not in answer[0]
    _, answer, _ = server.ask("/rerank", query | {"return_text": True})
    assert [row["text"] for row in answer] == ["a", "각", "three"]


@pytest.mark.parametrize("path,documents,texts", [
    ("/v1/rerank", DOCUMENTS, ["a", "각"]), ("/v1/rerank", [{"text": text} for text in DOCUMENTS], ["a", "각"]),
    ("/v2/rerank", DOCUMENTS, [None, None])])
def test_jinas_and_coheres_form(server, path, documents, texts):
    body = {"model": "ranker", "query": "?", "documents": documents, "top_n": 2}
    status, answer, _ = server.ask(path, body)
    assert status == 200 and answer["model"] == "ranker" and answer["usage"]["total_tokens"] > 0
    assert [row["index"] for row in answer["results"]] == [1, 2]
    assert [row["relevance_score"] for row in answer["results"]] == pytest.approx(SCORES[:2])
    assert [row.get("document", {}).get("text") for row in answer["results"]] == texts
    ignored = {"max_tokens_per_doc": None, "raw_scores": False, "priority": 1, "rank_fields": None}
    _, answer, _ = server.ask(path, body | ignored | {"return_documents": False, "top_n": None})
    assert [row["relevance_score"] for row in answer["results"]] == pytest.approx(SCORES)
    assert len(answer["results"]) == 3 and all("document" not in row for row in answer["results"])


@pytest.mark.slow("what the client of Cohere sends and reads")
@pytest.mark.skipif(not importlib.util.find_spec("cohere"), reason="needs cohere: pip install cohere")
def test_coheres_client(server):
    import cohere

    for client in (cohere.Client, cohere.ClientV2):
        asked = client(api_key="a secret", base_url=f"http://127.0.0.1:{server.port}")
        found = asked.rerank(model="ranker", query="?", documents=DOCUMENTS, top_n=2)
        assert [row.index for row in found.results] == [1, 2]
        assert [row.relevance_score for row in found.results] == pytest.approx(SCORES[:2])


def run_client(*command, token="a secret", **options):
    return subprocess.run(map(str, command), capture_output=True, text=True, env=os.environ | {"TOKEN": token},
                          timeout=300, **options)


@pytest.mark.parametrize("name,address,denied", [
    ("rest", "http://127.0.0.1:{0.port}", '401: {"error":'),
    ("rpc", "127.0.0.1:{0.grpc_port}", "UNAUTHENTICATED: the token in the metadata")])
def test_the_clients_in_python(server, capsys, monkeypatch, name, address, denied):
    main = runpy.run_path(str(CLIENTS / f"{name}.py"))["main"]  # here, where TensorFlow is imported already
    monkeypatch.setenv("TOKEN", "a secret")
    for given in (SENTENCES, ['{"text": "a"}']):
        main(address.format(server), "echo", *given)
    assert [json.loads(line)["echo"] for line in capsys.readouterr().out.splitlines()] == [*SENTENCES, "a"]
    monkeypatch.setenv("TOKEN", "another")
    with pytest.raises(SystemExit, match=denied):
        main(address.format(server), "echo", "a")


def test_a_python_client_without_a_server():
    with socket.socket() as unused:  # bound, and not listening
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        answered = run_client(sys.executable, CLIENTS / "rest.py", url, "echo", "a")
    assert (answered.returncode, answered.stderr) == (1, f"{url}: [Errno 111] Connection refused\n")
    assert run_client(sys.executable, CLIENTS / "rest.py").stderr.startswith("usage: ")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_shell_client(server):
    command = [CLIENTS / "rest.sh", f"http://127.0.0.1:{server.port}", "echo"]
    answered = run_client(*command, input=json.dumps({"instances": SENTENCES}))
    assert [row["echo"] for row in json.loads(answered.stdout)["predictions"]] == SENTENCES
    answered = run_client(*command, input="{}", token="")
    assert answered.returncode == 22 and "Authorization" in json.loads(answered.stdout)["error"]
