"""Attacks `keras-bert serve`, and prints what the server did.

    keras-bert export text-model --model=minilm --output=demo/embeddings --pooling=mean
    git worktree add ../before v0.2
    python benchmarks/attacks.py --model=demo/embeddings --checkout=../before
    python benchmarks/attacks.py --model=demo/embeddings

--model: a raw-text SavedModel or a LiteRT folder, whose only input is `text`. --checkout: the checkout whose server is
attacked, instead of this one. --attacks: some of those below. Each has a server of its own with one worker, and takes
up to a minute, but overload takes two and memory seven. While it lasts, another process asks for /healthz 20 times per
second. Memory is the worker's resident memory.

overload: requests of 16 texts of 96 words arrive at 0.5, 1, 2 and 4 times the rate that two clients get answered; an
answer must come within 5 seconds. Meanwhile, honest clients send a short text five times per second.
patience: the same, with 30 seconds for an answer.
gzip: 200 clients send 16 kB of gzip, which are 16 MB of JSON.
unread: 20 clients ask for 1,024 embeddings and read nothing; then the server is stopped.
headers: a header of 64 MB, and 400,000 headers of 1 kB.
json: four clients send lists, 2 MB of `[],`, for 5 seconds.
memory: 3 minutes of gzip, json and headers in turns, then 3 minutes of 16 clients with 1 to 100 texts per request.
connections: what the server says to other forms of Host, of HEAD and of Content-Encoding, to trailers, to headers
without an end, and to clients that close their sending side; rows have what is expected, too.
clients: Java's HttpClient and curl ask for HTTP/2 (need java and curl).
readers: clients that read 3, 50 and 120 kB/s (needs curl), and an answer of some MB.
grpc: 400 connections that say nothing more than that they are gRPC's, while the worker may have 256 file descriptors.
draining: 8 clients that keep their connections, while the server is stopped after 5 s (--drain_s).
nginx: the configuration in docs/operating.md before two servers: connections that are kept, large bodies, slow clients,
a full queue, a model that is not ready, a killed worker, both servers stopped and started again in a row (needs nginx).

To add an attack, write a function that takes an `Attacked` and yields rows, and add it to `ATTACKS`.
"""

import collections
import concurrent.futures
import contextlib
import gzip
import json
import multiprocessing
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import ruler
import serving
from arrivals import arrive, arriving

TIMEOUT_S, PATIENCE_S = 5, 30
HEADERS = {"one header of 64 MB": [b"a: ", *[b"x" * 2**16] * 1000],
           "400 MB of headers": [b"a: " + b"x" * 1000 + b"\r\n"] * 400_000}
GRPC_PORT, NGINX_PORT = 18500, 18580
EMPTY = tempfile.TemporaryDirectory()  # of a model without a version
FLAGS = {"overload": [f"--timeout_s={TIMEOUT_S}"], "patience": [f"--timeout_s={PATIENCE_S}"],
         "grpc": [f"--grpc_port={GRPC_PORT}"], "draining": ["--drain_s=5"],
         "nginx": ["--drain_s=5", "--max_queue=8", "--body_timeout_s=2", f"--model=empty={EMPTY.name}"]}
POST = f"POST {serving.PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ".encode()


class Attacked:
    """A server under attack: `port`, its `process`, the pid of its `worker`, and the `url` of its model."""

    def __init__(self, process, port, model):
        self.process, self.port, self.model, self.url = process, port, model, f"http://127.0.0.1:{port}{serving.PATH}"
        self.worker = self.find_worker()

    def find_worker(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return next(iter(children.read_text().split()), None)

    def megabytes(self):
        return round(ruler.resident(self.worker) / 1e6)

    def post(self, body, **headers):
        """Returns the status of a predict request; None if the connection was lost."""
        connection = serving.connect(self.port)
        try:
            connection.request("POST", serving.PATH, body, headers)
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    def talk(self, *parts, ends=False):
        """Sends bytes; returns the first line that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as sock, contextlib.suppress(OSError):
            for part in parts:
                sock.sendall(part)
            if ends:
                sock.shutdown(socket.SHUT_WR)
            sock.settimeout(15)
            return (sock.recv(2**16) or b"nothing").partition(b"\r\n")[0].decode()
        return "lost"


@contextlib.contextmanager
def watching(server, row, rest=0):
    """Adds to a row how long /healthz took during its block, and the memory: before, at most, and `rest` seconds
    after."""
    spawn = multiprocessing.get_context("spawn")
    stop, (receiver, sender) = spawn.Event(), spawn.Pipe()
    spawn.Process(target=serving.measure_health, daemon=True, args=(server.port, stop, sender)).start()
    time.sleep(1)
    row["megabytes_before"] = row["megabytes_peak"] = server.megabytes()

    def watch():
        while not stop.wait(0.02):
            row["megabytes_peak"] = max(row["megabytes_peak"], server.megabytes())

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(watch)
        try:
            yield
        finally:
            stop.set()
    times = sorted(receiver.recv())
    time.sleep(rest)
    row |= {"megabytes_after": server.megabytes(), "health_worst_milliseconds": times[-1],
            "health_p99_milliseconds": times[int(.99 * (len(times) - 1))]}


def repeat(count, function, seconds=0.0):
    """Calls a function in so many threads, once or for some seconds; returns how often each result came."""
    def run():
        end, results = time.monotonic() + seconds, [function()]
        while time.monotonic() < end:
            results.append(function())
        return results

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return collections.Counter(sum((future.result() for future in [pool.submit(run) for _ in range(count)]), []))


def overload(server, timeout_s=TIMEOUT_S):
    bodies = [json.dumps({"instances": [("some words of a text " * 20)[:460]] * 16}).encode()]
    honest = [json.dumps({"instances": ["some words"]}).encode()]
    repeat(2, lambda: server.post(bodies[0]), seconds=3)
    begin = time.monotonic()
    capacity = repeat(2, lambda: server.post(bodies[0]), seconds=10)[200] / (time.monotonic() - begin)
    for load in (0.5, 1, 2, 4):
        row, seconds = {"library": f"overload, {load:g} times {16 * capacity:.0f} texts/s"}, 15 + timeout_s
        with watching(server, row), arriving(server.port, serving.PATH, honest, 5, seconds) as of_honest:
            answers = arrive(server.port, serving.PATH, bodies, load * capacity, seconds)
            few = of_honest()
        counts = answers.counts()
        begun = counts[200] + counts[504]
        refused, = answers.milliseconds(429, 99)
        p50, p99 = few.milliseconds(200, 50, 99)
        yield row | {"in_time_share": counts[200] / max(1, begun), "texts_per_second": 16 * counts[200] / seconds,
                     "statuses": str(dict(counts)), "p99_of_429_milliseconds": refused,
                     "honest_p50_milliseconds": p50, "honest_p99_milliseconds": p99, "honest": str(dict(few.counts()))}


def patience(server):
    yield from overload(server, PATIENCE_S)


def bombs(server):
    row = {"library": "gzip"}
    with watching(server, row, rest=8):
        statuses = send_bombs(server)
    yield row | {"statuses": str(dict(statuses))}


def send_bombs(server):
    body = gzip.compress(b'["' + b" " * 16_700_000)
    return repeat(200, lambda: server.post(body, **{"Content-Encoding": "gzip"}))


def unread(server):
    row, sockets = {"library": "unread"}, []
    body = json.dumps({"instances": ["a"] * 1024}).encode()

    def ask():
        sockets.append(socket.create_connection(("127.0.0.1", server.port)))
        sockets[-1].sendall(POST + b"%d\r\n\r\n%b" % (len(body), body))

    with watching(server, row):
        for _ in range(20):
            ask()
        for sock in sockets:
            sock.recv(1)
        time.sleep(15)
    ask()
    sockets[-1].recv(1)
    begin = time.monotonic()
    server.process.terminate()
    server.process.wait()
    yield row | {"seconds_to_stop": time.monotonic() - begin}


def headers(server):
    for name, parts in HEADERS.items():
        row = {"library": name}
        with watching(server, row):
            row["answer"] = send_headers(server, parts)
        yield row


def send_headers(server, parts):
    return server.talk(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", *parts, b"\r\n\r\n")


def lists(server):
    row = {"library": "json"}
    with watching(server, row):
        statuses = send_lists(server)
    yield row | {"statuses": str(dict(statuses))}


def send_lists(server):
    body = b'{"instances": [' + b"[]," * 700_000 + b"[]]}"
    return repeat(4, lambda: server.post(body), seconds=5)


def memory(server):
    row, end = {"library": "3 minutes of attacks"}, time.monotonic() + 180
    with watching(server, row, rest=8):
        while time.monotonic() < end:
            send_bombs(server)
            send_lists(server)
            for parts in HEADERS.values():
                send_headers(server, parts)
    yield row
    row = {"library": "then 3 minutes of 1 to 100 texts"}
    bodies = [json.dumps({"instances": ["some words of a text " * (1 + count % 7)] * count}) for count in range(1, 101)]
    with watching(server, row, rest=8):
        statuses = repeat(16, lambda: server.post(random.choice(bodies)), seconds=180)
    yield row | {"statuses": str(dict(statuses))}


def connections(server):
    body = b'{"instances": ["a"]}'
    zipped, get = gzip.compress(body), b"GET /healthz HTTP/1.1\r\n"
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    chunked = POST.replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\n\r\n14\r\n") + body + b"\r\n0\r\n"
    for name, expected, *parts in (
            ("half-closed", "nothing", POST, b"%d\r\n\r\n" % len(body), body),
            ("HEAD /healthz", "200", b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            ("no Host", "400", get, b"\r\n"),
            ("two Hosts", "400", get, b"Host: localhost\r\nHost: localhost\r\n\r\n"),
            ("another host in the URL", "421", b"GET http://evil.com/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            ("Host: 127.0.0.1%evil.com", "421", get, b"Host: 127.0.0.1%evil.com\r\n\r\n"),
            ("Content-Encoding: GZIP", "200", POST, b"%d\r\nContent-Encoding: GZIP\r\n\r\n" % len(zipped), zipped),
            ("gzip and garbage", "400", POST, b"%d\r\nContent-Encoding: gzip\r\n\r\n%bx" % (len(zipped) + 1, zipped)),
            ("Content-Encoding: br", "415", POST, b"%d\r\nContent-Encoding: br\r\n\r\n" % len(body), body),
            ("Upgrade: h2c", "200", POST, b"%d\r\n%b\r\n%b" % (len(body), upgrade, body)),
            ("Upgrade: h2c, body in another packet", "200", POST, b"%d\r\n%b\r\n" % (len(body), upgrade), body),
            ("trailer Host", "421", chunked.replace(b"localhost", b"evil.com") + b"Host: localhost\r\n\r\n"),
            ("trailers of 120 kB", "431", chunked + b"a: %b\r\n\r\n" % (b"x" * 120_000)),
            ("30,000 headers", "431", get + b"Host: localhost\r\n" + b"a:\r\n" * 30_000 + b"\r\n")):
        yield compare(name, expected, server.talk(*parts, ends=name == "half-closed"))


def compare(name, expected, got):
    return {"library": name, "expected": expected, "got": got}


def clients(server):
    body = '{"instances": ["a"]}'
    for command in (["java", pathlib.Path(__file__).with_name("Ask.java"), server.url, body],
                    ["curl", "-s", "--http2", "-w", "%{http_code}", "-d", body, server.url]):
        ran = subprocess.run(command, capture_output=True, text=True)
        yield compare(command[0], "200", "200" if "200" in ran.stdout else ran.stdout + ran.stderr[:100])


def readers(server):
    body = json.dumps({"instances": ["a"] * 1024})
    rates = {"3k": "cut", "50k": "whole", "120k": "whole"}
    running = {rate: subprocess.Popen(
        ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download}", "--limit-rate", rate, "-m", "300", "-d", body,
         server.url], stdout=subprocess.PIPE, text=True) for rate in rates}
    for rate, curl in running.items():
        size, = curl.communicate()[:1]
        result = {0: "whole", 28: "whole until curl's limit of time"}.get(curl.returncode, "cut")
        yield compare(f"{rate}B/s", rates[rate], f"{result} ({size} bytes)")


def grpc(server):
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    os.kill(int(server.worker), signal.SIGKILL)
    while server.find_worker() in (None, server.worker):
        time.sleep(0.1)
    wait_for(server.port)
    worker = server.find_worker()
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", GRPC_PORT), timeout=60))
            with contextlib.suppress(OSError):
                sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")  # and empty settings
        time.sleep(3)
        yield compare("/healthz, and the worker lives", (200, True),
                      (ask(server.port, "/healthz")[0], server.find_worker() == worker))


def ask(port, path, connection=None, body=None, header="connection"):
    """Returns the status and a header of a request's answer; (None, None) if the connection was lost."""
    connection = connection or serving.connect(port)
    try:
        connection.request("POST" if body else "GET", path, body)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers[header]
    except OSError:
        return None, None


def wait_for(port):
    while ask(port, "/v1/models/model/metadata")[0] != 200:
        time.sleep(0.1)


def draining(server):
    answers = collections.Counter()

    def client():
        connection = serving.connect(server.port)
        while server.process.poll() is None:
            answer = ask(server.port, "/v1/models/model", connection)
            answers[answer] += 1
            if answer[1] == "close" and ask(server.port, "/readyz")[0] != 200:
                return  # as a client whose load balancer has been told
            time.sleep(0.05)

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    server.process.terminate()
    for thread in threads:
        thread.join()
    yield compare("draining", "200 alone, the last with close", str(dict(answers)))


@contextlib.contextmanager
def proxied(*ports):
    """Runs nginx at `NGINX_PORT` before the servers at these ports, with the configuration of the page."""
    page = (pathlib.Path(__file__).parents[1] / "docs/operating.md").read_text(encoding="utf-8")
    text = re.search(r"```nginx\n(.*?)```", page, re.DOTALL)[1].replace("listen 80", f"listen 127.0.0.1:{NGINX_PORT}")
    text = re.sub(r"10\.0\.0\.(\d):8501", lambda server: f"127.0.0.1:{ports[int(server[1]) - 1]}", text)
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "nginx.conf")
        config.write_text(f"user root; daemon off; pid pid; events {{}} http {{ access_log off; {text} }}")
        with subprocess.Popen(["nginx", "-p", folder, "-c", config, "-e", "errors"]) as process:
            wait_for(NGINX_PORT)
            yield
            process.terminate()


def nginx(server):
    if not shutil.which("nginx"):
        return print("nginx is not installed: left out")
    small, large = b'{"instances": ["a"]}', json.dumps({"instances": ["some words of a text " * 20] * 32})
    with serving.running(server.model, *FLAGS["nginx"]) as (other, port), proxied(server.port, port):
        front = Attacked(server.process, NGINX_PORT, server.model)
        statuses = repeat(2, lambda: ask(NGINX_PORT, "/v1/models")[0], seconds=2)
        kept = sum(line.split()[2].endswith(f":{server.port:04X}") for line in open("/proc/net/tcp"))
        yield compare("connections to the servers are kept", (True, [200]), (5 * kept < statuses.total(), [*statuses]))
        got = [front.post(small + megabytes * 10**6 * b" ") for megabytes in (15, 17)]
        yield compare("bodies of 15 and 17 MB", [200, 413], got)
        with socket.create_connection(("127.0.0.1", NGINX_PORT)) as sock:
            for part in (POST + b"%d\r\n\r\n" % len(small), small[:9], small[9:]):
                time.sleep(2)
                sock.sendall(part)
            yield compare("a body in 4 s, where the server allows 2", "HTTP/1.1 200 OK", sock.recv(15).decode())
        answers = repeat(24, lambda: ask(NGINX_PORT, serving.PATH, body=large, header="retry-after"))
        yield compare("answers of a full queue", "200, 504, or 429 with Retry-After", str(dict(answers)))
        answers = repeat(2, lambda: (ask(NGINX_PORT, "/v1/models/empty/metadata")[0], front.post(small)), seconds=2)
        yield compare("a model that is not ready, and another", [(503, 200)], [*answers])
        threading.Timer(0.3, os.kill, [int(server.worker), signal.SIGKILL]).start()
        yield compare("a worker is killed", "200 alone", str(repeat(4, lambda: front.post(large))))
        wait_for(server.port)
        with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(1) as pool:
            def restart():
                for process, restarted in ((server.process, server.port), (other, port)):
                    process.terminate()
                    process.wait()
                    stack.enter_context(serving.running(server.model, *FLAGS["nginx"], f"--port={restarted}"))

            restarting = pool.submit(restart)
            answers = repeat(8, lambda: front.post(small), seconds=40)
            restarting.result()
            yield compare("both servers are restarted in a row", "200 alone", str(dict(answers)))


ATTACKS = {"overload": overload, "patience": patience, "gzip": bombs, "unread": unread, "headers": headers,
           "json": lists, "memory": memory, "connections": connections, "clients": clients, "readers": readers,
           "grpc": grpc, "draining": draining, "nginx": nginx}


def main():
    given = ruler.parser(__doc__, model=str, checkout=None, attacks=list(ATTACKS)).parse_args()
    versions, rows = ruler.describe("tensorflow", "keras-bert-hub"), []
    for name in given.attacks:
        with serving.running(given.model, *FLAGS.get(name, ()), checkout=given.checkout) as (process, port):
            for row in ATTACKS[name](Attacked(process, port, given.model)):
                line = ", ".join(f"{key} {value}" for key, value in row.items())
                print(re.sub(r"(\.\d)\d+", r"\1", line), flush=True)
                rows.append(row)
    ruler.finish("attacks", versions, given, rows)


if __name__ == "__main__":
    main()
