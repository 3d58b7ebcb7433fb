"""Whatever a `BertConfig` accepts, with each pooling, crossed with every exporter: the same answers, or one line."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from test_encoders import outputs_of

from keras_bert.config import ACTIVATIONS, DIRECTIONALITIES, POOLER_ACTIVATIONS
from keras_bert.convert import convert
from keras_bert.errors import InputError
from keras_bert.export import export_encoder
from keras_bert.inference.lite_model import LiteModel
from keras_bert.layers import BertLayer
from keras_bert.models import BertEmbedder, BertPretrainer
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned
from keras_bert.weights import native
from keras_bert.weights.loading import FORMATS

from conftest import SMALL, TINY_VOCABULARY, Peer, random_inputs, randomize

transformers = Peer("transformers")
# Activations of the blocks and the pooler, direction, width of embeddings, types; pooling, the side that is cut.
NAMES = "hidden_act", "pooler_activation", "directionality", "embedding_size", "type_vocab_size"
ROWS = [("silu", "tanh", "bidi", None, 2, "mean", "left"), ("gelu", "relu", "ltr", 8, 1, "cls", "right"),
        ("gelu_new", "gelu", "rtl", 24, 3, "max", "left"), ("gelu_tanh", "tanh", "ltr", None, 1, "mean", "right"),
        ("relu", "gelu", "bidi", 8, 2, "cls", "right"), ("silu", "relu", "rtl", None, 1, "max", "left")]
TEXTS = ["play some music", "", "turn off the light please now " * 4, "각각의 집 é!"]


for column, values in zip(zip(*ROWS), (ACTIVATIONS, POOLER_ACTIVATIONS, DIRECTIONALITIES)):
    assert {*column} == {*values}


def encoder(row):
    return randomize(BertLayer(dataclasses.replace(SMALL, **dict(zip(NAMES, row)))))


def tokenizer(row):
    return BertTokenizer(TINY_VOCABULARY, has_segments=row[4] > 1, truncation_side=row[6])


def embedder(row):
    return FineTuned(BertEmbedder(encoder(row), row[5]), tokenizer(row), TASKS["embed"](16))


def inputs_of(row):
    inputs = random_inputs(2, 7, encoder(row).config)
    inputs["input_mask"][:, 5:] = 0
    return inputs


def encoder_and_masked_lm(row, path):
    model = randomize(BertPretrainer(encoder(row)))
    export_encoder(model, path, tokenizer(row))
    inputs = inputs_of(row) | {"masked_lm_positions": np.array([[0, 3], [1, 4]], np.int32)}
    wanted = {"pooled_output": model.bert(inputs)[0], "mlm_logits": model(inputs)["mlm_logits"]}
    found = tf.saved_model.load(path).mlm(inputs | {"input_type_ids": inputs.pop("segment_ids")})
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


def text_model(row, path):
    (model := embedder(row)).export(path)
    np.testing.assert_allclose(tf.saved_model.load(path)(tf.constant(TEXTS)), model.predict(TEXTS), atol=1e-5)


def litert(row, path, dtype="float32", atol=1e-4):
    (model := embedder(row)).export_litert(path, dtype=dtype)
    np.testing.assert_allclose(LiteModel.load(path).predict(TEXTS), model.predict(TEXTS), atol=atol)


def write_native(row, path):
    path.mkdir(parents=True)
    native.write_model(encoder(row), tokenizer(row), path)
    return path


def convert_formats(row, path):
    source, inputs, wanted = write_native(row, path / "source"), inputs_of(row), encoder(row).encode(inputs_of(row))
    for form in FORMATS:
        try:
            convert(source, path / form, form)
        except InputError as error:
            assert "\n" not in str(error) and f"{form}" in str(error) and not (path / form).exists()
            continue
        found = BertLayer.from_pretrained(path / form).encode(inputs)
        for values, expected in zip(found[:2], wanted[:2]):
            np.testing.assert_allclose(values, expected, atol=1e-5)


SLOW = pytest.mark.slow("an exporter that lacks a setting of the encoder")


@pytest.mark.filterwarnings("ignore:.*no (trained )?pooler", "ignore:texts cut at max_length")
@pytest.mark.parametrize("row", [*ROWS[:3], *(pytest.param(row, marks=SLOW) for row in ROWS[3:])])
@pytest.mark.parametrize("exporter", [litert, *(pytest.param(each, marks=SLOW) for each in (
    functools.partial(litert, dtype="int8", atol=0.1), encoder_and_masked_lm, text_model, convert_formats))])
def test_it_is_exported_with_the_same_answers(row, exporter, tmp_path):
    exporter(row, tmp_path / "out")


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", [row for row in ROWS if row[2] == "bidi"])
def test_transformers_gives_the_same_answers(row, tmp_path):
    convert(write_native(row, tmp_path / "source"), tmp_path / "out", "huggingface")
    inputs, peer = inputs_of(row), transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    wanted = encoder(row).encode(inputs).sequence_output
    np.testing.assert_allclose(outputs_of(peer, inputs)[0][:, :5], wanted[:, :5], atol=1e-5)
