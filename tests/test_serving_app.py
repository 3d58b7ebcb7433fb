"""The application: its OpenAPI document against a running server, its access rules, and its log; OpenAI's
interface for embeddings and those for re-ranking, against what the official clients need; and the clients of
examples/clients."""

import base64
import contextlib
import errno
import functools
import importlib.util
import json
import logging
import os
import pathlib
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
from serving_server import held, limited_server, serving, write_echo

import keras_bert
from keras_bert.files import declared_keys
from keras_bert.serving import app, embeddings, logs, settings, supervisor
from keras_bert.serving.tensors import Limits

MODEL, VERSION = "/v1/models/{name}", "/v1/models/{name}/versions/{version}"
EMBEDDINGS = "/v1/embeddings"
TEXTS = ["a", "four", "각각"]
# What the Python client sends for `client.embeddings.create(model="words", input=TEXTS)`, openai 3.57.0.
SENT = {"input": TEXTS, "model": "words", "encoding_format": "base64"}
DOCUMENTS = ["three", "a", "각"]  # 5, 1 and 3 bytes
SCORES = (1 / (1 + np.exp([2.0, 4.0, 6.0]))).tolist()  # of the query "?", the best document first
CLIENTS = pathlib.Path(__file__).parents[1] / "examples/clients"
SENTENCES = ["play 🎵 'some' \"music\"\\", "각각의 집\né", ""]


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


def validate(document, schema, value):
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def concrete(path):
    return path.format(name="echo", version=1)


ASKED = [
    (f"{MODEL}:predict", {"instances": ["a", {"b64": "YQ=="}]}, 200),
    (f"{MODEL}:predict", {"inputs": {"text": ["a"]}, "signature_name": "serving_default"}, 200),
    (f"{VERSION}:predict", {"instances": [{"text": "a"}]}, 200), (f"{MODEL}:predict", {"instances": [1]}, 400),
    (f"{MODEL}:predict", {"instances": ["a" * 200_000]}, 413), (f"{MODEL}:classify", {}, 400),
    (f"{MODEL}:regress", {}, 400), (f"{VERSION}:classify", {}, 400), (f"{VERSION}:regress", {}, 400),
    (MODEL, None, 200), (VERSION, None, 200), (f"{MODEL}/metadata", None, 200),
    (f"{VERSION}/metadata", None, 200), ("/v1/models", None, 200), ("/metrics", None, 200), ("/healthz", None, 200),
    ("/readyz", None, 200), (EMBEDDINGS, SENT, 200), (EMBEDDINGS, {"model": "plain", "input": "a"}, 200),
    (EMBEDDINGS, {"model": "no", "input": "a"}, 404), (EMBEDDINGS, {}, 400),
    ("/rerank", {"query": "?", "texts": DOCUMENTS}, 200), ("/v1/rerank", {"query": "?", "documents": DOCUMENTS}, 200),
    ("/rerank", {"query": "?", "texts": DOCUMENTS, "return_text": True}, 200),
    ("/v2/rerank", {"query": "?", "documents": DOCUMENTS}, 200), ("/v2/rerank", {"query": "?"}, 400)]


@pytest.mark.parametrize("path,body,status", ASKED)
def test_the_server_answers_as_its_openapi_document_says(server, document, path, body, status):
    operation = document["paths"][path]["get" if body is None else "post"]
    if status == 200 and body:
        validate(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
    got, answer, headers = server.ask(concrete(path), body)
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
    assert server.ask(concrete(f"{MODEL}:predict"), body)[0] == 400


def test_the_document_declares_paths_parameters_and_errors(server, document):
    assert document["paths"].keys() == {path for path, _, _ in ASKED}
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
    served = server.ask("/openapi.json")[1]
    assert served["info"].pop("version") == keras_bert.__version__
    written = pathlib.Path(app.__file__).with_name("openapi.json").read_text()
    assert served == json.loads(written)
    assert all(f'"#/components/{kind}/{name}"' in written for kind, parts in served["components"].items()
               for name in parts if kind != "securitySchemes")
    operations = [operation["operationId"] for operations in document["paths"].values()
                  for operation in operations.values()]
    assert len(operations) == len(set(operations))


def test_the_document_declares_the_keys_that_the_server_applies(document):
    for path, keys in declared_keys.declared().items():
        if path.startswith("/"):
            schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            assert schema["properties"].keys() == {*keys.applied.split()}


def test_what_declares_the_token_needs_it(server, document):
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            is_protected = path not in ("/healthz", "/readyz")
            assert operation.get("security", document["security"]) == [{"token": []}] * is_protected
            status = server.ask(concrete(path), {} if method == "post" else None, headers={})[0]
            assert (status == 401) == is_protected, path


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.slow("a request that outlives the server, an address of IPv6, and lines of uvicorn in the log")
def test_every_line_of_the_log_is_json_and_what_does_not_end_is_not_waited_for(tmp_path):
    """Also those of uvicorn: about a request that is not HTTP, an upgrade, and a request that outlives the server."""
    (tmp_path / "token").write_text("tökén", encoding="utf-8")
    host, shown = ("::1", "[::1]") if has_ipv6() else ("127.0.0.1", "127.0.0.1")
    with serving({"echo": write_echo(tmp_path / "echo")}, "--grace_s=0.5", f"--token_file={tmp_path}/token",
                 f"--host={host}", headers={"Authorization": "Bearer tökén".encode()}) as server:
        assert f"http://{shown}:{server.port}/" in server.lines[0]
        assert f"gRPC at {shown}:{server.grpc_port};" in server.lines[0]
        upgrade = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n"
        for data in (b"hello\r\n\r\n", upgrade):
            with socket.create_connection((host, server.port), timeout=60) as sock:
                sock.sendall(data)
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
    assert "Invalid HTTP request received." in messages and "Unsupported upgrade request." in messages
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
    assert numbers == [*range(5, sent - 2), sent - 1] and dropped == 1 and sent > 9


def test_ipv6_addresses_have_brackets():
    assert settings.format_address("::1", 80) == "[::1]:80" and settings.format_address("a.b", 80) == "a.b:80"


def test_folders_beyond_int64_are_not_versions(tmp_path):
    """TensorFlow Serving's messages have no larger numbers."""
    for name in ("7", "20260101120000000000", str(2**63), str(2**63 - 1)):
        (tmp_path / name).mkdir()
    assert settings.find_versions(tmp_path).keys() == {7, 2**63 - 1}


def test_what_the_python_client_sends_and_reads(server):
    status, answer, headers = server.ask(EMBEDDINGS, SENT)
    assert status == 200 and "compute;dur=" in headers["server-timing"]
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "words")
    assert [(row["object"], row["index"]) for row in answer["data"]] == [("embedding", row) for row in range(3)]
    found = [np.frombuffer(base64.b64decode(row["embedding"]), "float32") for row in answer["data"]]  # as the client
    np.testing.assert_allclose(found, unit(vectors_of(TEXTS)), rtol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 11, "total_tokens": 11}


UNKNOWN = {"encoding_format": None, "user": "somebody", "drop_params": True, "task": None}


@pytest.mark.parametrize("request_,texts,count", [
    ({"model": "plain", "input": "four", "encoding_format": "float"}, ["four"], None),
    ({"model": "plain", "input": "four"} | UNKNOWN, ["four"], None),
    ({"model": "plain", "input": TEXTS, "dimensions": 1}, TEXTS, 1),
    ({"model": "words", "input": TEXTS, "dimensions": 2}, TEXTS, 2),
    ({"model": "plain", "input": TEXTS, "dimensions": 3}, TEXTS, 3),
    ({"model": "words", "input": TEXTS, "prompt_name": "query"}, [f"q: {text}" for text in TEXTS], None)])
def test_vectors_of_any_number_of_dimensions_have_the_length_1(server, request_, texts, count):
    _, answer, _ = server.ask(EMBEDDINGS, request_)
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], unit(vectors_of(texts)[:, :count]),
                               rtol=1e-5)


def test_tokens_that_a_model_does_not_count_are_estimated_and_it_says_so(server):
    assert server.ask(EMBEDDINGS, {"model": "plain", "input": ["four", "a" * 40]})[1]["usage"] == {
        "prompt_tokens": 15, "total_tokens": 15, "estimated": True}


def test_vectors_of_the_model_itself():
    request = embeddings.Request(json.dumps({"model": "plain", "input": TEXTS, "dimensions": 2}).encode(),
                                 Limits(), lambda size: None)
    answer = json.loads(request.response({"embedding": vectors_of(TEXTS)}, 1, no_normalize=True))
    assert [row["embedding"] for row in answer["data"]] == vectors_of(TEXTS)[:, :2].tolist()


def test_values_that_are_not_finite_are_null(server):
    assert set(server.ask(EMBEDDINGS, {"model": "plain", "input": "nan"})[1]["data"][0]["embedding"]) == {None}


def test_errors_before_the_endpoint_have_openais_form_too(server):
    for status, code, more in ((401, "invalid_api_key", {"headers": {}}), (405, None, {"method": "GET"}),
                               (413, None, {"headers": server.headers | {"Content-Length": str(2**30)}})):
        got, answer, _ = server.ask(EMBEDDINGS, SENT, **more)
        assert (got, answer["error"]["code"]) == (status, code) and answer["error"]["message"]


def test_the_log_and_the_metrics_of_embeddings(server):
    server.ask(EMBEDDINGS, {"model": "words", "input": ["a"] * 5})  # no other test sends five texts
    event, = server.wait(lambda: server.events(path=EMBEDDINGS, instances=5))
    assert (event["model"], event["version"], event["status"], event["method"]) == ("words", 1, 200, "POST")
    assert event["compute_ms"] > 0 and "input" not in json.dumps(event)
    assert 'requests_total{code="200",method="embeddings",model="words"}' in server.metrics()


@pytest.mark.slow("what the client of OpenAI sends and reads")
@pytest.mark.skipif(not importlib.util.find_spec("openai"), reason="needs openai: pip install openai")
def test_the_official_client(server):
    import openai

    client = functools.partial(openai.OpenAI, base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0)
    with client(api_key="a secret") as known, client(api_key="wrong") as unknown:
        created = known.embeddings.create(model="words", input=TEXTS)
        np.testing.assert_allclose([row.embedding for row in created.data], unit(vectors_of(TEXTS)), rtol=1e-6)
        assert (created.model, created.usage.prompt_tokens, created.usage.total_tokens) == ("words", 11, 11)
        assert [model.id for model in known.models.list()] == ["words", "plain", "ranker", "echo", "busy"]
        with pytest.raises(openai.NotFoundError) as info:
            known.embeddings.create(model="no", input="a")
        assert (info.value.code, info.value.type) == ("model_not_found", "invalid_request_error")
        with pytest.raises(openai.AuthenticationError, match="the token in the header Authorization is wrong"):
            unknown.embeddings.create(model="words", input="a")


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


def test_the_client_of_rest(server):
    command = [sys.executable, CLIENTS / "rest.py", f"http://127.0.0.1:{server.port}", "echo"]
    for given, texts in ((SENTENCES, SENTENCES), (['{"text": "a"}'], ["a"])):
        answered = run_client(*command, *given)
        assert answered.returncode == 0, answered.stderr
        assert [json.loads(line)["echo"] for line in answered.stdout.splitlines()] == texts
    answered = run_client(*command, "a", token="another")
    assert (answered.returncode, answered.stdout) == (1, "") and answered.stderr.startswith('401: {"error":')


def test_the_client_of_grpc(server, capsys, monkeypatch):
    main = runpy.run_path(str(CLIENTS / "rpc.py"))["main"]  # here, where TensorFlow is imported already
    monkeypatch.setenv("TOKEN", "a secret")
    main(f"127.0.0.1:{server.grpc_port}", "echo", *SENTENCES, '{"text": "a"}')
    assert [json.loads(line)["echo"] for line in capsys.readouterr().out.splitlines()] == [*SENTENCES, "a"]
    monkeypatch.setenv("TOKEN", "another")
    with pytest.raises(SystemExit, match="UNAUTHENTICATED: the token in the metadata"):
        main(f"127.0.0.1:{server.grpc_port}", "echo", "a")


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
