"""What the tests of the server share: a model, and `keras-bert serve` as a process on loopback."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from zoo import exported_row, numbers, random_row

if sys.platform != "linux":
    pytest.skip("`keras-bert serve` needs Linux", allow_module_level=True)


class Echo(tf.Module):
    """Gives each text back; "sleep 0.5" takes half a second, "fail" is refused, with all that is in its batch."""

    def __init__(self, version):
        super().__init__()
        self.version = tf.Variable(version)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def __call__(self, text):
        tf.debugging.assert_equal(tf.reduce_any(tf.equal(text, "fail")), False, "a text says fail")
        seconds = tf.strings.to_number(tf.strings.regex_replace(text, r"(?s)^(?:sleep ([0-9.]+))?.*$", r"0\1"))
        kind = {"output_types": [tf.int64], "output_shapes": [()]}
        sleep = tf.raw_ops.SleepDataset(  # TensorFlow's only way to wait without computing
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(1)),
            sleep_microseconds=tf.cast(1e6 * tf.reduce_max(tf.concat([seconds, [0.0]], 0)), tf.int64), **kind)
        once = tf.raw_ops.TakeDataset(input_dataset=sleep, count=1, **kind)  # without it, it sleeps again at its end
        with tf.control_dependencies(tf.raw_ops.DatasetToSingleElement(dataset=once, **kind)):
            rows = tf.ones_like(text, tf.int32)
            return {"echo": tf.identity(text), "version": rows * self.version, "batch": rows * tf.size(text)}


def write_echo(path, version=1):
    """Writes an `Echo`; returns its path."""
    tf.saved_model.save(echo := Echo(version), str(path), echo.__call__.get_concrete_function())
    return path


class Server:
    """A running `keras-bert serve`.

    Attributes:
        port, grpc_port: where it answers; `grpc_port` is None if gRPC is off.
        lines: what it has written to standard error.
        reader: thread that reads the lines.
        reads: event that is set while it does.
    """

    def __init__(self, models, *flags, has_grpc=True):
        named = [f"--model={name}={path}" for name, path in models.items()]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "keras_bert.cli", "serve", "--port=0", *["--grpc_port=0"] * has_grpc, *named,
             *flags],
            stderr=subprocess.PIPE, text=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
            # Several models are loaded at once: with the worker's one arena, much time goes into waiting for it.
            | ({"MALLOC_ARENA_MAX": str(len(models))} if len(models) > 1 else {}))
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

    def wait(self, condition, turns=1200):
        """Waits until a function returns something true, and returns it; for a minute or, if all is held up, longer."""
        for _ in range(turns):
            if value := condition():
                return value
            assert self.process.poll() is None, "".join(self.lines)[-3000:]
            time.sleep(0.05)
        raise AssertionError("".join(self.lines)[-3000:])

    def wait_ready(self):
        """Returns itself when each model answers."""
        self.wait(lambda: self.ask("/readyz")[0] == 200)
        return self

    def ask(self, path, body=None, method=None, headers=(), connection=None):
        """One request: (status, JSON or text, headers). `body` is sent as JSON if it is a dict."""
        connection = connection or http.client.HTTPConnection(self.host, self.port, timeout=120)
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request(method or ("GET" if body is None else "POST"), path, data, dict(headers))
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(text) if is_json and text else text, dict(response.headers)

    def predict(self, name, connection=None, **request):
        """The predictions or outputs of a request that must be answered."""
        status, answer, _ = self.ask(f"/v1/models/{name}:predict", request, connection=connection)
        assert status == 200, answer
        return answer["predictions" if "instances" in request else "outputs"]

    def events(self):
        """The lines of the log: all that follow the start-up messages must be JSON."""
        return [json.loads(line) for line in list(self.lines) if not line.startswith("keras-bert: ")]

    def workers(self):
        """The pids of the workers."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]

    def resident(self):
        """Bytes of the workers."""
        return sum(int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096 for pid in self.workers())

    def stop(self):
        """Returns the exit status."""
        self.process.terminate()
        return self.process.wait(40)


@contextlib.contextmanager
def serving(models, *flags):
    """A `Server` within the block, when it is ready."""
    server = Server(models, *flags)
    try:
        yield server.wait_ready()
    finally:
        if server.process.poll() is None:
            server.stop()


def count_wrong(server, models, requests, atol):
    """Sends rows of all tasks by 16 clients; returns how many answers differ from those of the models in this process.
    `models`: the served names, each with the task in `zoo.CASES` and the model."""
    def client(turns):
        connection, = connections(server, 1)
        wrong = 0
        for name, output, row, (rest, values) in turns:
            answer, = server.predict(name, connection, instances=[row])
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


def connections(server, count):
    """Connections that are kept."""
    return [http.client.HTTPConnection("127.0.0.1", server.port, timeout=120) for _ in range(count)]
