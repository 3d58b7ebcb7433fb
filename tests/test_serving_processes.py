"""Versions that change, workers that die, and servers that stop, while requests run."""

import contextlib
import datetime
import http.client
import os
import pathlib
import re
import shutil
import signal

import pytest
from serving_server import connections, held, load, serving, wait, write_echo

from keras_bert.export import export_text_model
from keras_bert.models import BertClassifier
from keras_bert.text import BertTokenizer


def asking(server, clients=4):
    """`load` on the model echo, half of the clients on a new connection each time; the answers are a version, or what
    failed."""
    kept = {}

    def ask(number, text):
        connection = kept.pop(number, None) or connections(server, 1)[0]
        try:
            (row,) = server.predict("echo", connection, instances=[text])
        except (OSError, http.client.HTTPException) as error:
            return error
        if number % 2:
            kept[number] = connection
        return row["version"]

    return load(ask, clients, server.wait)


def add_version(folder, number):
    """A version that appears at once."""
    write_echo(folder.parent / f"new{number}", number)
    (folder.parent / f"new{number}").rename(folder / str(number))


def numbers_of_metrics_files(server):
    environment = pathlib.Path(f"/proc/{server.workers()[0]}/environ").read_bytes().decode().split("\0")
    folder, = [line.partition("=")[2] for line in environment if line.startswith("PROMETHEUS_MULTIPROC_DIR=")]
    return {re.fullmatch(r".*_(\d+)\.db", name)[1] for name in os.listdir(folder)}


@pytest.mark.slow("versions that come and go while requests run")
def test_versions_take_over_without_a_request_lost(tmp_path):
    folder, available, ended = tmp_path / "echo", ("AVAILABLE", "OK", ""), ("END", "OK", "")
    folder.mkdir()
    with serving({"echo": folder}, is_ready=False) as server:
        server.wait(lambda: f"keras-bert: warning: echo is {folder}, which has no version yet\n" in server.lines)
        (folder / "not a version").mkdir()
        add_version(folder, 1)
        server.wait_ready()
        with asking(server) as answers:
            add_version(folder, 2)
            server.wait(lambda: server.states("echo") == {"1": ended, "2": available})
            assert server.ask("/v1/models/echo/versions/1:predict", {"instances": ["a"]})[0] == 404
            add_version(folder, 3)
            server.wait(lambda: server.states("echo") == {"1": ended, "2": ended, "3": available})
            shutil.rmtree(folder / "3")
            server.wait(lambda: server.states("echo") == {"1": ended, "2": available, "3": ended})
            assert server.metrics()['version_workers{model="echo",version="2"}'] == 1
        assert set(answers) == {1, 2, 3}
        for number in (1, 2):
            shutil.rmtree(folder / str(number))
        server.wait(lambda: set(server.states("echo").values()) == {ended})
        assert server.ask("/readyz")[0] == 503
        server.wait(lambda: server.health() == server.health("echo") == "NOT_SERVING")
        status, answer, headers = server.ask("/v1/models/echo:predict", {"instances": ["a"]})
        assert (status, answer) == (503, {"error": "echo has no version"}) and "retry-after" in headers


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
            server.wait(lambda gone=str(number - 1): server.states("texts").get(gone) == ("END", "OK", ""))
            for count in (1, 20, 60):
                assert len(server.predict("texts", instances=texts[:count])) == count
            sizes.append(server.resident())
    assert sizes[-1] - sizes[0] < 100e6


@pytest.mark.slow("a worker that is killed while requests run")
def test_a_killed_worker_costs_only_what_it_held_and_comes_back_and_all_end_with_the_supervisor(tmp_path):
    with serving({"echo": write_echo(tmp_path / "echo")}, "--workers=2") as server:
        server.wait(lambda: len(server.events(event="available")) == 2)
        before = set(server.workers())
        with asking(server, clients=8) as answers:
            victim = min(before)
            os.kill(victim, signal.SIGKILL)
            died, = server.wait(lambda: server.events(event="died"))
            while len(server.events(event="available")) < 3:
                assert server.health("echo") == "SERVING" and server.ask("/readyz")[0] == 200
        answered = answers.count(1)
        assert len(answers) - answered <= 8
        assert len(after := set(server.workers())) == 2 and len(after & before) == 1
        assert (died["worker"], died["exit_status"], died["restart_s"]) == (victim, -9, 0.5)
        metrics = server.metrics()
        assert metrics['version_workers{model="echo",version="1"}'] == 2
        assert numbers_of_metrics_files(server) == {"0", "1"}  # the new one has continued those of the dead one
        # What the dead one had counted is not lost. An answer is counted when it has been sent: of each client, the one
        # that died may have sent one that it had yet to count, or counted one that no longer arrived.
        counted = metrics['requests_total{code="200",method="predict",model="echo"}']
        assert answered - 8 <= counted <= len(answers)
        server.process.kill()
        wait(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in after))


def is_refused(server):
    """True if the server takes no new connection; where the system took it, it is closed."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return not server.ask("/readyz")
    return True


@pytest.mark.slow("a signal while requests run")
def test_told_to_stop_it_ends_what_runs(tmp_path):
    """By SIGINT at once; the next test sends SIGTERM."""
    with serving({"echo": write_echo(tmp_path / "echo")}) as server:
        with held(server, tmp_path / "go") as answer:
            server.process.send_signal(signal.SIGINT)
            server.wait(lambda: is_refused(server))
        assert answer.result()[0] == 200 and "until " in answer.result()[1]["predictions"][0]["echo"]
        assert server.process.wait(60) == 0 and server.events(event="stopped")
        stopping, = server.events(event="stopping")
        assert (stopping["signal"], stopping["sender"]) == ("SIGINT", os.getpid())


@pytest.mark.slow("a log that nobody reads, and a signal to a server that drains")
def test_a_log_that_nobody_reads_stops_nothing_and_requests_are_answered_while_the_server_drains(tmp_path):
    with serving({"echo": write_echo(tmp_path / "echo")}, "--drain_s=4") as server:
        (connection,) = connections(server, 1)
        server.reads.clear()
        long, turns = "/" + "%ED%95%9C" * 300, 0
        while server.metrics()["dropped_log_lines_total"] < 200:
            for _ in range(100):
                assert server.ask(long, connection=connection)[0] == 404
            turns += 1
        assert 5 < turns < 50
        server.reads.set()
        server.wait(lambda: sum("\\ud55c" in line for line in server.lines) > 500)
        server.predict("echo", instances=["a"])
        server.wait(lambda: server.events()[-1].get("model") == "echo")
        server.process.terminate()
        server.wait(lambda: server.ask("/readyz")[0] == 503)
        assert server.ask("/readyz")[1] == {"error": "stopping"} and server.ask("/healthz")[0] == 200
        assert server.ask("/healthz", connection=connection)[2]["connection"] == "close"
        server.wait(lambda: server.health() == server.health("echo") == "NOT_SERVING")
        assert server.predict("echo", instances=["a"])[0]["echo"] == "a"
        assert server.process.wait(60) == 0
        server.reader.join(60)
        begin, end = (datetime.datetime.fromisoformat(server.events(event=event)[0]["time"])
                      for event in ("stopping", "stopped"))
        assert (end - begin).total_seconds() > 3.9
