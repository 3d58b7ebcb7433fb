"""Exports of encoders with LoRA: plain models, which answer as their source. Quantized ones are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.export import export_encoder, export_text_model
from keras_bert.export.text_model import TextModel, make_head
from keras_bert.models import BertClassifier, BertPretrainer

from conftest import few_objects, random_inputs, randomize

INPUTS = random_inputs(3, 7)
NAMES = ("input_word_ids", "input_mask", "input_type_ids")
AS_DICT = dict(zip(NAMES, map(tf.constant, INPUTS.values())))


@pytest.fixture
def bert(bert):
    """Whose additions are large, in a dense layer besides those of `enable_lora` too."""
    before = bert(INPUTS)[0]
    bert.enable_lora(2)
    bert.blocks[1].intermediate.enable_lora(3, lora_alpha=6)
    randomize(bert)
    assert np.abs(bert(INPUTS)[0] - before).max() > 0.2
    return bert


@pytest.mark.slow("an encoder or a masked LM whose export loses LoRA")
def test_a_masked_lm(bert, tokenizer, tmp_path):
    pretrainer, positions = BertPretrainer(bert), np.array([[1, 2], [0, 1], [2, 0]], np.int32)
    export_encoder(pretrainer, tmp_path / "out", tokenizer)
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    got = loaded.mlm(AS_DICT | {"masked_lm_positions": tf.constant(positions)})
    wanted = pretrainer(INPUTS | {"masked_lm_positions": positions})
    np.testing.assert_allclose(got["mlm_logits"], wanted["mlm_logits"], atol=1e-5)
    np.testing.assert_allclose(loaded.signatures["serving_default"](**AS_DICT)["sequence_output"], bert(INPUTS)[1],
                               atol=2e-6)
    assert len(loaded.variables) == 5 + 16 * 2 + 2 and not [v for v in loaded.variables if "lora" in v.name]
    assert [v for v in bert.trainable_weights if v.name.startswith("lora")]  # the source is as it was


def encoded(model, tokenizer, dtype, options):
    """What the raw-text model answers to the inputs. It has no variables of LoRA."""
    text_model = TextModel(model, make_head(model, options), tokenizer, 16, dtype)
    assert not [variable for variable in text_model.weights if "lora" in variable.name]
    return text_model.encode(*AS_DICT.values())


@pytest.mark.usefixtures("eager")
def test_text_models(bert, tokenizer):
    model = randomize(BertClassifier(bert, 3))
    np.testing.assert_allclose(encoded(model, tokenizer, "bfloat16", {"labels": ["a", "b", "c"]})["probabilities"],
                               keras.ops.softmax(model(INPUTS)), atol=0.05)
    np.testing.assert_allclose(encoded(bert, tokenizer, "float32", {})["pooled_output"], bert(INPUTS)[0], atol=2e-6)


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_a_quantized_model_is_refused(bert, tokenizer, tmp_path):
    model = BertClassifier(bert.rebuild(lora_rank=None), 2)
    with few_objects():
        keras.Model.quantize(model, "int8")
    with pytest.raises(InputError, match="model must not be quantized"):
        export_encoder(model.bert, tmp_path / "out", tokenizer)
    with pytest.raises(InputError, match="model must not be quantized"):
        export_text_model(model, tokenizer, tmp_path / "out", labels=["a", "b"])
    assert not list(tmp_path.iterdir())
