"""What each format stores: kinds of models, encoders, tokenizers, labels and settings, written and read again; and what
it refuses. test_conversion_matrix.py compares with the libraries of the formats."""

import dataclasses
import unicodedata

import keras
import numpy as np
import pytest

from keras_bert.convert import FORMATS, open_source
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.text import BertTokenizer
from keras_bert.weights.format import Weights
from keras_bert.weights.kinds import KINDS

from conftest import SMALL, TINY_VOCABULARY, random_inputs, randomize

# What every format can express, but for the special encoders of transformers.
PLAIN = dataclasses.replace(SMALL, hidden_act="gelu_tanh", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
ENCODERS = {
    "two blocks": dataclasses.replace(PLAIN, num_hidden_layers=2), "plain": PLAIN,
    "roberta": dataclasses.replace(SMALL, layer_norm_eps=1e-5, type_vocab_size=1, pad_token_id=1),
    "electra": dataclasses.replace(SMALL, pooler_activation="gelu"),
    "electra, narrow": dataclasses.replace(SMALL, pooler_activation="gelu", embedding_size=8),
    "distilbert": dataclasses.replace(SMALL, pooler_activation="relu", type_vocab_size=1),
    "narrow": dataclasses.replace(PLAIN, embedding_size=8),
}
TOKENIZERS = {  # words of the vocabulary, and rules
    "uncased": ([], {}), "cased": ([], {"lower_case": False, "strip_accents": False}),
    "accents": ([], {"strip_accents": False}), "case alone": ([], {"lower_case": False, "strip_accents": True}),
    "NFC": ([], {"strip_accents": False, "normalization": "NFC"}),
    "Hangul": (["서울", "날씨", "##은"], {}), "jamo": ([unicodedata.normalize("NFD", "서울")], {}),
}
HEAD = {"mlm_activation": "gelu", "mlm_layer_norm_eps": 1e-5}  # KerasHub's
MODELS = {  # the kind, its options, labels, and settings of the task
    "encoder": ("encoder", {}, None, {}), "pretraining": ("pretraining", {}, None, {}),
    "masked LM": ("masked_lm", {}, None, {}), "masked LM, KerasHub's": ("masked_lm", HEAD, None, {}),
    "intent": ("classification", {"num_classes": 2, "dropout": 0.3}, ["날씨", "light"], {
        "task": "intent", "max_length": 100, "pairs": True, "threshold": 0.7, "columns": {"text_column": "a"}}),
    "classify": ("classification", {"num_classes": 3, "dropout": 0.0}, ["a", "b", "c"], {
        "task": "classify", "max_length": 128, "pairs": False}),
    "multilabel": ("classification", {"num_classes": 2, "dropout": 0.3}, ["a", "b"], {
        "task": "multilabel", "max_length": 9, "pairs": False, "thresholds": [0.3, 0.6]}),
    "regress": ("regression", {"dropout": 0.4}, None, {"task": "regress", "max_length": 64, "pairs": True}),
    "tag": ("token_classification", {"num_classes": 3, "dropout": 0.3}, ["O", "B-x", "I-x"], {
        "task": "tag", "max_length": 90, "unit": "character"}),
    "span": ("span", {}, None, {"task": "span", "max_length": 80, "doc_stride": 40, "null_threshold": -1.5}),
    "choice": ("multiple_choice", {"dropout": 0.1}, None, {"task": "choice", "max_length": 50}),
    "cls": ("embedding", {"pooling": "cls", "normalize": False}, None, {
        "task": "embed", "max_length": 20, "columns": {"text_column": "a"}}),
    "max": ("embedding", {"pooling": "max", "normalize": True}, None, {"task": "embed", "max_length": 20}),
}
CLASSIFIERS, EMBEDDERS = ["intent", "classify", "multilabel"], ["cls", "max"]
STORED = {  # of our own format, whose file is Keras's, some
    "keras_bert": ["masked LM, KerasHub's", "tag", "cls"],
    "huggingface": ["encoder", "pretraining", "masked LM", *CLASSIFIERS, "regress", "tag", "span", "choice"],
    "tf1": ["encoder", "pretraining", "masked LM", *CLASSIFIERS, "span"],
    "kerashub": ["encoder", "masked LM, KerasHub's", *CLASSIFIERS],
    "garden": ["encoder", "pretraining", "masked LM"], "sentence_transformers": EMBEDDERS,
}
STORED_ENCODERS = [
    ("huggingface", "encoder", "roberta"), ("huggingface", "masked LM", "roberta"),
    ("huggingface", "classify", "electra"), ("huggingface", "tag", "electra"),
    ("huggingface", "encoder", "electra, narrow"), ("huggingface", "masked LM", "electra, narrow"),
    ("huggingface", "classify", "distilbert"), ("huggingface", "masked LM", "distilbert"),
    ("sentence_transformers", "max", "electra, narrow"), ("sentence_transformers", "max", "distilbert"),
    ("garden", "encoder", "narrow")]
STORED_TOKENIZERS = [
    *(("huggingface", name) for name in TOKENIZERS), ("tf1", "cased"), ("garden", "cased"),
    *(("kerashub", name) for name in ("cased", "case alone", "accents", "NFC", "Hangul"))]


def make(name="encoder", encoder="plain", tokenizer="uncased", **changes):
    """Random weights of one of the models, on one of the encoders or `PLAIN` with changes, with a tokenizer."""
    kind, options, labels, settings = MODELS[name]
    config = dataclasses.replace(ENCODERS.get(encoder, PLAIN), **changes)
    bert = BertLayer(config)
    model = randomize(bert if kind == "encoder" else KINDS[kind].model(bert, **KINDS[kind].options, **options))
    words, rules = TOKENIZERS[tokenizer]
    vocabulary = TINY_VOCABULARY[:len(TINY_VOCABULARY) - len(words)] + words
    tokenizer = BertTokenizer(vocabulary, has_segments=config.type_vocab_size > 1, **rules)
    return Weights.of(model, tokenizer, labels, settings)


@pytest.mark.parametrize(("form", "name", "encoder", "tokenizer"), [
    *((form, name, "two blocks" if name == "encoder" else "plain", "uncased")
      for form, names in STORED.items() for name in names),
    *((form, name, encoder, "uncased") for form, name, encoder in STORED_ENCODERS),
    *((form, "encoder", "plain", tokenizer) for form, tokenizer in STORED_TOKENIZERS)])
def test_what_is_written_is_read(tmp_path, form, name, encoder, tokenizer):
    weights = make(name, encoder, tokenizer)
    assert target(form, weights).losses(weights) == []
    FORMATS[form].write(weights, tmp_path)
    source = open_source(tmp_path)
    assert (source.format, source.kind, source.config) == (form, weights.kind, weights.config)
    assert (source.labels, source.settings) == (weights.labels, weights.settings)
    assert source.tokenizer.vocabulary == weights.tokenizer.vocabulary
    assert source.tokenizer.rules == weights.tokenizer.rules == BertTokenizer.from_folder(tmp_path).rules
    assert source.tokenizer.has_segments == weights.tokenizer.has_segments
    assert source.losses == ()
    again, skipped, missing = source.load()
    assert not missing and {*skipped.values()} <= {"used as the pooler"}  # also, in the Garden's pretrainer
    got, wanted = again.build(), weights.build()
    assert Weights.of(got).options == weights.options
    if encoder == "distilbert":  # one table may hold the sum of two
        got, wanted = (keras.tree.flatten(model(random_inputs(3, 9, weights.config))) for model in (got, wanted))
    else:
        got, wanted = got.get_weights(), wanted.get_weights()
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 if encoder == "distilbert" else 0)


def target(form, weights):
    return FORMATS[form].variant(weights) if FORMATS[form].variant else FORMATS[form]


def test_each_format_has_its_kinds():
    assert FORMATS.keys() == STORED.keys() | {"hub"}  # of which test_convert_garden.py has those with a masked LM head
    for form in STORED.keys() - {"keras_bert"}:
        assert {MODELS[name][0] for name in STORED[form]} == {*FORMATS[form].kinds} - {"embedding"} or (
            form == "sentence_transformers")


NARROW, WITHOUT_NFC = {"embedding_size": 8}, "normalization of the tokenizer must be none, not NFC"


@pytest.mark.parametrize(("form", "weights", "words"), [
    ("tf1", {"name": "tag"}, "not token_classification"), ("garden", {"name": "intent"}, "not classification"),
    ("kerashub", {"name": "pretraining"}, "it stores encoder, masked_lm, classification, not pretraining"),
    ("hub", {"name": "pretraining"}, "it stores encoder, masked_lm, not pretraining"),
    ("kerashub", {"name": "masked LM"}, "hidden_act of the masked LM head must be gelu, not gelu_tanh"),
    ("huggingface", {"name": "masked LM, KerasHub's"}, "layer_norm_eps of the masked LM head must be 1e-12, not 1e-05"),
    ("tf1", {"encoder": "electra"}, "pooler_activation must be tanh, not gelu"),
    ("garden", {"encoder": "distilbert"}, "pooler_activation must be tanh, not relu"),
    ("kerashub", NARROW, "embedding_size must be None, not 8"), ("tf1", NARROW, "embedding_size must be None, not 8"),
    ("garden", {"hidden_act": "gelu"}, "hidden_act must be gelu_tanh or gelu_new or relu, not gelu"),
    ("tf1", {"layer_norm_eps": 1e-5}, "layer_norm_eps must be 1e-12, not 1e-05"),
    ("kerashub", {"layer_norm_eps": 1e-5}, "layer_norm_eps must be 1e-12, not 1e-05"),
    # One `dropout` is both there.
    ("kerashub", {"attention_probs_dropout_prob": 0.3}, "attention_probs_dropout_prob must be 0.2, not 0.3"),
    *(("huggingface", {"name": "classify", **changes}, words) for changes, words in [
        ({"pooler_activation": "relu", **NARROW}, "pooler_activation must be gelu, not relu"),
        ({"pooler_activation": "relu"}, "type_vocab_size must be 1, not 2"),
        ({"pooler_activation": "relu", "layer_norm_eps": 1e-5}, "layer_norm_eps must be 1e-12, not 1e-05"),
        (NARROW, "pooler_activation must be gelu, not tanh")]),
    *((form, {"tokenizer": "Hangul"}, WITHOUT_NFC) for form in ("tf1", "garden", "hub")),
    ("kerashub", {"tokenizer": "jamo"}, "its lower-casing composes characters, above all Hangul syllables"),
])
def test_what_a_format_cannot_store(form, weights, words):
    weights = make(**weights)
    assert any(words in loss for loss in target(form, weights).losses(weights))
    if form in ("tf1", "kerashub") and weights.config.embedding_size:  # the shapes are others: nothing can be written
        with pytest.raises(InputError, match="has no weights between embeddings of width 8 and blocks of width 16"):
            FORMATS[form].closest(weights)


def test_what_a_library_does_not_apply():
    multilabel, span = MODELS["multilabel"][3], MODELS["span"][3]
    for form in ("huggingface", "kerashub"):
        assert FORMATS[form].not_applied(multilabel) == {"thresholds": [0.3, 0.6]}
    assert FORMATS["huggingface"].not_applied(span) == {"doc_stride": 40, "null_threshold": -1.5}
    assert FORMATS["tf1"].not_applied(span) == span and FORMATS["keras_bert"].not_applied(span) == {}
