"""What `keras-bert serve` refuses, and how it says so."""

import asyncio
import concurrent.futures
import contextlib
import gzip
import json
import re
import resource
import socket
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from serving_server import connections, serving, write_echo
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from keras_bert.serving.memory import MemoryBudget
from keras_bert.serving.saved_model import SavedModel
from keras_bert.serving.tensors import RequestError

PREDICT = "/v1/models/echo:predict"


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    return write_echo(tmp_path_factory.mktemp("models") / "echo")


@pytest.fixture(scope="module")
def server(echo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("token")
    (folder / "token").write_text("tökén\n", encoding="utf-8")
    with serving({"echo": echo}, "--max_body_mb=0.1", "--max_instances=5", "--max_characters=50",
                 "--max_queue=2", "--timeout_s=1.5", "--body_timeout_s=1", "--max_inflight_mb=1",
                 f"--token_file={folder}/token") as server:
        yield server


@pytest.fixture(scope="module")
def token():
    return {"Authorization": "Bearer tökén".encode()}


def refused(answer):
    """The status and the message, which is all that the body holds."""
    status, body, _ = answer
    assert body.keys() == {"error"} and "Traceback" not in body["error"] and len(body["error"]) < 400
    return status, body["error"]


@pytest.mark.parametrize("path,body,method,status,message", [
    (PREDICT, b"x" * 200_000, None, 413, "the body may have at most 104857 bytes"),
    (PREDICT, {"instances": ["a"] * 6}, None, 413, "a request may have at most 5 instances (--max_instances); got 6"),
    (PREDICT, {"instances": ["a", "각" * 50, "각" * 51]}, None, 413, "row 3: a text may have at most 50 characters;"),
    (PREDICT, {"instances": ["a", "fail"]}, None, 400, "the model refuses the inputs: "),
    (PREDICT, {"instances": ["sleep 3"]}, None, 504, "the answer took more than 1.5 seconds"),
    (PREDICT, b"{", None, 400, "the body must be JSON"), (PREDICT, b"[" * 90_000, None, 413, "74 opening brackets"),
    (PREDICT, b"\xff", None, 400, "the body must be JSON in UTF-8"),
    (PREDICT, None, "GET", 405, "this path takes POST"), (PREDICT, {}, "PUT", 405, "this path takes POST"),
    (PREDICT, {"instances": [1]}, None, 400, "instances: text: row 1: must be a string"),
    ("/v1/models/no:predict", {"instances": ["a"]}, None, 404, "there is no model of this name; there are echo"),
    ("/v1/models/echo/versions/2:predict", {"instances": ["a"]}, None, 404, "echo has no version 2"),
    ("/v1/models/echo/versions/x:predict", {"instances": ["a"]}, None, 404, "there is nothing at this path"),
    (f"/v1/models/echo/versions/{2**64}", None, None, 400, "version: must be"),
    ("/v1/models/echo:classify", {"examples": []}, None, 400, "echo takes no tf.Example"),
    ("/v1/models/echo:regress", {"examples": []}, None, 400, "use predict"),
    ("/page", None, None, 404, "there is nothing at this path"), ("/healthz", {}, None, 405, "path takes GET and HEAD"),
    ("/v1/models/echo", {}, "DELETE", 405, "this path takes GET"),
    (f"/v1/models/echo/versions/{'9' * 5000}:predict", {"instances": ["a"]}, None, 414, "1000 characters"),
    ("/v1/models/", None, None, 404, "there is nothing at this path"),
])
def test_what_is_refused(server, token, path, body, method, status, message):
    got = refused(server.ask(path, body, method, token))
    assert got[0] == status and message in got[1]


def test_an_operation_without_memory_gives_503(echo, monkeypatch):
    """TensorFlow's own error; it tries for ten seconds before, too long for a test."""
    def run(*inputs, options):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    model = SavedModel(str(echo), 1)
    monkeypatch.setattr(model, "_calls", {"serving_default": run})
    with pytest.raises(RequestError) as error:
        model.run("serving_default", [{"text": np.array([b"a"], object)}])
    assert (error.value.status, error.value.headers) == (503, {"Retry-After": "1"})
    monkeypatch.undo()
    model.close()


def test_bodies_may_be_gzip_as_in_tensorflow_serving(server, token):
    def ask(body, coding="gzip"):
        return server.ask(PREDICT, body, headers=token | {"Content-Encoding": coding})

    wanted = {"predictions": [{"echo": "a", "version": 1, "batch": 1}]}
    body = gzip.compress(b'{"instances": ["a"]}')
    members = gzip.compress(b'{"instances":') + gzip.compress(b"") + gzip.compress(b' ["a"]}')
    plain = gzip.decompress(body)
    for coding, content in (("gzip", body), ("gzip", members), ("GZIP", body), ("x-gzip", body),
                            (" identity , Gzip,", body), ("identity", plain), ("", plain)):
        assert ask(content, coding)[1] == wanted, coding
    for damaged in (b'{"instances": ["a"]}', body[:-1], body[:20] + b"x" + body[21:], b"", body + b"x", body + b"\0",
                    body + body[:-1]):
        assert refused(ask(damaged)) == (400, "the body must be gzip, as the header Content-Encoding says")
    for bomb in (gzip.compress(b" " * 10**7), gzip.compress(b"") * 1100):
        assert refused(ask(bomb)) == (
            413, "the body may have at most 104857 bytes after decompression, and 1000 gzip members")
    for coding in ("br", "deflate", "gzip, gzip", "gzip gzip", "zstd, gzip"):
        answer = ask(body, coding)
        assert answer[2]["accept-encoding"] == "gzip, identity"
        assert refused(answer) == (415, f"Content-Encoding: must be gzip or identity; got {coding}")


@pytest.mark.parametrize("header,message", [
    ({}, "the header Authorization must be 'Bearer TOKEN'"),
    ({"Authorization": "Bearer token"}, "the token in the header Authorization is wrong"),
    ({"Authorization": "tökén".encode()}, "must be 'Bearer TOKEN'"),
    ({"Authorization": "Basic tökén".encode()}, "must be 'Bearer TOKEN'")])
def test_without_the_token_only_health_is_told(server, header, message):
    for path in (PREDICT, "/metrics", "/openapi.json", "/v1/models/echo", "/v1/models/", "/healthz/", "/nowhere"):
        answer = server.ask(path, headers=header)
        assert refused(answer)[0] == 401 and answer[2]["www-authenticate"] == "Bearer"
        assert message in refused(answer)[1]
    assert server.ask("/healthz", headers=header)[:2] == server.ask("/readyz", headers=header)[:2] == (200, "ok")


def test_the_scheme_of_the_token_may_be_in_any_case(server):
    assert server.ask("/v1/models", headers={"Authorization": "bearer tökén".encode()})[0] == 200


def test_the_page_needs_no_token_and_loads_nothing_from_elsewhere(server, token):
    for path, kind, start in (("/", "text/html; charset=utf-8", "<!doctype html>"),
                              ("/page.css", "text/css; charset=utf-8", ":root"),
                              ("/page.js", "text/javascript; charset=utf-8", "/** The page"),
                              ("/attention.js", "text/javascript; charset=utf-8", "/** Tokens")):
        status, text, headers = server.ask(path)
        assert (status, headers["content-type"], headers["x-content-type-options"]) == (200, kind, "nosniff")
        assert text.startswith(start) and "http" not in text.replace("http://www.w3.org/2000/svg", "")
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert {policy[f"{what}-src"] for what in ("script", "style", "connect")} == {"'self'"}
    status, answer, _ = server.ask("/v1/models", headers=token)
    assert status == 200 and answer["models"] == [model["id"] for model in answer["data"]] == ["echo"]
    assert time.time() - 3600 < answer["data"][0]["created"] <= time.time()
    headers = server.ask(PREDICT, {"instances": ["sleep 0.05"]}, headers=token)[2]
    queue, compute = re.fullmatch(r"queue;dur=([\d.]+), compute;dur=([\d.]+)", headers["server-timing"]).groups()
    assert float(queue) >= 0 and float(compute) > 45


@pytest.mark.slow
def test_grpc_asks_for_the_token_and_keeps_the_limits(tmp_path):
    (tmp_path / "token").write_text("abc")
    with serving({"echo": write_echo(tmp_path / "echo")}, "--max_body_mb=0.1", "--max_instances=5", "--timeout_s=0.5",
                 f"--token_file={tmp_path}/token") as server:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(
            grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))

        def code(texts, header="Bearer abc"):
            request = predict_pb2.PredictRequest(model_spec={"name": "echo"},
                                                 inputs={"text": tf.make_tensor_proto(texts)})
            try:
                stub.Predict(request, metadata=[("authorization", header)])
            except grpc.RpcError as error:
                return error.code().name

        assert code(["a"]) is None
        assert code(["a"], "Bearer abd") == code(["a"], "") == "UNAUTHENTICATED"
        assert code(["a"] * 6) == "INVALID_ARGUMENT" and code(["a" * 200_000]) == "RESOURCE_EXHAUSTED"
        assert code(["sleep 2"]) == "DEADLINE_EXCEEDED"


def test_a_full_queue_says_when_to_come_again(server, token):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(server.ask, PREDICT, {"instances": ["sleep 0.4"]}, headers=token)]
        time.sleep(0.15)
        asked += [pool.submit(server.ask, PREDICT, {"instances": ["b"]}, headers=token) for _ in range(3)]
        answers = [future.result() for future in asked]
    assert sorted(status for status, *_ in answers) == [200, 200, 200, 429]
    (full,) = [answer for answer in answers if answer[0] == 429]
    assert full[2]["retry-after"] == "1" and refused(full)[1] == "echo is busy: 2 requests with 4 tokens wait"
    assert 'keras_bert_rejected_requests_total{model="echo"} 1.0' in server.ask("/metrics", headers=token)[1]


def test_who_has_gone_is_not_answered(server, token):
    """Those that wait are dropped, so that there is room in the queue of two, and the metrics return to 0."""
    def leave(*texts):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(b"".join(map(request, texts)))
            time.sleep(0.15)

    def wait_for(metric, value):
        line = f'keras_bert_{metric}{{model="echo"}} {value}.0'
        server.wait(lambda: line in server.ask("/metrics", headers=token)[1])

    leave("sleep 1.3")
    wait_for("abandoned_requests", 1)
    leave("b")
    leave("c")
    wait_for("queue_requests", 0)
    assert server.ask(PREDICT, {"instances": ["d"]}, headers=token)[0] == 200
    for metric in ("abandoned_requests", "queue_requests", "queue_tokens"):
        wait_for(metric, 0)
    leave("sleep 1.3", "e", "f")  # the others are not read until the first has been answered
    wait_for("abandoned_requests", 1)
    wait_for("abandoned_requests", 0)
    assert [event["status"] for event in server.events() if event.get("method") == "POST"][-5:] == [
        499, 499, 499, 200, 499]
    assert not [event for event in server.events() if "ASGI" in event.get("message", "")]


def talk(server, *parts, pause=0.0, ends=False):
    """Sends bytes with pauses, and the end if `ends`; returns what came back until the server closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        for part in parts:
            sock.sendall(part)
            time.sleep(pause)
        if ends:
            sock.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := sock.recv(65536):
            received += chunk
        return received


def request(text, *headers):
    """The bytes of a predict request with the token."""
    body = json.dumps({"instances": [text]})
    lines = [f"POST {PREDICT} HTTP/1.1", "Host: x", "Authorization: Bearer tökén", f"Content-Length: {len(body)}",
             *headers, "", body]
    return "\r\n".join(lines).encode()


def test_slow_and_broken_clients(server):
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tökén\r\n".encode()
    slow = talk(server, head + b"Content-Length: 50\r\n\r\n{", b'"', b"i", pause=0.3)
    assert slow.startswith(b"HTTP/1.1 408 ") and b'{"error":"the body must come within 1 seconds"}' in slow
    assert b'{"error": "this is not HTTP"}' in talk(server, b"hello\r\n\r\n")
    chunks = [b"8000\r\n" + b"x" * 0x8000 + b"\r\n"] * 4
    endless = talk(server, head + b"Transfer-Encoding: chunked\r\n\r\n", *chunks)  # returns as the connection is closed
    assert endless.startswith(b"HTTP/1.1 413 ") and endless.endswith(b'104857 bytes"}')
    both = talk(server, head + b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n",
                b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    # The second is answered if all of the first had come before it was refused.
    assert both.startswith(b"HTTP/1.1 413 ") and both.count(b"HTTP/1.1 ") == 1 + both.endswith(b"\r\n\r\nok")


def test_headers_have_a_limit_before_the_token_is_checked(server):
    start, end = b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"Connection: close\r\n\r\n"
    line = b"a: " + b"x" * 1000 + b"\r\n"
    assert talk(server, start, line * 30, end).endswith(b"\r\n\r\nok")
    chunked = request("a").partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
    for parts in ([start, line * 40, end], [start, b"a: ", *[b"x" * 2000] * 20], [b"GET /" + b"x" * 40_000],
                  [chunked, b"0\r\na: ", *[b"x" * 2000] * 20], [chunked, b"1;a=", *[b"x" * 2000] * 20]):
        answer = talk(server, *parts, pause=0.002)
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert answer.endswith(b'{"error": "the request line and the headers may have at most 32768 bytes"}')
    status, body, _ = server.ask(PREDICT, {"instances": ["a"]}, headers={"Authorization": "Bearer " + "x" * 20_000})
    assert status == 401


@pytest.mark.parametrize("line,host,status", [
    ("GET /healthz HTTP/1.1", ["a.b:80"], 200), ("GET /healthz HTTP/1.0", [], 200), ("GET /healthz HTTP/1.1", [], 400),
    ("GET /healthz HTTP/1.1", ["a", "a"], 400), ("GET /healthz HTTP/1.1", ["a/b"], 400),
    ("GET /healthz HTTP/1.1", ["a b"], 400), ("GET http://a/healthz HTTP/1.1", [], 400),
    ("GET http://a:1/healthz HTTP/1.1", ["b"], 200), ("GET http://a@b/healthz HTTP/1.1", ["b"], 400),
    ("GET http:///healthz HTTP/1.1", ["b"], 400)])
def test_the_header_host_is_as_rfc_9112_says(server, line, host, status):
    lines = [line, *(f"Host: {name}" for name in host), "Connection: close", "", ""]
    answer = talk(server, "\r\n".join(lines).encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer


def test_half_closed_connections_get_their_answer(server):
    """Interim responses come first (RFC 9110, section 15.2), until it is there."""
    answer = talk(server, request("sleep 0.5"), ends=True)
    continued, _, final = answer.rpartition(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert continued and final.startswith(b"HTTP/1.1 200 ") and b"sleep 0.5" in final
    assert b"\r\nconnection: close\r\n" in final
    assert talk(server, request("sleep 0.5").replace(b"/1.1", b"/1.0"), ends=True).startswith(b"HTTP/1.1 200 ")
    assert talk(server, request("a")[:-5], ends=True) == b""


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/models", "/openapi.json", "/v1/models/echo",
                                  "/v1/models/echo/metadata", "/", "/page.js", "/nowhere", PREDICT])
def test_head_is_get_without_the_body(server, token, path):
    (status, _, headers), (head_status, text, head_headers) = (
        server.ask(path, method=method, headers=token) for method in ("GET", "HEAD"))
    assert (head_status, text) == (status, "") and head_headers.keys() == headers.keys()
    assert path == "/metrics" or head_headers["content-length"] == headers["content-length"]


def test_what_a_thread_reserves_for_a_request_that_has_ended_is_refused():
    """A client that goes while its body is converted: nobody would give the memory back."""
    async def scenario():
        budget = MemoryBudget(100)
        with budget.request() as memory:
            memory.reserve(60)
        with pytest.raises(RequestError):
            memory.reserve(10)
        return budget.used

    assert asyncio.run(scenario()) == 0


def test_requests_together_have_a_limit_of_memory(server, token):
    """Bodies that are being received, decompressed or answered."""
    begun = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(5)]
    for sock in begun:  # each needs twice as much
        sock.sendall(request("a").partition(b"Content-Length")[0] + b"Content-Length: 100000\r\n\r\n" + b"x" * 90_000)
    used = re.compile(r"^keras_bert_inflight_bytes (\S+)", re.MULTILINE)
    server.wait(lambda: float(used.search(server.ask("/metrics", headers=token)[1])[1]) == 900_000)
    for body, headers in ((b" " * 90_000, {}), (gzip.compress(b" " * 90_000), {"Content-Encoding": "gzip"})):
        answer = server.ask(PREDICT, body, headers=token | headers)
        assert refused(answer) == (503, "the server has no memory for this request now")
        assert answer[2]["retry-after"] == "1"
    assert server.ask(PREDICT, {"instances": ["a"]}, headers=token)[0] == 200
    for sock in begun:
        assert sock.recv(100).startswith(b"HTTP/1.1 408 ")
        sock.close()
    server.wait(lambda: float(used.search(server.ask("/metrics", headers=token)[1])[1]) == 0)
    answer = server.ask(PREDICT, b'{"instances": ["a"], "x": "' + b" " * 90_000 + b'"}', headers=token)
    assert answer[0] == 200


def test_too_many_connections_are_closed_and_logged(server):
    """Three quarters of the file descriptors may be connections, so that there are some left for all else."""
    worker, = server.workers()
    limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (400, limits[1]))
    try:
        kept = connections(server, 310)
        for connection in kept:
            connection.connect()
        assert server.ask("/healthz", connection=kept[0])[0] == 200
        server.wait(lambda: [event for event in server.events() if event.get("event") == "too many connections"])
        assert kept[-1].sock.recv(1) == b""
    except ConnectionResetError:
        pass
    finally:
        resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)
        for connection in kept:
            connection.close()
    event, *more = [event for event in server.events() if event.get("event") == "too many connections"]
    assert event["limit"] == 300


@pytest.mark.slow
def test_clients_that_do_not_read_are_disconnected(tmp_path):
    """After 10 seconds, or 5 once the server stops. Who reads slowly gets everything."""
    with serving({"echo": write_echo(tmp_path / "echo")}) as server:
        body = json.dumps({"inputs": ["x" * 90_000] * 100})
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"

        def ask():
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            sock.settimeout(20)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall((head + body).encode())
            return sock

        stalled, slow, received = ask(), ask(), 0
        begin = time.monotonic()
        while chunk := slow.recv(20_000):  # 2 MB/s
            received += len(chunk)
            time.sleep(0.01)
            if received > 9_000_000:
                break
        assert received > 9_000_000 and time.monotonic() - begin > 4
        server.wait(lambda: sum(event.get("bytes", 0) > 9e6 for event in server.events()) == 2)
        assert 8 < time.monotonic() - begin < 20
        rest = 0
        with contextlib.suppress(ConnectionResetError):
            while chunk := stalled.recv(2**20):
                rest += len(chunk)
        assert rest < 9_000_000
        kept = ask()
        time.sleep(1)
        begin = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - begin < 10
        kept.close()


@pytest.mark.slow
def test_a_refused_request_does_not_hold_its_connection(server):
    """Not even if more of its body comes again and again."""
    starts = {"Content-Length: 1000\r\n\r\n{": 401, "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n": 401,
              "Authorization: Bearer tökén\r\nContent-Length: 200000\r\n\r\n{": 413}
    with concurrent.futures.ThreadPoolExecutor(len(starts)) as pool:  # each takes five seconds
        list(pool.map(lambda start: send_more_after_a_refusal(server, start, starts[start]), starts))


def send_more_after_a_refusal(server, start, status):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\n{start}".encode())
        answer = sock.recv(1000)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()) and b"\r\nconnection: close\r\n" in answer
        started = time.monotonic()
        with pytest.raises(OSError):  # it is reset
            while time.monotonic() - started < 12:
                sock.sendall(b"x")
                time.sleep(0.2)
        assert time.monotonic() - started < 8


def test_an_answer_that_takes_too_long_stops_running(server, token):
    assert refused(server.ask(PREDICT, {"instances": ["sleep 60"]}, headers=token))[0] == 504
    start = time.monotonic()
    assert server.ask(PREDICT, {"instances": ["a"]}, headers=token)[0] == 200 and time.monotonic() - start < 1.4


@pytest.mark.slow
def test_idle_connections_take_nothing_from_others_and_are_closed(server, token):
    idle = connections(server, 300)
    for connection in idle:
        connection.connect()
        connection.sock.sendall(b"POST / HT")  # headers that never end
    assert server.ask("/healthz", connection=(blank := connections(server, 1)[0]))[0] == 200
    blank.sock.sendall(b"\r\n")  # begins no request, but ends uvicorn's wait for one
    start = time.monotonic()
    assert server.ask(PREDICT, {"instances": ["a"]}, headers=token)[0] == 200 and time.monotonic() - start < 1
    idle[-1].sock.settimeout(15)
    blank.sock.settimeout(15)
    assert idle[-1].sock.recv(1) == blank.sock.recv(1) == b"" and time.monotonic() - start < 14
    for connection in (*idle, blank):
        connection.close()


@pytest.mark.slow
def test_bodies_of_100_megabytes_are_refused_and_not_kept(server, token):
    before = server.resident()
    body = b'{"instances": ["' + b"x" * 100_000_000 + b'"]}'
    for _ in range(10):
        assert server.ask(PREDICT, body, headers=token)[0] == 413
    assert server.resident() - before < 20e6


@pytest.mark.slow
def test_a_connection_that_rests_stays_open(server, token):
    (connection,) = connections(server, 1)
    for pause in (0, 6):  # uvicorn's own limit is 5 s
        time.sleep(pause)
        assert server.ask(PREDICT, {"instances": ["a"]}, headers=token, connection=connection)[0] == 200
