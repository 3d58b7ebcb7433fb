"""The task of examples/own_task.py in all runtimes, as docs/own_task.md describes it."""

import dataclasses
import importlib
import json
import pathlib
import shutil
import sys

import numpy as np
import pytest

from keras_bert import tasks
from keras_bert.errors import InputError
from keras_bert.export.checking import FAILED, verify_litert
from keras_bert.inference.lite_model import LiteModel, LiteRTModel
from keras_bert.inference.saved_model import Exported
from keras_bert.layers import BertLayer
from keras_bert.tasks.score_names import shown_scores
from keras_bert.training import FineTuned, finetune
from keras_bert.training.options import Options
from keras_bert.training.prepare import prepare
from keras_bert.training.report import model_card

import zoo
from conftest import SMALL, eagerly, interrupted_after, options_of, randomize

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples/own_task.py"
ROWS = [(f"{word} {more}", grade) for grade, word in enumerate(["stop", "off", "lamp", "play"], 1)
        for more in ("now", "the music", "please", "the light and the song " * 9)]
TEXTS = ["play now", "stop", "", "각각", "turn the lamp off and " * 12]


@pytest.fixture(scope="module")
def own_task():
    """The module, as --import imports it."""
    sys.path.insert(0, str(EXAMPLE.parent))
    yield importlib.import_module("own_task")
    sys.path.remove(str(EXAMPLE.parent))
    del tasks.TASKS["grades"], sys.modules["own_task"]


@pytest.fixture(scope="module")
def grader(own_task, tmp_path_factory):
    """A folder of a run that was stopped once; with windows."""
    folder = tmp_path_factory.mktemp("own") / "grader"
    options = {"model": zoo.pretrained(), "output": folder, "task": "grades", "epochs": 2, "batch_size": 4,
               "learning_rate": 5e-3, "max_length": 16, "doc_stride": 6}
    with eagerly():
        with interrupted_after(saves=2):
            finetune(ROWS, ROWS, save_steps=3, **options)
        finetune(ROWS, ROWS, save_steps=3, **options)
    return folder


@pytest.mark.parametrize("options", [{"doc_stride": 6}, *(
    pytest.param(options, marks=pytest.mark.slow("exports of other options"))
    for options in ({"doc_stride": 5, "aggregate": "max"}, {}))])
@pytest.mark.filterwarnings("ignore:texts cut")
def test_all_runtimes_give_the_same_answers(own_task, options, tmp_path):
    task = own_task.Grades(16, ["1", "2", "3", "4"], **options)
    head = randomize(task.new_head(randomize(BertLayer(SMALL)), 0.1))
    model = FineTuned(head, zoo.make("mean").tokenizer, task)
    head.classifier.kernel.assign(head.classifier.kernel * 2000)  # so that grades differ
    head.classifier.bias.assign_sub([np.mean(head(model.tokenizer(TEXTS, max_length=16)))])
    encoded = model.task.encode(model.task.arguments(TEXTS), model.tokenizer)
    wanted = np.stack([row["probabilities"] for row in model.task.exported_rows(encoded, model.outputs(encoded))])
    np.testing.assert_allclose(wanted.sum(axis=1), 1, atol=1e-6)
    assert len({*wanted.argmax(axis=1)}) > 1
    model.export(tmp_path / "saved")
    model.export_litert(tmp_path / "lite")
    lite = LiteModel.load(tmp_path / "lite")
    assert FAILED not in {result.status for result in verify_litert(lite, tmp_path / "lite")}
    saved, inputs = Exported(str(tmp_path / "saved"), 1), {"text": np.array([text.encode() for text in TEXTS], object)}
    served = LiteRTModel(str(tmp_path / "lite"), 1), saved._saved_model
    for outputs in (one.run("serving_default", [inputs])[0] for one in served):
        np.testing.assert_allclose(outputs["probabilities"], wanted, atol=1e-4)
        np.testing.assert_array_equal(outputs["grade"], wanted.argmax(axis=1))
    for one in served:
        weights = one.run("word_weights", [inputs])[0]["word_weight"][-1, :, 1]  # of the longest text
        words, = model.word_weights(TEXTS[-1:], label="2")
        np.testing.assert_allclose(weights, [word.weight for word in words], atol=1e-4)
    assert {one.display for one in served} == {"label"} and {tuple(one.labels) for one in served} == {tuple("1234")}
    expected = [answer["label"] for answer in model.predict(TEXTS)]
    for other in lite, saved:
        answers, _ = other.answer_with_cuts(model.task.arguments(TEXTS))
        assert [answer["label"] for answer in answers] == expected
    assert lite.evaluate(ROWS) == pytest.approx(model.evaluate(ROWS), abs=1e-5)


@pytest.mark.slow("a report that knows only the package's own tasks")
@pytest.mark.usefixtures("eager")
def test_it_learns_and_says_so(grader, own_task, tmp_path):
    metrics = json.loads((grader / "metrics.json").read_text())
    assert metrics["kappa"] == FineTuned.load(grader).evaluate(ROWS)["kappa"]
    assert "quadratic kappa" in (grader / "README.md").read_text()
    task = own_task.Grades(16, labels=["1", "2", "3", "4"])
    assert prepare(options_of(finetune, Options, train=ROWS, valid=ROWS, model=grader, task=task,
                              output=tmp_path / "more")).task == task
    with pytest.raises(InputError, match="max_length must be left out with a task that has its fields"):
        finetune(ROWS, ROWS, model=grader, task=task, output=tmp_path / "again", max_length=9)
    with pytest.raises(InputError, match="row 1: the grade '9' is not among the learned grades"):
        finetune([("play", "9")], ROWS, model=grader, task=task, output=tmp_path / "again")


def test_who_does_not_import_it_is_told(grader, tmp_path, monkeypatch, run):
    shutil.copy(EXAMPLE, tmp_path)
    zoo.copy(grader, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(tasks.IMPORT, "")  # which the command line sets
    monkeypatch.setitem(tasks.TASKS, "grades", None)
    del tasks.TASKS["grades"]
    with pytest.raises(InputError, match="task must be one of .*; got 'grades'.*a command by --import=MODULE"):
        tasks.read_settings(tmp_path / "copy")
    for command in (["predict", "--import=nowhere", "--model=copy", "a"], ["verify", "--import=nowhere", "copy"],
                    ["finetune", "-import=nowhere", "--task=new", "--train=x", "--model=x", "--output=x"]):
        status, _, messages = run(*command)
        assert status == 1 and "--import=nowhere must be a module that Python finds" in messages[0]


@pytest.mark.parametrize("changes, message", [
    ({"name": "tag"}, "name and an output of its own; tag and grade are those of .*Tag"),
    ({"output": "label"}, "name and an output of its own; other and label are those of .*Classify")])
def test_a_task_has_a_name_and_an_output_of_its_own(own_task, changes, message):
    other = dataclasses.dataclass(frozen=True)(type("Other", (own_task.Grades,), {"name": "other"} | changes))
    with pytest.raises(InputError, match=message):
        tasks.register_task(other)
    for no_dataclass in object, type("Other", (own_task.Grades,), {"name": "other"}):
        with pytest.raises(InputError, match="must be a subclass of Task and a dataclass"):
            tasks.register_task(no_dataclass)
    for bases, members, message in (
            ((tasks.TextTask,), {}, "must define name, main, output, lite_outputs, .*heads, .*cells; Other does not"),
            ((own_task.Grades,), {"name": "other", "output": "x", "display": "bars"}, "must be one of .*'bars'")):
        with pytest.raises(InputError, match=message):
            tasks.register_task(dataclasses.dataclass(frozen=True)(type("Other", bases, members)))


def test_outputs_that_the_graph_lacks(own_task, tmp_path):
    model = FineTuned(own_task.Grades(16, ["1", "2"]).new_head(BertLayer(SMALL), 0.1), zoo.make("mean").tokenizer,
                      own_task.Grades(16, ["1", "2"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(own_task.Grades.exported_outputs, "words", (np.int32, "B"))
        with pytest.raises(InputError, match="must compute its exported_outputs, grade, .*words; got grade, label"):
            model.export(tmp_path / "out")


def test_the_main_score_is_shown_without_a_name_in_words(own_task, monkeypatch):
    monkeypatch.setattr(own_task.Grades, "score_names", {})
    assert shown_scores("grades", {"kappa": 0.5, "loss": 1.0}) == {"loss": 1.0, "kappa": 0.5}


def test_a_card_of_inputs_with_names_of_their_own(grader):
    metrics = json.loads((grader / "metrics.json").read_text()) | {"inputs": ["title"]}
    assert 'model.predict(["a text"])[0]' in model_card(metrics, [])
