"""What `keras-bert serve` refuses, and how it says so."""

import asyncio
import concurrent.futures
import contextlib
import gzip
import json
import os
import pathlib
import pickle
import resource
import shutil
import signal
import socket
import subprocess
import time

import pytest
import uvicorn
from serving_server import TOKEN, connections, held, instances, limited_server, refused, rpc_error, serving, write_echo

from keras_bert.inference.served_model import RequestError
from keras_bert.serving.connection import Protocol
from keras_bert.serving.memory import MemoryBudget

JAVA_CLIENT = pathlib.Path(__file__).parents[1] / "benchmarks/Ask.java"
PREDICT = "/v1/models/echo:predict"
HEAD = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a secret\r\n".encode()


@pytest.fixture(scope="module")
def server():
    return limited_server()


def rpc_code(server, *texts, header="Bearer a secret"):
    """The status code with which gRPC refuses texts."""
    return rpc_error(server.rpc, "echo", {"text": texts}, [("authorization", header)])[0]


def test_grpc_asks_for_the_token_and_keeps_the_limits(server):
    server.rpc("echo", {"text": ["a"]}, [("authorization", "Bearer a secret")])
    assert rpc_code(server, "a", header="Bearer abd") == rpc_code(server, "a", header="") == "UNAUTHENTICATED"
    assert rpc_code(server, "fail") == rpc_code(server, *["a"] * 6) == "INVALID_ARGUMENT"
    assert rpc_code(server, "a" * 200_000) == "RESOURCE_EXHAUSTED"


def test_bodies_may_be_gzip_as_in_tensorflow_serving(server):
    def ask(body, coding="gzip"):
        return server.ask(PREDICT, body, headers=TOKEN | {"Content-Encoding": coding})

    wanted = {"predictions": [{"echo": "a", "version": 1, "batch": 1}]}
    body = gzip.compress(b'{"instances": ["a"]}')
    members = gzip.compress(b'{"instances":') + gzip.compress(b"") + gzip.compress(b' ["a"]}')
    plain = gzip.decompress(body)
    for coding, content in (("gzip", members), ("x-gzip", body), (" identity , Gzip,", body), ("identity", plain),
                            ("", plain)):
        assert ask(content, coding)[1] == wanted, coding
    for damaged in (plain, body[:-1], body[:20] + b"x" + body[21:], b"", body + b"x", body + b"\0", body + body[:-1]):
        assert refused(ask(damaged)) == (400, "the body must be gzip, as the header Content-Encoding says")
    for bomb in (gzip.compress(b" " * 10**7), gzip.compress(b"") * 1100):
        assert refused(ask(bomb)) == (
            413, "the body may have at most 104857 bytes (--max_body_mb) after decompression, and 1000 gzip members")
    for coding in ("br", "gzip, gzip", "gzip gzip", "zstd, gzip"):
        answer = ask(body, coding)
        assert answer[2]["accept-encoding"] == "gzip, identity"
        assert refused(answer) == (415, f"Content-Encoding: must be gzip or identity; got {coding}")


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def receive(sock):
    """All that comes until the server closes."""
    received = b""
    while chunk := sock.recv(65536):
        received += chunk
    return received


def talk(server, *parts, pause=0.0):
    """Sends bytes with pauses; returns what came back until the server closed."""
    with connect(server) as sock:
        for part in parts:
            sock.sendall(part)
            time.sleep(pause)
        return receive(sock)


def request(text):
    """The bytes of a predict request with the token."""
    body = json.dumps({"instances": [text]}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def test_what_takes_too_long_is_refused_and_stops_running(server):
    """At the same time: the body of one request does not end, and the model does not end with two others."""
    with connect(server) as slow, concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow.sendall(HEAD + b"Content-Length: 50\r\n\r\n{")
        by_grpc = pool.submit(rpc_code, server, "sleep 600")
        assert refused(server.ask(PREDICT, instances("sleep 600"))) == (504, "the answer took more than 2 seconds")
        assert by_grpc.result() == "DEADLINE_EXCEEDED"
        server.wait(lambda: server.ask(PREDICT, instances("a"))[0] == 200)
        answer = receive(slow)
    assert answer.startswith(b"HTTP/1.1 408 ") and b'{"error":"the body must come within 2.5 seconds"}' in answer


def test_a_full_queue_says_when_to_come_again(server, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(3) as pool, held(server, tmp_path / "go", "busy") as first:
        asked = [pool.submit(server.ask, "/v1/models/busy:predict", instances("b")) for _ in range(3)]
        full = next(concurrent.futures.as_completed(asked)).result()  # the others wait
    assert sorted(future.result()[0] for future in [first, *asked]) == [200, 200, 200, 429]
    assert refused(full) == (429, "busy is busy; waiting requests: 2, their tokens: 4")
    assert full[2]["retry-after"] == "1"
    assert server.metrics()['rejected_requests_total{model="busy"}'] == 1


def test_who_has_gone_is_not_answered(server, tmp_path):
    """Those that wait are dropped, so that there is room in the queue of two, and the metrics return to 0."""
    waiting, abandoned = 'queue_requests{model="echo"}', 'abandoned_requests{model="echo"}'

    def ask_and_leave(path, *more):
        with connect(server) as sock:
            sock.sendall(b"".join(map(request, (f"until {path}", *more))))
            server.wait((tmp_path / f"{path.name}.begun").exists)
        server.wait_metric(abandoned, 1)

    before = len(server.events(path=PREDICT))
    ask_and_leave(tmp_path / "first")
    with connect(server) as one, connect(server) as two:
        one.sendall(request("b"))
        two.sendall(request("c"))
        server.wait_metric(waiting, 2)
    server.wait_metric(waiting, 0)
    (tmp_path / "first").touch()
    assert server.ask(PREDICT, instances("d"))[0] == 200
    for metric in (waiting, abandoned, 'queue_tokens{model="echo"}'):
        server.wait_metric(metric, 0)
    ask_and_leave(tmp_path / "second", "e", "f")  # the others are not read until the first has been answered
    (tmp_path / "second").touch()
    server.wait_metric(abandoned, 0)
    expected = [499, 499, 499, 200, 499]
    server.wait(lambda: [event["status"] for event in server.events(path=PREDICT)[before:]] == expected)
    assert not [event for event in server.events() if "ASGI" in event.get("message", "")]


def test_broken_clients(server):
    for data in (b"hello\r\n\r\n", b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"):
        assert b'{"error": "this is not HTTP"}' in talk(server, data)
    assert server.metrics()['requests_total{code="400",method="",model=""}'] >= 2
    chunks = [b"8000\r\n" + b"x" * 0x8000 + b"\r\n"] * 4
    endless = talk(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *chunks)  # returns as the connection is closed
    assert endless.startswith(b"HTTP/1.1 413 ") and endless.endswith(b'104857 bytes (--max_body_mb)"}')
    both = talk(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n",
                b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    # The second is answered if all of the first had come before it was refused.
    assert both.startswith(b"HTTP/1.1 413 ") and both.count(b"HTTP/1.1 ") == 1 + both.endswith(b"\r\n\r\nok")


def test_headers_have_a_limit_before_the_token_is_checked(server):
    start, end = b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"Connection: close\r\n\r\n"
    line, counted = b"a: " + b"x" * 1000 + b"\r\n", 'requests_total{code="431",method="",model=""}'
    assert talk(server, start, line * 30, end).endswith(b"\r\n\r\nok")
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for parts in ([start, line * 40, end], [start, b"a: ", *[b"x" * 2000] * 20], [b"GET /" + b"x" * 40_000],
                  [chunked, b"0\r\na: ", *[b"x" * 2000] * 20], [chunked, b"1;a=", *[b"x" * 2000] * 20],
                  [start, *[b"a:\r\n" * 1000] * 9, end], [chunked, b"0\r\n", *[line] * 40, b"\r\n"]):
        for packets in (parts, [b"".join(parts)]):
            before = server.metrics().get(counted, 0)
            answer = talk(server, *packets, pause=0.002)
            assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n"), answer
            assert answer.endswith(b'{"error": "the request line and the headers may have at most 32768 bytes"}')
            assert server.metrics()[counted] == before + 1
    assert server.ask(PREDICT, instances("a"), headers={"Authorization": "Bearer " + "x" * 20_000})[0] == 401


@pytest.mark.parametrize("line,host,status", [
    ("GET /healthz HTTP/1.1", ["a.b:80"], 200), ("GET /healthz HTTP/1.0", [], 200), ("GET /healthz HTTP/1.1", [], 400),
    ("GET /healthz HTTP/1.1", ["a", "a"], 400), ("GET /healthz HTTP/1.1", ["a/b"], 400),
    ("GET http://a/healthz HTTP/1.1", [], 400), ("GET http://a:1/healthz HTTP/1.1", ["b"], 200),
    ("GET http://a@b/healthz HTTP/1.1", ["b"], 400), ("GET http:///healthz HTTP/1.1", ["b"], 400)])
def test_the_header_host_is_as_rfc_9112_says(server, line, host, status):
    lines = [line, *(f"Host: {name}" for name in host), "Connection: close", "", ""]
    answer = talk(server, "\r\n".join(lines).encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer


@pytest.mark.parametrize("end", [None, -5])
def test_who_sends_the_end_of_the_connection_gets_no_answer(server, tmp_path, end):
    with connect(server) as sock:
        sock.sendall(request(f"until {tmp_path / 'go'}")[:end])
        sock.shutdown(socket.SHUT_WR)
        assert receive(sock) == b""
    (tmp_path / "go").touch()


def test_trailers_are_no_headers(server):
    """Else, they could replace the headers Host and Authorization, which are checked."""
    body = b'{"instances": ["a"]}'
    start, host, token = HEAD.splitlines(keepends=True)
    for head, line, status in ((HEAD, host, 200), (start + host, token, 401)):
        answer = talk(server, head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n" + body +
                      b"\r\n0\r\n" + line + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer


@pytest.mark.parametrize("size", [10_000, 7])
def test_upgrades_are_ignored(server, size):
    """RFC 9110, section 7.8. The requests come in packets of so many bytes."""
    upgrade, body = b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b'{"instances": ["a"]}'
    chunked = HEAD + upgrade + b"Transfer-Encoding: chunked\r\n\r\n14\r\n" + body + b"\r\n0\r\n\r\n"
    known = HEAD + b"Content-Length: 20\r\n" + upgrade.replace(b"Upgrade\r", b"Upgrade, close\r") + b"\r\n" + body
    data = chunked * 2 + known
    answer = talk(server, *(data[start:start + size] for start in range(0, len(data), size)), pause=0.001)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == answer.count(b'"echo":"a"') == 3, answer


@pytest.mark.slow("Java, which compiles its client first")
@pytest.mark.parametrize("program", ["curl", "java"])
def test_clients_that_ask_for_http_2_are_answered(server, program):
    if not shutil.which(program):
        pytest.skip(f"needs {program}")
    url, body = f"http://127.0.0.1:{server.port}{PREDICT}", json.dumps(instances("x" * 150))
    command = {"java": ["java", JAVA_CLIENT, url, body],
               "curl": ["curl", "-s", "--http2", "-H", "Authorization: Bearer a secret", "-d", body, url, url]}[program]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.stdout.count('"echo":"' + "x" * 150) == 2, said


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


def test_requests_together_have_a_limit_of_memory(server):
    """Bodies that are being received, decompressed or answered."""
    with contextlib.ExitStack() as stack:
        for sock in [stack.enter_context(connect(server)) for _ in range(5)]:  # each needs twice as much
            sock.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 90_000)
        server.wait_metric("inflight_bytes", 900_000)
        for body, headers in ((b" " * 90_000, {}), (gzip.compress(b" " * 90_000), {"Content-Encoding": "gzip"})):
            answer = server.ask(PREDICT, body, headers=TOKEN | headers)
            assert refused(answer) == (503, "the server has no memory for this request now")
            assert answer[2]["retry-after"] == "1"
        assert server.ask(PREDICT, instances("a"))[0] == 200
    server.wait_metric("inflight_bytes", 0)
    assert server.ask(PREDICT, b'{"instances": ["a"], "x": "' + b" " * 90_000 + b'"}')[0] == 200


def test_too_many_connections_are_closed_and_logged(server):
    """Three quarters of the file descriptors may be connections, so that there are some left for all else."""
    worker, = server.workers()
    limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (400, limits[1]))
    kept = connections(server, 310)
    try:
        for connection in kept:
            connection.connect()
        with contextlib.suppress(ConnectionResetError):
            assert kept[-1].sock.recv(1) == b""
        assert server.ask("/healthz", connection=kept[0])[0] == 200
    finally:
        resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)
        for connection in kept:
            connection.close()
    event, *_ = server.wait(lambda: server.events(event="too many connections"))
    assert event["limit"] == 300


@pytest.mark.slow("a worker that is started again, with another limit")
def test_too_many_connections_of_grpc_are_closed(tmp_path):
    """An eighth of the file descriptors may be connections of gRPC, so that those of HTTP are still answered."""
    with serving({"echo": write_echo(tmp_path / "echo")}) as server, contextlib.ExitStack() as stack:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait(lambda: len(server.events(event="available")) == 2)
        closed, socks = 0, [stack.enter_context(socket.create_connection(("127.0.0.1", server.grpc_port), timeout=20))
                            for _ in range(400)]
        for sock in socks:
            try:
                sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")  # with empty settings
                closed += not sock.recv(1)
            except ConnectionError:
                closed += 1
        assert closed == 400 - 256 // 8
        assert server.ask("/healthz")[0] == 200 and len(server.events(event="died")) == 1


def send_until_closed(server, start, status):
    """Begins a request that is refused, and sends more of its body again and again, until the connection is reset."""
    with connect(server) as sock:
        sock.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\n{start}".encode())
        answer = sock.recv(1000)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()) and b"\r\nconnection: close\r\n" in answer
        with contextlib.suppress(OSError):
            for _ in range(300):
                sock.sendall(b"x")
                time.sleep(0.2)
            return False
    return True


def reads_all(sock, rate=0, seconds=0):
    """Reads an answer of 9 MB, at first so many bytes per second; False if the connection ends before."""
    count, slow_until = 0, time.monotonic() + seconds
    with contextlib.suppress(ConnectionResetError):
        while count < 9_000_000 and (chunk := sock.recv(rate // 10 or 2**20)):
            count += len(chunk)
            if rate and time.monotonic() < slow_until:
                time.sleep(0.1)
            else:
                rate = 0
    return count >= 9_000_000


def begin_reading(server, body):
    """A connection with a small buffer, on which the answer to a request will come."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    return sock


@pytest.mark.slow("connections that are held or not read: nobody would end them")
def test_clients_that_do_not_go_on_are_disconnected(tmp_path):
    """Who sends no headers or reads less than 64 kB, after 10 seconds; who sends more of what was refused, after 5, as
    who does not read once the server stops. Who reads more than that gets everything."""
    (tmp_path / "token").write_text("a secret")
    body = json.dumps({"inputs": ["x" * 90_000] * 100}).encode()
    starts = {"Content-Length: 1000\r\n\r\n{": 401, "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n": 401,
              f"Authorization: Bearer a secret\r\nContent-Length: {2**30}\r\n\r\n{{": 413}
    with serving({"echo": write_echo(tmp_path / "echo")}, f"--token_file={tmp_path}/token", headers=TOKEN) as server, \
            concurrent.futures.ThreadPoolExecutor(2 + len(starts)) as pool:
        stalled, slow = begin_reading(server, body), begin_reading(server, body)
        lost, whole = (pool.submit(reads_all, begin_reading(server, body), rate, 30) for rate in (3000, 30_000))
        idle = connections(server, 300)
        for connection in idle:
            connection.connect()
            connection.sock.sendall(b"POST / HT")  # headers that never end
        silent = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=60)  # speaks no HTTP/2
        refusals = [pool.submit(send_until_closed, server, start, status) for start, status in starts.items()]
        assert server.ask(PREDICT, instances("a"), connection=(kept := connections(server, 1)[0]))[0] == 200
        assert reads_all(slow, 2_000_000, 60)
        assert [refusal.result() for refusal in refusals] == [True] * 3
        assert idle[-1].sock.recv(1) == b""
        while silent.recv(1000):
            pass
        assert server.ask(PREDICT, instances("a"), connection=kept)[0] == 200  # uvicorn would have closed it after 5 s
        assert whole.result() and not lost.result() and not reads_all(stalled)
        server.wait(lambda: sorted((event["status"], event["bytes"] > 9e6) for event in server.events(path=PREDICT)
                                   if event["bytes"] > 1000) == [(200, True)] * 2 + [(499, False)] * 2)
        with begin_reading(server, body) as another:
            assert another.recv(1) and server.stop() == 0
        assert not [event for event in server.events() if "graceful shutdown exceeded" in event.get("message", "")]


@pytest.mark.slow("memory that a worker keeps of refused bodies")
def test_bodies_of_100_megabytes_are_refused_and_not_kept(server):
    before = server.resident()
    body = b'{"instances": ["' + b"x" * 100_000_000 + b'"]}'
    for _ in range(4):
        assert server.ask(PREDICT, body)[0] == 413
    assert server.resident() - before < 20e6


def test_no_more_requests_are_read_than_are_answered():
    """A client sends requests without reading the responses; the second waits for the first, which has not come yet."""
    count, release = 20_000, asyncio.Event()

    async def app(scope, receive, send):
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def main():
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        state = uvicorn.server.ServerState()
        loop, made = asyncio.get_running_loop(), []
        server = await loop.create_server(
            lambda: made.append(Protocol(config, state, {})) or made[-1], "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * count)
        await asyncio.sleep(0.3)
        assert len(made[0].pipeline) < 50 and not made[0].transport.is_reading()
        release.set()
        answers = [await reader.readuntil(b"\r\n\r\n") for _ in range(count)]
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers) and not made[0].pipeline
        writer.close()
        server.close()

    asyncio.run(main())


def test_an_error_passes_between_processes():
    error = pickle.loads(pickle.dumps(RequestError(503, "later", {"Retry-After": "1"})))
    assert (error.status, error.message, error.headers) == (503, "later", {"Retry-After": "1"})
