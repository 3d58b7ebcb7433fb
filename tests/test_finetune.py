import io
import json
import re
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.presets import PRESETS, Preset
from keras_bert.tasks import TASKS
from keras_bert.training import FineTuned, finetune
from keras_bert.training.options import Options
from keras_bert.training.prepare import prepare

import zoo
from conftest import SMALL, options_of, random_inputs, randomize, write_huggingface


def test_learns_saves_and_answers_the_same(tmp_path, intents, without_pictures):
    """In graphs, as a user's."""
    encoder = randomize(BertLayer(SMALL))
    model = finetune(*intents, model=write_huggingface(tmp_path / "encoder", encoder), output=tmp_path / "out",
                     epochs=8, batch_size=2, learning_rate=0.02)
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert metrics["accuracy"] == 1.0
    assert len(metrics["history"]["val_accuracy"]) == 8
    texts = ["play my song", "turn the lamp off", "what time is it", ""]
    model.model.predict_function = None  # traced anew, as of the loaded: rounding depends on the shapes that came first
    answers = model.predict(texts, top_k=2)
    assert answers[1].label == "light"
    assert all(sum(answer.scores) == pytest.approx(1, abs=1e-6) and answer.scores == sorted(answer.scores, reverse=True)
               for answer in answers)
    with zipfile.ZipFile(tmp_path / "out/model.keras") as file, h5py.File(
            io.BytesIO(file.read("model.weights.h5"))) as weights:
        assert "optimizer" not in weights
    loaded = FineTuned.load(tmp_path / "out")
    assert loaded.predict(texts, top_k=2) == answers
    assert loaded.predict([]) == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "bert_config.json", "calibration.png", "labels.json", "learning_curves.png", "metrics.json",
        "model.keras", "risk_coverage.png", "settings.json", "sha256.json", "tokenizer_config.json",
        "vocab.txt"]


@pytest.mark.usefixtures("eager")
def test_saved_and_exported_by_its_methods(tmp_path, trained_once):
    model = FineTuned.load(trained_once)
    (tmp_path / "copy").mkdir()  # an empty folder is no obstacle
    model.save(tmp_path / "copy")
    for write in (model.save, model.export):
        with pytest.raises(InputError, match="exists already"):
            write(tmp_path / "copy")
    model.save(tmp_path / "copy", overwrite=True)
    assert FineTuned.load(tmp_path / "copy").predict(["play"]) == model.predict(["play"])
    with pytest.raises(InputError, match="max_length must be"):
        model.export(tmp_path / "other", max_length=10**6)
    encoder = BertLayer.from_pretrained(tmp_path / "copy")  # where another training may begin
    for got, wanted in zip(encoder.get_weights(), model.model.bert.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("model, options, rate", [
    ("tiny", {}, 0.125), ("org/tiny", {}, 0.125), ("tiny", {"few_shot": True}, 5e-5),
    ("tiny", {"task": "embed"}, 5e-5), ("tiny", {"learning_rate": 0.5}, 0.5), ("pretrained", {}, 5e-5)])
def test_the_learning_rate_of_a_preset_is_its_default(tmp_path, pretrained, monkeypatch, model, options, rate):
    class Chosen(Exception):
        pass

    def choose(model, learning_rate, *_, **__):
        raise Chosen(learning_rate)

    (tmp_path / "tiny_weights").mkdir()
    (tmp_path / "tiny_weights/__init__.py").touch()
    (tmp_path / "tiny_weights/model").symlink_to(pretrained)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "tiny", Preset("tiny", "org/tiny", learning_rate=0.125, package="tiny_weights"))
    monkeypatch.setattr(sys.modules["keras_bert.training.prepare"], "make_optimizer", choose)
    rows = [("play", "a"), ("stop", "a"), ("lamp", "b"), ("light", "b")]
    with pytest.raises(Chosen) as chosen:
        finetune(rows, rows, model=model, output=tmp_path / "out", **options)
    assert chosen.value.args == (rate,)


@pytest.mark.slow("a run that its seed does not determine")
@pytest.mark.usefixtures("eager")
def test_same_seed_same_model(tmp_path, pretrained_once, trained_once, intents):
    again, other = (finetune(*intents, model=pretrained_once, output=tmp_path / f"out{seed}", epochs=1, batch_size=2,
                             seed=seed, callbacks=[keras.callbacks.Callback()]).model.get_weights() for seed in (0, 1))
    first = FineTuned.load(trained_once).model.get_weights()
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert any((one != two).any() for one, two in zip(first, other))


@pytest.mark.slow("windows of another text")
@pytest.mark.usefixtures("eager")
def test_pairs_of_long_texts_in_place_of_something_else(tmp_path, pretrained):
    """All heads of a text of 512 tokens would take 10 GB as a picture, and 100 MB in metrics.json."""
    path, valid, out = tmp_path / "pairs.csv", tmp_path / "valid.csv", tmp_path / "out"
    rows = [f"first,second,same\n{30 * 'play my '},a song,1\n", "light off,book a flight,0\n"]
    path.write_text("".join(rows))
    valid.write_text(rows[0])
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    options = dict(model=pretrained, output=out, text_column="first", text_pair_column="second", label_column="same",
                   epochs=1)
    with pytest.raises(InputError, match="out: exists already"):
        finetune(path, valid, **options)
    assert (out / "thesis.txt").read_text() == "years of work"
    model = finetune(path, valid, overwrite=True, **options)
    assert (out / "model.keras").exists() and not (out / "thesis.txt").exists()
    assert model.task.pairs and model.task.labels == ["0", "1"]
    assert model.columns == {"text_column": "first", "text_pair_column": "second", "label_column": "same"}
    with pytest.raises(InputError, match="takes pairs"):
        model.predict(["play"])
    assert model.predict(["play"], ["music"])[0].label in ("0", "1")



def test_the_card_shows_what_was_used_by_default(trained_once):
    card = (trained_once / "README.md").read_text()
    assert all(f"| {name} | {value} |" in card for name, value in (
        ("max_length", 128), ("dropout", 0.2), ("learning_rate", 5e-05), ("epochs", 1)))
    assert "doc_stride" not in card and "aggregate" not in card  # texts are not split
    assert "Fine-tuned from pretrained" in card and str(trained_once.parent) not in card


SINGLE = [("play", "c"), ("stop", "b"), ("lamp", "a")]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("case,rows,options,line", [
    *((case, zoo.CASES[case][3], {}, "head: that of ") for case in ("tag", "choice")),
    *(pytest.param(case, zoo.CASES[case][3], {}, "head: that of ", marks=pytest.mark.slow("the head of a task is lost"))
      for case in ("multilabel", "regress", "rerank", "span")),
    ("intent", SINGLE, {}, "head: that of "), ("pairs huggingface", SINGLE, {"task": "intent"}, "head: that of "),
    ("multilabel", SINGLE, {"task": "classify"}, "new head: .* not classify"),
    ("intent", SINGLE[1:], {}, "new head: .* only one of the two has c"),
    ("few shot", SINGLE, {}, "new head: .* BertEmbeddingClassifier, the new "),
    ("tag", zoo.CASES["tag"][3], {"features": "last"}, "new head: .*Tagger on last"),
    ("rerank", [("play", 0.5), ("stop", 1.5)], {"task": "regress"}, "new head: .* is for the task rerank, not regress"),
    ("mean", SINGLE, {"task": "classify"}, "")])
def test_keeps_the_head_of_the_same_task_and_labels(tmp_path, case, rows, options, line):
    """Its first outputs are those of the model that it starts from, whose labels are in another order."""
    case, *form = case.split(" h")
    folder = zoo.copy(zoo.converted(case, "huggingface") if form else zoo.model(case), tmp_path / "model")
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage:\n- en\n- ko\ntags: [x]\n---\nlicense: gpl\n")
    was = zoo.make(case)
    labels = getattr(was.task, "labels", [])
    if not form and labels:
        (folder / "labels.json").write_text(json.dumps(labels := labels[::-1]))
    prepared = prepare(options_of(finetune, Options, **{
        "train": rows, "valid": rows, "model": folder, "output": tmp_path / "out", "task": was.task.name,
        "max_length": 80 if case == "span" else 16} | options))
    assert prepared.base_model["front_matter"] == "license: mit\nlanguage:\n- en\n- ko\n"
    assert re.fullmatch(line and f"{line}.*", "".join(text for text in prepared.lines if "head: " in text))
    if line.startswith("head"):
        inputs = random_inputs(4, 8)
        if case == "choice":
            inputs = {name: values.reshape(2, 2, 8) for name, values in inputs.items()}
        wanted, got = was.model(inputs), prepared.model(inputs)
        if labels:
            wanted = np.take(wanted, [labels.index(label) for label in prepared.task.labels], -1)
        for one, other in zip(keras.tree.flatten(wanted), keras.tree.flatten(got), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("changes,message", [
    ({"epochs": 0}, "epochs must be at least 1; got 0"),
    ({"max_length": 129}, "max_length must .* 128.*; got 129"), ({"max_length": 2}, "max_length must .*at least 3"),
    ({"learning_rate": -1.0}, "learning_rate must be positive"),
    ({"freeze_blocks": 99}, r"^freeze_blocks must be at most the encoder's num_hidden_layers \(2\); got 99$"),
    ({"lora_rank": 99}, r"^lora_rank must be at most the encoder's hidden_size \(16\); got 99$"),
    ({"task": "tag", "features": "last", "lora_rank": 2},
     "^lora_rank must be left out with features, whose encoder is frozen; got 2$"),
    ({"gradient_accumulation_steps": 2, "devices": ["CPU:0", "CPU:1"]},
     "gradient_accumulation_steps must be 1 on the JAX backend and with devices; "),
    ({"valid": [("what time is it", "light")], "devices": ["CPU:0"], "batch_size": 2},
     "^valid must have at least as many texts as a batch with devices, 2; got 1$"),
])
def test_bad_arguments(tmp_path, pretrained_once, intents, changes, message):
    arguments = {"train": intents[0], "valid": intents[1], "model": pretrained_once, "output": tmp_path / "out"}
    with pytest.raises(InputError, match=message):
        finetune(**arguments | changes)
    assert not (tmp_path / "out").exists()


def test_values_of_numpy_become_those_of_python(intents):
    options = options_of(
        finetune, Options, train=intents[0], model="minilm", output=intents[0].parent / "out", task="span",
        doc_stride=np.int64(64), seed=np.int32(1), learning_rate=np.float32(0.5), epochs=np.int64(2))
    assert (options.doc_stride, options.seed, options.learning_rate, options.epochs) == (64, 1, 0.5, 2)
    json.dumps(options.as_json())
    assert options.given(TASKS["span"].fields) == {"doc_stride": 64} and type(options.seed) is int
