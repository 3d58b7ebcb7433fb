"""Attacks `keras-bert serve`, and prints what the server did.

    keras-bert export text-model --model=minilm --output=demo/embeddings --pooling=mean
    git worktree add ../before v0.2
    python benchmarks/attacks.py --model=demo/embeddings --checkout=../before
    python benchmarks/attacks.py --model=demo/embeddings

--model: a raw-text SavedModel, whose only input is `text`. --checkout: the checkout whose server is attacked, instead
of this one. --attacks: some of those below. Each has a server of its own with one worker, and takes up to a minute.
While it lasts, another process asks for /healthz 20 times per second. Memory is the worker's resident memory.

overload: requests of 16 texts of 96 words arrive at 0.5, 1, 2 and 4 times the rate that two clients get answered; an
answer must come within 5 seconds.
gzip: 200 clients send 16 kB of gzip, which are 16 MB of JSON.
unread: 20 clients ask for 1,024 embeddings and read nothing; then the server is stopped.
headers: a header of 64 MB, and 400,000 headers of 1 kB.
json: four clients send lists, 2 MB of `[],`, for 5 seconds.
connections: what the server says to half-closed connections, other forms of Host, of HEAD and of Content-Encoding.
"""

import collections
import concurrent.futures
import contextlib
import gzip
import json
import multiprocessing
import re
import socket
import time

import ruler
import serving

TIMEOUT_S = 5
POST = f"POST {serving.PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ".encode()


class Attacked:
    """A server under attack: `port`, its `process`, and the pid of its `worker`."""

    def __init__(self, process, port):
        self.process, self.port = process, port
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            self.worker, = file.read().split()

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
            answer = b""
            while not (answer := answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")):
                answer = sock.recv(2**16) or b"nothing"
            return answer.partition(b"\r\n")[0].decode()
        return "lost"


@contextlib.contextmanager
def health(server, row):
    """Measures /healthz during its block; adds the figures to a row."""
    spawn = multiprocessing.get_context("spawn")
    stop, (receiver, sender) = spawn.Event(), spawn.Pipe()
    spawn.Process(target=serving.measure_health, daemon=True, args=(server.port, stop, sender)).start()
    time.sleep(1)
    yield
    stop.set()
    times = sorted(receiver.recv())
    row |= {"health_p99_milliseconds": times[int(.99 * (len(times) - 1))], "health_worst_milliseconds": times[-1]}


def many(count, function, *arguments):
    """Calls a function in so many threads at once; returns how often each result came."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return collections.Counter(future.result() for future in [
            pool.submit(function, *arguments) for _ in range(count)])


def overload(server):
    texts = [("some words of a text " * 20)[:460]] * 16
    body, begin = json.dumps({"instances": texts}), time.monotonic()

    def repeat(seconds):
        return sum(server.post(body) == 200 for _ in iter(lambda: time.monotonic() < begin + seconds, False))

    many(2, repeat, 3)
    begin = time.monotonic()
    answered = sum(result * count for result, count in many(2, repeat, 10).items())
    capacity = answered / (time.monotonic() - begin)
    for load in (0.5, 1, 2, 4):
        row = {"library": f"overload, {load:g} times {16 * capacity:.0f} texts/s"}
        with health(server, row), concurrent.futures.ThreadPoolExecutor(1000) as pool:
            begin, futures = time.monotonic(), []
            for turn in range(int(20 * load * capacity)):
                time.sleep(max(0, begin + turn / load / capacity - time.monotonic()))
                futures.append(pool.submit(server.post, body))
            statuses = collections.Counter(future.result() for future in futures)
            seconds = time.monotonic() - begin
        yield row | {"texts_per_second": 16 * statuses[200] / seconds, "share": statuses[200] / seconds / capacity,
                     "answered": statuses[200], "rejected": statuses[429] + statuses[503], "too_late": statuses[504]}


def bombs(server):
    row, body = {"library": "gzip", "megabytes_before": server.megabytes()}, gzip.compress(b'["' + b" " * 16_700_000)
    with health(server, row), concurrent.futures.ThreadPoolExecutor(1) as pool:
        statuses = pool.submit(many, 200, lambda: server.post(body, **{"Content-Encoding": "gzip"}))
        peak = row["megabytes_before"]
        while not statuses.done():
            peak = max(peak, server.megabytes())
            time.sleep(0.02)
        time.sleep(8)
    yield row | {"megabytes_peak": peak, "megabytes_after": server.megabytes(),
                 "statuses": str(dict(statuses.result()))}


def unread(server):
    row, sockets = {"library": "unread", "megabytes_before": server.megabytes()}, []
    body = json.dumps({"instances": ["a"] * 1024}).encode()

    def ask():
        sockets.append(socket.create_connection(("127.0.0.1", server.port)))
        sockets[-1].sendall(POST + b"%d\r\n\r\n%b" % (len(body), body))

    with health(server, row):
        for _ in range(20):
            ask()
        for sock in sockets:
            sock.recv(1)
        row["megabytes_during"] = server.megabytes()
        time.sleep(15)
        row["megabytes_after"] = server.megabytes()
    ask()
    sockets[-1].recv(1)
    begin = time.monotonic()
    server.process.terminate()
    server.process.wait()
    yield row | {"seconds_to_stop": time.monotonic() - begin}


def headers(server):
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    for name, parts in (("one header of 64 MB", [b"a: ", *[b"x" * 2**16] * 1000]),
                        ("400 MB of headers", [b"a: " + b"x" * 1000 + b"\r\n"] * 400_000)):
        row = {"library": name, "megabytes_before": server.megabytes()}
        with health(server, row):
            answer = server.talk(start, *parts, b"\r\n\r\n")
        yield row | {"megabytes_after": server.megabytes(), "answer": answer}


def lists(server):
    row, end = {"library": "json"}, time.monotonic() + 6
    body = b'{"instances": [' + b"[]," * 700_000 + b"[]]}"

    def repeat():
        return str({server.post(body) for _ in iter(lambda: time.monotonic() < end, False)})

    with health(server, row):
        answers = many(4, repeat)
    yield row | {"statuses": ", ".join(answers)}


def connections(server):
    body = b'{"instances": ["a"]}'
    zipped, get = gzip.compress(body), b"GET /healthz HTTP/1.1\r\n"
    for name, parts, ends in (
            ("half-closed", [POST, b"%d\r\n\r\n" % len(body), body], True),
            ("HEAD /healthz", [b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"], False),
            ("no Host", [get, b"\r\n"], False),
            ("two Hosts", [get, b"Host: localhost\r\nHost: localhost\r\n\r\n"], False),
            ("another host in the URL", [b"GET http://evil.com/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"], False),
            ("Host: 127.0.0.1%evil.com", [get, b"Host: 127.0.0.1%evil.com\r\n\r\n"], False),
            ("Content-Encoding: GZIP", [POST, b"%d\r\nContent-Encoding: GZIP\r\n\r\n" % len(zipped), zipped], False),
            ("gzip and garbage", [POST, b"%d\r\nContent-Encoding: gzip\r\n\r\n" % (len(zipped) + 1), zipped, b"x"],
             False),
            ("Content-Encoding: br", [POST, b"%d\r\nContent-Encoding: br\r\n\r\n" % len(body), body], False)):
        yield {"library": name, "answer": server.talk(*parts, ends=ends)}


ATTACKS = {"overload": overload, "gzip": bombs, "unread": unread, "headers": headers, "json": lists,
           "connections": connections}


def main():
    given = ruler.parser(__doc__, model=str, checkout=None, attacks=list(ATTACKS)).parse_args()
    versions, rows = ruler.describe("tensorflow", "keras-bert-hub"), []
    for name in given.attacks:
        flags = [f"--timeout_s={TIMEOUT_S}"] if name == "overload" else []
        with serving.running(given.model, *flags, checkout=given.checkout) as (process, port):
            for row in ATTACKS[name](Attacked(process, port)):
                line = ", ".join(f"{key} {value}" for key, value in row.items())
                print(re.sub(r"(\.\d)\d+", r"\1", line), flush=True)
                rows.append(row)
    ruler.finish("attacks", versions, given, rows)


if __name__ == "__main__":
    main()
