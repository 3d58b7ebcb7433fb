"""Versions that change, workers that die, and servers that stop, while requests run."""

import contextlib
import datetime
import functools
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from serving_server import children, connections, held, instances, load, serving, wait, write_echo, write_function

from keras_bert.export import export_text_model
from keras_bert.models import BertClassifier
from keras_bert.text import BertTokenizer

import zoo


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
        return row.get("version", 1)

    return load(ask, clients, server.wait)


def seconds_between(server, *events):
    """Of the last of each."""
    begin, end = (datetime.datetime.fromisoformat(server.events(event=event)[-1]["time"]) for event in events)
    return (end - begin).total_seconds()


def add_version(folder, number):
    """A version that appears at once."""
    write_echo(folder.parent / f"new{number}", number)
    (folder.parent / f"new{number}").rename(folder / str(number))


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
        assert metrics['lost_workers_total{cause="died"}'] == 1
        # The new one continues the dead one's counts. An answer is counted when it has been sent: of each client, one
        # may have arrived that the dead one had yet to count, or been counted without arriving.
        counted = metrics['requests_total{code="200",method="predict",model="echo"}']
        assert answered - 8 <= counted <= len(answers)
        server.process.kill()
        wait(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in after))


@pytest.mark.slow("a worker that hangs while requests run")
@pytest.mark.parametrize("model", [zoo.saved_model, zoo.litert])
def test_a_stopped_worker_is_replaced_and_does_not_delay_the_end(model):
    has_grpc = model is zoo.saved_model
    with serving({"echo": model("intent")}, "--workers=2", has_grpc=has_grpc) as server:
        server.wait(lambda: len(server.events(event="available")) == 2)
        victim, other = server.workers()
        with asking(server, clients=8) as answers:
            os.kill(victim, signal.SIGSTOP)
            died, = server.wait(lambda: server.events(event="died"))
            assert server.ask("/readyz")[0] == 200
            for _ in range(10 * has_grpc):  # the system shares connections out
                assert server.health("echo") == "SERVING"
            server.wait(lambda: len(server.events(event="available")) == 3)
        assert len(answers) - answers.count(1) <= 8
        hung, = server.events(event="hung")
        assert (hung["worker"], died["worker"], died["exit_status"]) == (victim, victim, -signal.SIGKILL)
        assert hung["reason"] == "no answer" and server.metrics()['lost_workers_total{cause="hung"}'] == 1
        os.kill(other, signal.SIGSTOP)
        server.process.terminate()
        assert server.process.wait(60) == 0 and server.events(event="hung", worker=other)
        assert seconds_between(server, "stopping", "hung") < 15  # of 20, --grace_s


@pytest.mark.slow("a batch that hangs")
def test_a_worker_whose_batch_never_ends_is_replaced(tmp_path):
    path = write_function(tmp_path / "echo", serving_default=lambda text: {"echo": tf.map_fn(
        lambda path: tf.cond(tf.strings.length(path) > 20, lambda: tf.io.read_file(path), lambda: path), text)})
    os.mkfifo(tmp_path / "without a writer")  # its reader waits for one
    with serving({"echo": path}, "--timeout_s=1") as server:
        assert server.ask("/v1/models/echo:predict", instances(f"{tmp_path}/without a writer"))[0] == 504
        server.wait(lambda: len(server.events(event="available")) == 2)
        assert server.events(event="hung")[0]["reason"] == "batch"
        assert server.wait_ready().predict("echo", instances=["a"]) == ["a"]


@pytest.mark.slow("a slow worker that is taken for one that hangs")
@pytest.mark.parametrize("model", [zoo.saved_model, zoo.litert])
def test_a_worker_that_is_slow_or_was_stopped_with_its_supervisor_is_not_replaced(model):
    """It gets a fifth of a core, for longer than one that hangs; then both are stopped as long."""
    with serving({"echo": model("intent")}, "--workers=1", has_grpc=False) as server:
        worker, = server.workers()
        with load(lambda _, text: server.predict("echo", instances=[text * 5000]), 8, server.wait):
            for _ in range(12):
                os.kill(worker, signal.SIGSTOP)
                time.sleep(0.4)
                os.kill(worker, signal.SIGCONT)
                time.sleep(0.1)
        for signals in ([signal.SIGSTOP] * 2, [signal.SIGCONT] * 2):
            for pid, number in zip((server.process.pid, worker), signals):
                os.kill(pid, number)
            time.sleep(5)
        assert server.predict("echo", instances=["a"]) and server.workers() == [worker]


# The server is the first process of a container without any folder to write to, and gets an orphan.
CONTAINER = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", """
mount -o remount,bind,ro / && mount -t tmpfs -o ro none /dev/shm && (sleep 0.1 &) && exec "$@" """, "sh"]


@pytest.mark.skipif(subprocess.run([*CONTAINER, "true"]).returncode, reason="needs the right to use namespaces")
@pytest.mark.slow("files that cannot be written, and what only the first process of a container sees")
def test_a_container_needs_no_folder_to_write_to_and_no_other_first_process(tmp_path):
    models = {"echo": write_echo(tmp_path / "echo"), "intent": zoo.litert("intent")}
    with serving(models, within=CONTAINER) as server:
        for name in models:
            assert server.predict(name, instances=["a"])
            assert server.metrics()[f'requests_total{{code="200",method="predict",model="{name}"}}'] == 1
        init, = children(server.process.pid)
        assert len(children(init)) == 1
        os.kill(init, signal.SIGTERM)
        assert server.process.wait(60) == 0
    early = ("import os, signal, keras_bert.cli; "
             "keras_bert.cli.run = lambda _: os.kill(1, 15) or signal.sigpending() != {15};"
             "keras_bert.cli.main(['serve'])")
    assert not subprocess.run([*CONTAINER, sys.executable, "-c", early]).returncode


def ask_after_a_pause(server, *_):
    """The status, on a new connection that is silent at first; or the type of what failed."""
    connection, = connections(server, 1)
    try:
        connection.connect()
        time.sleep(0.05)
        return server.ask("/v1/models", connection=connection)[0]
    except (OSError, http.client.HTTPException) as error:
        return type(error)


def is_refused(server):
    with contextlib.suppress(ConnectionRefusedError):
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
        with load(functools.partial(ask_after_a_pause, server), 8, server.wait) as answers:
            server.wait(lambda: ConnectionRefusedError in answers)
        assert set(answers) == {200, ConnectionRefusedError}
        assert server.process.wait(60) == 0
        server.reader.join(60)
        assert seconds_between(server, "stopping", "stopped") > 3.9
