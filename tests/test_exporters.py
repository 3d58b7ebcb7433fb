"""Whatever a `BertConfig` accepts, with each pooling, crossed with every exporter: the same answers, or one line."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import ACTIVATIONS, DIRECTIONALITIES, POOLER_ACTIVATIONS
from keras_bert.convert import convert
from keras_bert.errors import InputError
from keras_bert.export import export_encoder, export_preprocessor
from keras_bert.inference.lite_model import LiteModel
from keras_bert.layers import BertLayer
from keras_bert.models import BertEmbedder, BertPretrainer
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned
from keras_bert.weights import native
from keras_bert.weights.loading import FORMATS

from conftest import SMALL, TINY_VOCABULARY, Peer, random_inputs, randomize

torch, transformers = Peer("torch"), Peer("transformers")
# The activation, that of the pooler, the direction, the width of embeddings, the types, the pooling.
NAMES = "hidden_act", "pooler_activation", "directionality", "embedding_size", "type_vocab_size"
ROWS = [("silu", "tanh", "bidi", None, 2, "mean"), ("gelu", "relu", "ltr", 8, 1, "cls"),
        ("gelu_new", "gelu", "rtl", 24, 3, "max"), ("gelu_tanh", "tanh", "ltr", None, 1, "mean"),
        ("relu", "gelu", "bidi", 8, 2, "cls"), ("silu", "relu", "rtl", None, 1, "max")]
TEXTS = ["play some music", "", "turn off the light please now", "각각의 집 é!"]


for column, values in zip(zip(*ROWS), (ACTIVATIONS, POOLER_ACTIVATIONS, DIRECTIONALITIES)):
    assert {*column} == {*values}


def encoder(row):
    return randomize(BertLayer(dataclasses.replace(SMALL, **dict(zip(NAMES, row)))))


def tokenizer(row):
    return BertTokenizer(TINY_VOCABULARY, has_segments=row[4] > 1)


def embedder(row):
    return FineTuned(BertEmbedder(encoder(row), row[5]), tokenizer(row), TASKS["embed"](16))


def inputs_of(config):
    inputs = random_inputs(2, 7, config)
    inputs["input_mask"][:, 5:] = 0
    return inputs


def encoder_and_masked_lm(row, path):
    model = randomize(BertPretrainer(encoder(row)))
    export_encoder(model, path, tokenizer(row))
    loaded, inputs = tf.saved_model.load(path), inputs_of(model.bert.config)
    inputs["input_type_ids"], positions = inputs["segment_ids"], np.array([[0, 3], [1, 4]], np.int32)
    tensors = {name: tf.constant(inputs[name]) for name in ("input_word_ids", "input_mask", "input_type_ids")}
    wanted, inputs = model.bert.encode(inputs), inputs | {"masked_lm_positions": positions}
    found = loaded.mlm(tensors | {"masked_lm_positions": positions})
    for outputs in (loaded(tensors), loaded.signatures["serving_default"](**tensors), found):
        np.testing.assert_allclose(outputs["pooled_output"], wanted.pooled_output, atol=1e-5)
        np.testing.assert_allclose(outputs["sequence_output"][:, :5], wanted.sequence_output[:, :5], atol=1e-5)
    np.testing.assert_allclose(found["mlm_logits"], model(inputs)["mlm_logits"], atol=1e-5)


def text_model(row, path):
    (model := embedder(row)).export(path)
    np.testing.assert_allclose(tf.saved_model.load(path)(tf.constant(TEXTS)), model.predict(TEXTS), atol=1e-5)


def preprocessor(row, path):
    """Of pairs, whose second text has an id that the encoder has an embedding for."""
    export_preprocessor(tokenizer(row), path, max_length=8)
    loaded = tf.saved_model.load(path)
    found = loaded.bert_pack_inputs([loaded.tokenize(tf.constant([text])) for text in TEXTS[::2]])
    (ids, first), = tokenizer(row).pack([TEXTS[0]], [TEXTS[2]], 8)
    assert found["input_word_ids"].numpy().tolist() == [ids]
    assert found["input_type_ids"].numpy().tolist() == [[0] * first + [1] * (8 - first)]
    assert first == 8 or row[4] > 1


def litert(row, path, dtype="float32", atol=1e-4):
    (model := embedder(row)).export_litert(path, dtype=dtype)
    np.testing.assert_allclose(LiteModel.load(path).predict(TEXTS), model.predict(TEXTS), atol=atol)


def litert_int8(row, path):
    litert(row, path, "int8", atol=0.1)


def convert_formats(row, path):
    source = write_native(row, path / "source")
    wanted = encoder(row).encode(inputs := inputs_of(encoder(row).config))
    for form in FORMATS:
        try:
            convert(source, path / form, form)
        except InputError as error:
            assert "\n" not in str(error) and f"{form}" in str(error) and not (path / form).exists()
            continue
        found = BertLayer.from_pretrained(path / form).encode(inputs)
        np.testing.assert_allclose(found.sequence_output, wanted.sequence_output, atol=1e-5)
        np.testing.assert_allclose(found.pooled_output, wanted.pooled_output, atol=1e-5)


def write_native(row, path):
    path.mkdir(parents=True)
    native.write_model(encoder(row), tokenizer(row), path)
    return path


@pytest.mark.filterwarnings("ignore:.*no (trained )?pooler")
@pytest.mark.parametrize("row,exporter", [
    *((row, litert) for row in ROWS),
    *(pytest.param(row, each, marks=pytest.mark.slow("an exporter that lacks a setting of the encoder"))
      for each in (encoder_and_masked_lm, text_model, preprocessor, litert_int8, convert_formats)
      for row in (ROWS if each is not preprocessor else ROWS[:2]))])
def test_it_is_exported_with_the_same_answers(row, exporter, tmp_path):
    exporter(row, tmp_path / "out")


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", [row for row in ROWS if row[2] == "bidi"])
def test_transformers_gives_the_same_answers(row, tmp_path):
    source, inputs = write_native(row, tmp_path / "source"), inputs_of(encoder(row).config)
    convert(source, tmp_path / "out", "huggingface")
    peer = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        found = peer(torch.tensor(inputs["input_word_ids"]), torch.tensor(inputs["input_mask"]),
                     torch.tensor(inputs["segment_ids"])).last_hidden_state
    wanted = encoder(row).encode(inputs).sequence_output
    np.testing.assert_allclose(found[:, :5], wanted[:, :5], atol=1e-5)
