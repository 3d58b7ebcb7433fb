"""Versions that change, workers that die, and servers that stop, while requests run."""

import contextlib
import http.client
import os
import pathlib
import re
import shutil
import signal
import socket
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving_server import Server, connections, serving, write_echo

from keras_bert.export import export_text_model
from keras_bert.models import BertClassifier
from keras_bert.text import BertTokenizer

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def load(server, clients=4):
    """Asks without a pause within the block, half of the clients on a new connection each time; gives the answers: a
    version, or what failed."""
    done, answers = threading.Event(), []

    def client(number):
        connection = None
        while not done.is_set():
            connection = connection if number % 2 else None
            connection = connection or http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
            try:
                (row,) = server.predict("echo", connection, instances=[f"text {number} {len(answers)}"])
                answers.append(row["version"])
            except (OSError, http.client.HTTPException) as error:
                connection = None
                answers.append(error)

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
        time.sleep(0.3)
    finally:
        done.set()
    for thread in threads:
        thread.join()


def add_version(folder, number):
    """A version that appears at once."""
    write_echo(folder.parent / f"new{number}", number)
    (folder.parent / f"new{number}").rename(folder / str(number))


def health(server, service=""):
    """What `grpc.health.v1` says, on a new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def numbers_of_metrics_files(server):
    environment = pathlib.Path(f"/proc/{server.workers()[0]}/environ").read_bytes().decode().split("\0")
    folder, = [line.partition("=")[2] for line in environment if line.startswith("PROMETHEUS_MULTIPROC_DIR=")]
    return {re.fullmatch(r".*_(\d+)\.db", name)[1] for name in os.listdir(folder)}


def states(server, model="echo"):
    return {status["version"]: status["state"]
            for status in server.ask(f"/v1/models/{model}")[1]["model_version_status"]}


def test_versions_take_over_without_a_request_lost(tmp_path):
    folder = tmp_path / "echo"
    folder.mkdir()
    (folder / "not a version").mkdir()
    for number in (1, 2):
        add_version(folder, number)
    (folder / "3").mkdir()
    (folder / "3/saved_model.pb").write_bytes(b"broken")
    with serving({"echo": folder}) as server, load(server) as answers:
        assert states(server) == {"2": "AVAILABLE", "3": "END"}
        assert f"keras-bert: echo is {folder}\n" in server.lines  # 3 is newer, and is not served
        shutil.rmtree(folder / "3")
        (folder / "4").mkdir()
        (folder / "4/saved_model.pb").write_bytes(b"broken")
        server.wait(lambda: states(server).get("4") == "END")
        error = server.ask("/v1/models/echo/versions/4")[1]["model_version_status"][0]["status"]
        assert error["error_code"] == "INTERNAL" and "4/saved_model.pb" in error["error_message"]
        add_version(folder, 3)
        server.wait(lambda: states(server) == {"2": "END", "3": "AVAILABLE", "4": "END"})
        assert server.ask("/v1/models/echo/versions/2:predict", {"instances": ["a"]})[0] == 404
        time.sleep(2)  # the broken one is not tried again …
        assert [event["version"] for event in server.events() if event.get("event") == "failed"] == [3, 4]
        shutil.rmtree(folder / "4")
        add_version(folder, 4)  # … until its folder changes
        server.wait(lambda: states(server) == {"2": "END", "3": "END", "4": "AVAILABLE"})
        shutil.rmtree(folder / "4")
        server.wait(lambda: states(server) == {"2": "END", "3": "AVAILABLE", "4": "END"})
        metrics = server.ask("/metrics")[1]
    assert set(answers) == {2, 3, 4}
    assert 'keras_bert_load_failures_total{model="echo"} 2.0' in metrics
    assert 'version_workers{model="echo",version="3"} 1.0' in metrics


@pytest.mark.long
def test_versions_that_go_give_their_memory_back(tmp_path, minilm, minilm_bert):
    """Each is an encoder of 91 MB and its graph. What TensorFlow itself keeps of each is some 10 MB."""
    folder, texts = tmp_path / "models", [f"{'a text of some length ' * (i % 20)}{i}" for i in range(60)]
    export_text_model(BertClassifier(minilm_bert, 3), BertTokenizer.from_folder(minilm), folder / "1",
                      labels=["a", "b", "c"], max_length=128)
    with serving({"texts": folder}) as server:
        sizes = []
        for number in range(2, 8):
            shutil.copytree(folder / "1", tmp_path / "next")
            (tmp_path / "next").rename(folder / str(number))
            server.wait(lambda gone=str(number - 1): states(server, "texts").get(gone) == "END")
            for count in (1, 20, 60):
                assert len(server.predict("texts", instances=texts[:count])) == count
            sizes.append(server.resident())
    assert sizes[-1] - sizes[0] < 100e6


def test_a_model_without_a_version_comes_when_it_has_one(tmp_path):
    folder = tmp_path / "echo"
    folder.mkdir()
    server = Server({"echo": folder})
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        server.wait(lambda: f"keras-bert: warning: echo is {folder}, which has no version yet\n" in server.lines)
        add_version(folder, 1)
        server.wait_ready()
        shutil.rmtree(folder / "1")
        server.wait(lambda: states(server) == {"1": "END"})
        assert server.ask("/readyz")[0] == 503
        server.wait(lambda: health(server) == health(server, "echo") == "NOT_SERVING")
        status, answer, headers = server.ask("/v1/models/echo:predict", {"instances": ["a"]})
        assert (status, answer) == (503, {"error": "echo has no version"})
        assert "retry-after" in headers
        add_version(folder, 1)
        server.wait_ready()


def test_a_killed_worker_costs_only_what_it_held_and_comes_back_and_all_end_with_the_supervisor(tmp_path):
    with serving({"echo": write_echo(tmp_path / "echo")}, "--workers=2") as server:
        server.wait(lambda: sum(event.get("event") == "available" for event in server.events()) == 2)
        before = set(server.workers())
        with load(server, clients=8) as answers:
            time.sleep(0.5)
            victim = min(before)
            os.kill(victim, signal.SIGKILL)
            server.wait(lambda: any(event.get("event") == "died" for event in server.events()))
            while sum(event.get("event") == "available" for event in server.events()) < 3:
                assert health(server, "echo") == "SERVING" and server.ask("/readyz")[0] == 200
        answered = answers.count(1)
        assert len(answers) - answered <= 8 and answered > 100
        assert len(after := set(server.workers())) == 2 and len(after & before) == 1
        died, = [event for event in server.events() if event.get("event") == "died"]
        assert (died["worker"], died["exit_status"]) == (victim, -9)
        assert died["restart_s"] == 0.5
        metrics = server.ask("/metrics")[1]
        assert 'keras_bert_version_workers{model="echo",version="1"} 2.0' in metrics
        assert numbers_of_metrics_files(server) == {"0", "1"}  # the new one has continued those of the dead one
        counter = 'keras_bert_requests_total{code="200",method="predict",model="echo"} '
        counted = float(metrics.split(counter)[1].split()[0])
        # What the dead one had counted is not lost. An answer is counted when it has been sent: of each client, the one
        # that died may have sent one that it had yet to count, or counted one that no longer arrived.
        assert answered - 8 <= counted <= len(answers)
        workers = server.workers()
        server.process.kill()
        for _ in range(100):
            if not any(os.path.exists(f"/proc/{worker}") for worker in workers):
                break
            time.sleep(0.1)
        assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_ends_what_runs(tmp_path, number):
    with serving({"echo": write_echo(tmp_path / "echo")}) as server:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(server.predict("echo", instances=["sleep 1.5"])))
        thread.start()
        time.sleep(0.4)
        server.process.send_signal(number)
        time.sleep(0.4)
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
            sock.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert sock.recv(1) == b""  # where the connection was taken, it is closed
            raise OSError
        thread.join()
        assert answers[0][0]["echo"] == "sleep 1.5" and server.process.wait(20) == 0
        assert any(event.get("event") == "stopped" for event in server.events())
        stopping, = [event for event in server.events() if event.get("event") == "stopping"]
        assert (stopping["signal"], stopping["sender"]) == (number.name, os.getpid())


def test_a_log_that_nobody_reads_stops_nothing_and_requests_are_answered_while_the_server_drains(tmp_path):
    with serving({"echo": write_echo(tmp_path / "echo")}, "--drain_s=3") as server:
        silent = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=20)
        (connection,) = connections(server, 1)
        dropped = "keras_bert_dropped_log_lines_total"
        server.reads.clear()
        long, turns = "/" + "%ED%95%9C" * 300, 0
        while float(server.ask("/metrics", connection=connection)[1].split(f"\n{dropped} ")[1].split()[0]) < 200:
            for _ in range(100):
                assert server.ask(long, connection=connection)[0] == 404
            turns += 1
        assert 5 < turns < 50
        server.reads.set()
        server.wait(lambda: sum("\\ud55c" in line for line in server.lines) > 500)
        server.predict("echo", instances=["a"])
        server.wait(lambda: server.events()[-1].get("model") == "echo")
        while silent.recv(1000):  # gRPC closes a connection on which no client speaks HTTP/2, 10 s after it began
            pass
        start = time.monotonic()
        server.process.terminate()
        server.wait(lambda: server.ask("/readyz")[0] == 503)
        assert server.ask("/readyz")[1] == {"error": "stopping"} and server.ask("/healthz")[0] == 200
        server.wait(lambda: health(server) == health(server, "echo") == "NOT_SERVING")
        while time.monotonic() < start + 2:  # uvicorn, if it handled the signal, would accept no connection
            assert server.predict("echo", instances=["a"])[0]["echo"] == "a"
        assert server.process.wait(20) == 0 and time.monotonic() > start + 3


def test_bad_starts_are_one_line(run, tmp_path):
    echo = write_echo(tmp_path / "echo")
    (tmp_path / "empty/7").mkdir(parents=True)
    (tmp_path / "token").write_text(" \n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags, status, message in (
                ([f"--model={tmp_path}/no"], 1, f"{tmp_path}/no: cannot be read: No such file or directory"),
                ([f"--model={tmp_path}"], 1, f"{tmp_path}: must be a SavedModel or a LiteRT folder, or"),
                ([f"--model={tmp_path}/empty"], 1, f"{tmp_path}/empty/7: must be a SavedModel or a LiteRT folder;"),
                ([f"--model={echo}", f"--model={echo}"], 1,
                 "another model has the name 'echo'; give this one another: --model=NAME="),
                ([f"--model=a b={echo}"], 1, "needs a name of letters, digits and . _ -, not 'a b'"),
                ([f"--model={echo}", f"--port={port}"], 1, f"127.0.0.1:{port}: cannot be served: Address already in use"
                 "; choose another with --port, or any free one with --port=0"),
                ([f"--model={echo}", "--port=0", f"--grpc_port={port}"], 1, "choose another with --grpc_port, or any "),
                ([f"--model={echo}", f"--token_file={tmp_path}/token"], 1,
                 "token: must contain one token, on one line; got 0 lines"),
                ([f"--model={echo}", "--workers=0"], 1, "workers must be at least 1; got 0"),
                ([], 2, "missing --model"),
                ([f"--model={echo}", "--port=http"], 2, "port")):
            code, _, messages = run("serve", *flags)
            assert (code, len(messages)) == (status, 1) and message in messages[0], (flags, messages)
