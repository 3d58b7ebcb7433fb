"""Tests `keras-bert serve` with small, large, invalid and broken requests at once, each answer compared.

    keras-bert export text-model --model=demo/model --output=demo/answers
    python benchmarks/serving_mixed.py --model=demo/answers --texts=demo/data/valid.tsv --minutes=10

--model: a raw-text classifier. --texts: a table with a column `text`. The labels and probabilities of texts that are
sent alone, before the test, are those that each request must get. Of 1,000 requests, 700 have one to five texts; 50
have 20 to 100; 2 have 1,024; 2 have a text of 100,000 characters; 2 have 8 million numbers; 200 are valid JSON with
random changes; and the rest break off, announce 1 GB, or ask for what does not exist. Another process asks for /healthz
20 times per second. Any wrong answer, lost answer or status 500 ends the program with status 1. --requests ends the
test after so many requests instead.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import multiprocessing
import os
import random
import sys
import threading
import time

os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

from ruler import describe, resident
from serving_load import start

from keras_bert.data.tables import read_table

PATH = "/v1/models/model:predict"
TOLERANCE = 1e-5  # for probabilities: another batch sums in another order
KINDS = {"small": 700, "medium": 50, "many": 2, "long": 2, "numbers": 2, "changed": 200, "broken": 20, "announced": 12,
         "unknown": 12}
BUSY = {429, 504}  # legal answers of a server with more work than it can do


class Client:
    """A client with one connection, which counts what it gets: (kind, status)."""

    def __init__(self, port, wanted, seed):
        self._port, self._wanted, self._texts = port, wanted, list(wanted)
        self._random, self.counts, self._connection = random.Random(seed), collections.Counter(), None

    def ask(self):
        kind, = self._random.choices(list(KINDS), list(KINDS.values()))
        self.counts[kind, getattr(self, f"_{kind}")()] += 1

    def _small(self):
        return self._predict(self._random.choices(self._texts, k=self._random.randint(1, 5)))

    def _medium(self):
        return self._predict(self._random.choices(self._texts, k=self._random.randint(20, 100)))

    def _many(self):
        return self._predict(self._random.choices(self._texts, k=1024))

    def _long(self):
        return self._send(json.dumps({"instances": ["a long text " * 8333]}))[0]

    def _numbers(self):
        status, _ = self._send(b'{"inputs":[' + b"1," * 8_000_000 + b"1]}")
        return self._check(status, {400, 413})

    def _changed(self):
        body = bytearray(json.dumps({"instances": self._random.choices(self._texts, k=3)}).encode())
        for _ in range(self._random.randint(1, 4)):
            body[self._random.randrange(len(body))] = self._random.randrange(256)
        status, _ = self._send(bytes(body))
        return self._check(status, {200, 400})

    def _broken(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=90)
        connection.putrequest("POST", PATH)
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b'{"instances": ["a')
        connection.close()
        return "left"

    def _announced(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=90)
        connection.putrequest("POST", PATH)
        connection.putheader("Content-Length", "1000000000")
        connection.endheaders(b'{"instances": ["a')
        status = connection.getresponse().status
        connection.close()
        return self._check(status, {413})

    def _unknown(self):
        status, _ = self._send(b"{}", self._random.choice(["/v1/models/no:predict", "/v1/models/model:x", f"{PATH}/x"]))
        return self._check(status, {404, 405})

    def _predict(self, texts):
        status, answer = self._send(json.dumps({"instances": texts}))
        if status == 200:
            for text, got in zip(texts, answer["predictions"], strict=True):
                label, score = self._wanted[text]
                if got["label"] != label or abs(got["score"] - score) > TOLERANCE:
                    raise SystemExit(f"serving_mixed.py: {text!r}: {got} instead of {label} {score}")
        return self._check(status, {200})

    def _check(self, status, expected):
        if status not in expected | BUSY:
            raise SystemExit(f"serving_mixed.py: status {status} instead of {expected}")
        return status

    def _send(self, body, path=PATH):
        """Sends a request on the connection; opens a new one if the server has closed the last."""
        for _ in range(2):
            self._connection = self._connection or http.client.HTTPConnection("127.0.0.1", self._port, timeout=90)
            try:
                self._connection.request("POST", path, body)
                response = self._connection.getresponse()
                content = json.loads(response.read())
            except (ConnectionError, http.client.RemoteDisconnected):
                self._connection = None
                continue
            if response.will_close:
                self._connection = None
            return response.status, content
        raise SystemExit("serving_mixed.py: a request got no answer")


def measure_health(port, stop, results):
    """Asks for /healthz on one connection until `stop` is set; sends the milliseconds of each answer."""
    connection, times = http.client.HTTPConnection("127.0.0.1", port, timeout=90), []
    while not stop.wait(0.05):
        begin = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        times.append(1000 * (time.perf_counter() - begin))
    results.send(times)


def run_clients(port, wanted, clients, seconds, requests, results):
    """Runs that many clients in this process; sends the counts, or the message of the first failure."""
    end, left, lock = time.monotonic() + seconds, [requests], threading.Lock()

    def run(seed):
        client = Client(port, wanted, seed)
        while time.monotonic() < end:
            with lock:
                left[0] -= 1
                if left[0] < 0:
                    break
            client.ask()
        return client.counts

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(run, i) for i in range(clients)]
    try:
        results.send(sum((future.result() for future in futures), collections.Counter()))
    except (SystemExit, Exception) as error:
        results.send(str(error) or repr(error))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--requests", type=int, default=10**9)
    parser.add_argument("--connections", type=int, default=32)
    arguments = parser.parse_args()
    _, rows = read_table(arguments.texts, required=["text"])
    texts = sorted({row["text"] for _, row in rows})
    describe("tensorflow", "keras-bert-hub")
    server, port = start(arguments.model, [])
    connection, wanted = http.client.HTTPConnection("127.0.0.1", port), {}
    for text in texts:
        connection.request("POST", PATH, json.dumps({"instances": [text]}))
        row, = json.loads(connection.getresponse().read())["predictions"]
        wanted[text] = row["label"], row["score"]
    with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:
        worker, = file.read().split()
    spawn = multiprocessing.get_context("spawn")
    stop, (health, sender) = spawn.Event(), spawn.Pipe()
    pinger = spawn.Process(target=measure_health, args=(port, stop, sender))
    pinger.start()
    begin, (results, pipe) = time.monotonic(), spawn.Pipe()
    clients = spawn.Process(target=run_clients, args=(
        port, wanted, arguments.connections, 60 * arguments.minutes, arguments.requests, pipe))
    clients.start()
    megabytes, minute = [], 0
    while not results.poll(1):
        if time.monotonic() - begin >= 60 * minute:
            minute += 1
            megabytes.append(round(resident(worker) / 1e6, 1))
            print(f"{minute - 1:4} min {megabytes[-1]:8.1f} MB", flush=True)
    counts = results.recv()
    seconds = time.monotonic() - begin
    megabytes.append(round(resident(worker) / 1e6, 1))
    stop.set()
    times = sorted(health.recv())
    for process in (pinger, clients):
        process.join()
    server.terminate()
    server.wait()
    if isinstance(counts, str):
        sys.exit(counts)
    percentiles = {f"health_p{100 * share:g}_ms": round(times[int(share * (len(times) - 1))], 1)
                   for share in (.5, .99, .999, 1)}
    answers = {f"{kind} {status}": count for (kind, status), count in sorted(counts.items(), key=str)}
    print(json.dumps({"benchmark": "serving_mixed", "seconds": round(seconds), "requests": counts.total(),
                      **percentiles, "megabytes": megabytes, "answers": answers}))


if __name__ == "__main__":
    main()
