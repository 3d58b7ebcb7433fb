"""Distillation: the student's start, its targets and loss, what decides the run, and what the card says."""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

from keras_bert.errors import InputError
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier
from keras_bert.tasks import TASKS
from keras_bert.training import finetune
from keras_bert.training.distillation import distillation_loss
from keras_bert.training.options import Options
from keras_bert.training.prepare import prepare
from keras_bert.weights.format import Weights

import zoo
from conftest import TINY, eagerly, fit, interrupted_after, options_of, randomize

TEXTS = ["play the music now", "lamp off", "what time", "turn on"]


@pytest.fixture(scope="module")
def teacher():
    return zoo.finetuned()


@pytest.fixture
def unlabelled(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def prepared(**arguments):
    return prepare(options_of(finetune, Options, **arguments))


@pytest.mark.parametrize(("layers", "blocks"), [(1, [1]), (2, [0, 1])])
def test_the_student_begins_as_some_blocks_of_the_teacher_with_its_head(teacher, intents, layers, blocks, tmp_path):
    student = prepared(train=intents[0], valid=intents[1], teacher=teacher, layers=layers, output=str(tmp_path / "new"))
    old, new = FineTuned.load(teacher).model, student.model
    old_blocks = [old.bert.blocks[i] for i in blocks]
    for one, other in zip([old.bert.embeddings, old.bert.pooler, old.classifier, *old_blocks],
                          [new.bert.embeddings, new.bert.pooler, new.classifier, *new.bert.blocks], strict=True):
        for before, after in zip(one.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(before, after)


def test_blocks_are_evenly_spaced():
    six = Weights(dataclasses.replace(TINY, num_hidden_layers=6), "encoder", {
        **{f"bert.blocks.{i}.output_norm.gamma": i for i in range(6)}, "bert.pooler.bias": "pooler"})
    for count, kept in ((3, [1, 3, 5]), (4, [0, 2, 3, 5]), (1, [5]), (6, [*range(6)])):
        assert [*six.with_blocks(count).read.values()] == [*kept, "pooler"]


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_the_loss_is_that_of_the_teacher_at_temperature_2_and_that_of_the_labels(activation):
    rng = np.random.default_rng(0)
    teacher, logits = rng.normal(size=(2, 5, 3)).astype(np.float32) * 3
    labels = np.float32([[1, 0, 0], [0, 0, 1], [-1, -1, -1], [0, 1, 0], [-1, -1, -1]])

    def cross_entropy(probabilities, of_student):
        if activation == "softmax":
            return -(probabilities * log_softmax(of_student, axis=-1)).sum(-1)
        return -(probabilities * np.log(expit(of_student)) + (1 - probabilities) * np.log(expit(-of_student))).mean(-1)

    of_teacher = 4 * cross_entropy((softmax if activation == "softmax" else lambda x, axis: expit(x))(
        teacher / 2, axis=-1), logits / 2)
    of_labels = np.where(labels[:, 0] < 0, 0, cross_entropy(labels, logits))
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Identity()])
    model.compile(loss=distillation_loss(activation))  # Keras must not change the shape of the targets
    found = model.evaluate(logits, np.hstack([teacher, labels]), verbose=0)
    assert found == pytest.approx((of_teacher / 2 + of_labels / 2).mean(), rel=1e-4)


@pytest.mark.slow("a logit of another label")
def test_targets_are_the_teachers_logits_and_the_labels_in_the_students_order(teacher, intents, unlabelled, tmp_path):
    student = prepared(train=intents[0], valid=intents[1], teacher=teacher, layers=1, unlabelled=str(unlabelled),
                       output=str(tmp_path / "new"))
    model = FineTuned.load(teacher)
    texts = [line.split("\t")[0] for line in intents[0].read_text().splitlines()[1:]] + TEXTS
    expected = np.array(model.outputs(model.task.encode(model.task.arguments(texts), model.tokenizer)))
    batches = student.strategy.train_batches
    np.testing.assert_allclose(batches.targets[:, :2], expected, atol=1e-6)
    np.testing.assert_array_equal(batches.targets[:, 2:], [[0, 1], [0, 1], [1, 0], [1, 0], *[[-1, -1]] * 4])
    assert "data: 4 unlabelled texts" in student.lines
    unlabelled.write_text("Play  some music\n\n \nbook\n")  # the first is a validation text for the tokenizer
    student = prepared(train=intents[0], valid=intents[1], teacher=teacher, layers=1, unlabelled=str(unlabelled),
                       output=str(tmp_path / "new"))
    assert any("unlabelled texts that are also validation texts: 1:" in line for line in student.lines)


@pytest.mark.slow("a row of the head of another label")
def test_a_teacher_may_have_its_labels_in_another_order(teacher, intents, tmp_path):
    model = FineTuned.load(teacher)
    changed = dataclasses.replace(model.task, labels=["music", "light"])
    FineTuned(model.model, model.tokenizer, changed).save(tmp_path / "teacher")
    student = prepared(train=intents[0], valid=intents[1], teacher=tmp_path / "teacher", layers=1,
                       output=str(tmp_path / "new"))
    texts = [line.split("\t")[0] for line in intents[0].read_text().splitlines()[1:]]
    expected = np.array(model.outputs(model.task.encode(model.task.arguments(texts), model.tokenizer)))
    np.testing.assert_allclose(student.strategy.train_batches.targets[:, :2], expected[:, ::-1], atol=1e-6)
    scores = FineTuned.load(tmp_path / "teacher").evaluate(intents[1])
    assert student.strategy.description["teacher"]["accuracy"] == scores["accuracy"]


@pytest.mark.slow("a student that resumes with another teacher")
@pytest.mark.usefixtures("eager")
def test_it_resumes_exactly_and_only_with_the_same_teacher(teacher, intents, unlabelled, tmp_path):
    arguments = dict(train=intents[0], valid=intents[1], teacher=str(teacher), layers=1, unlabelled=str(unlabelled),
                     epochs=2, batch_size=3, save_steps=1)
    whole, _ = fit(str(tmp_path / "whole"), **arguments)
    with interrupted_after(3):
        fit(str(tmp_path / "again"), **arguments)
    again, _ = fit(str(tmp_path / "again"), **arguments)
    for one, other in zip(whole.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    with interrupted_after(3):
        fit(str(tmp_path / "other"), **arguments)
    changed = FineTuned.load(teacher)
    changed.model.bert.blocks[0].set_weights([2 * weight for weight in changed.model.bert.blocks[0].get_weights()])
    changed.save(tmp_path / "changed")  # in a block that the student does not begin with
    with pytest.raises(InputError, match="unfinished run .*teacher"):
        fit(str(tmp_path / "other"), **arguments | {"teacher": str(tmp_path / "changed")})
    unlabelled.write_text("play\n")
    with pytest.raises(InputError, match="unfinished run .*unlabelled"):
        fit(str(tmp_path / "other"), **arguments)


@pytest.mark.slow("a loss that the card does not mention")
@pytest.mark.usefixtures("eager")
def test_the_card_says_what_the_student_lost(teacher, intents, unlabelled, tmp_path):
    finetune(*intents, teacher=teacher, layers=1, unlabelled=unlabelled, output=tmp_path / "student", epochs=1,
             learning_rate=0.05)
    metrics = json.loads((tmp_path / "student/metrics.json").read_text())
    expected = FineTuned.load(teacher).evaluate(intents[1])
    assert metrics["teacher"] == {"accuracy": expected["accuracy"], "f1": {
        label: row["f1"] for label, row in expected["classes"].items()}}
    card = (tmp_path / "student/README.md").read_text()
    section = card[card.index("## Compared with the teacher"):card.index("## Most frequent")]
    lost = [label for label, f1 in metrics["teacher"]["f1"].items() if metrics["classes"][label]["f1"] < f1]
    assert re.findall(r"\| F1 of (\w+) ", section) == sorted(
        lost, key=lambda label: metrics["classes"][label]["f1"] - metrics["teacher"]["f1"][label])
    assert f"{len(lost)} of 2 labels have a lower F1." in section
    assert re.search(rf"unlabelled \| texts.txt \| 4 \| `{metrics['sha256']['unlabelled']}`", card)
    assert "--teacher=" in card and "--model=" not in card[card.index("## Training"):]


@pytest.mark.slow("a target of another window")
@pytest.mark.usefixtures("eager")
def test_several_labels_in_windows(tmp_path):
    task = TASKS["multilabel"](8, labels=["a", "b"], doc_stride=4)
    tuned = FineTuned(randomize(BertClassifier(randomize(BertLayer(TINY)), 2)), zoo.make("intent").tokenizer, task)
    tuned.save(tmp_path / "teacher")
    rows = [("play some music now " * 4, ["a"]), ("stop", ["a", "b"]), ("lamp off", []), ("turn on", ["b"])]
    student = finetune(rows, rows, teacher=tmp_path / "teacher", layers=1, output=tmp_path / "student",
                       task="multilabel", epochs=1)
    assert (student.task.max_length, student.task.doc_stride, student.model.bert.config.num_hidden_layers) == (8, 4, 1)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"layers": 3}, r"layers must be at most the encoder's num_hidden_layers \(2\); got 3"),
    ({"layers": None}, "layers must be given with teacher, and left out otherwise; got None"),
    ({"teacher": None, "model": "minilm", "layers": None, "unlabelled": "x"}, "unlabelled must be left out without t"),
    ({"teacher": None, "layers": None}, "model must be given, or teacher; got None"),
    ({"teacher": None, "model": "minilm"}, "layers must be given with teacher, and left out otherwise; got 1"),
    ({"model": "minilm"}, "model must be left out with teacher"),
    ({"max_length": 8}, "max_length must be left out with teacher"),
    ({"few_shot": True}, "few_shot must be left out with teacher"),
    ({"task": TASKS["intent"](128, labels=["light", "music"])}, "task must be the name of a task with teacher"),
    ({"output": None, "overwrite": True}, "must not be or contain .*finetuned"),
    ({"task": "regress"}, "teacher must be left out unless task is classify or intent or multilabel"),
    ({"task": "classify"}, "task must be that of the teacher, intent; got classify"),
    ({"teacher": "minilm"}, "minilm: must be a folder that finetune wrote"),
    ({"train": [("play", "music"), ("stop", "other")]}, "it lacks light, and the teacher lacks other"),
    ({"train": [("play", "a", "music"), ("stop", "b", "light")]}, "must have single texts, as the .*; got pairs"),
    ({"unlabelled": "empty.txt"}, "empty.txt: holds no texts"), ({"unlabelled": "none.txt"}, "none.txt: "),
    ({"freeze_blocks": 2}, r"freeze_blocks must be at most the encoder's num_hidden_layers \(1\); got 2")])
def test_what_does_not_fit_is_refused(teacher, intents, arguments, message, tmp_path, monkeypatch):
    given = dict(train=intents[0], valid=intents[1], teacher=teacher, layers=1, output=tmp_path / "new") | arguments
    given["output"] = given["output"] or teacher
    (tmp_path / "empty.txt").touch()
    monkeypatch.chdir(tmp_path)
    if isinstance(given["train"], list):
        given["valid"] = given["train"]
    with pytest.raises(InputError, match=message), eagerly():
        finetune(**given)
    assert not (tmp_path / "new").exists()
