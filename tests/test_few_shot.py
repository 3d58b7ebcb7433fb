"""Classification with a few texts per label: the regression, compared with scikit-learn's probabilities; folders."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

from keras_bert.convert import convert, open_source
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertEmbedder, BertEmbeddingClassifier
from keras_bert.tasks import TASKS, Embed
from keras_bert.training import FineTuned, finetune
from keras_bert.training.strategy import FewShot, recommendation

from conftest import SMALL, eagerly, interrupted_after, random_inputs, randomize

TEXTS = ["play music", "play a song", "the lamp", "the light", "book a table", "book a flight"]
MORE = ["play now", "stop it now", "book a table for two", "the light on please", "what time is it"]
LABELS = "aabbcc"
OPTIONS = {"epochs": 2, "batch_size": 4, "learning_rate": 0.01, "few_shot": True}


def labelled(labels):
    return list(zip(TEXTS, labels))


def train(encoder, output, **options):
    options = OPTIONS | {"train": labelled(LABELS), "model": encoder, "output": output} | options
    return finetune(**{"valid": options["train"]} | options)


def save_embedder(encoder, folder):
    embedder = BertEmbedder.from_pretrained(encoder, pooling="cls", normalize=True)
    FineTuned(embedder, open_source(encoder).tokenizer, Embed(16)).save(folder / "embedder")
    return folder / "embedder"


# Model

@pytest.mark.parametrize("layout,pooling", [("padded", "mean"), ("unpadded", "cls"), ("unpadded", "max")])
def test_it_classifies_normalized_embeddings(layout, pooling):
    inputs = random_inputs(5, 9)
    inputs["input_mask"][1:3, 5:] = 0
    inputs["input_mask"][4] = 0
    encoder = randomize(BertLayer(SMALL, layout=layout))
    model = randomize(BertEmbeddingClassifier(encoder, 4, pooling))
    embeddings = BertEmbedder(encoder, pooling, normalize=True).predict_on_batch(inputs)
    assert np.isfinite(embeddings).all()
    kernel, bias = (np.array(variable) for variable in model.classifier.variables)
    np.testing.assert_allclose(model.predict_on_batch(inputs), embeddings @ kernel + bias, rtol=0, atol=1e-5)
    again = BertEmbeddingClassifier.from_config(model.get_config())
    assert again.pooling == pooling and again.num_classes == 4


def test_bad_models(bert):
    with pytest.raises(InputError, match="the layout of an embedder must be padded or unpadded; got packed"):
        BertEmbeddingClassifier(bert.rebuild(layout="packed"), 2)


# Training

VALID = list(zip(MORE, "abcab"))  # the labels of some are wrong


@pytest.fixture(scope="module")
def whole(pretrained_once, tmp_path_factory):
    """A trained model, and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    with eagerly():
        return train(pretrained_once, folder, valid=VALID, max_length=8, save_steps=1), folder


@pytest.mark.slow("a regression that differs from scikit-learn's")
def test_answers_are_those_of_a_regression_on_the_embeddings(whole, pretrained_once):
    tuned, _ = whole
    embedder = BertEmbedder(tuned.model.bert, "mean", normalize=True)
    learned = LogisticRegression(C=10.0).fit(
        embedder.predict_on_batch(tuned.tokenizer(TEXTS, max_length=8)), list(LABELS))
    wanted = learned.predict_proba(embedder.predict_on_batch(tuned.tokenizer(MORE, max_length=8)))
    answers = tuned.predict(MORE, top_k=3)
    assert [answer.label for answer in answers] == list(learned.classes_[wanted.argmax(1)])
    got = [[dict(zip(answer.labels, answer.scores))[label] for label in learned.classes_] for answer in answers]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)
    before = BertLayer.from_pretrained(pretrained_once)
    changed = [old.path for old, new in zip(before.weights, tuned.model.bert.weights, strict=True)
               if (np.array(old) != np.array(new)).any()]
    assert changed and not any("pooler" in path for path in changed)


@pytest.mark.slow("scores of other weights than the saved ones")
def test_the_scores_of_each_epoch_are_those_of_the_model(whole):
    metrics = json.loads((whole[1] / "metrics.json").read_text())
    best = metrics["best_epoch"] - 1
    assert 0 < metrics["accuracy"] < 1 and metrics["accuracy"] == metrics["history"]["val_accuracy"][best]
    assert metrics["loss"] == pytest.approx(metrics["history"]["val_loss"][best], abs=1e-4)


@pytest.mark.slow("class weights that the regression ignores")
@pytest.mark.usefixtures("eager")
def test_class_weights_are_those_of_the_regression(pretrained_once, tmp_path):
    rows = [(f"play music {'now ' * number}", "a") for number in range(8)] + [("the lamp", "b"), ("the light", "b")]
    tuned = train(pretrained_once, tmp_path / "out", train=rows, epochs=1, class_weights="balanced")
    embedder = BertEmbedder(tuned.model.bert, "mean", normalize=True)
    embeddings = embedder.predict_on_batch(tuned.tokenizer([text for text, _ in rows]))
    plain, balanced = (LogisticRegression(C=10.0, class_weight=weights).fit(embeddings, [label for _, label in rows])
                       .predict_proba(embeddings[8:9])[0, 1] for weights in (None, "balanced"))
    scores = tuned.predict(["the lamp"], top_k=2)[0]
    assert dict(zip(scores.labels, scores.scores))["b"] == pytest.approx(balanced, abs=1e-3) and balanced > plain + 0.01


@pytest.mark.usefixtures("eager")
def test_outputs_that_are_not_finite(pretrained_once, tmp_path):
    with pytest.raises(InputError, match="must be finite"):
        train(pretrained_once, tmp_path / "out", epochs=1, batch_size=8, learning_rate=1e38, warmup_ratio=0.0)


@pytest.mark.slow("a few-shot model that answers otherwise in its export")
@pytest.mark.usefixtures("eager")
def test_the_folder_and_the_export(whole, tmp_path):
    tuned, folder = whole
    again = FineTuned.load(folder)
    wanted = tuned.predict(MORE)
    assert again.predict(MORE) == wanted and again.task == tuned.task and again.task.labels == ["a", "b", "c"]
    assert again.evaluate(VALID)["accuracy"] == json.loads((folder / "metrics.json").read_text())["accuracy"]
    again.save(tmp_path / "copy")
    assert FineTuned.load(tmp_path / "copy").predict(MORE) == wanted
    again.export(tmp_path / "answers")
    answers = tf.saved_model.load(tmp_path / "answers")(MORE)
    assert [label.decode() for label in answers["label"].numpy()] == [answer.label for answer in wanted]
    np.testing.assert_allclose(answers["score"], [answer.score for answer in wanted], rtol=0, atol=1e-5)
    # Other formats get the embeddings, and the loss of the rest must be accepted.
    with pytest.raises(InputError, match="convert reads the encoder of a classifier on embeddings, not the"):
        convert(folder, tmp_path / "st", "sentence_transformers")
    convert(folder, tmp_path / "st", "sentence_transformers", allow_inexact=True)
    source = open_source(tmp_path / "st")
    assert source.options == {"pooling": "mean", "normalize": True}
    assert source.settings["max_length"] == tuned.task.max_length == 8


@pytest.mark.slow("a resumed run that ends otherwise")
@pytest.mark.usefixtures("eager")
def test_an_interrupted_run_ends_as_one_that_was_not(whole, pretrained_once, tmp_path):
    options = {"valid": VALID, "max_length": 8, "save_steps": 1}
    with interrupted_after(saves=5):
        train(pretrained_once, tmp_path / "out", **options)
    again = train(pretrained_once, tmp_path / "out", **options)  # resumed
    for one, other in zip(again.model.get_weights(), whole[0].model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow("few-shot training under LoRA in bfloat16")
@pytest.mark.usefixtures("eager")
def test_lora_bfloat16_and_the_pooling_of_the_model(pretrained_once, tmp_path, capsys):
    embedder = save_embedder(pretrained_once, tmp_path)
    tuned = train(embedder, tmp_path / "out", lora_rank=2, dtype="mixed_bfloat16", epochs=1)
    assert tuned.model.pooling == "cls" and tuned.model.bert.lora_rank is None
    assert tuned.model.bert.compute_dtype == "bfloat16"
    assert "texts per label" not in capsys.readouterr().err  # few_shot is not recommended to who uses it


@pytest.mark.parametrize("options,message", [
    ({"task": "multilabel"}, "few_shot must be left out unless task is classify or intent; got True"),
    ({"pack": True}, "pack must be left out with few_shot, which trains on pairs of texts; got True"),
    ({"devices": ["CPU:0"]}, "devices must be left out with few_shot, whose loss compares all texts of a batch"),
    ({"dropout": 0.1}, "dropout must be left out for the tasks span and embed and with few_shot, whose"),
    ({"batch_size": 1}, "batch_size must be at least 2 for the task embed and with few_shot"),
    ({"train": [("play", "music", "a"), ("stop", "it", "b")] * 2}, "train: few_shot needs one text per row; got two"),
    ({"train": labelled("abcdef")}, "train: few_shot needs two labels with at least two texts each; got 0"),
    ({"train": labelled("aabcde")}, "train: few_shot needs two labels with at least two texts each; got 1"),
    ({"train": labelled("aabbab"), "valid": None, "valid_share": 0.7},
     "train without the held-out texts: few_shot needs two labels"),
])
def test_bad_options(pretrained_once, tmp_path, options, message):
    with pytest.raises(InputError, match=f"^{message}"):
        train(pretrained_once, tmp_path / "out", **options)


def test_scikit_learn_may_be_missing(pretrained_once, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(InputError, match="^few_shot needs scikit-learn, which the extra `tasks` installs: "
                                         "pip install scikit-learn$"):
        train(pretrained_once, tmp_path / "out")


# Report on the data

@pytest.mark.parametrize("task,counts,advised", [
    ("intent", (2, 16, 99), "16 texts per label"), ("classify", (2, 3), "2.5 texts per label"),
    ("intent", (16, 17), None), ("intent", (1, 1, 9), None), ("multilabel", (8, 8), None)])
def test_few_texts_per_label(task, counts, advised):
    labels = {str(label): count for label, count in enumerate(counts)}
    fitted = TASKS[task](max_length=8, labels=list(labels), pairs=False)
    lines = recommendation(fitted, labels)
    assert [line.partition(" at")[0] for line in lines] == ([advised] if advised else [])
    assert not recommendation(dataclasses.replace(fitted, pairs=True), labels)


def test_what_few_shot_cannot_learn():
    assert FewShot.remarks({"a": 2, "b": 2}, 4, 3) == []
    assert FewShot.remarks({"a": 2, "b": 2, "c": 1}, 4, 2) == [
        "1 label with one text, such as c: the encoder learns from the others only",
        "8 steps are few for the encoder: try epochs=3"]


@pytest.mark.slow("advice for the wrong encoders")
@pytest.mark.usefixtures("eager")
def test_it_is_recommended_for_encoders_of_embeddings(pretrained_once, tmp_path, capsys):
    for number, (model, advised) in enumerate([
            (pretrained_once, False), (save_embedder(pretrained_once, tmp_path), True)]):
        train(model, tmp_path / str(number), epochs=1, few_shot=False)
        assert ("data: 2 texts per label at the median" in capsys.readouterr().err) == advised
