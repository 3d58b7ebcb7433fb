"""A run that is killed, stopped or starved, and started again by the same command."""

import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors

from keras_bert.errors import InputError
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.training import checkpoints, finetune
from keras_bert.training.run import Run

from conftest import TINY_VOCABULARY, finetune_command

# Kills the process that runs it: in the middle of writing the nth checkpoint, before its renaming, or while the model's
# folder is put in its place.
SABOTAGE = """
import os, signal, sys
sys.modules["matplotlib"] = None  # no pictures, which take time
from keras_bert import cli
from keras_bert.training import checkpoints, report

def killer(function, count, half=False):
    calls = iter(range(count))
    def call(*arguments):
        if next(calls, None) is None:
            if half:
                function(*arguments)
                os.truncate(arguments[1], os.path.getsize(arguments[1]) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return call

place, count = sys.argv[1], int(sys.argv[2])
if place == "write":
    checkpoints.save_file = killer(checkpoints.save_file, count, half=True)
elif place == "rename":
    os.replace = killer(os.replace, count)
elif place == "remove":
    checkpoints.Checkpoints.remove = killer(checkpoints.Checkpoints.remove, 0)
elif place == "report":
    report.model_card = killer(report.model_card, 0)
cli.main(sys.argv[3:])
"""
EPOCHS, TEXTS = 3, 120


@pytest.fixture(scope="module")
def work(pretrained_once, tmp_path_factory):
    """Data and encoder of the runs, and the result of one that nobody disturbed."""
    folder = tmp_path_factory.mktemp("resume")
    (folder / "pretrained").symlink_to(pretrained_once)
    rng = random.Random(0)
    for split in ("train", "valid"):
        rows = [(" ".join(rng.choices(TINY_VOCABULARY[5:40], k=rng.randint(1, 12))), rng.choice("abc"))
                for _ in range(TEXTS)]
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    assert start(folder, "whole").wait() == 0
    return folder


def command(folder, name, *more):
    return ["finetune", f"--train={folder}/train.tsv", f"--valid={folder}/valid.tsv",
            f"--model={folder}/pretrained", f"--output={folder}/{name}", f"--epochs={EPOCHS}",
            "--batch_size=4", "--learning_rate=0.01", "--save_steps=3", *more]


def start(folder, name, place="", count=0, more=(), **options):
    return subprocess.Popen([sys.executable, "-c", SABOTAGE, place, str(count), *command(folder, name, *more)],
                            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def assert_ends_as_undisturbed(folder, name):
    """Starts the same command again and compares every bit of the weights, and the scores."""
    process = start(folder, name)
    _, messages = process.communicate()
    assert process.returncode == 0, messages
    wanted, got = (FineTuned.load(folder / run).model.get_weights() for run in ("whole", name))
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(one, other)
    wanted, got = (json.loads((folder / run / "metrics.json").read_text()) for run in ("whole", name))
    for key in ("history", "best_epoch", "accuracy", "confusions", "out_of_scope"):
        assert got[key] == wanted[key], key
    assert not (folder / f"{name}.checkpoints").exists()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    return messages


class Interruption(BaseException):
    """What no handler of errors stops."""


@pytest.fixture
def unfinished(tmp_path, intents, pretrained, monkeypatch, eager):
    """The arguments of a run that was interrupted in its second epoch, while it wrote a checkpoint."""
    calls = itertools.count(1)

    def interrupted(tensors, path, *metadata):
        save_file(tensors, path, *metadata)
        if next(calls) == 6:  # after the first of the two steps of the second epoch; there is one after each epoch too
            os.truncate(path, os.path.getsize(path) // 2)
            raise Interruption

    arguments = dict(train=intents[0], valid=intents[1], model=pretrained, output=tmp_path / "out", epochs=3,
                     batch_size=2, save_steps=1, learning_rate=0.01)
    save_file = checkpoints.save_file
    with monkeypatch.context() as patch, pytest.raises(Interruption):
        patch.setattr(checkpoints, "save_file", interrupted)
        finetune(**arguments)
    return arguments


@pytest.mark.slow("a resumed run that ends otherwise")
def test_an_interrupted_run_ends_as_one_that_was_not(unfinished, tmp_path, capsys):
    again = finetune(**unfinished).model.get_weights()
    assert "resuming from step 3 of 6" in capsys.readouterr().err
    wanted = finetune(**unfinished | {"output": tmp_path / "whole"}).model.get_weights()
    for one, other in zip(again, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    got, wanted = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("out", "whole"))
    assert got["history"] == wanted["history"]
    assert not (tmp_path / "out.checkpoints").exists()


@pytest.mark.slow("a process killed within a save")
@pytest.mark.parametrize("kills", [
    # The last checkpoint before the first kill was written at the epoch's last step; its scores were not computed yet.
    [("write", 10), ("rename", 4)],
    *(pytest.param([(place, 0)], marks=pytest.mark.long) for place in ("remove", "write", "report"))])
def test_killed_within_a_save(work, kills):
    name = "".join(map(str, kills[0]))
    for place, count in kills:
        process = start(work, name, place, count)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    messages = assert_ends_as_undisturbed(work, name)
    assert ("resuming from step" in messages) == (place in ("report", "rename"))


@pytest.mark.long
@pytest.mark.parametrize("number", range(17))
def test_killed_at_random(work, number):
    process = start(work, f"random{number}")
    for line in process.stderr:  # the start takes seconds: the moments of interest come after it
        if line.startswith("epoch"):
            break
    time.sleep(random.Random(number).uniform(0, 1.2))
    process.kill()
    process.communicate()
    if process.returncode == 0:
        pytest.skip("the run ended before the kill")
    assert_ends_as_undisturbed(work, f"random{number}")


@pytest.mark.slow("a signal that loses a run")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_by_a_signal(run, intents, pretrained, tmp_path, monkeypatch, number):
    """In this process; test_pretrain_resume.py stops another one."""
    def signalled(self, loss):
        if self.progress.step == 3:
            os.kill(os.getpid(), number)

    def finetuned(name):
        return run(*finetune_command(intents, pretrained, tmp_path / name, "--epochs=2"))

    with monkeypatch.context() as patch:
        patch.setattr(Run, "check_loss", signalled)
        status, _, messages = finetuned("stopped")
    assert (status, messages[-1]) == (
        128 + number, "keras-bert: stopped and saved at step 3; run the same command again to resume")
    assert finetuned("whole")[0] == 0
    status, _, messages = finetuned("stopped")
    assert status == 0 and "resuming from step 3 of 4" in messages
    for one, other in zip(*(FineTuned.load(tmp_path / name).model.get_weights() for name in ("whole", "stopped"))):
        np.testing.assert_array_equal(one, other)


def test_other_arguments_or_files_are_refused(unfinished, tmp_path):
    def refusal(**changes):
        with pytest.raises(InputError) as error:
            finetune(**unfinished | changes)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    folder = tmp_path / "out.checkpoints"
    holds = f"{folder}: holds the checkpoints of an unfinished run with"
    assert refusal(epochs=5, seed=1).startswith(f"{holds} epochs=3 (now 5), seed=0 (now 1);")
    content = (tmp_path / "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(content + "play\tmusic\n")
    assert refusal().startswith(f"{holds} other contents of {tmp_path}/train.tsv (train);")
    (tmp_path / "train.tsv").write_text(content)
    last = folder / "last.safetensors"
    os.truncate(last, last.stat().st_size - 100)
    assert refusal().startswith(f"{last}: the checkpoint is damaged or incomplete")
    (folder / "run.json").write_text("{")
    assert refusal().startswith(f"{folder}/run.json: not a JSON file")
    (folder / "run.json").unlink()  # a folder of somebody's own, by its looks
    assert refusal().startswith(f"{folder}: exists already")
    assert last.exists()
    finetune(**unfinished | {"overwrite": True, "epochs": 1})
    assert not folder.exists()


@pytest.mark.usefixtures("eager")
def test_a_loss_that_is_no_number(intents, pretrained, tmp_path):
    with pytest.raises(InputError) as error:
        finetune(*intents, model=pretrained, output=tmp_path / "out", epochs=40, batch_size=2, learning_rate=1e30,
                 save_steps=1)
    folder = tmp_path / "out.checkpoints"
    assert re.search(r"step \d+ (it is|\S+ is not)", str(error.value)) and "learning_rate" in str(error.value)
    with safetensors.safe_open(folder / "last.safetensors", framework="numpy") as file:
        assert all(np.isfinite(file.get_tensor(key)).all() for key in file.keys())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow("a full disk")
def test_a_full_disk_is_one_line(work, tmp_path):
    """A limit on the size of files stands in for the disk's: both fail in the middle of a write."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    for name in ("train.tsv", "valid.tsv", "pretrained"):
        os.symlink(work / name, tmp_path / name)
    process = start(tmp_path, "out", preexec_fn=limit)
    _, messages = process.communicate()
    assert process.returncode == 1
    assert messages.splitlines()[-1] == (
        f"keras-bert: {tmp_path}/out.checkpoints/last.safetensors: cannot be written: File too large")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "out.checkpoints", "pretrained", "run.json", "train.tsv", "valid.tsv"]
