"""Pretraining that is killed, stopped, or loses a worker, and is started again by the same command."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from test_pretrain import CONFIG, write_examples

from keras_bert import cli
from keras_bert.models import BertPretrainer

STEPS = 105  # a point of the curve has several steps, and a checkpoint can lie between them


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Examples, and the result of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("resume")
    write_examples(folder / "train", masking="dynamic")
    write_examples(folder / "valid", seed=1)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "no_dropout.json").write_text(json.dumps(
        CONFIG | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}))
    assert cli.run(command(folder, "whole")) == 0
    return folder


def command(folder, name, *more):
    return ["pretrain", f"--train={folder}/train", f"--valid={folder}/valid",
            f"--config={folder}/config.json", f"--output={folder}/{name}", f"--steps={STEPS}", "--batch_size=8",
            "--learning_rate=0.01", "--save_steps=7", "--eval_steps=50", *more]


def start(folder, name, *more, **environment):
    return subprocess.Popen([sys.executable, "-m", "keras_bert.cli", *command(folder, name, *more)],
                            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment)


def await_checkpoint(folder, name, process):
    """Waits until a run has saved its state anew, or has ended."""
    path, begun = folder / f"{name}.checkpoints/last.safetensors", time.time()
    while process.poll() is None and not (path.exists() and path.stat().st_mtime > begun):
        time.sleep(0.02)


def result(folder, name):
    return (BertPretrainer.from_pretrained(folder / name).get_weights(),
            json.loads((folder / name / "metrics.json").read_text())["history"])


def assert_ends_as_undisturbed(run, folder, name):
    status, _, messages = run(*command(folder, name))
    assert status == 0 and any("resuming from step" in line for line in messages), messages
    (wanted, wanted_history), (got, got_history) = result(folder, "whole"), result(folder, name)
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(one, other)
    assert got_history == wanted_history
    assert not (folder / f"{name}.checkpoints").exists()


def kill_at_a_random_moment(folder, name, longest, rng):
    process = start(folder, name, "--save_steps=3")
    await_checkpoint(folder, name, process)
    time.sleep(rng.uniform(0, longest))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.long
def test_killed_again_and_again(run, work):
    """One run ends bit for bit as one that was not killed."""
    rng = random.Random(20)
    for _ in range(20):
        kill_at_a_random_moment(work, "killed", 0.3, rng)
    assert_ends_as_undisturbed(run, work, "killed")


@pytest.mark.slow("a process killed or stopped while it trains")
def test_killed_and_stopped_by_a_scheduler(run, work):
    kill_at_a_random_moment(work, "stopped", 0, random.Random(1))
    process = start(work, "stopped")
    await_checkpoint(work, "stopped", process)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert messages.splitlines()[-1].startswith("keras-bert: stopped and saved at step "), messages
    assert_ends_as_undisturbed(run, work, "stopped")


def start_workers(folder, name, *more):
    """Two processes that train one model."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    return [start(folder, name, f"--config={folder}/no_dropout.json", "--distribution_strategy=multiworker", *more,
                  TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}))
            for index in range(2)]


def end_workers(workers):
    """Their exit statuses and messages."""
    ended = [(worker.communicate()[1], worker.returncode) for worker in workers]
    return [status for _, status in ended], [messages for messages, _ in ended]


@pytest.mark.long
def test_two_workers_equal_one_and_survive(work):
    """The curve of two workers is that of one with the same batches; and kills of either change nothing of the end."""
    alone = start(work, "alone", f"--config={work}/no_dropout.json")
    assert alone.wait() == 0
    statuses, messages = end_workers(start_workers(work, "pair"))
    assert statuses == [0, 0], messages
    (_, one_history), (two, two_history) = result(work, "alone"), result(work, "pair")
    for name, values in one_history.items():
        if name.endswith("loss"):
            np.testing.assert_allclose(two_history[name][:50], values[:50], atol=1e-4, err_msg=name)

    rng = random.Random(0)
    for kill in range(10):
        workers = start_workers(work, "lost", "--save_steps=3")
        await_checkpoint(work, "lost", workers[0])
        time.sleep(rng.uniform(0, 0.5))
        workers[kill % 2].kill()
        statuses, messages = end_workers(workers)
        assert statuses[kill % 2] == -signal.SIGKILL
        assert statuses[1 - kill % 2] == 1 and "keras-bert: another worker was lost" in messages[1 - kill % 2], messages
    statuses, messages = end_workers(start_workers(work, "lost"))
    assert statuses == [0, 0] and "resuming from step" in messages[0], messages
    lost, lost_history = result(work, "lost")
    assert lost_history == two_history
    for wanted, got in zip(two, lost, strict=True):
        np.testing.assert_array_equal(wanted, got)
