"""The task of a model, its labels and settings, through every format that stores them.

The answers of what is converted are compared in test_conversion_matrix.py."""

import dataclasses
import functools
import json
import shutil

import numpy as np
import pytest

from keras_bert.convert import conversion, convert, open_source
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertFeatureTagger
from keras_bert.tasks import Classify, Intent, MultiLabel, MultipleChoice, Regress, Span, Tag
from keras_bert.text import BertTokenizer, save_vocabulary, vocabulary
from keras_bert.training import FineTuned

from conftest import TINY, TINY_VOCABULARY, change_json, randomize, write_huggingface

# What every format can express.
CONFIG = dataclasses.replace(TINY, num_hidden_layers=1, hidden_act="gelu_tanh", hidden_dropout_prob=0.2,
                             attention_probs_dropout_prob=0.2)
BIO = ["O", "B-place", "I-place"]
TEXT, PAIR = ["play some music", "turn the lamp off please"], ["what time is it", "the weather today"]
TASKS = {  # task: (the task, a dropout rate, an input)
    "intent": (Intent(100, ["날씨", "light"], True, 0.7), 0.3, (TEXT, PAIR)),
    "classify": (Classify(128, ["a", "b", "c"]), 0.0, (TEXT,)),
    "regress": (Regress(64, True), 0.4, (TEXT, PAIR)),
    "tag": (Tag(90, BIO, unit="character"), 0.3, (TEXT,)),
    "span": (Span(80, 40, -1.5), None, (TEXT, PAIR)),
    "choice": (MultipleChoice(50), 0.1, (TEXT, [PAIR, PAIR[::-1]])),
}
def make(name):
    task, dropout, _ = TASKS[name]
    model = randomize(task.new_head(BertLayer(CONFIG), dropout))
    return FineTuned(model, BertTokenizer(TINY_VOCABULARY), task, {"text_column": "utterance"})


@pytest.fixture(autouse=True)
def unchecked(request, monkeypatch):
    """What is written is not run again, except in a test that asks for `checked`: it takes most of the time."""
    if "checked" not in request.fixturenames:
        monkeypatch.setattr(conversion, "differences", lambda *arguments: {})
        monkeypatch.setattr(conversion, "prove", lambda *arguments: "")


@pytest.fixture
def checked():
    """See `unchecked`."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each task, as `finetune` writes it."""
    path = tmp_path_factory.mktemp("folders")
    for name in TASKS:
        make(name).save(path / name)
    return path


@pytest.fixture(scope="module")
def converted(folders, tmp_path_factory):
    """A function of a task that returns its folder in the format of transformers."""
    path = tmp_path_factory.mktemp("huggingface")

    @functools.cache
    def convert_once(name):
        convert(folders / name, path / name, "huggingface")
        return path / name

    return convert_once


@pytest.fixture
def huggingface(converted, tmp_path):
    """Like `converted`; the folder, `tmp_path / "out"`, is the test's own."""
    return lambda name: shutil.copytree(converted(name), tmp_path / "out")


def test_the_task_comes_back(folders, tmp_path):
    lines = []
    convert(folders / "span", tmp_path / "out", "huggingface", report=lines.append)
    assert any(line.startswith("task span, max_length 80") for line in lines)
    assert ("config.json stores, but huggingface does not apply: doc_stride 40, null_threshold -1.5, columns "
            "{'text_column': 'utterance'}") in lines
    convert(tmp_path / "out", tmp_path / "back", "keras_bert")
    back = FineTuned.load(tmp_path / "back")
    assert back.task == TASKS["span"][0] and back.columns == {"text_column": "utterance"}
    assert (tmp_path / "back/settings.json").read_text() == (folders / "span/settings.json").read_text()


LABELS = ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("form", "task"), [
    ("huggingface", Classify(128, LABELS, False)), ("huggingface", Tag(128, LABELS)),
    ("huggingface", Regress(128, True)), ("huggingface", MultipleChoice(128)),
    ("tf1", Classify(128, LABELS, False)), ("tf1", Span(128))])
def test_models_of_other_libraries_answer(folders, tmp_path, form, task):
    """Whose files have neither labels nor our settings."""
    convert(folders / task.name, tmp_path / "peer", form)
    if form == "tf1":
        (tmp_path / "peer/keras_bert_settings.json").unlink()
        (tmp_path / "peer/labels.json").unlink(missing_ok=True)
    else:
        config = json.loads((tmp_path / "peer/config.json").read_text())
        for name in ("keras_bert", "id2label", "label2id", "problem_type"):
            config.pop(name, None)
        (tmp_path / "peer/config.json").write_text(json.dumps(config))
        (tmp_path / "peer/tokenizer_config.json").unlink()
    lines = []
    convert(tmp_path / "peer", tmp_path / "ours", "keras_bert", report=lines.append,
            pairs=True if task.name == "regress" else None, hidden_act="gelu_tanh" if form == "tf1" else None)
    loaded, inputs = FineTuned.load(tmp_path / "ours"), TASKS[task.name][2]
    assert loaded.task == task and len(loaded.predict(*inputs)) == 2
    if task.name != "span":  # whose windows are others
        for one, other in zip(*(model.outputs(model.task.encode(model.task.arguments(*inputs), model.tokenizer))
                                for model in (loaded, FineTuned.load(folders / task.name))), strict=True):
            np.testing.assert_array_equal(one, other)
    if form == "tf1":
        assert loaded.model.bert.config.hidden_act == "gelu_tanh"
        assert any(line.startswith("hidden_act gelu is the erf form") for line in lines)
        assert any("single texts or pairs" in line for line in lines) == (task.name == "classify")


def test_the_form_of_the_gelu_is_chosen_for_a_gelu_alone(tmp_path):
    write_huggingface(tmp_path / "relu", BertLayer(dataclasses.replace(CONFIG, hidden_act="relu")))
    with pytest.raises(InputError, match="hidden_act chooses the form of a GELU; got gelu for weights with relu"):
        convert(tmp_path / "relu", tmp_path / "out", "keras_bert", hidden_act="gelu")


def test_another_form_of_the_gelu_is_said(run, pretrained, tmp_path):
    command = "convert", f"--model={pretrained}", f"--output={tmp_path / 'out'}", "--format=kerashub"
    status, _, messages = run(*command)
    assert status == 1 and ": hidden_act must be gelu_tanh or gelu_new, not gelu; pass --allow_inexact" in messages[0]
    change_json(pretrained / "config.json", hidden_act="swish7")
    assert "config.json: hidden_act must be one of gelu, " in run(*command)[2][0]
    change_json(pretrained / "config.json", hidden_act="gelu")
    status, output, _ = run(*command, "--hidden_act=gelu_tanh")
    assert status == 0 and "computes gelu_tanh instead of the config's gelu" in output


def test_a_given_config_takes_precedence_over_the_stored_activation(folders, tmp_path):
    convert(folders / "classify", tmp_path / "out", "tf1")
    assert open_source(tmp_path / "out").config.hidden_act == "gelu_tanh"
    for activation in ("relu", "gelu"):
        dataclasses.replace(CONFIG, hidden_act=activation).to_json(tmp_path / "config.json")
        assert open_source(tmp_path / "out", tmp_path / "config.json").config.hidden_act == activation


def test_pairs_can_be_chosen(folders, tmp_path):
    convert(folders / "classify", tmp_path / "pairs", "keras_bert", pairs=True)
    assert FineTuned.load(tmp_path / "pairs").task == dataclasses.replace(TASKS["classify"][0], pairs=True)
    with pytest.raises(InputError, match="pairs is for models for classification or regression; this one is for span"):
        convert(folders / "span", tmp_path / "no", "keras_bert", pairs=True)


def test_fewer_positions_shorten_the_inputs(folders, tmp_path):
    convert(folders / "classify", tmp_path / "short", "huggingface", max_position_embeddings=32)
    assert open_source(tmp_path / "short").settings["max_length"] == 32


@pytest.mark.parametrize(("name", "changes", "words"), [
    ("intent", {"threshold": "x"}, "settings of the task intent: threshold must be a number; got 'x'"),
    ("intent", {"pairs": "no"}, "settings of the task intent: pairs must be True or False; got 'no'"),
    ("intent", {"colour": 1}, "settings of the task intent: got an unexpected keyword argument 'colour'"),
    ("intent", {"columns": 3}, "'columns' must be an object; got 3"),
    ("intent", {"task": "multilabel", "thresholds": ["high", "low"]}, "settings of the task multilabel"),
    ("tag", {"unit": "page"}, "settings of the task tag: unit must be one of word, character; got 'page'"),
    ("span", {"doc_stride": 0}, "settings of the task span: doc_stride must be at least 1; got 0"),
])
def test_settings_that_do_not_fit_are_refused(folders, tmp_path, name, changes, words):
    source = shutil.copytree(folders / name, tmp_path / "source")
    change_json(source / "settings.json", **changes)
    for read in (open_source, FineTuned.load):
        with pytest.raises(InputError, match=words):
            read(source)


def test_labels_without_a_name(huggingface):
    source = huggingface("classify")
    for names, note in (({"0": "a", "2": "c"}, "the source does not name all labels: LABEL_1"),
                        ({}, "the source does not name all labels: LABEL_0, LABEL_1, LABEL_2")):
        change_json(source / "config.json", id2label=names)
        opened = open_source(source)
        assert opened.labels == [names.get(str(i), f"LABEL_{i}") for i in range(3)] and note in opened.notes


def test_repeated_labels_are_refused(huggingface, tmp_path):
    huggingface("classify")
    for names in ({"0": "a", "1": "b", "2": "a"}, {"0": "LABEL_2", "1": "b"}):
        change_json(tmp_path / "out/config.json", id2label=names)
        with pytest.raises(InputError, match=f"out: labels must be different names; '{names['0']}' is repeated"):
            open_source(tmp_path / "out")


def test_a_max_length_beyond_the_positions_is_said(folders, tmp_path):
    source = shutil.copytree(folders / "classify", tmp_path / "source")
    assert not any("max_length" in note for note in open_source(source).notes)
    change_json(source / "settings.json", max_length=4000)
    opened = open_source(source)
    assert opened.settings["max_length"] == 128
    assert "max_length 4000 exceeds the encoder's positions: 128" in opened.notes


def test_without_a_vocabulary_the_result_takes_no_texts(folders, tmp_path):
    source, lines = shutil.copytree(folders / "classify", tmp_path / "source"), []
    (source / "vocab.txt").unlink()
    convert(source, tmp_path / "out", "tf1", report=lines.append)
    assert any("result cannot take texts; copy the model's vocab.txt, tokenizer.json or" in line for line in lines)


@pytest.mark.parametrize(("name", "changes", "settings", "note"), [
    ("intent", {"problem_type": "multi_label_classification"},
     {"task": "multilabel", "max_length": 100, "pairs": False}, ""),
    ("classify", {"problem_type": "multi_label_classification",
                  "keras_bert": {"task": "multilabel", "max_length": 50, "thresholds": [0.3, 0.6]}},
     {"task": "multilabel", "max_length": 50, "pairs": False},
     "the 2 thresholds are ignored, because the model has 3 labels: 0.5 for each"),
    ("tag", {"keras_bert": {"task": "span", "max_length": 7}}, {"task": "tag", "max_length": 128},
     "settings of the task span are ignored"),
    # As in transformers, one label is a regression, also without the name of a class.
    ("regress", {"architectures": None, "problem_type": None, "keras_bert": {}},
     {"task": "regress", "max_length": 64, "pairs": False}, ""),
])
def test_settings_of_another_training_are_ignored(huggingface, tmp_path, name, changes, settings, note):
    """Whoever trains a folder again in transformers with another head or labels leaves our settings in config.json."""
    source = huggingface(name)
    change_json(source / "config.json", **changes)
    opened = open_source(source)
    assert opened.settings == settings and note in "\n".join(opened.notes)
    convert(source, tmp_path / "back", "huggingface")
    assert json.loads((tmp_path / "back/config.json").read_text())["keras_bert"] == settings


def test_thresholds_are_one_for_each_label():
    for thresholds in ([0.3, 0.6], [0.3, 0.6, 50], [0.3, 0.6, float("nan")]):
        with pytest.raises(InputError, match="thresholds must be 3 numbers from 0 to 1, one for each label; got"):
            MultiLabel(64, ["a", "b", "c"], thresholds=thresholds)


def test_the_lstms_of_a_tagger_are_a_declared_loss(tmp_path):
    model = BertFeatureTagger(randomize(BertLayer(CONFIG)), 3, "last", units=4)
    FineTuned(model, BertTokenizer(TINY_VOCABULARY), Tag(64, BIO, "last")).save(tmp_path / "tagger")
    with pytest.raises(InputError, match="no other format stores the head of a BertFeatureTagger; pass allow"):
        convert(tmp_path / "tagger", tmp_path / "out", "keras_bert")
    convert(tmp_path / "tagger", tmp_path / "out", "huggingface", allow_inexact=True)
    assert open_source(tmp_path / "out").kind == "encoder"


def test_tokens_that_lines_cannot_hold(huggingface, tmp_path):
    """The tokens after them keep their ids."""
    huggingface("classify")
    (tmp_path / "out/vocab.txt").unlink()
    tokens = {token: id for id, token in enumerate(TINY_VOCABULARY)}
    at, space = [tokens.pop(token) for token in (TINY_VOCABULARY[7], TINY_VOCABULARY[9])]
    change_json(tmp_path / "out/tokenizer.json", model={"vocab": tokens | {"a\nb": at, "\u3000": space}})
    lines = []
    convert(tmp_path / "out", tmp_path / "back", "keras_bert", allow_inexact=True, report=lines.append)
    expected = [f"[hole {id}]" if id in (7, 9) else token for id, token in enumerate(TINY_VOCABULARY)]
    assert open_source(tmp_path / "back").tokenizer.vocabulary == expected
    assert "named 2 ids without a token that vocab.txt can hold: [hole 7], …" in lines
    assert not any("\n" in line for line in lines)


@pytest.mark.usefixtures("checked")
def test_another_tokenizer_after_reloading_is_an_error(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "save_vocabulary", lambda tokens, path: save_vocabulary([*tokens, "more"], path))
    with pytest.raises(InputError, match="the tokenizer must have the same vocabulary and rules after"):
        convert(folders / "classify", tmp_path / "out", "tf1")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_transformers_5(huggingface, tmp_path):
    """Which writes no vocab.txt."""
    huggingface("classify")
    before = open_source(tmp_path / "out").tokenizer
    (tmp_path / "out/vocab.txt").unlink()
    ids = {token: id for id, token in enumerate(TINY_VOCABULARY[:40])}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": False, "strip_accents": None,
            "lowercase": True}
    steps = {"type": "Sequence", "normalizers": [bert, {"type": "NFC"}]}
    (tmp_path / "out/tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": 44, "content": "covid"}, {"id": 0, "content": "[PAD]"}, {"id": 43, "content": "a\nb"}],
        "normalizer": steps, "model": {"type": "WordPiece", "vocab": ids}}))
    (tmp_path / "out/tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    source = open_source(tmp_path / "out", allow_inexact=True)
    assert source.tokenizer.vocabulary == [*TINY_VOCABULARY[:40], *(f"[hole {id}]" for id in range(40, 44)), "covid"]
    assert source.tokenizer.rules == dataclasses.replace(before.rules, split_cjk=False, normalization="NFC")
    assert source.notes[0] == "named 4 ids without a token that vocab.txt can hold: [hole 40], …"
    lines = []
    convert(tmp_path / "out", tmp_path / "back", "huggingface", allow_inexact=True, report=lines.append)
    assert "the last 15 rows of the word embeddings have no token" in lines
    assert any("finds the added tokens 'covid', 'a\\nb' in texts" in line for line in lines)
    np.testing.assert_array_equal(open_source(tmp_path / "back").tokenizer.vocabulary, source.tokenizer.vocabulary)
