"""What the tests of the server share: a model, and `keras-bert serve` as a process on loopback."""

import atexit
import concurrent.futures
import contextlib
import functools
import http.client
import inspect
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from zoo import exported_row, numbers, random_row

if sys.platform != "linux":
    pytest.skip("`keras-bert serve` needs Linux", allow_module_level=True)


def sleep(seconds):
    """Waits without computing; returns 0 afterwards. This is the only way that TensorFlow has."""
    kind = {"output_types": [tf.int64], "output_shapes": [()]}
    dataset = tf.raw_ops.SleepDataset(input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(1)),
                                      sleep_microseconds=tf.cast(1e6 * seconds, tf.int64), **kind)
    once = tf.raw_ops.TakeDataset(input_dataset=dataset, count=1, **kind)  # without it, it sleeps again at its end
    return tf.raw_ops.DatasetToSingleElement(dataset=once, **kind)[0]


def write_function(path, specs=None, **functions):
    """Writes a SavedModel with functions as its signatures, by default of texts (layers, ids). Returns its path."""
    module = tf.Module()
    module.functions = {name: tf.function(function, input_signature=[
        tf.TensorSpec([None], tf.int32 if column in ("layers", "ids", "mask") else tf.string, column)
        for column in inspect.signature(function).parameters] if specs is None else specs)
        for name, function in functions.items()}
    tf.saved_model.save(module, str(path), dict(module.functions))
    return path


def write_echo(path, number=1):
    """Writes a SavedModel that gives each text back. "sleep 0.5" takes half a second; "until PATH" creates PATH.begun,
    and ends once there is a file at PATH; "fail" is refused, with all that is in its batch. Returns its path."""
    def echo(text):
        tf.debugging.assert_equal(tf.reduce_any(tf.equal(text, "fail")), False, "a text says fail")
        seconds = tf.strings.to_number(tf.strings.regex_replace(text, r"(?s)^(?:sleep ([0-9.]+))?.*$", r"0\1"))
        slept = sleep(tf.reduce_max(tf.concat([seconds, [0.0]], 0)))
        path = tf.strings.reduce_join(tf.strings.regex_replace(text, r"(?s)^(?:until (.*))?.*$", r"\1"))
        if tf.strings.length(path) > 0:
            tf.io.write_file(path + ".begun", "")
            # The pattern has the turn in it, so that TensorFlow looks in each.
            while tf.size(tf.io.matching_files(path + tf.strings.substr(tf.strings.as_string(slept), 0, 0))) == 0:
                slept += 1 + sleep(0.005)
        with tf.control_dependencies([slept]):
            rows = tf.ones_like(text, tf.int32)
            return {"echo": tf.identity(text), "version": rows * number, "batch": rows * tf.size(text)}

    return write_function(path, serving_default=echo)


def lengths(text):
    """The number of bytes and of characters of a text, and 2; "nan" has an embedding that is not finite."""
    counts = [tf.strings.length(text), tf.strings.length(text, unit="UTF8_CHAR"), 2 * tf.ones_like(text, tf.int32)]
    vectors = tf.cast(tf.stack(counts, axis=1), tf.float32)
    return {"embedding": tf.where(tf.equal(text, "nan")[:, None], float("nan"), vectors)}


def unit_lengths(text):
    """The same divided by its norm, and the number of bytes as that of tokens."""
    return {"embedding": tf.linalg.l2_normalize(lengths(text)["embedding"], axis=1), "tokens": tf.strings.length(text)}


def rank(text, text_pair):
    """The number of bytes of both texts as the logit, with the opposite sign."""
    logit = -tf.cast(tf.strings.length(text) + tf.strings.length(text_pair), tf.float32)
    return {"logit": logit, "score": tf.sigmoid(logit)}


TOKEN = {"Authorization": "Bearer a secret"}


@functools.cache
def limited_server():
    """A server with a token and low limits, until this process ends: starting one takes seconds."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (folder / "token").write_text("a secret\n")
    models = {"words": write_function(folder / "words", serving_default=unit_lengths,
                                      query=lambda text: unit_lengths(tf.strings.join(["q: ", text]))),
              "plain": write_function(folder / "plain", serving_default=lengths),
              "ranker": write_function(folder / "ranker", serving_default=rank),
              "echo": write_echo(folder / "echo"), "busy": folder / "echo"}
    return stack.enter_context(serving(
        models, "--max_body_mb=0.1", "--max_instances=5", "--max_characters=200", "--max_queue=2", "--timeout_s=2",
        "--body_timeout_s=2.5", "--max_inflight_mb=1", f"--token_file={folder}/token", headers=TOKEN))


def wait(condition, process=None, lines=(), turns=1200):
    """Waits until a function returns something true, and returns it; for a minute or, if all is held up, longer. Fails
    with the last lines of a log if its process ends."""
    for _ in range(turns):
        if value := condition():
            return value
        assert not process or process.poll() is None, "".join(lines)[-3000:]
        time.sleep(0.05)
    raise AssertionError("".join(lines)[-3000:])


def instances(*texts):
    return {"instances": texts}


def refused(answer):
    """The status and the message, which is all that the body holds."""
    status, body, _ = answer
    assert body.keys() == {"error"}
    message = body["error"]["message"] if isinstance(body["error"], dict) else body["error"]
    assert "Traceback" not in message and "\n" not in message and len(message) < 400
    return status, message


def rpc_error(call, *arguments, **options):
    """The name of the status code and the message of a request of gRPC that must be refused."""
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **options)
    return error.value.code().name, error.value.details()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


class Server:
    """A running `keras-bert serve`.

    Attributes:
        port, grpc_port: where it answers; `grpc_port` is None if gRPC is off.
        headers: what requests have if they say nothing else: the token.
        lines: what it has written to standard error.
        reader: thread that reads the lines.
        reads: event that is set while it does.
    """

    def __init__(self, models, *flags, has_grpc=True, headers=(), environment=(), within=()):
        self.headers = dict(headers)
        named = [f"--model={name}={path}" for name, path in models.items()]
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", "keras_bert.cli", "serve", "--port=0", *["--grpc_port=0"] * has_grpc,
             *named, *flags],
            stderr=subprocess.PIPE, text=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
            # Several models are loaded at once: with the worker's one arena, much time goes into waiting for it.
            | ({"MALLOC_ARENA_MAX": str(len(models))} if len(models) > 1 else {}) | dict(environment))
        self.lines, self.host = [], next((flag[7:] for flag in flags if flag.startswith("--host=")), "127.0.0.1")
        self.reads = threading.Event()
        self.reads.set()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        ports = self.wait(lambda: self.lines and re.search(r":(\d+)/v1[^ ]*(?: and gRPC at .*:(\d+))?;", self.lines[0]))
        self.port, self.grpc_port = (port and int(port) for port in ports.groups())

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            self.reads.wait()

    def wait(self, condition):
        return wait(condition, self.process, self.lines)

    def wait_ready(self):
        """Returns itself when each model answers."""
        self.wait(lambda: self.ask("/readyz")[0] == 200)
        return self

    def ask(self, path, body=None, method=None, headers=None, connection=None):
        """One request: (status, JSON or text, headers). `body` is sent as JSON if it is a dict."""
        connection = connection or http.client.HTTPConnection(self.host, self.port, timeout=120)
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request(method or ("GET" if body is None else "POST"), path, data,
                           self.headers if headers is None else dict(headers))
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(text) if is_json and text else text, dict(response.headers)

    def predict(self, name, connection=None, **request):
        """The predictions or outputs of a request that must be answered."""
        status, answer, _ = self.ask(f"/v1/models/{name}:predict", request, connection=connection)
        assert status == 200, answer
        return answer["predictions" if "instances" in request else "outputs"]

    def call(self, stub, method, request, metadata=()):
        """The response of gRPC to a request, on a new connection."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{self.host}:{self.grpc_port}", options) as channel:
            return getattr(stub(channel), method)(request, timeout=60, metadata=metadata)

    def rpc(self, name, inputs, metadata=(), **request):
        """The response of gRPC's Predict to arrays or tensors."""
        request["model_spec"] = {"name": name} | request.pop("spec", {})
        request["inputs"] = {key: value if hasattr(value, "tensor_shape") else tf.make_tensor_proto(value)
                             for key, value in inputs.items()}
        return self.call(prediction_service_pb2_grpc.PredictionServiceStub, "Predict",
                         predict_pb2.PredictRequest(**request), metadata)

    def health(self, service=""):
        """What `grpc.health.v1` says."""
        answer = self.call(health_pb2_grpc.HealthStub, "Check", health_pb2.HealthCheckRequest(service=service))
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    def events(self, **fields):
        """The lines of the log with these fields: all that follow the start-up messages must be JSON."""
        events = [json.loads(line) for line in list(self.lines) if not line.startswith("keras-bert: ")]
        return [event for event in events if fields.items() <= event.items()]

    def metrics(self):
        """The samples of the metrics, without the prefix of their names."""
        status, text, _ = self.ask("/metrics")
        assert status == 200
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name.removeprefix("keras_bert_"): float(value) for name, value in samples.items()}

    def wait_metric(self, name, value):
        self.wait(lambda: self.metrics().get(name) == value)

    def states(self, model):
        """Of each version: its state, and the code and message of its error."""
        answer = self.ask(f"/v1/models/{model}")[1]
        return {status["version"]: (status["state"], *status["status"].values())
                for status in answer["model_version_status"]}

    def workers(self):
        """The pids of the workers."""
        return children(self.process.pid)

    def resident(self):
        """Bytes of the workers."""
        return sum(int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096 for pid in self.workers())

    def stop(self):
        """Returns the exit status."""
        self.process.terminate()
        return self.process.wait(40)


@contextlib.contextmanager
def serving(models, *flags, is_ready=True, **options):
    """A `Server` within the block, when it is ready."""
    server = Server(models, *flags, **options)
    try:
        yield server.wait_ready() if is_ready else server
    finally:
        if server.process.poll() is None:
            server.stop()


def count_wrong(server, models, requests, atol):
    """Sends rows of all tasks, once or twice, by 16 clients; returns how many answers differ from those of models in
    this process. `models`: the served names, each with the task in `zoo.CASES` and the model."""
    def client(turns):
        connection, = connections(server, 1)
        wrong = 0
        for count, (name, output, row, (rest, values)) in enumerate(turns):
            for answer in server.predict(name, connection, instances=[row] * (1 + count % 2)):
                answer = answer if isinstance(answer, dict) else {output: answer}
                found = numbers({key: answer.get(key) for key in rest})
                wrong += found[0] != rest or not np.allclose(found[1], values, atol=atol)
        return wrong

    rng, turns = random.Random(0), []
    for name, (case, model) in [*models.items()] * 12:
        row = random_row(case, rng)
        turns.append((name, model.task.output, row, exported_row(model, row)))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return sum(pool.map(client, [rng.choices(turns, k=requests // 16) for _ in range(16)]))


def ask_many(server, requests, clients, fails=lambda turn: False):
    """Sends texts that nobody else sends to the model of `write_echo`, over connections that are kept; checks each
    answer. In turns for which `fails` is true, the model refuses them."""
    def client(number):
        (connection,) = connections(server, 1)
        for turn in range(requests // clients):
            texts = [f"secret {number} {turn} {'한' * (turn % 90)} {i}" for i in range(1 + turn % 4)]
            if fails(turn):
                answer = server.ask("/v1/models/echo:predict", instances("fail", *texts[1:]), connection=connection)
                assert refused(answer)[0] == 400 and "a text says fail" in refused(answer)[1]
            else:
                assert [row["echo"] for row in server.predict("echo", connection, instances=texts)] == texts

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))


def assert_same(found, expected, atol=1e-5):
    """Compares outputs by their names, lists of JSON or arrays: floats within rounding, the rest exactly."""
    assert found.keys() == expected.keys()
    for name in expected:
        got, want = (np.asarray(outputs[name]) for outputs in (found, expected))
        assert (got.shape, got.dtype.kind in "OSU") == (want.shape, want.dtype.kind in "OSU"), name
        if isinstance(found[name], np.ndarray) and isinstance(expected[name], np.ndarray):
            assert got.dtype == want.dtype, name
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=atol)
        else:
            got, want = (np.char.decode(array.astype("S"), "utf-8") if array.dtype == object else array
                         for array in (got, want))
            assert got.tolist() == want.tolist(), name


@contextlib.contextmanager
def load(ask, clients, wait):
    """Within the block, calls a function of the number of a client and a text, which no other call has, in threads and
    without a pause; yields the list of what it returned. `wait` waits for a function to return something true."""
    done, answers = threading.Event(), []

    def client(number):
        while not done.is_set():
            answers.append(ask(number, f"text {number} {len(answers)}"))

    def wait_for_more():
        count = len(answers)
        wait(lambda: len(answers) > count + 4 * clients)

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(client, number) for number in range(clients)]
        try:
            wait_for_more()
            yield answers
            wait_for_more()
        finally:
            done.set()
    assert [future.result() for future in asked] == [None] * clients


@contextlib.contextmanager
def held(server, path, name="echo"):
    """Within the block, the model runs a request that does not end; yields the future of its answer."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.ask, f"/v1/models/{name}:predict", {"instances": [f"until {path}"]})
        try:
            server.wait(lambda: os.path.exists(f"{path}.begun"))
            yield answer
        finally:
            path.touch()


def connections(server, count):
    """Connections that are kept."""
    return [http.client.HTTPConnection(server.host, server.port, timeout=120) for _ in range(count)]
