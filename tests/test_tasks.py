"""A checklist for each task: what the commands make of its files, its folder, its LiteRT folder and its SavedModel."""

import contextlib
import dataclasses
import functools
import io
import json
import subprocess
import sys
import warnings
from unicodedata import normalize

import golden_calls
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.inference.answering import load_answering_model
from keras_bert.inference.saved_model import Exported
from keras_bert.layers import BertLayer
from keras_bert.models import BertFeatureTagger
from keras_bert.tasks import TASKS, Tag
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

import zoo
from conftest import SMALL, TINY, TINY_VOCABULARY, blank_pictures, eagerly, randomize, write_huggingface
from zoo import numbers

SQUAD = {"data": [{"paragraphs": [
    {"context": "the lamp is on the table . play music now", "qas": [
        {"id": "1", "question": "what is on", "answers": [{"text": "the lamp", "answer_start": 0}]},
        {"id": "2", "question": "play what", "answers": [{"text": "music", "answer_start": 32}]},
        {"id": "3", "question": "weather today please", "answers": [], "is_impossible": True}]},
    {"context": "book a flight for two", "qas": [
        {"id": "4", "question": "book what", "answers": [{"text": "a flight", "answer_start": 5}]}]}]}]}
SPANS = [{"text": "play the lights\u0301 now", "entities": [{"start": 9, "end": 14, "label": "lamp"}]},
         {"text": "stop 🎵 the songs", "entities": [{"start": 11, "end": 15, "label": "sound"}]}]
# For each task: the data file, a line to ask and what is answered to it, its numbers left out, and flags.
CHECKLIST = {
    "classify": ("pairs.tsv", "text\ttext_pair\tlabel\nplay music\tsong\tyes\nlight off\tflight\tno\n",
                 "play music\tsong", {"text": "play music", "text_pair": "song", "label": "yes"}),
    "multilabel": ("labels.tsv", "text\tlabels\nplay music\tsound\nlight off\thome,off\nnow\t\n"
                   "music off\toff,sound\n", "play music", {"text": "play music", "labels": ["sound"]}),
    "regress": ("values.tsv",
                "text\ttext_pair\tlabel\nplay music\tsong\t4.5\nlight off\tflight\t0.5\nlamp\ton\t2\n",
                "play music\tsong", {"text": "play music", "text_pair": "song", "value": None}, "--seed=1"),
    "tag": ("tags.conll",
            "play O\nsome O\nmusic B-what\n\nturn O\nthe O\nlight B-what\nlamp I-what\noff B-how\n\n",
            "turn the light lamp off", {"entities": [
                {"label": "what", "text": "light lamp", "start": 9, "end": 19, "score": None},
                {"label": "how", "text": "off", "start": 20, "end": 23, "score": None}]}, "--max_length=5"),
    "tag of characters": ("tags.jsonl", "".join(json.dumps(row) + "\n" for row in SPANS), SPANS[0]["text"], {
        "entities": [{"label": "lamp", "text": "light", "start": 9, "end": 14, "score": None}]}, "--max_length=5"),
    "span": ("squad.json", json.dumps(SQUAD), "play what\tthe lamp is on the table . play music now",
             {"text": "music", "start": 32, "end": 37}, "--max_length=72", "--doc_stride=2"),
    "choice": ("swag.csv", "prompt,choice0,choice1,choice2,label\nplay some,music,table,weather,0\n"
                           "turn the light,song,off,flight,1\nbook a,weather,lamp,flight,2\n",
               "book a\tweather\tlamp\tflight", {"choice": 2, "text": "flight"}),
    "rerank": ("triplets.tsv", "text\ttext_pair\tnegative\nplay music\tsong\tlamp\nlight off\tweather\tflight\n",
               "play music\tsong", {"text": "play music", "text_pair": "song", "score": None}),
    "embed": ("pairs.tsv", "text\ttext_pair\nplay music\tplay a song\nturn on the light\tthe lamp on please\n"
              "stop\tstop it now\nbook a flight\tflight for two\nwhat time is it\ttime please\n",
              "play music", {"text": "play music", "embedding": [None] * TINY.hidden_size}, "--nonormalize"),
}
ROWS = dict(zip(CHECKLIST, (2, 4, 3, 2, 2, 4, 3, 2, 5)))
# What SavedModels are asked: surrogates of emoji, syllables in one and in several characters, accents, tabs, nothing.
STRANGE = ["play 😀 music\tnow", "각각 light lamp 각 é", "e\u0301 turn\u3000the light off", "", " \t ",
           "music. light, lamp the the the on off play a i to my"]
QUESTIONS = {
    "multilabel": [STRANGE],
    "tag": [STRANGE],
    "span": [["play what", "what is on", "", "각?", "what", "book what"], STRANGE],
    "choice": [STRANGE, [["music", "각 e\u0301", text] for text in STRANGE]],
    "rerank": [STRANGE, STRANGE[::-1]],
}


def repeated(name, content, times):
    """A data file with each row several times: steps cost less than epochs."""
    if name.endswith(".json"):
        return json.dumps({"data": json.loads(content)["data"] * times})
    if name.endswith((".conll", ".jsonl")):
        return content * times
    header, *rows = content.splitlines(keepends=True)
    return header + "".join(rows * times)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A function of a task that returns the path of its data file, in which each row stands several times."""
    @functools.cache
    def write(task, times=1):
        name, content, *_ = CHECKLIST[task]
        path = tmp_path_factory.mktemp("data") / name
        path.write_text(repeated(name, content, times))
        return path

    return write


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A function of a task that returns a folder that `finetune` wrote."""
    from keras_bert import cli

    folder = tmp_path_factory.mktemp("trained")
    encoder = write_huggingface(folder / "encoder", randomize(BertLayer(SMALL)))

    @functools.cache
    def finetune(task):
        flags = [f"--task={task.split()[0]}", *CHECKLIST[task][4:]]
        flags += [] if task in ("span", "embed") else ["--dropout=0"]
        with contextlib.redirect_stdout(io.StringIO()), blank_pictures():  # what later commands print is compared
            assert cli.run(["finetune", f"--train={data(task, 40)}", f"--valid={data(task)}", f"--model={encoder}",
                            f"--output={folder / task}", "--batch_size=4", "--epochs=3", "--learning_rate=0.02",
                            *flags]) == 0
        return folder / task

    return finetune


@pytest.mark.slow("a task that does not learn, or answers otherwise by its commands")
@pytest.mark.parametrize("task", CHECKLIST)
def test_a_task_is_learned_scored_and_asked(trained, data, run, tmp_path, task):
    folder, (_, _, line, answer, *_) = trained(task), CHECKLIST[task]
    metrics = json.loads((folder / "metrics.json").read_text())
    main = metrics["main"]
    assert metrics[main] == pytest.approx(100 if task == "span" else 1, abs=0.03)
    assert metrics["history"]["loss"][-1] < 0.5 * metrics["history"]["loss"][0]
    best = {name: metrics["history"][f"val_{name}"][metrics["best_epoch"] - 1] for name in (main, "loss")}
    assert best == pytest.approx({name: metrics[name] for name in best}, abs=5e-5)
    card = (folder / "README.md").read_text()
    assert f"\n- {task.split()[0]}\n" in card and "## Scores" in card
    assert task != "embed" or "| normalize | False |" in card

    with eagerly():
        evaluate = "evaluate", f"--model={folder}", f"--data={data(task)}"
        status, output, _ = run(*evaluate, "--output_format=json")
        scores = json.loads("\n".join(output))
        assert status == 0 and {name: scores[name] for name in (main, "loss")} == pytest.approx(
            {name: metrics[name] for name in (main, "loss")}, abs=5e-5)  # a correlation of three numbers
        status, output, _ = run(*evaluate)
        assert status == 0 and f"{scores['loss']:.4f}" in [line.split()[-1] for line in output if line]

        (tmp_path / "lines.txt").write_text(f"{line}\n{line}\n")
        told, *again = (json.loads(record) for asked in (line, f"--input={tmp_path / 'lines.txt'}") for record in
                        run("predict", f"--model={folder}", "--output_format=jsonl", asked)[1])
        assert len(again) == 2 and numbers(told)[0] | answer == numbers(told)[0]
        for record in again:
            assert numbers(record)[0] == numbers(told)[0]
            np.testing.assert_allclose(numbers(record)[1], numbers(told)[1], atol=1e-6)
        status, output, _ = run("predict", f"--model={folder}", f"--input={data(task)}")
        assert status == 0 and len(output) == ROWS[task]
        if "\t" in line:
            status, _, messages = run("predict", f"--model={folder}", "no tab")
            assert status == 1 and len(messages) == 1 and "argument 1: this model takes " in messages[0]
        if not TASKS[task.split()[0]].supports_top_k:
            message, = run("predict", f"--model={folder}", "--top_k=2", line)[2]
            assert f"--top_k must be 1 for the task {task.split()[0]}; " in message


@pytest.mark.slow("a task whose export answers otherwise")
@pytest.mark.filterwarnings("ignore:texts cut at max_length")
@pytest.mark.parametrize("case", QUESTIONS)
def test_a_saved_model_answers_as_predict_does(case, eager):
    """test_litert.py compares LiteRT folders."""
    exported, model, questions = Exported(str(zoo.saved_model(case))), zoo.make(case), QUESTIONS[case]
    answers, others = model.predict(*questions), exported.answer_with_cuts(model.task.arguments(*questions))[0]
    assert numbers(others)[0] == numbers(answers)[0]
    np.testing.assert_allclose(numbers(others)[1], numbers(answers)[1], atol=1e-5)
    if case == "tag":
        assert any(answers)
        with pytest.raises(InputError, match="a SavedModel has one aggregation strategy; aggregation_strategy needs"):
            exported.answer_with_cuts([], aggregation_strategy="max")
    if case == "span":
        with pytest.raises(InputError, match="a SavedModel gives one answer to a question"):
            exported.answer_with_cuts([], top_k=2)
    ids = model.tokenizer(STRANGE, max_length=16)
    if case == "choice":
        ids = {name: array[None] for name, array in ids.items()}
    found, = exported._saved_model.run("encode", [{
        name.replace("segment", "input_type"): array for name, array in ids.items()}])
    outputs = model.model(ids)
    wanted = outputs if case == "span" else {"logit": outputs[:, 0]} if case == "rerank" else {
        "probabilities": (tf.sigmoid if case == "multilabel" else tf.nn.softmax)(outputs)}
    is_read = ids["input_mask"] > 0 if case in ("span", "tag") else ...  # padding says nothing
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name][is_read], np.array(values)[is_read], atol=1e-5)


@pytest.mark.slow("a SavedModel that needs more than TensorFlow")
def test_a_saved_model_needs_tensorflow_alone():
    path, model = str(zoo.saved_model("tag")), zoo.make("tag")
    ids = {name.replace("segment", "input_type"): rows.tolist() for name, rows in model.tokenizer(STRANGE).items()}
    request = {path: ["text_models", {"texts": {"text": STRANGE}, "ids": ids}, []]}
    process = subprocess.run([sys.executable, golden_calls.__file__], input=json.dumps(request), capture_output=True,
                             text=True)
    assert process.returncode == 0, process.stderr
    told = json.loads(process.stdout)[path]["serving_default"]
    assert [[start for start in starts if start >= 0] for starts in told["entity_start"]] == [
        [entity.start for entity in entities] for entities in model.predict(STRANGE)]


@pytest.mark.slow("LSTMs in a SavedModel")
def test_a_tagger_on_features_is_exported_too(tmp_path, eager):
    encoder, tokenizer = randomize(BertLayer(SMALL)), BertTokenizer(TINY_VOCABULARY)
    model = FineTuned(randomize(BertFeatureTagger(encoder, 3, "sum-all")), tokenizer, Tag(16, ["O", "B-x", "I-x"]))
    model.save(tmp_path / "model")
    for got, wanted in zip(BertLayer.from_pretrained(tmp_path / "model").weights, encoder.weights, strict=True):
        np.testing.assert_array_equal(got, wanted)
    model.export(tmp_path / "exported")
    answers = model.predict(STRANGE)
    others = Exported(str(tmp_path / "exported")).answer_with_cuts(model.task.arguments(STRANGE))[0]
    assert any(answers) and numbers(others)[0] == numbers(answers)[0]


@pytest.mark.parametrize("task,flags,message", [
    ("choice", ["--doc_stride=9"], "doc_stride must be left out unless --task is classify or intent or multilabel or "),
    ("tag", ["--aggregate=max"], "aggregate must be left out unless --task is classify or intent or multilabel or "),
    ("classify", ["--max_windows=2"], "max_windows must be left out without --doc_stride, which splits texts"),
    ("span", ["--features=last"], "features must be left out unless --task is tag; got 'last'"),
    ("regress", ["--class_weights=balanced"], "class_weights must be left out unless --task is classify or intent; "),
    ("span", ["--max_length=67"], "max_length must be at least 68, for a question and one token of the context; got"),
    ("rerank", ["--max_length=4", "--doc_stride=2"], "max_length must be at least 5 with a --doc_stride, for [CLS], "),
    ("span", ["--doc_stride=0"], "doc_stride must be at least 1; got 0"),
    ("choice", ["--data_format=poem"], "poem"),
])
def test_bad_usage_is_one_line(data, pretrained_once, run, tmp_path, task, flags, message):
    status, _, messages = run("finetune", f"--task={task}", f"--train={data(task)}", f"--valid={data(task)}",
                              f"--model={pretrained_once}", f"--output={tmp_path / 'out'}", *flags)
    assert status == 1 and len(messages) == 1 and message in messages[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow("a SavedModel behind predict")
def test_predict_takes_a_saved_model(run, tmp_path, eager):
    (status, lines, _), (_, tuned, _) = (
        run("predict", f"--model={path}", "--output_format=jsonl", *STRANGE) for path in (
            zoo.saved_model("tag"), zoo.model("tag")))
    assert status == 0 and len(lines) == len(tuned) > 1
    for one, other in zip(map(json.loads, lines), map(json.loads, tuned)):
        assert numbers(one)[0] == numbers(other)[0]
    for folder, message in ((zoo.encoder(), "must be a SavedModel of export text-model with a task; this one returns "),
                            (tmp_path / "none", "this one has no signature serving_default"),
                            (zoo.copy(zoo.saved_model("span"), tmp_path / "damaged"), "cannot be loaded: ")):
        if folder.name == "none":
            tf.saved_model.save(tf.Module(), str(folder))
        if folder.name == "damaged":
            (folder / "variables/variables.data-00000-of-00001").write_bytes(b"")
        status, _, messages = run("predict", f"--model={folder}", "a")
        assert status == 1 and len(messages) == 1 and f"{folder}: " in messages[0] and message in messages[0]


# A Korean vocabulary, and texts in NFC and in NFD, as macOS writes them.
WORDS = "서울 ##의 날씨 부산 음악 틀어 ##줘 é 노래 춤".split()
CASED = BertTokenizer([*TINY_VOCABULARY[:5], *WORDS, *TINY_VOCABULARY[15:]], lower_case=False)
COMPOSED = ["서울의 날씨 틀어줘?", "부산 음악 é 틀어줘 .", "음악 틀어줘"]
NFD = [normalize("NFD", text) for text in COMPOSED]
SAID = "texts in NFD, as on macOS, which the vocabulary cannot spell (set normalization to NFC): 3 of 4"


@pytest.mark.parametrize("case", ["tag", "span"])
@pytest.mark.parametrize("command", ["litert", pytest.param("text-model", marks=pytest.mark.slow("NFC in a graph"))])
def test_positions_are_those_of_the_text_in_nfd(run, tmp_path, eager, case, command):
    def places(model, texts):
        examples = model.task.arguments(*[["음악?"] * len(texts)] * (case == "span"), texts)
        return [[(part.start, part.end, part.text) for part in (answer if case == "tag" else [answer])]
                for answer in model.answer_with_cuts(examples)[0]]

    model, folder, exported = dataclasses.replace(zoo.make(case), tokenizer=CASED), tmp_path / "a", str(tmp_path / "b")
    wanted = [[(*(len(normalize("NFD", text[:place])) for place in span), normalize("NFD", part))
               for *span, part in parts] for text, parts in zip(COMPOSED, places(model, COMPOSED))]
    model.save(folder)
    assert run("export", command, f"--model={folder}", f"--output={exported}", "--normalization=NFC")[0] == 0
    assert any(wanted) and wanted == places(model.with_normalization("NFC"), NFD)
    assert wanted == places(load_answering_model(exported), NFD)
    refused = str(run("predict", f"--model={exported}", "--normalization=NFC", "a")[2])
    assert command == "litert" or "normalization needs another model: a SavedModel has its own" in refused


@pytest.mark.slow("texts in NFD that nobody notices")
def test_texts_in_nfd_are_noticed(run, tmp_path, eager):
    model, data, out = (tmp_path / name for name in ("model", "data.tsv", "out"))
    dataclasses.replace(zoo.make("intent"), tokenizer=CASED).save(model)
    data.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in zip([*NFD, "é . ?"], "aabb")))
    (train := tmp_path / "train.tsv").write_text(normalize("NFC", data.read_text()))
    for command, *more in (("predict", *NFD, "é . ?"), ("evaluate", f"--data={data}"),
                           ("features", f"--input={data}", f"--output={out}.npz", "--overwrite"),
                           ("finetune", f"--train={train}", f"--valid={data}", f"--output={out}", "--overwrite")):
        for flags, lines in ([], [True]), (["--normalization=NFC"], []):
            with warnings.catch_warnings(record=True, action="always") as caught:
                messages = [*run(command, f"--model={model}", *more, *flags)[2], *(str(one.message) for one in caught)]
            said = SAID.replace("of 4", "of 8") if command == "finetune" else SAID  # training texts, too
            assert [said in line for line in messages if "NFD" in line or "language" in line] == lines
    assert json.loads((out / "metrics.json").read_text())["arguments"]["normalization"] == "NFC"
    assert len({normalize("NFD", str(run("predict", f"--model={out}", *texts)[1:])) for texts in (COMPOSED, NFD)}) == 1
    assert run("predict", f"--model={model}", f"--input={data}", f"--output={out}/answers", "--processes=1")[1] == [
        f"{out}/answers: 4 answers, texts in NFD (set normalization to NFC): 3"]
