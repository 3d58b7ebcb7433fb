"""Tests `keras-bert serve` with a raw-text model: its speed under load, also with LiteRT folders, mixed requests, and
load for half an hour.

    keras-bert export text-model --model=demo/model --output=demo/answers
    python benchmarks/serving.py load --model=demo/answers --texts=demo/data/valid.tsv
    keras-bert export litert --model=demo/model --output=demo/int8 --dtype=int8
    keras-bert export litert --model=demo/model --output=demo/float32
    python benchmarks/serving.py kinds --models=demo/int8,demo/float32,demo/answers --texts=demo/data/valid.tsv
    python benchmarks/serving.py mixed --model=demo/answers --texts=demo/data/valid.tsv --minutes=10
    python benchmarks/serving.py soak --model=demo/answers --texts=demo/data/valid.tsv --folder=demo/model --minutes=30
    python benchmarks/serving.py kills --model=demo/answers --texts=demo/data/valid.tsv --kills=30
    python benchmarks/serving.py kills --model=demo/answers --texts=demo/data/valid.tsv --kills=20 --stops
    python benchmarks/serving.py capacity --models=demo/int8,demo/answers --texts=demo/data/valid.tsv
    python benchmarks/serving.py ready --models=demo/int8,demo/answers --texts=demo/data/valid.tsv

--model: a raw-text SavedModel, whose only input is `text`; for mixed and soak, a classifier. --texts: a table with
a column `text`. The memory is the worker's resident memory, every minute.

load: throughput and latency, with and without batching. Each request sends one of the texts, in their order. Needs wrk
(Debian: apt-get install wrk). Takes half a minute for each of the eight rows of the table.

kinds: the same for folders of `export litert` and SavedModels, with the seconds from the start of the server until it
answers, and the resident memory of all its processes afterwards. `share` is the rate of requests, divided by the rate
of the same interpreters in one process, with as many threads as cores and the token ids ready
(`in_process_per_second`).

mixed: small, large, invalid and broken requests at once. The labels and probabilities of texts that are sent alone,
before the test, are those that each request must get. Of 1,000 requests, 700 have one to five texts; 50 have 20 to 100;
2 have 1,024; 2 have a text of 100,000 characters; 2 have 8 million numbers; 200 are valid JSON with random changes; and
the rest break off, announce 1 GB, or ask for what does not exist. Another process asks for /healthz 20 times per
second. --requests ends the test after so many requests instead.

soak: many connections without pauses; a request has one, two or five texts. --folder: the fine-tuned classifier; its
predictions in this process are the answers that the server must give.

kills: two workers, one of which is killed (SIGKILL), or with --stops hangs (SIGSTOP), whenever both serve. Half of the
clients connect again for each request. A status other than 200 ends the program with status 1, and so do more lost
answers than the killed workers held connections, those included that they had still to accept: each may wait for an
answer. `worst_seconds` is the longest time from the signal until both serve again.

capacity: what one core answers. The server has one core, and requests with one text come from another one at random
times (Poisson). The rates are --shares of the one at which it answers some 400 that come at once.

ready: the seconds until the server is ready; then, for each signature, the time of its first request so many seconds
after that (--pauses), each in a new server, beside the median of the next 20, 0.2 s apart; and the slowest answer while
a copy of the model becomes a new version, five times, at 20 requests per second.

In mixed and soak, a wrong answer, a lost answer or a status that the request should not get ends the program with
status 1.
"""

import collections
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec

import ruler
from arrivals import arrive, arriving

from keras_bert.data.tables import read_table
from keras_bert.litert import is_litert

PATH = "/v1/models/model:predict"
TOLERANCE = 1e-5  # for probabilities: another batch sums in another order
SCRIPT = """
local bodies, turn = {}, 0
for line in io.lines("BODIES") do bodies[#bodies + 1] = line end
request = function()
  turn = turn + 1
  return wrk.format("POST", nil, nil, bodies[turn % #bodies + 1])
end
done = function(summary, latency, requests)
  print(string.format("RESULT %d %d %d %d %d %d", summary.requests, summary.duration, latency:percentile(50),
                      latency:percentile(99), latency:percentile(99.9),
                      summary.errors.status + summary.errors.timeout + summary.errors.read))
end
"""


@contextlib.contextmanager
def running(model, *flags, checkout=None):
    """Starts a server, which ends with the context; yields its process and its port once it is ready. `checkout`: the
    path of another checkout, whose server it is."""
    with tempfile.NamedTemporaryFile() as file:
        log = pathlib.Path(file.name)
        has_grpc = not (is_litert(model) or is_litert(f"{model}/1")) and bool(find_spec("tensorflow_serving"))
        server = subprocess.Popen([sys.executable, "-m", "keras_bert.cli", "serve",
                                   f"--model=model={os.path.abspath(model)}",
                                   "--port=0", *["--grpc_port=0"] * has_grpc, *flags], stderr=file,
                                  cwd=checkout,  # which Python imports from first
                                  env=os.environ | ({"PYTHONPATH": os.path.abspath(checkout)} if checkout else {}))
        try:
            while '"event": "available"' not in (text := log.read_text()):
                if server.poll() is not None:
                    sys.exit(log.read_text())
                time.sleep(0.05)
            yield server, int(re.search(r":(\d+)/v1", text)[1])
        finally:
            server.terminate()
            server.wait()


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=90)


def texts_of(given):
    """Returns the texts of the table, as an iterator."""
    return (row.text("text") for row in read_table(given.texts, required=["text"])[1])


def bodies_of(given):
    """Returns requests of one text each for wrk."""
    if not shutil.which("wrk"):
        sys.exit("serving.py: wrk is not installed; on Debian: apt-get install wrk")
    return [json.dumps({"instances": [text]}) for text in itertools.islice(texts_of(given), 10_000)]


def load(given):
    bodies = bodies_of(given)
    versions, rows = ruler.describe("tensorflow", "keras-bert-hub"), []
    for name, flags in (("batched", []), ("one by one", ["--max_batch_tokens=1"])):
        with running(given.model, *flags) as (_, port):
            rows += [{"library": f"{name}, {count}"} | wrk(port, bodies, count, given.seconds)
                     for count in given.connections]
    ruler.print_table(f"by the number of connections, {given.seconds} seconds a row", rows)
    return versions, rows


def kinds(given):
    bodies, texts = bodies_of(given), list(itertools.islice(texts_of(given), 10_000))
    versions, rows = ruler.describe("tensorflow", "keras-bert-hub", "ai-edge-litert"), []
    for model in given.models:
        pool = multiprocessing.get_context("spawn").Pool(1)  # a process without TensorFlow
        alone = pool.apply(run_interpreters, (model, texts, given.seconds)) if is_litert(model) else None
        pool.close()
        started = time.perf_counter()
        with running(model) as (server, port):
            ready = time.perf_counter() - started
            measured = [wrk(port, bodies, count, given.seconds) for count in given.connections]
            megabytes = sum(map(ruler.resident, [server.pid, *children(server.pid)])) / 1e6
        rows += [{"library": f"{os.path.basename(model)}, {count}"} | row | {
            "in_process_per_second": alone, "share": alone and row["requests_per_second"] / alone,
            "ready_seconds": ready, "megabytes": megabytes} for count, row in zip(given.connections, measured)]
    ruler.print_table(f"by the number of connections, {given.seconds} seconds a row", rows)
    return versions, rows


def run_interpreters(folder, texts, seconds):
    """Returns the texts per second of a LiteRT folder's interpreters, each in a thread of its own."""
    from keras_bert.inference.lite_model import LiteModel, rows_of

    model, cores = LiteModel.load(folder, one_core_per_call=True), len(os.sched_getaffinity(0))
    rows = rows_of(model.task.encode([model.task.example(text) for text in texts], model.tokenizer))

    def run(thread):
        turns = itertools.cycle(rows[thread::cores])
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            model.output_of_row(next(turns))
            count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(run, range(cores))) / seconds


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return list(map(int, file.read().split()))


def wrk(port, bodies, connections, seconds):
    """Warms up for two seconds, then runs wrk; returns the rate and the latencies."""
    with tempfile.TemporaryDirectory() as folder:
        lines, script = pathlib.Path(folder, "bodies.txt"), pathlib.Path(folder, "requests.lua")
        lines.write_text("\n".join(bodies))
        script.write_text(SCRIPT.replace("BODIES", str(lines)))
        command = ["wrk", "-t1", f"-c{connections}", "--timeout=30s", "-s", str(script),
                   f"http://127.0.0.1:{port}{PATH}"]
        subprocess.run([*command, "-d2s"], check=True, capture_output=True)
        output = subprocess.run([*command, f"-d{seconds}s"], check=True, capture_output=True, text=True).stdout
    requests, microseconds, p50, p99, p99_9, errors = map(int, re.search(r"RESULT (.*)", output)[1].split())
    if errors:
        sys.exit(f"serving.py: {errors} requests failed")
    return {"requests_per_second": requests / microseconds * 1e6, "p50_milliseconds": p50 / 1000,
            "p99_milliseconds": p99 / 1000, "p99.9_milliseconds": p99_9 / 1000}


class Client:
    """A client with one connection, which sends requests of a few texts and compares the answers.

    Attributes:
        kinds: dict of the kinds of requests to how often each is sent.
        busy: statuses that every request may get.
        tries: connections to try; more than 1 if the server may close one.
        counts: `Counter` of (kind, status).
        worst: largest difference of a probability.
    """

    kinds, busy, tries = {"few": 1}, frozenset(), 1

    def __init__(self, port, wanted, seed):
        self._port, self._wanted, self._texts, self._connection = port, wanted, list(wanted), None
        self._random, self.counts, self.worst = random.Random(seed), collections.Counter(), 0.0

    def ask(self):
        kind, = self._random.choices(list(self.kinds), list(self.kinds.values()))
        self.counts[kind, getattr(self, f"_{kind}")()] += 1

    def _few(self):
        return self._predict(self._random.sample(self._texts, self._random.choice([1, 1, 1, 2, 5])))

    def _predict(self, texts):
        status, answer = self._send(json.dumps({"instances": texts}))
        if status == 200:
            for text, got in zip(texts, answer["predictions"], strict=True):
                label, score = self._wanted[text]
                self.worst = max(self.worst, abs(got["score"] - score))
                if got["label"] != label or abs(got["score"] - score) > TOLERANCE:
                    raise SystemExit(f"serving.py: {text!r}: {got} instead of {label} {score}")
        return self._check(status, {200})

    def _check(self, status, expected):
        if status not in expected | self.busy:
            raise SystemExit(f"serving.py: status {status} instead of {expected}")
        return status

    def _send(self, body, path=PATH):
        """Sends a request on the connection; opens a new one if the server has closed the last."""
        for _ in range(self.tries):
            self._connection = self._connection or connect(self._port)
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
        raise SystemExit("serving.py: a request got no answer")


class MixedClient(Client):
    """A client that also sends large, invalid and broken requests."""

    kinds = {"small": 700, "medium": 50, "many": 2, "long": 2, "numbers": 2, "changed": 200, "broken": 20,
             "announced": 12, "unknown": 12}
    busy = frozenset({429, 504})  # legal answers of a server with more work than it can do
    tries = 2

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
        self._begin(1000).close()
        return "left"

    def _announced(self):
        connection = self._begin(1_000_000_000)
        status = connection.getresponse().status
        connection.close()
        return self._check(status, {413})

    def _begin(self, length):
        """Sends a request that ends before its announced length; returns its connection."""
        connection = connect(self._port)
        connection.putrequest("POST", PATH)
        connection.putheader("Content-Length", str(length))
        connection.endheaders(b'{"instances": ["a')
        return connection

    def _unknown(self):
        status, _ = self._send(b"{}", self._random.choice(["/v1/models/no:predict", "/v1/models/model:x", f"{PATH}/x"]))
        return self._check(status, {404, 405})


def measure_health(port, stop, results):
    """Asks for /healthz on one connection until `stop` is set; sends the milliseconds of each answer."""
    connection, times = connect(port), []
    while not stop.wait(0.05):
        begin = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        times.append(1000 * (time.perf_counter() - begin))
    results.send(times)


def run_clients(kind, port, wanted, count, seconds, requests, results):
    """Runs that many clients in this process; sends their counts and the largest difference, or the message of the
    first failure."""
    end, turns, stop = time.monotonic() + seconds, iter(range(requests)), threading.Event()

    def run(seed):
        client = kind(port, wanted, seed)
        while time.monotonic() < end and not stop.is_set() and next(turns, None) is not None:
            client.ask()
        return client

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(run, seed) for seed in range(count)]
        concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
        stop.set()  # after a failure, the others stop too
    try:
        clients = [future.result() for future in futures]
        results.send((sum((client.counts for client in clients), collections.Counter()),
                      max(client.worst for client in clients)))
    except (SystemExit, Exception) as error:
        results.send(str(error) or repr(error))


def run_for(given, requests, kind, wanted, server, port):
    """Runs clients of a kind in a process of their own for the given time, or until they have sent so many requests;
    returns a row of what they got and the worker's memory."""
    worker, = children(server.pid)
    spawn, begin, megabytes = multiprocessing.get_context("spawn"), time.monotonic(), []
    results, pipe = spawn.Pipe()
    spawn.Process(target=run_clients, daemon=True, args=(
        kind, port, wanted, given.connections, 60 * given.minutes, requests, pipe)).start()
    while not results.poll(1):
        if time.monotonic() - begin >= 60 * len(megabytes):
            megabytes.append(round(ruler.resident(worker) / 1e6, 1))
            print(f"{len(megabytes) - 1:4} min {megabytes[-1]:8.1f} MB", flush=True)
    found = results.recv()
    if isinstance(found, str):
        sys.exit(found)
    counts, worst = found
    return {"seconds": round(time.monotonic() - begin), "requests": counts.total(), "worst": worst,
            "megabytes": [*megabytes, round(ruler.resident(worker) / 1e6, 1)],
            "answers": {f"{kind} {status}": count for (kind, status), count in sorted(counts.items(), key=str)}}


def mixed(given):
    versions = ruler.describe("tensorflow", "keras-bert-hub")
    with running(given.model) as (server, port):
        connection, wanted = connect(port), {}
        for text in sorted(set(texts_of(given))):
            connection.request("POST", PATH, json.dumps({"instances": [text]}))
            row, = json.loads(connection.getresponse().read())["predictions"]
            wanted[text] = row["label"], row["score"]
        spawn = multiprocessing.get_context("spawn")
        stop, (health, sender) = spawn.Event(), spawn.Pipe()
        spawn.Process(target=measure_health, daemon=True, args=(port, stop, sender)).start()
        row = run_for(given, given.requests, MixedClient, wanted, server, port)
        stop.set()
        times = sorted(health.recv())
    return versions, [row | {f"health_p{100 * share:g}_ms": round(times[int(share * (len(times) - 1))], 1)
                             for share in (.5, .99, .999, 1)}]


def soak(given):
    from keras_bert.inference.fine_tuned import FineTuned

    texts = sorted(set(texts_of(given)))
    predictions = FineTuned.load(given.folder).predict(texts)
    versions = ruler.describe("tensorflow", "keras-bert-hub")
    with running(given.model) as (server, port):
        wanted = {text: (row.label, row.score) for text, row in zip(texts, predictions)}
        return versions, [run_for(given, 10**9, Client, wanted, server, port)]


def ask_until(stop, port, bodies, count, results):
    """Asks on `count` connections until `stop` is set; sends a `Counter` of the statuses, and of the `lost` answers."""
    def run(number):
        counts, connection = collections.Counter(), connect(port)
        for body in itertools.cycle(bodies):
            if stop.is_set():
                return counts
            try:
                connection.request("POST", PATH, body)
                response = connection.getresponse()
                response.read()
                counts[response.status] += 1
            except (OSError, http.client.HTTPException):
                counts["lost"] += 1
                connection.close()
            if number % 2:
                connection.close()  # the next request connects again

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        results.send(sum(pool.map(run, range(count)), collections.Counter()))


def held_connections(pid, port):
    """Returns the number of connections to a port that a process has accepted, or nobody has: inode 0."""
    links = [os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum((f"socket:[{row[9]}]" in links or row[9] == "0") and row[3] == "01" and row[1].endswith(f":{port:04X}")
               for row in rows)


def kills(given):
    bodies = [json.dumps({"instances": [text]}) for text in itertools.islice(texts_of(given), 1000)]
    versions, spawn = ruler.describe("tensorflow", "keras-bert-hub"), multiprocessing.get_context("spawn")
    stop, (results, pipe), held, times = spawn.Event(), spawn.Pipe(), [], []
    begin = time.monotonic()
    with running(given.model, "--workers=2") as (server, port):
        spawn.Process(target=ask_until, daemon=True, args=(stop, port, bodies, given.connections, pipe)).start()
        for kill in range(given.kills):
            while not re.search(r"\nkeras_bert_version_workers\{.* 2.0\n", metrics(port)):
                time.sleep(0.1)
            times.append(time.monotonic() - begin)
            time.sleep(given.seconds)
            with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:
                worker = int(file.read().split()[kill % 2])
            os.kill(worker, signal.SIGSTOP)  # so that it takes and answers nothing while they are counted
            held.append(held_connections(worker, port))
            if not given.stops:
                os.kill(worker, signal.SIGKILL)
            begin = time.monotonic()
            while os.path.exists(f"/proc/{worker}"):
                time.sleep(0.1)
            time.sleep(0.4)  # until the supervisor has noticed; it waits 0.5 s before it starts another
        time.sleep(given.seconds)
        stop.set()
        counts = results.recv()
    row = {"kills": given.kills, "held": sum(held), "worst_seconds": max(times[1:]),
           "answers": {str(key): count for key, count in counts.items()}}
    if counts["lost"] > sum(held) or counts.keys() - {200, "lost"}:
        sys.exit(f"serving.py: {row}")
    return versions, [row]


def capacity(given):
    bodies = [json.dumps({"instances": [text]}).encode() for text in itertools.islice(texts_of(given), 10_000)]
    versions, rows = ruler.describe("tensorflow", "keras-bert-hub", "ai-edge-litert"), []
    cores = sorted(os.sched_getaffinity(0))
    own, other = cores[:2]
    for model in given.models:
        os.sched_setaffinity(0, [own])  # which the server inherits
        with running(model, "--timeout_s=300") as (_, port):
            os.sched_setaffinity(0, cores)
            arrive(port, PATH, bodies, 20, 2, core=other)
            many = arrive(port, PATH, bodies, 2000, 0.2, core=other)
            burst = len(many) / max(seconds for _, seconds in many)
            for share in given.shares:
                answers = arrive(port, PATH, bodies, share * burst, given.seconds, core=other)
                p50, p99 = answers.milliseconds(200, 50, 99)
                rows.append({"library": os.path.basename(model), "texts_per_second": len(answers) / given.seconds,
                             "p50_milliseconds": p50, "p99_milliseconds": p99,
                             "other": len(answers) - answers.counts()[200]})
    ruler.print_table(f"one core, {given.seconds:g} seconds a row", rows)
    return versions, rows


def ask_seconds(port, signature, inputs, pause=0.0):
    """Returns the seconds that a request takes, which begins after a pause. `inputs` are those of the signature."""
    time.sleep(pause)
    connection = connect(port)
    begin = time.perf_counter()
    connection.request("POST", PATH, json.dumps({"signature_name": signature, "inputs": inputs}))
    response = connection.getresponse()
    body = response.read()
    seconds = time.perf_counter() - begin
    if response.status != 200:
        sys.exit(f"serving.py: {signature}: {response.status} {body[:200]}")
    return seconds


def ready(given):
    texts = list(itertools.islice(texts_of(given), 1000))
    bodies = [json.dumps({"instances": [text]}).encode() for text in texts]
    values = {"text": texts[:1], "input_word_ids": [[2, 3, 4]], "input_mask": [[1, 1, 1]], "layers": []}
    versions, rows = ruler.describe("tensorflow", "keras-bert-hub", "ai-edge-litert"), []
    for model in given.models:
        started = time.perf_counter()
        with running(model) as (_, port):
            seconds = time.perf_counter() - started
            connection = connect(port)
            connection.request("GET", "/v1/models/model/metadata")
            found = json.load(connection.getresponse())["metadata"]["signature_def"]["signature_def"]
        for name, signature in found.items():
            inputs = {column: values.get(column, [[0, 0, 0]]) for column in signature["inputs"]}
            row = {"library": f"{os.path.basename(model)}, {name}", "ready_seconds": seconds}
            for pause in given.pauses:
                with running(model) as (_, port):
                    time.sleep(pause)
                    first = ask_seconds(port, name, inputs)
                    later = statistics.median(ask_seconds(port, name, inputs, pause=0.2) for _ in range(20))
                row |= {f"after_{pause:g}_s_milliseconds": 1000 * first, f"after_{pause:g}_s_ratio": first / later}
            rows.append(row)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(model, os.path.join(folder, "1"))
            with running(folder) as (_, port), arriving(port, PATH, bodies, 20, 12 * given.swaps) as answers:
                for number in range(2, 2 + given.swaps):
                    shutil.copytree(model, os.path.join(folder, "copying"))
                    os.rename(os.path.join(folder, "copying"), os.path.join(folder, str(number)))
                    time.sleep(11)
                found = answers()
                p50, p99, worst = found.milliseconds(200, 50, 99, 100)
            rows.append({"library": f"{os.path.basename(model)}, {given.swaps} swaps", "p50_milliseconds": p50,
                         "p99_milliseconds": p99, "worst_milliseconds": worst, "statuses": str(dict(found.counts()))})
    for row in rows:
        print(row)
    return versions, rows


def metrics(port):
    connection = connect(port)
    connection.request("GET", "/metrics")
    with contextlib.closing(connection):
        return connection.getresponse().read().decode()


ONE_MODEL = {"model": str}
TESTS = {"load": (load, ONE_MODEL | {"seconds": 30, "connections": [1, 8, 64, 256]}),
         "kinds": (kinds, {"models": ["demo/int8", "demo/float32", "demo/answers"], "seconds": 30,
                           "connections": [1, 64]}),
         "mixed": (mixed, ONE_MODEL | {"minutes": 10.0, "requests": 10**9, "connections": 32}),
         "soak": (soak, ONE_MODEL | {"folder": str, "minutes": 30.0, "connections": 64}),
         "kills": (kills, ONE_MODEL | {"kills": 30, "seconds": 2.0, "connections": 16, "stops": False}),
         "capacity": (capacity, {"models": ["demo/int8", "demo/float32"], "seconds": 30.0,
                                 "shares": [0.2, 0.3, 0.4, 0.5, 0.6]}),
         "ready": (ready, {"models": ["demo/int8", "demo/answers"], "pauses": [0.0, 1.0, 5.0], "swaps": 5})}


def main():
    parser = ruler.parser(__doc__)
    tests = parser.add_subparsers(dest="test", required=True)
    for name, (_, flags) in TESTS.items():
        ruler.add_flags(tests.add_parser(name), texts=str, **flags)
    given = parser.parse_args()
    versions, rows = TESTS[given.test][0](given)
    ruler.finish(f"serving {given.test}", versions, given, rows)


if __name__ == "__main__":
    main()
