"""Presets of the real KerasHub read here, and ours read there."""

import dataclasses
import json
import shutil

import h5py
import numpy as np
import pytest
from keras import ops

from keras_bert.convert import convert, folder, load_pretrained, open_source
from keras_bert.convert.weights import Weights
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertPretrainer, BertSpanLabeler
from keras_bert.text import BertTokenizer

from conftest import TINY, TINY_VOCABULARY, random_inputs, randomize, write_huggingface

models = pytest.importorskip("keras_hub").models

TANH = dataclasses.replace(TINY, hidden_act="gelu_tanh")
LABELS = ["music", "light", "weather"]
TEXTS = ["play some music", "Turn on the light, please.", "what time is it?"]
# Two libraries' order of float32 sums; see `assert_same_outputs` for how far wrong settings lead.
CLOSE = 2e-5
KINDS = {"encoder": models.BertBackbone, "masked_lm": models.BertMaskedLM, "classification": models.BertTextClassifier}
HEAD = {"next_sentence": False, "mlm_activation": "gelu", "mlm_layer_norm_eps": 1e-5}


def build_theirs(kind, **changes):
    """A model of KerasHub's with random weights, with its preprocessor where it has a head."""
    sizes = {"vocabulary_size": 60, "num_layers": 2, "num_heads": 4, "hidden_dim": 16, "intermediate_dim": 32}
    model = models.BertBackbone(**sizes, max_sequence_length=128, dropout=0.3, **changes)
    tokenizer = models.BertTokenizer(TINY_VOCABULARY, lowercase=True)
    if kind == "masked_lm":
        model = models.BertMaskedLM(model, models.BertMaskedLMPreprocessor(tokenizer, 32))
    if kind == "classification":
        model = models.BertTextClassifier(
            model, 3, models.BertTextClassifierPreprocessor(tokenizer, 32), dropout=0.4)
    return randomize(model)


def build_ours(kind):
    bert = BertLayer(TANH)
    if kind == "masked_lm":
        bert = BertPretrainer(bert, **HEAD)
    if kind == "classification":
        bert = BertClassifier(bert, 3, dropout=0.4)
    return randomize(bert)


def write_ours(path, model, **beside):
    """Writes a model as our own folder, which holds everything."""
    path.mkdir()
    folder.write(Weights.of(model, **{"tokenizer": BertTokenizer(TINY_VOCABULARY)} | beside), path)
    return path


def assert_same_outputs(ours, theirs):
    """With padding in the batch, whose own outputs mean nothing."""
    inputs = random_inputs(3, 9)
    inputs["input_mask"][1, 5:] = 0
    real = inputs["input_mask"].astype(bool)
    named = {"token_ids": inputs["input_word_ids"], "padding_mask": inputs["input_mask"],
             "segment_ids": inputs["segment_ids"]}
    if isinstance(theirs, models.BertMaskedLM):
        named["mask_positions"] = inputs["masked_lm_positions"] = np.array([[0, 8], [4, 2], [1, 1]], "int32")
        pairs = [(ours(inputs)["mlm_logits"], theirs(named))]
    elif isinstance(theirs, models.BertTextClassifier):
        pairs = [(ours(inputs), theirs(named))]
    else:
        (pooled, sequence), wanted = ours(inputs), theirs(named)
        pairs = [(pooled, wanted["pooled_output"]), (sequence[real], wanted["sequence_output"][real])]
    for got, wanted in pairs:
        np.testing.assert_allclose(ops.convert_to_numpy(got), ops.convert_to_numpy(wanted), rtol=0, atol=CLOSE)


def datasets(path):
    """The arrays of both weight files by name, but for the optimizer's."""
    arrays = {}
    for name in path.glob("*.weights.h5"):
        with h5py.File(name) as file:
            file.visititems(lambda key, item: arrays.update({(name.name, key): item[()]})
                            if isinstance(item, h5py.Dataset) and not key.startswith("optimizer/") else None)
    return arrays


def refused(*words, call, **kwargs):
    with pytest.raises(InputError) as error:
        call(**kwargs)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def edit(path, change):
    """Rewrites a JSON file through `change`, which edits its value."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """Kind to (KerasHub's model, the preset that it saved)."""
    made = {kind: (build_theirs(kind), tmp_path_factory.mktemp("presets") / kind) for kind in KINDS}
    for model, path in made.values():
        model.save_to_preset(str(path))
    return made


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Kind to (our model, the preset that `convert` wrote of it)."""
    parent, made = tmp_path_factory.mktemp("written"), {}
    for kind in KINDS:
        model, source = build_ours(kind), parent / f"{kind}_source"
        if kind == "encoder":
            write_huggingface(source, model)
        else:
            write_ours(source, model, labels=LABELS if kind == "classification" else None)
        assert max(convert(source, parent / kind, "kerashub").values()) <= CLOSE
        made[kind] = model, parent / kind
    return made


@pytest.fixture
def preset(presets, tmp_path):
    """A copy of the classifier's preset, to damage."""
    return shutil.copytree(presets["classification"][1], tmp_path / "preset")


@pytest.mark.parametrize("kind", KINDS)
def test_reads_the_backbone_of_any_preset(presets, kind):
    model, path = presets[kind]
    bert = load_pretrained(path)
    assert_same_outputs(bert, model if kind == "encoder" else model.backbone)
    assert bert.config == dataclasses.replace(TANH, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)


def test_reads_the_masked_lm(presets):
    model, path = presets["masked_lm"]
    ours = BertPretrainer.from_pretrained(path)
    assert_same_outputs(ours, model)
    assert HEAD.items() <= ours.get_config().items()


def test_reads_the_classifier(presets):
    model, path = presets["classification"]
    ours = BertClassifier.from_pretrained(path)
    assert_same_outputs(ours, model)
    assert (ours.num_classes, ours.dropout) == (3, 0.4)


def test_reads_the_tokenizer(presets, preset):
    assert open_source(presets["encoder"][1]).tokenizer is None
    tokenizer = open_source(preset).tokenizer
    assert tokenizer.vocabulary == TINY_VOCABULARY and tokenizer.rules.lower_case and tokenizer.rules.strip_accents
    edit(preset / "tokenizer.json", lambda value: value["config"].update(lowercase=False))
    rules = open_source(preset).tokenizer.rules
    assert not rules.lower_case and not rules.strip_accents
    edit(preset / "tokenizer.json", lambda value: value["config"].update(strip_accents=True))
    rules = open_source(preset).tokenizer.rules
    assert not rules.lower_case and rules.strip_accents


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reads_half_precision(tmp_path, dtype):
    model = build_theirs("encoder", dtype=dtype)
    model.save_to_preset(str(tmp_path))
    whole = build_theirs("encoder")
    whole.set_weights([ops.convert_to_numpy(ops.cast(weight, "float32")) for weight in model.weights])
    assert_same_outputs(load_pretrained(tmp_path), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_kerashub_reads_what_we_write(written, kind):
    model, path = written[kind]
    assert_same_outputs(model, KINDS[kind].from_preset(str(path)))
    bert = model if kind == "encoder" else model.bert
    assert_same_outputs(bert, models.BertBackbone.from_preset(str(path)))


def test_kerashub_makes_tasks_of_our_backbone(written):
    model, path = written["encoder"]
    classifier = models.BertTextClassifier.from_preset(str(path), num_classes=2)
    assert_same_outputs(model, classifier.backbone)
    assert classifier.predict(TEXTS, verbose=0).shape == (3, 2)


def test_kerashub_classifies_strings_as_we_do(written):
    model, path = written["classification"]
    theirs = models.BertTextClassifier.from_preset(str(path))
    wanted = model(BertTokenizer(TINY_VOCABULARY)(TEXTS))
    np.testing.assert_allclose(theirs.predict(TEXTS, verbose=0), ops.convert_to_numpy(wanted), rtol=0, atol=CLOSE)
    assert theirs.dropout == 0.4


def test_kerashub_packs_strings_as_we_do(written):
    theirs = models.BertTextClassifierPreprocessor.from_preset(str(written["classification"][1]))
    ours = BertTokenizer(TINY_VOCABULARY)(TEXTS, TEXTS[::-1])
    packed = theirs((np.array(TEXTS), np.array(TEXTS[::-1])))
    for name, key in (("token_ids", "input_word_ids"), ("padding_mask", "input_mask"), ("segment_ids", "segment_ids")):
        got = ops.convert_to_numpy(packed[name])
        assert got.shape == (3, TANH.max_position_embeddings)
        np.testing.assert_array_equal(got[:, :ours[key].shape[1]], ours[key])
        assert not got[:, ours[key].shape[1]:].any()


@pytest.mark.parametrize(("lower_case", "strip_accents", "split_cjk"), [
    (True, True, True), (False, False, True), (True, False, True), (False, True, True), (True, True, False)])
def test_kerashub_tokenizes_by_our_rules(tmp_path, lower_case, strip_accents, split_cjk):
    vocabulary = [*TINY_VOCABULARY[:-8], "cafe", "café", "Cafe", "Café", "日", "##本", "本", "日本"]
    tokenizer = BertTokenizer(vocabulary, lower_case, strip_accents, split_cjk)
    source = write_ours(tmp_path / "source", build_ours("encoder"), tokenizer=tokenizer)
    convert(source, tmp_path / "preset", "kerashub")
    texts = ["café Café cafe Cafés", "日本 play", "PLAY the music?"]
    theirs = models.BertTokenizer.from_preset(str(tmp_path / "preset"))(texts)
    assert theirs == tokenizer.ids(texts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["keras_bert", "huggingface"])
def test_full_circle_bit_for_bit(presets, tmp_path, kind, form):
    if form == "huggingface" and kind == "masked_lm":
        refused("of the masked LM head", call=convert, source=presets[kind][1], path=tmp_path / "ours", form=form)
        return
    model, path = presets[kind]
    convert(path, tmp_path / "ours", form)
    convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    reloaded = KINDS[kind].from_preset(str(tmp_path / "preset"))
    assert len(reloaded.weights) == len(model.weights) > 38
    for got, wanted in zip(reloaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(got), ops.convert_to_numpy(wanted))
    got, wanted = datasets(tmp_path / "preset"), datasets(path)
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name])
    assert got[name].dtype == wanted[name].dtype
    if kind != "encoder":
        ours, theirs = (json.loads((at / "tokenizer.json").read_text()) for at in (tmp_path / "preset", path))
        assert ours["registered_name"] == theirs["registered_name"] and ours["module"] == theirs["module"]


@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_named_as_kerashub_names_them(presets, written, kind):
    for file in presets[kind][1].glob("*.json"):
        ours, theirs = (json.loads((path / file.name).read_text()) for _, path in (written[kind], presets[kind]))
        for name in ("module", "class_name", "registered_name"):
            assert ours.get(name) == theirs.get(name)


def test_labels_travel_both_ways(written, tmp_path, preset):
    assert json.loads((written["classification"][1] / "labels.json").read_text()) == LABELS
    (preset / "labels.json").write_text(json.dumps(LABELS))
    convert(preset, tmp_path / "ours", "keras_bert")
    assert json.loads((tmp_path / "ours" / "labels.json").read_text()) == LABELS
    convert(preset, tmp_path / "theirs", "huggingface")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["id2label"]["2"] == "weather"


@pytest.mark.parametrize(("changes", "reason"), [
    ({"hidden_act": "gelu"}, "hidden_act is gelu_tanh or gelu_new there, not gelu"),
    ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-12 there, not 1e-05"),
    # One `dropout` is both there.
    ({"attention_probs_dropout_prob": 0.3}, "attention_probs_dropout_prob is 0.1 there, not 0.3"),
])
def test_what_kerashub_fixes_is_refused(tmp_path, changes, reason):
    bert = randomize(BertLayer(dataclasses.replace(TANH, **changes)))
    source, path, lines = write_huggingface(tmp_path / "source", bert), tmp_path / "preset", []
    refused(reason, "--allow_inexact", call=convert, source=source, path=path, form="kerashub")
    assert not path.exists()
    convert(source, path, "kerashub", allow_inexact=True, tell=lines.append)
    assert f"inexact: {reason}" in lines
    # All but the setting is there.
    assert_same_outputs(_with_config(bert, TANH), models.BertBackbone.from_preset(str(path)))


def _with_config(bert, config):
    other = BertLayer(config)
    other.set_weights(bert.get_weights())
    return other


def test_a_next_sentence_head_is_refused(tmp_path):
    model, path, lines = randomize(BertPretrainer(BertLayer(TANH), **HEAD | {"next_sentence": True})), tmp_path / "to", []
    source = write_ours(tmp_path / "source", model)
    reason = "it holds encoder, masked_lm, classification, not pretraining"
    refused(reason, call=convert, source=source, path=path, form="kerashub")
    convert(source, path, "kerashub", allow_inexact=True, tell=lines.append)
    assert f"inexact: {reason}" in lines
    assert_same_outputs(model, models.BertMaskedLM.from_preset(str(path)))


def test_a_masked_lm_head_of_our_own_is_refused(tmp_path):
    source = write_ours(tmp_path / "source", BertPretrainer(BertLayer(TANH), next_sentence=False))
    refused("hidden_act of the masked LM head is gelu there, not gelu_tanh",
            "layer_norm_eps of the masked LM head is 1e-05 there, not 1e-12",
            call=convert, source=source, path=tmp_path / "to", form="kerashub")


def test_a_span_labeler_is_refused(tmp_path):
    model, path, lines = randomize(BertSpanLabeler(BertLayer(TANH))), tmp_path / "to", []
    source = write_huggingface(tmp_path / "source", model)
    refused("not span", call=convert, source=source, path=path, form="kerashub")
    convert(source, path, "kerashub", allow_inexact=True, tell=lines.append)
    assert any(line.startswith("inexact:") and "not span" in line for line in lines)
    sequence = models.BertBackbone.from_preset(str(path))({
        "token_ids": np.array([[2, 8, 9, 3]]), "padding_mask": np.ones((1, 4)), "segment_ids": np.zeros((1, 4))})
    wanted = model.bert.encode({"input_word_ids": np.array([[2, 8, 9, 3]], "int32")})["sequence_output"]
    np.testing.assert_allclose(ops.convert_to_numpy(sequence["sequence_output"]), ops.convert_to_numpy(wanted),
                               rtol=0, atol=CLOSE)
    assert not (path / "task.json").exists()


def _unlink(name, key):
    def change(path):
        with h5py.File(path / name, "a") as file:
            del file[key]

    return change


def _put(name, key, shape):
    def change(path):
        with h5py.File(path / name, "a") as file:
            if key in file:
                del file[key]
            file[key] = np.zeros(shape, "float32")

    return change


def _truncate(name):
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-100])


@pytest.mark.parametrize(("damage", "words"), [
    (_truncate("model.weights.h5"), ["model.weights.h5: not a whole HDF5 file"]),
    (_truncate("task.weights.h5"), ["task.weights.h5: not a whole HDF5 file"]),
    (_truncate("config.json"), ["config.json: not a JSON file"]),
    (_unlink("model.weights.h5", "layers/dense/vars/1"), ["missing model.weights.h5/layers/dense/vars/1"]),
    (_unlink("task.weights.h5", "layers/dense/vars/0"), ["missing task.weights.h5/layers/dense/vars/0"]),
    (_put("model.weights.h5", "layers/more/vars/0", (2,)), ["unexpected model.weights.h5/layers/more/vars/0"]),
    (_put("model.weights.h5", "layers/transformer_encoder_1/_self_attention_layer/key_dense/vars/1", (16,)),
     ["layers/transformer_encoder_1/_self_attention_layer/key_dense/vars/1 has shape (16,)", "(4, 4)"]),
    (lambda path: edit(path / "config.json", lambda value: value.update(class_name="RobertaBackbone")),
     ["config.json: class_name must be BertBackbone; got 'RobertaBackbone'"]),
    (lambda path: edit(path / "config.json", lambda value: value.pop("config")), ["config.json", "config"]),
    (lambda path: (path / "config.json").write_text("[]"), ["config.json"]),
    (lambda path: edit(path / "config.json", lambda value: value["config"].pop("num_layers")), ["config.json"]),
    (lambda path: edit(path / "config.json", lambda value: value["config"].update(num_heads=5)), ["config.json"]),
    (lambda path: edit(path / "task.json", lambda value: value.update(class_name="BertTextEmbedder")),
     ["task.json: class_name must be", "got 'BertTextEmbedder'"]),
    (lambda path: edit(path / "task.json", lambda value: value["config"].pop("num_classes")), ["task.json"]),
    (lambda path: edit(path / "task.json", lambda value: value["config"].update(activation="softmax")),
     ["task.json", "activation", "softmax"]),
])
def test_damage_is_named(preset, tmp_path, damage, words):
    damage(preset)
    refused(*words, call=convert, source=preset, path=tmp_path / "to", form="keras_bert")
    assert not (tmp_path / "to").exists()
