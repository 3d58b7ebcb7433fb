"""Every task by the command line: fine-tuned, scored, asked, exported, and asked again in another process."""

import contextlib
import dataclasses
import functools
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.layers import BertLayer
from keras_bert.training import FineTuned

import zoo
from conftest import blank_pictures

SQUAD = {"data": [{"paragraphs": [
    {"context": "the lamp is on the table . play music now", "qas": [
        {"id": "1", "question": "what is on", "answers": [{"text": "the lamp", "answer_start": 0}]},
        {"id": "2", "question": "play what", "answers": [{"text": "music", "answer_start": 32}]},
        {"id": "3", "question": "weather today please", "answers": [], "is_impossible": True}]},
    {"context": "book a flight for two", "qas": [
        {"id": "4", "question": "book what", "answers": [{"text": "a flight", "answer_start": 5}]}]}]}]}
CONLL = "play O\nsome O\nmusic B-what\n\nturn O\nthe O\nlight B-what\nlamp I-what\noff B-how\n\n"
FILES = {
    "classify": ("pairs.tsv", "text\ttext_pair\tlabel\nplay music\tsong\tyes\nlight off\tflight\tno\n"),
    "multilabel": ("labels.tsv", "text\tlabels\nplay music\tsound\nlight off\thome,off\nnow\t\n"
                   "music off\toff,sound\n"),
    "regress": ("values.tsv", "text\ttext_pair\tlabel\nplay music\tsong\t4.5\nlight off\tflight\t0.5\nlamp\ton\t2\n"),
    "tag": ("tags.conll", CONLL),
    "span": ("squad.json", json.dumps(SQUAD)),
    "choice": ("swag.csv", "prompt,choice0,choice1,choice2,label\nplay some,music,table,weather,0\n"
                           "turn the light,song,off,flight,1\nbook a,weather,lamp,flight,2\n"),
    "rerank": ("triplets.tsv", "text\ttext_pair\tnegative\nplay music\tsong\tlamp\nlight off\tweather\tflight\n"),
}
FLAGS = {"span": ["--max_length=72", "--doc_stride=2", "--epochs=10", "--batch_size=2"], "tag": ["--max_length=5"],
         "multilabel": ["--epochs=16"], "regress": ["--seed=1", "--epochs=15"], "rerank": ["--epochs=14"]}
# What the model is asked: surrogates of emoji, syllables in one and in several characters, accents, tabs, nothing.
STRANGE = ["play 😀 music\tnow", "각각 light lamp 각 é", "e\u0301 turn\u3000the light off", "", " \t ",
           "music. light, lamp the the the on off play a i to my"]
QUESTIONS = {
    "classify": [STRANGE, STRANGE[::-1]],
    "multilabel": [STRANGE],
    "regress": [STRANGE],
    "tag": [STRANGE],
    "span": [["play what", "what is on", "", "각?", "what", "book what"], STRANGE],
    "choice": [STRANGE, [["music", "각 e\u0301", text] for text in STRANGE]],
    "rerank": [STRANGE, STRANGE[::-1]],
}
# Loads SavedModels with TensorFlow alone, in another process.
ASK = """
import json, sys, tensorflow as tf
for path, arguments in json.load(sys.stdin).items():
    answer = tf.saved_model.load(path)(*map(tf.constant, arguments))
    print(json.dumps({name: value.numpy().tolist() for name, value in answer.items()}, default=bytes.decode))
assert not {"keras_bert", "tensorflow_text"} & set(sys.modules)
"""


def repeated(name, content, times):
    """A data file with each row several times: steps cost less than epochs."""
    if name.endswith(".json"):
        return json.dumps({"data": json.loads(content)["data"] * times})
    if name.endswith(".conll"):
        return content * times
    header, *rows = content.splitlines(keepends=True)
    return header + "".join(rows * times)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The path of each task's data file."""
    folder, found = tmp_path_factory.mktemp("data"), {}
    for task, (name, content) in FILES.items():
        found[task] = folder / name
        found[task].write_text(content)
    return found


@pytest.fixture(scope="module")
def model(pretrained_once, data, tmp_path_factory):
    """A function of a task that returns a folder that `finetune` wrote."""
    from keras_bert import cli

    @functools.cache
    def finetune(task):
        folder, (name, content) = tmp_path_factory.mktemp(task), FILES[task]
        (folder / name).write_text(repeated(name, content, 40 if task == "regress" else 10))
        arguments = ["finetune", f"--task={task}", f"--train={folder / name}", f"--valid={data[task]}",
                     f"--model={pretrained_once}", f"--output={folder / 'model'}", "--batch_size=4", "--epochs=8",
                     "--learning_rate=0.01", *([] if task == "span" else ["--dropout=0"]), *FLAGS.get(task, [])]
        # The tests compare what later commands print.
        with contextlib.redirect_stdout(io.StringIO()), blank_pictures():
            assert cli.run(arguments) == 0
        return folder / "model"

    return finetune


@pytest.mark.slow("a task that does not learn")
@pytest.mark.parametrize("task", FILES)
def test_a_task_is_learned_and_scored(model, data, run, task):
    folder = model(task)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics[metrics["main"]] == pytest.approx(100 if task == "span" else 1, abs=0.02)
    assert metrics["history"]["loss"][-1] < 0.5 * metrics["history"]["loss"][0]
    best = {name: metrics["history"][f"val_{name}"][metrics["best_epoch"] - 1] for name in (metrics["main"], "loss")}
    assert best == pytest.approx({name: metrics[name] for name in best}, abs=5e-5)
    card = (folder / "README.md").read_text()
    assert f"\n- {task}\n" in card and "## Scores" in card
    status, output, _ = run("evaluate", f"--model={folder}", f"--data={data[task]}", "--output_format=json")
    scores = json.loads("\n".join(output))
    assert status == 0 and {name: scores[name] for name in (metrics["main"], "loss")} == pytest.approx(
        {name: metrics[name] for name in (metrics["main"], "loss")}, abs=5e-5)  # a correlation of three numbers
    status, output, _ = run("evaluate", f"--model={folder}", f"--data={data[task]}")
    assert status == 0 and f"{scores['loss']:.4f}" in [line.split()[-1] for line in output if line]


@pytest.mark.slow("answers of trained models")
@pytest.mark.parametrize("task,line,answer", [
    ("classify", "play music\tsong", {"text": "play music", "text_pair": "song", "label": "yes"}),
    ("multilabel", "light off", {"text": "light off"}),
    ("regress", "play music\tsong", {"text": "play music", "text_pair": "song"}),
    ("tag", "some weather", {"text": "some weather"}),
    ("span", "play what\tthe lamp is on the table . play music now", {"text": "music", "start": 32, "end": 37}),
    ("choice", "book a\tweather\tlamp\tflight", {"choice": 2, "text": "flight"}),
])
def test_lines_are_answered(model, data, run, tmp_path, task, line, answer):
    model = f"--model={model(task)}"
    status, output, _ = run("predict", model, "--output_format=jsonl", line)
    record = json.loads(output[0])
    assert status == 0 and len(output) == 1 and record | answer == record
    (tmp_path / "lines.txt").write_text(f"{line}\n{line}\n")
    for again in map(json.loads, run("predict", model, "--output_format=jsonl",
                                     f"--input={tmp_path / 'lines.txt'}")[1]):
        assert again == {name: pytest.approx(value, abs=1e-6) if name in ("score", "value", "probabilities") else value
                         for name, value in record.items()}
    status, output, messages = run("predict", model, f"--input={data[task]}")
    rows = {"classify": 2, "multilabel": 4, "regress": 3, "tag": 2, "span": 4, "choice": 3}
    assert status == 0 and len(output) == rows[task]
    if task not in ("multilabel", "tag"):
        status, _, messages = run("predict", model, "no tab")
        assert status == 1 and len(messages) == 1 and "argument 1: this model takes " in messages[0]


@pytest.mark.slow("entities of trained models")
def test_entities_of_a_file(model):
    tagged, = FineTuned.load(model("tag")).predict(["turn the light lamp off"])
    assert [(entity.label, entity.text, entity.start, entity.end) for entity in tagged] == [
        ("what", "light lamp", 9, 19), ("how", "off", 20, 23)]


@pytest.mark.slow("spans of trained models")
def test_answers_of_a_file(model, data):
    labeler = FineTuned.load(model("span"))
    examples = labeler.task.read(data["span"])
    answers = labeler.answer(examples, top_k=3)
    assert [answer.text for answer in answers] == ["the lamp", "music", "", "a flight"]
    assert answers[2].start == answers[2].end == -1 and all(len(answer.others) == 2 for answer in answers)
    assert sum(answer.score + sum(other.score for other in answer.others) for answer in answers) < 4


@pytest.mark.slow("a task whose export answers otherwise")
@pytest.mark.filterwarnings("ignore:texts cut at max_length")
def test_exported_models_answer_as_predict_does():
    cases = {"classify" if case == "pairs" else case: case for case in zoo.OF_EACH_TASK}
    asked = {str(zoo.saved_model(cases[task])): QUESTIONS[task] for task in FILES}
    process = subprocess.run([sys.executable, "-c", ASK], input=json.dumps(asked), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    told = dict(zip(FILES, map(json.loads, process.stdout.splitlines())))
    ours = {task: zoo.make(cases[task]).predict(*QUESTIONS[task]) for task in FILES}

    assert told["classify"]["label"] == [answer.label for answer in ours["classify"]]
    np.testing.assert_allclose(told["classify"]["score"], [answer.score for answer in ours["classify"]], atol=1e-6)
    assert [[label for label in row if label] for row in told["multilabel"]["labels"]] == [
        answer.labels for answer in ours["multilabel"]]
    np.testing.assert_allclose([max(row) for row in told["multilabel"]["probabilities"]],
                               [answer.top[0][1] for answer in ours["multilabel"]], atol=1e-6)
    np.testing.assert_allclose(told["regress"]["value"], ours["regress"], atol=1e-5)
    np.testing.assert_allclose(told["rerank"]["score"], ours["rerank"], atol=1e-6)
    assert told["choice"]["choice"] == [answer.index for answer in ours["choice"]]
    np.testing.assert_allclose(told["choice"]["probabilities"], [answer.probabilities for answer in ours["choice"]],
                               atol=1e-6)
    for row, (context, answer) in enumerate(zip(QUESTIONS["span"][1], ours["span"])):
        assert [told["span"][name][row] for name in ("answer", "start", "end")] == [
            answer.text, answer.start, answer.end]
        assert told["span"]["score"][row] == pytest.approx(answer.score, abs=1e-6)
        assert answer.start == -1 or context[answer.start:answer.end] == answer.text
    assert any(ours["tag"])
    for row, (text, entities) in enumerate(zip(STRANGE, ours["tag"])):
        columns = [told["tag"][f"entity_{name}"][row] for name in ("label", "text", "start", "end", "score")]
        found = [entity for entity in zip(*columns) if entity[2] >= 0]
        assert [entity[:4] for entity in found] == [dataclasses.astuple(entity)[:4] for entity in entities]
        assert [entity[4] for entity in found] == pytest.approx([entity.score for entity in entities], abs=1e-6)
        assert all(text[entity.start:entity.end] == entity.text for entity in entities)


@pytest.mark.slow("LSTMs in a SavedModel")
@pytest.mark.usefixtures("eager")
def test_a_tagger_on_features_is_exported_too(data, pretrained_once, run, tmp_path):
    assert run("finetune", "--task=tag", "--features=sum-all", f"--train={data['tag']}", f"--valid={data['tag']}",
               f"--model={pretrained_once}", f"--output={tmp_path / 'model'}", "--epochs=1")[0] == 0
    assert run("export", "text-model", f"--model={tmp_path / 'model'}", f"--output={tmp_path / 'out'}")[0] == 0
    assert run("export", f"--model={tmp_path / 'model'}", f"--output={tmp_path / 'encoder'}")[0] == 0
    frozen, exported = BertLayer.from_pretrained(pretrained_once), BertLayer.from_pretrained(tmp_path / "encoder")
    for got, wanted in zip(exported.get_weights(), frozen.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)
    told = tf.saved_model.load(str(tmp_path / "out"))(tf.constant(STRANGE))
    ours = FineTuned.load(tmp_path / "model").predict(STRANGE)
    for texts, starts, entities in zip(told["entity_text"].numpy(), told["entity_start"].numpy(), ours):
        found = [(text.decode(), start) for text, start in zip(texts, starts) if start >= 0]
        assert found == [(entity.text, entity.start) for entity in entities]


@pytest.mark.parametrize("task,flags,message", [
    ("choice", ["--doc_stride=9"], "doc_stride must be left out unless --task is intent or classify or multilabel or "
     "regress or tag or span or embed or rerank; got 9"),
    ("tag", ["--aggregate=max"], "aggregate must be left out unless --task is intent or classify or multilabel or "
     "regress or embed or rerank; got 'max'"),
    ("classify", ["--max_windows=2"], "max_windows must be left out without --doc_stride, which splits texts"),
    ("span", ["--features=last"], "features must be left out unless --task is tag; got 'last'"),
    ("regress", ["--class_weights=balanced"],
     "class_weights must be left out unless --task is intent or classify; got 'balanced'"),
    ("span", ["--max_length=67"], "max_length must be at least 68, for a question and one token of the context; got"),
    ("rerank", ["--max_length=4", "--doc_stride=2"],
     "max_length must be at least 5 with a --doc_stride, for [CLS], [SEP]s and a token of each text; got 4"),
    ("span", ["--doc_stride=0"], "doc_stride must be at least 1; got 0"),
    ("classify", ["--data_format=swag"], "swag"),
    ("choice", ["--data_format=poem"], "poem"),
])
def test_bad_usage_is_one_line(data, pretrained_once, run, tmp_path, task, flags, message):
    status, _, messages = run("finetune", f"--task={task}", f"--train={data[task]}", f"--valid={data[task]}",
                              f"--model={pretrained_once}", f"--output={tmp_path / 'out'}", *flags)
    assert status == 1 and len(messages) == 1 and message in messages[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow("answers of trained models")
def test_several_answers_where_there_are_several(model, run):
    status, _, messages = run("predict", f"--model={model('regress')}", "--top_k=2", "a\tb")
    assert status == 1 and "--top_k must be 1 for the task regress" in messages[-1]


@pytest.mark.slow("a SavedModel behind predict")
@pytest.mark.parametrize("case", ["tag", "span"])
def test_a_saved_model_is_asked_as_its_folder_is(data, run, case):
    questions = QUESTIONS[case]
    strange = [line for line in map("\t".join, zip(*questions)) if line.count("\t") in (
        range(9) if case == "tag" else (1,))]
    for arguments in ([f"--input={data[case]}"], ["--output_format=jsonl", *strange]):
        answered, tuned = (run("predict", f"--model={path}", *arguments) for path in (
            zoo.saved_model(case), zoo.model(case)))
        assert answered[0] == tuned[0] == 0 and len(answered[1]) == len(tuned[1]) > 1
        for our, their in zip(answered[1], tuned[1]):
            if "--output_format=jsonl" in arguments:
                our, their = json.loads(our), json.loads(their)
                assert list(our) == list(their) and _rounded(our) == _rounded(their)
            else:
                assert our == their
    assert run("predict", f"--model={zoo.saved_model(case)}", f"--input={data['choice']}")[0] == 1


def _rounded(value):
    """JSON whose floats equal others within 1e-5."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value


@pytest.mark.slow("a SavedModel behind predict")
def test_saved_models_that_predict_refuses(pretrained_once, run, tmp_path):
    assert run("export", "text-model", f"--model={pretrained_once}", f"--output={tmp_path / 'embed'}")[0] == 0
    status, _, messages = run("predict", f"--model={tmp_path / 'embed'}", "a")
    assert (status, messages) == (1, [f"keras-bert: {tmp_path / 'embed'}: must be a SavedModel of export text-model "
                                      "with a task; this one returns mean_output, pooled_output"])
    tf.saved_model.save(tf.Module(), str(tmp_path / "none"))
    assert run("predict", f"--model={tmp_path / 'none'}", "a")[2] == [
        f"keras-bert: {tmp_path / 'none'}: must be a SavedModel of export text-model with a task; this one has no "
        "signature serving_default"]
    zoo.copy(zoo.saved_model("span"), tmp_path / "span")
    status, _, messages = run("predict", f"--model={tmp_path / 'span'}", "--top_k=2", "a\tb")
    assert status == 1 and "a SavedModel gives one answer to a question" in messages[0]
    (tmp_path / "span" / "variables" / "variables.data-00000-of-00001").write_bytes(b"")
    status, _, messages = run("predict", f"--model={tmp_path / 'span'}", "a\tb")
    assert status == 1 and len(messages) == 1 and f"{tmp_path / 'span'}: cannot be loaded: " in messages[0]
