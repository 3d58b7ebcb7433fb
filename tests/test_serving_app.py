"""The FastAPI application: its OpenAPI document against a running server, its access rules, and its log."""

import contextlib
import io
import json
import logging
import socket
import sys
import time

import pytest
from serving_server import connections, serving, write_echo

from keras_bert.errors import InputError
from keras_bert.serving import logs, settings, supervisor

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install jsonschema")
MODEL, VERSION = "/v1/models/{name}", "/v1/models/{name}/versions/{version}"
TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "token").write_text("secret")
    with serving({"echo": write_echo(folder / "echo")}, "--max_body_mb=0.1", f"--token_file={folder}/token") as server:
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
        "/v1/models", "/v1/embeddings", "/healthz", "/readyz", "/metrics"}
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
                ("400", "401", "404", "408", "413", "414", "421", "429", "500", "503", "504", "default"), schema)
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
def test_every_line_of_the_log_is_json(tmp_path):
    """Also those of uvicorn: about a request that is not HTTP, an upgrade, and a request that outlives the server."""
    with serving({"echo": write_echo(tmp_path / "echo")}, "--grace_s=0.5") as server:
        upgrade = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n"
        for data in (b"hello\r\n\r\n", upgrade):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
                sock.sendall(data)
                assert sock.recv(100)
        (connection,) = connections(server, 1)
        connection.request("POST", "/v1/models/echo:predict", '{"instances": ["sleep 3", "secret"]}')
        time.sleep(0.3)
        assert server.stop() == 0
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


def test_what_libraries_write_becomes_json(monkeypatch, caplog):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    supervisor._copy_log(['{"time": "now"}\n', "F0000 a crash\n", "{not JSON\n"])
    assert sys.stderr.getvalue() == '{"time": "now"}\n' and caplog.messages == ["F0000 a crash", "{not JSON"]


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


def test_names_of_other_sites_are_not_answered_without_a_token(tmp_path):
    """DNS rebinding: a page of evil.example that finds this server at its own name."""
    echo, allowed = write_echo(tmp_path / "echo"), ("--allowed_host=Models.example", "--allowed_host=proxy.example:80")
    with serving({"echo": echo}, *allowed) as server:
        for host, status in (("evil.example", 421), ("evil.example:80", 421), ("localhost.evil.example", 421),
                             ("", 200), ("localhost", 200), ("LOCALHOST:8501", 200), ("localhost:", 200),
                             ("127.0.0.1:1", 200), ("[::1]:8501", 200), ("10.0.0.5", 200), ("models.example.", 200),
                             ("proxy.example", 200), ("proxy.example:81", 200), ("x.models.example", 421)):
            for path in ("/", "/v1/models", "/healthz", "/metrics"):
                assert server.ask(path, headers={"Host": host})[0] == status, host
        error = server.ask("/", headers={"Host": "evil.example:80"})[1]["error"]
        assert "start it with --allowed_host=evil.example, or" in error


def test_with_a_token_all_names_are_answered(server):
    assert server.ask("/v1/models", headers=TOKEN | {"Host": "evil.example"})[0] == 200


@pytest.mark.slow
def test_it_listens_on_ipv6(tmp_path):
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        with serving({"echo": write_echo(tmp_path / "echo")}, "--host=::1") as server:
            assert f"http://[::1]:{server.port}/" in server.lines[0] and f"gRPC at [::1]:{server.grpc_port};" in (
                server.lines[0])
            assert server.predict("echo", instances=["a"])[0]["echo"] == "a"


def test_a_log_that_cannot_be_written_does_not_block_the_workers(monkeypatch):
    """The pipe from a worker is read to its end, even if standard error is closed or full."""
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Broken())
    lines = iter(['{"time": "now"}\n'] * 3)
    supervisor._copy_log(lines)
    assert list(lines) == []
