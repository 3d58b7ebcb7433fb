"""Presets of the real KerasHub read here, and ours read there."""

import dataclasses
import json
import shutil
import unicodedata

import h5py
import numpy as np
import pytest
from keras import ops

from keras_bert.convert import convert, load_pretrained, open_source
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertPretrainer, BertSpanLabeler
from keras_bert.text import BertTokenizer
from keras_bert.weights import kerashub, native
from keras_bert.weights.format import Weights

from conftest import TINY, TINY_VOCABULARY, Peer, convert_proven, random_inputs, randomize, write_huggingface

models = Peer("keras_hub.models")
pytestmark = pytest.mark.peers

TANH = dataclasses.replace(TINY, hidden_act="gelu_tanh")
TOKENIZER = BertTokenizer(TINY_VOCABULARY)
TEXTS = ["play some music", "Turn on the light, please.", "what time is it?"]
KINDS = {"encoder": "BertBackbone", "masked_lm": "BertMaskedLM", "classification": "BertTextClassifier"}
HEADS = {"masked_lm": BertPretrainer, "classification": BertClassifier}
OPTIONS = {"masked_lm": {"next_sentence": False, "mlm_activation": "gelu", "mlm_layer_norm_eps": 1e-5},
           "classification": {"num_classes": 3, "dropout": 0.4}}
LATIN, HANGUL = "cafe café Cafe Café 日 ##本 本", "서울 날씨 ##는 cafe"
CHARACTERS = [*TINY_VOCABULARY[:5], *"abdeilnostDNTW", *(f"##{c}" for c in "abcdeiklnosthrwóá")]
JAMO = unicodedata.normalize("NFD", "서울 날씨 ##는")


def build_peer(kind, **changes):
    model = models.BertBackbone(60, 2, 4, 16, 32, **{"max_sequence_length": 128, "dropout": 0.3} | changes)
    tokenizer = models.BertTokenizer(CHARACTERS, lowercase=kind != "masked_lm")
    if kind == "masked_lm":
        model = models.BertMaskedLM(model, models.BertMaskedLMPreprocessor(tokenizer, 32))
    if kind == "classification":
        model = models.BertTextClassifier(model, 3, models.BertTextClassifierPreprocessor(tokenizer, 32), dropout=0.4)
    return randomize(model)


def build_ours(kind):
    bert = BertLayer(TANH)
    return randomize(HEADS[kind](bert, **OPTIONS[kind]) if kind in HEADS else bert)


def write_ours(path, model, tokenizer=TOKENIZER):
    """Writes a folder of our own, which holds what no other does."""
    path.mkdir()
    native.write(Weights.of(model, tokenizer), path)
    return path


def assert_same_outputs(ours, peer):
    """With padding in the batch, whose own outputs mean nothing."""
    inputs = random_inputs(3, 9)
    inputs["input_mask"][1, 5:] = 0
    named = dict(zip(("token_ids", "padding_mask", "segment_ids"), inputs.values()))
    if isinstance(peer, models.BertMaskedLM):
        named["mask_positions"] = inputs["masked_lm_positions"] = np.array([[0, 8], [4, 2], [1, 1]], "int32")
    got, wanted = ours(inputs), peer(named)
    if isinstance(peer, models.BertBackbone):
        real = inputs["input_mask"].astype(bool)
        got, wanted = (got[0], got[1][real]), (wanted["pooled_output"], wanted["sequence_output"][real])
    elif isinstance(peer, models.BertMaskedLM):
        got = got["mlm_logits"]
    for one, other in zip(got, wanted, strict=True):
        # Values up to 3 through two blocks; two libraries differ by their order of float32 sums.
        np.testing.assert_allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other), rtol=0, atol=2e-6)


def datasets(file):
    """The arrays in a file of weights by name, but for the optimizer's."""
    names = []
    with h5py.File(file) as opened:
        opened.visit(names.append)
        return {name: opened[name][()] for name in names
                if isinstance(opened[name], h5py.Dataset) and not name.startswith("optimizer/")}


def assert_refused(reason, source, path, form="kerashub"):
    with pytest.raises(InputError) as error:
        convert(source, path, form)
    assert reason in str(error.value) and "\n" not in str(error.value) and not path.exists()


def convert_inexactly(reason, source, path):
    """Converts what is refused for a reason, and told."""
    assert_refused(f"{reason}; pass allow_inexact=True", source, path)
    lines = []
    convert(source, path, "kerashub", allow_inexact=True, report=lines.append)
    assert f"inexact: {reason}" in lines
    return str(path)


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """Kind to (KerasHub's model, the preset that it saved)."""
    made = {kind: (build_peer(kind), tmp_path_factory.mktemp("presets") / kind) for kind in KINDS}
    for model, path in made.values():
        model.save_to_preset(str(path))
    models.BertTokenizer(CHARACTERS, lowercase=True).save_to_preset(str(made["encoder"][1]))
    return made


@pytest.fixture
def preset(presets, tmp_path):
    """A copy of the classifier's preset, to change."""
    return shutil.copytree(presets["classification"][1], tmp_path / "preset")


@pytest.mark.parametrize("kind", KINDS)
def test_reads_every_kind(presets, kind):
    model, path = presets[kind]
    assert_same_outputs(HEADS.get(kind, BertLayer).from_pretrained(path), model)
    assert {"next_sentence": False} | open_source(path).options == {"next_sentence": False} | OPTIONS.get(kind, {})
    bert = load_pretrained(path)
    assert_same_outputs(bert, getattr(model, "backbone", model))
    assert bert.config == dataclasses.replace(TANH, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)


@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, False), (False, False), (False, True)])
def test_reads_the_tokenizer(preset, lowercase, strip_accents):
    vocabulary = ["a", *TINY_VOCABULARY[:5]]
    models.BertTokenizer(vocabulary, lowercase=lowercase, strip_accents=strip_accents).save_to_preset(str(preset))
    source = open_source(preset)
    assert source.tokenizer.vocabulary == vocabulary and source.config.pad_token_id == 1
    # KerasHub keeps accents by default; Google's tokenizer strips them if it lower-cases.
    rules = source.tokenizer.rules
    assert (rules.lower_case, rules.strip_accents) == (lowercase, lowercase or strip_accents)
    assert BertTokenizer.from_folder(preset).rules == rules


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reads_half_precision(tmp_path, dtype):
    half, whole = build_peer("encoder", dtype=dtype), build_peer("encoder")
    half.save_to_preset(str(tmp_path))
    whole.set_weights([ops.convert_to_numpy(ops.cast(weight, "float32")) for weight in half.weights])
    assert_same_outputs(load_pretrained(tmp_path), whole)


# Of capitals, accents, ideographs; and of Hangul syllables, which must not stay apart.
@pytest.mark.parametrize(("words", "rules"), [
    *((LATIN, rules) for rules in ((True, True), (False, False), (True, False), (False, True), (True, True, False))),
    *((HANGUL, rules) for rules in ((True, True), (False, False), (False, True))),
    *((JAMO, rules) for rules in ((True, True), (True, False), (False, False)))])
def test_kerashub_tokenizes_by_our_rules(tmp_path, words, rules):
    tokenizer = BertTokenizer([*TINY_VOCABULARY[:20], *words.split()], *rules)
    source, preset = write_ours(tmp_path / "ours", build_ours("encoder"), tokenizer), tmp_path / "peer"
    is_lower, is_stripped, *_ = rules
    if (is_lower, is_stripped) == (False, True) and words == HANGUL:
        assert_refused("normalization of a tokenizer that keeps the case must be none, not NFC", source, preset)
    elif is_lower and is_stripped and words == JAMO:
        assert_refused("its lower-casing composes characters, above all Hangul syllables", source, preset)
    else:
        preset.mkdir()
        kerashub.write(Weights.of(build_ours("encoder"), tokenizer), preset)
        texts = ["cafe Cafe CAFÉ play", "café Cafés", "PLAY the music?", "서울 날씨는", "日本"]
        peer = models.BertTokenizer.from_preset(str(preset))
        assert peer(texts) == tokenizer.ids(texts)
        assert open_source(preset).tokenizer.rules == tokenizer.rules
        peer.save_to_preset(str(preset))  # which forgets the rules that KerasHub has no field for
        assert open_source(preset).tokenizer.rules.lower_case == is_lower


@pytest.mark.parametrize(("kind", "form"), [
    ("encoder", "huggingface"), ("masked_lm", "keras_bert"), ("classification", "huggingface")])
def test_full_circle_bit_for_bit(presets, tmp_path, kind, form):
    model, path = presets[kind]
    (path / "labels.json").write_text('["music", "light", "weather"]')
    convert_proven(path, tmp_path / "ours", form)
    convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    reloaded = getattr(models, KINDS[kind]).from_preset(str(tmp_path / "preset"))
    for got, wanted in zip(reloaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for file in path.glob("*.h5"):
        got, wanted = datasets(tmp_path / "preset" / file.name), datasets(file)
        assert got.keys() == wanted.keys() and all((got[name] == wanted[name]).all() for name in wanted)
    if kind == "classification":
        assert json.loads((tmp_path / "preset" / "labels.json").read_text()) == ["music", "light", "weather"]


def test_what_kerashub_fixes_is_changed(tmp_path):
    source = write_huggingface(tmp_path / "source", randomize(BertLayer(dataclasses.replace(TANH, hidden_act="gelu"))))
    path = convert_inexactly("hidden_act must be gelu_tanh or gelu_new, not gelu", source, tmp_path / "preset")
    assert_same_outputs(randomize(BertLayer(TANH)), models.BertBackbone.from_preset(path))


def test_refuses_what_kerashub_has_no_place_for(tmp_path):
    pretrainer = randomize(BertPretrainer(BertLayer(TANH), **OPTIONS["masked_lm"] | {"next_sentence": True}))
    kinds = "it stores encoder, masked_lm, classification, not"
    path = convert_inexactly(f"{kinds} pretraining", write_ours(tmp_path / "1", pretrainer), tmp_path / "masked_lm")
    assert_same_outputs(pretrainer, models.BertMaskedLM.from_preset(path))
    span = randomize(BertSpanLabeler(BertLayer(TANH)))
    path = convert_inexactly(f"{kinds} span", write_ours(tmp_path / "2", span), tmp_path / "encoder")
    assert_same_outputs(span.bert, models.BertBackbone.from_preset(path))
    source = write_ours(tmp_path / "3", BertPretrainer(BertLayer(TANH), next_sentence=False))
    assert_refused("hidden_act of the masked LM head must be gelu", source, tmp_path / "no")
    for name, vocabulary in ("4", [*TINY_VOCABULARY[:-1], "a"]), ("5", [p for p in TINY_VOCABULARY if p != "[MASK]"]):
        source = write_ours(tmp_path / name, BertLayer(TANH), BertTokenizer(vocabulary))
        assert_refused("must contain [MASK], and no token twice", source, tmp_path / "no")
