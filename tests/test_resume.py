"""A run that is killed, stopped or starved, and started again by the same command."""

import contextlib
import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import types

import keras
import numpy as np
import pytest
import safetensors

from keras_bert import cli
from keras_bert.errors import InputError
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.layers import BertLayer
from keras_bert.tasks import TASKS
from keras_bert.training import finetune, loop
from keras_bert.training.run import Run

import zoo
from conftest import SMALL, eagerly, finetune_command, fit, interrupted_after, randomize, write_huggingface

# Kills the process that runs it: in the middle of writing the nth checkpoint, before its renaming, or while the model's
# folder is put in its place.
SABOTAGE = """
import os, signal, sys
sys.modules["matplotlib"] = None  # no pictures, which take time
import tensorflow as tf
from keras_bert import cli
tf.config.run_functions_eagerly(True)
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
EPOCHS, TEXTS = 2, 24


@pytest.fixture(scope="module")
def work(pretrained_once, tmp_path_factory):
    """Data and encoder of the runs, and the result of one that nobody disturbed."""
    folder = tmp_path_factory.mktemp("resume")
    (folder / "pretrained").symlink_to(pretrained_once)
    rng = random.Random(0)
    for split in ("train", "valid"):
        rows = [(" ".join(rng.choices(zoo.WORDS, k=rng.randint(1, 12))), "abc"[i % 3])
                for i in range(TEXTS)]
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    with eagerly():
        assert cli.run(command(folder, "whole")) == 0
    return folder


def command(folder, name):
    return ["finetune", f"--train={folder}/train.tsv", f"--valid={folder}/valid.tsv",
            f"--model={folder}/pretrained", f"--output={folder}/{name}", f"--epochs={EPOCHS}",
            "--batch_size=4", "--learning_rate=0.01", "--save_steps=3"]


def start(folder, name, place="", count=0):
    return subprocess.Popen([sys.executable, "-c", SABOTAGE, place, str(count), *command(folder, name)],
                            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def assert_ends_as_undisturbed(run, folder, name):
    """Runs the same command again and compares every bit of the weights, and the scores."""
    status, _, messages = run(*command(folder, name))
    assert status == 0, messages
    assert_same_end(folder / "whole", folder / name)
    return messages


def assert_same_end(whole, again):
    for one, other in zip(*(FineTuned.load(folder).model.get_weights() for folder in (whole, again)), strict=True):
        np.testing.assert_array_equal(one, other)
    wanted, got = (json.loads((folder / "metrics.json").read_text()) for folder in (whole, again))
    for key in ("history", "best_epoch", "accuracy", "confusions", "out_of_scope"):
        assert got[key] == wanted[key], key
    assert not again.with_name(f"{again.name}.checkpoints").exists()
    assert not [path for path in again.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.slow("a process killed within a save")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kills", [
    # The last checkpoint before the first kill was written at the epoch's last step; its scores were not computed yet.
    [("write", 2), ("rename", 2)],
    *(pytest.param([(place, 0)], marks=pytest.mark.long) for place in ("remove", "write", "report"))])
def test_killed_within_a_save(run, work, kills):
    name = "".join(map(str, kills[0]))
    for place, count in kills:
        process = start(work, name, place, count)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    messages = assert_ends_as_undisturbed(run, work, name)
    assert any("resuming from step" in line for line in messages) == (kills[-1][0] in ("report", "rename"))


@pytest.mark.long
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("number", range(17))
def test_killed_at_random(run, work, number):
    process = start(work, f"random{number}")
    for line in process.stderr:  # the start takes seconds: the moments of interest come after it
        if line.startswith("epoch"):
            break
    time.sleep(random.Random(number).uniform(0, 1.2))
    process.kill()
    process.communicate()
    if process.returncode == 0:
        pytest.skip("the run ended before the kill")
    assert_ends_as_undisturbed(run, work, f"random{number}")


class Observer(keras.callbacks.Callback):
    """Records its calls."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.on_train_begin = lambda logs=None: self.seen.append("begin")
        self.on_epoch_begin = lambda epoch, logs=None: self.seen.append(("epoch", epoch))
        self.on_train_batch_begin = lambda batch, logs=None: self.seen.append(("before", batch))
        self.on_train_batch_end = lambda batch, logs=None: self.seen.append(("after", batch))
        self.on_epoch_end = lambda epoch, logs=None: self.seen.append(("scores", epoch, logs))
        self.on_train_end = lambda logs=None: self.seen.append("end")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A folder with a run that nobody disturbed, `whole`, and one that was interrupted three times, `again`; their
    arguments; and what the first one's callback saw.

    Texts of the one file are held out. Of the five batches of an epoch, the last one is a step of its own.
    """
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "train.tsv").write_text("sentence\tintent\n" + "".join(
        f"{verb} {what} {when}\t{what}\n" for verb, what, when in itertools.product(
            ("play", "stop", "turn on", "turn off", "book"), ("music", "light"), ("now", "please"))))
    encoder = write_huggingface(folder / "encoder", randomize(BertLayer(SMALL)))
    arguments = dict(train=folder / "train.tsv", text_column="sentence", label_column="intent", model=encoder,
                     epochs=2, batch_size=4, gradient_accumulation_steps=2, save_steps=1, learning_rate=0.01, seed=5)
    flags = [f"--{name}={value}" for name, value in (arguments | {"output": folder / "again"}).items()]
    seen = Observer()
    with eagerly():
        finetune(output=folder / "whole", callbacks=[seen], **arguments)
        for number, step in ((signal.SIGTERM, 1), (signal.SIGINT, 3)):  # the third is the epoch's last: without scores
            def signalled(self, loss, number=number, step=step):
                if self.progress.step == step:
                    os.kill(os.getpid(), number)

            with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as messages:
                patch.setattr(Run, "check_loss", signalled)
                assert cli.run(["finetune", *flags]) == 128 + number
            assert messages.getvalue().splitlines()[-1] == (
                f"keras-bert: stopped and saved at step {step}; run the same command again to resume")
        with interrupted_after(saves=4):  # the best epoch, its end, the fourth step; the fifth is not finished
            finetune(output=folder / "again", **arguments)
    return folder, arguments, seen.seen


@pytest.mark.slow("a kind of run that resumes differently")
@pytest.mark.usefixtures("eager")
def test_a_run_of_any_kind_ends_as_one_that_was_not_interrupted(interrupted, tmp_path, capsys):
    folder, arguments, seen = interrupted
    shutil.copytree(folder / "again.checkpoints", tmp_path / "again.checkpoints")
    finetune(output=tmp_path / "again", **arguments)
    assert "resuming from step 4 of 6" in capsys.readouterr().err
    assert_same_end(folder / "whole", tmp_path / "again")
    history = json.loads((folder / "whole/metrics.json").read_text())["history"]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= history.keys()
    assert seen == ["begin", *(call for epoch in range(2) for call in [
        ("epoch", epoch), *((when, step) for step in range(3) for when in ("before", "after")),
        ("scores", epoch, {name: values[epoch] for name, values in history.items()})]), "end"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("saves", [5, *(  # the save that fails: of the best epoch, of a step, of the epoch's end
    pytest.param(saves, marks=pytest.mark.slow("hooks of callbacks that miss their pair")) for saves in (3, 6, 9))])
def test_hooks_of_callbacks_are_pairs_wherever_a_run_was_stopped(interrupted, tmp_path, saves):
    _, arguments, seen = interrupted
    first, resumed = Observer(), Observer()
    with interrupted_after(saves):
        fit(tmp_path / "out", callbacks=[first], **arguments)
    fit(tmp_path / "out", callbacks=[resumed], **arguments)
    begin, epoch, *rest = resumed.seen
    assert first.seen == seen[:len(first.seen)] and rest == seen[-len(rest):]
    assert (begin, epoch) == ("begin", [call for call in seen[:-len(rest)] if call[0] == "epoch"][-1])


@pytest.mark.slow("an epoch that a resumed run forgets")
def test_patience_counts_as_in_keras(tmp_path, pretrained, intents, monkeypatch, eager):
    """Of equal scores, the one with the lowest loss is kept."""
    for patience, *scores in itertools.product((1, 2), *[range(3)] * 5):
        stopping = keras.callbacks.EarlyStopping("score", mode="max", patience=patience)
        stopping.set_model(model := types.SimpleNamespace(stop_training=False))
        stopping.on_train_begin()
        for epoch, score in itertools.takewhile(lambda _: not model.stop_training, enumerate(scores)):
            stopping.on_epoch_end(epoch, {"score": score})
            assert model.stop_training == loop._is_finished(scores[:epoch + 1], types.SimpleNamespace(
                epochs=99, early_stopping_patience=patience))
    scores, at = [0.5, 0.875, 0.875, 0.875, 0.9], []
    seen = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: at.append(epoch))
    monkeypatch.setattr(TASKS["intent"], "score", lambda *_: {"loss": 1 / (1 + at[-1]), "accuracy": scores[at[-1]]})
    _, progress = fit(tmp_path / "out", train=intents[0], valid=intents[1], model=pretrained, epochs=5,
                      early_stopping_patience=2, freeze_blocks=2, callbacks=[seen])
    assert progress.best_epoch == 4 and at == [0, 1, 2, 3]


@pytest.mark.slow("a run that resumes with other arguments")
def test_other_arguments_or_files_are_refused(interrupted, tmp_path):
    folder, arguments, _ = interrupted
    checkpoints = tmp_path / "out.checkpoints"
    shutil.copytree(folder / "again.checkpoints", checkpoints)
    train, last = arguments["train"], checkpoints / "last.safetensors"
    content = train.read_text()

    def refusal(**changes):
        with pytest.raises(InputError) as error:
            finetune(output=tmp_path / "out", **arguments | changes)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    holds = f"{checkpoints}: holds the checkpoints of an unfinished run with"
    assert refusal(epochs=5, seed=1).startswith(f"{holds} epochs=2 (now 5), seed=5 (now 1);")
    for changes in ({"valid_share": 0.3}, {"valid": train}):
        assert next(iter(changes)) in refusal(**changes)
    train.write_text(content + "play\tmusic\n")
    assert refusal().startswith(f"{holds} other contents of {train} (train);")
    train.write_text(content)
    os.truncate(last, last.stat().st_size - 100)
    assert refusal().startswith(f"{last}: the checkpoint is damaged or incomplete")
    (checkpoints / "run.json").write_text("{")
    assert refusal().startswith(f"{checkpoints}/run.json: not a JSON file")
    (checkpoints / "run.json").unlink()  # a folder of somebody's own, by its looks
    assert refusal().startswith(f"{checkpoints}: exists already")
    assert last.exists()


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


@pytest.mark.usefixtures("eager")
def test_a_full_disk_is_one_line(run, intents, pretrained, tmp_path):
    """A limit on the size of files stands in for the disk's: both fail in the middle of a write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        status, _, messages = run(*finetune_command(intents, pretrained, tmp_path / "out", "--save_steps=1"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (status, messages[-1]) == (
        1, f"keras-bert: {tmp_path}/out.checkpoints/last.safetensors: cannot be written: File too large")
    assert not (tmp_path / "out").exists() and os.listdir(tmp_path / "out.checkpoints") == ["run.json"]
