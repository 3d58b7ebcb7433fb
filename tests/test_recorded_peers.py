"""Our results against those of PyTorch, transformers, the Model Garden and KerasHub in tests/data/peers.

`python tests/record_peers.py` recorded them; the libraries themselves are not needed.
"""

import json

import keras
import numpy as np
import pytest
import record_peers
import tensorflow as tf
from record_peers import FOLDER, IGNORED, LEARNING_RATE, STEPS, TOTAL_STEPS, WARMUP_STEPS, WEIGHT_DECAY
from safetensors.numpy import load_file

from keras_bert.convert import load_pretrained
from keras_bert.models import BertClassifier, BertPretrainer, BertSpanLabeler, BertTokenClassifier
from keras_bert.pretraining.objective import Objective
from keras_bert.text import BertTokenizer
from keras_bert.training import make_optimizer
from keras_bert.weights import huggingface
from keras_bert.weights.format import Weights
from keras_bert.weights.huggingface_models import TYPES

MODELS = {"BertForPreTraining": BertPretrainer, "BertForSequenceClassification": BertClassifier,
          "BertForTokenClassification": BertTokenClassifier, "BertForQuestionAnswering": BertSpanLabeler}
PRETRAINING, CLASSIFICATION = FOLDER / "BertForPreTraining", FOLDER / "BertForSequenceClassification"
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED)
both_layouts = pytest.mark.parametrize("layout", ["padded", "unpadded"])


def load(folder, model=None, layout="padded"):
    """A model with the weights of transformers, and the arrays recorded with it."""
    loaded = load_pretrained(folder, *([model] if model else []), layout=layout)
    return loaded, load_file(folder / "reference.safetensors")


def inputs_of(reference, prefix=""):
    names = {"input_word_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    return {ours: reference[prefix + name].astype("int32") for ours, name in names.items()}


def real(reference):
    """Which tokens are not padding: bool [batch, seq]. Outputs for padding have no meaning."""
    return reference["attention_mask"] == 1


def assert_close(got, wanted, atol=5e-6):
    """Values up to 5 through two blocks; libraries differ by their order of float32 sums."""
    np.testing.assert_allclose(keras.ops.convert_to_numpy(got), wanted, rtol=0, atol=atol)


def assert_all_close(got, wanted):
    """Compares arrays by name, each relative to its largest value."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        # The gradient of a key's bias is nothing but rounding, which Adam enlarges.
        atol = 1e-4 if name.endswith("key.bias") else 1e-5 * max(np.abs(value).max(), 1e-2)
        np.testing.assert_allclose(got[name], value, rtol=0, atol=atol, err_msg=name)


def in_form_of_transformers(model):
    """The weights of a model by the names of transformers without the prefix `bert.`."""
    table = TYPES["bert"].table("pretraining")
    return {name.stored_name: array for name, array in Weights.of(model).arrays(table)}


def select(reference, prefix):
    """The arrays whose names begin with a prefix, named as `in_form_of_transformers` does."""
    return {name.removeprefix(prefix).removeprefix("bert."): array for name, array in reference.items()
            if name.startswith(prefix)}


@pytest.mark.parametrize("architecture", MODELS)
def test_every_weight_is_loaded_and_written(architecture, tmp_path):
    model, _ = load(FOLDER / architecture, MODELS[architecture])
    huggingface.write(Weights.of(model, BertTokenizer(FOLDER / architecture / "vocab.txt")), tmp_path)
    wanted, written = (load_file(folder / "model.safetensors") for folder in (FOLDER / architecture, tmp_path))
    assert written.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(written[name], array, err_msg=name)


@both_layouts
def test_hidden_states(layout):
    bert, reference = load(PRETRAINING, layout=layout)
    outputs = bert.encode(inputs_of(reference))
    assert_close(outputs.pooled_output, reference["pooler_output"])
    states = [outputs.embedding_output, *outputs.encoder_outputs]
    for layer, state in enumerate(states):
        is_real = real(reference)
        assert_close(state[is_real], reference[f"hidden_states.{layer}"][is_real])
    np.testing.assert_array_equal(outputs.sequence_output, states[-1])
    assert f"hidden_states.{len(states)}" not in reference


def test_attention_probabilities():
    bert, reference = load(PRETRAINING)
    attention = bert.encode(inputs_of(reference), return_attention=True).attention_probabilities
    for layer, probabilities in enumerate(attention):
        assert_close(probabilities, reference[f"attentions.{layer}"], atol=1e-6)
    assert f"attentions.{len(attention)}" not in reference


@both_layouts
@pytest.mark.parametrize(("architecture", "names"), [
    ("BertForPreTraining", {"mlm_logits": "prediction_logits", "next_sentence_logits": "seq_relationship_logits"}),
    ("BertForSequenceClassification", None), ("BertForTokenClassification", None),
    ("BertForQuestionAnswering", {"start_logits": "start_logits", "end_logits": "end_logits"}),
])
def test_logits(architecture, names, layout):
    model, reference = load(FOLDER / architecture, MODELS[architecture], layout)
    outputs, is_real = model(inputs_of(reference)), real(reference)
    for ours, name in (names or {"logits": "logits"}).items():
        value, wanted = outputs if names is None else outputs[ours], reference[name]
        of_tokens = is_real if wanted.shape[:2] == is_real.shape else ...
        assert_close(value[of_tokens], wanted[of_tokens])
    if names is None:
        assert_close(CROSS_ENTROPY(reference["labels"], outputs), reference["loss"])


def masked_tokens(labels):
    """Labels of all tokens as positions, ids and weights of the masked ones, [batch, most of a text] each."""
    is_masked = labels != IGNORED
    most = is_masked.sum(axis=1).max()
    positions = np.argsort(~is_masked, axis=1, kind="stable")[:, :most]  # the masked ones come first
    weights = np.take_along_axis(is_masked, positions, axis=1)
    ids = np.where(weights, np.take_along_axis(labels, positions, axis=1), 0)
    return {"masked_lm_positions": positions.astype("int32"), "masked_lm_ids": ids.astype("int32"),
            "masked_lm_weights": weights.astype("float32")}


def test_pretraining_losses():
    """Computed from the masked tokens alone."""
    model, reference = load(PRETRAINING, BertPretrainer)
    batch = inputs_of(reference) | masked_tokens(reference["labels"]) | {
        "next_sentence_labels": reference["next_sentence_label"].astype("int32")}
    objective = Objective()
    scores = objective.scores([objective.sums(model, batch) | objective.counts(batch)])
    for name in ("loss", "mlm_loss", "next_sentence_loss"):
        assert scores[name] == pytest.approx(float(reference[name]), abs=5e-6), name


@both_layouts
def test_gradients(layout):
    model, reference = load(PRETRAINING, BertPretrainer, layout)
    with tf.GradientTape() as tape:
        outputs = model(inputs_of(reference), training=True)
        loss = CROSS_ENTROPY(reference["labels"], outputs["mlm_logits"]) + CROSS_ENTROPY(
            reference["next_sentence_label"], outputs["next_sentence_logits"])
    assert_close(loss, reference["loss"])
    gradients = tape.gradient(loss, [variable.value for variable in model.weights])
    model.set_weights([tf.convert_to_tensor(gradient).numpy() for gradient in gradients])
    assert_all_close(in_form_of_transformers(model), select(reference, "gradients."))


@both_layouts
def test_training(layout):
    """Steps of AdamW with warm-up, clipping and weight decay."""
    model, reference = load(CLASSIFICATION, BertClassifier, layout)
    optimizer = make_optimizer(model, LEARNING_RATE, TOTAL_STEPS, WARMUP_STEPS / TOTAL_STEPS, WEIGHT_DECAY)
    model.compile(optimizer, CROSS_ENTROPY, run_eagerly=True)  # tracing takes longer than the steps
    for step in range(STEPS):
        model.train_on_batch(inputs_of(reference, f"steps.{step}."), reference[f"steps.{step}.labels"])
    assert_all_close(in_form_of_transformers(model), select(reference, "trained."))


@pytest.mark.parametrize("library", ["garden", "kerashub"])
@both_layouts
def test_other_encoders(library, layout):
    bert, reference = load(CLASSIFICATION, layout=layout)
    wanted, outputs, is_real = load_file(FOLDER / f"{library}.safetensors"), bert(inputs_of(reference)), real(reference)
    assert_close(outputs[0], wanted["pooled_output"])
    assert_close(outputs[1][is_real], wanted["sequence_output"][is_real])


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_token_ids(casing):
    recorded = json.loads((FOLDER / "tokens.json").read_text())
    wanted, texts = recorded[casing]["ids"], recorded["texts"]
    tokenizer = BertTokenizer(recorded[casing]["vocabulary"], lower_case=casing == "uncased")
    assert tokenizer.ids(texts) == wanted
    in_graph = tokenizer.graph().tokenize_with_offsets(tf.constant(texts))[0]
    assert in_graph.merge_dims(1, 2).to_list() == wanted


@pytest.mark.peers
def test_the_libraries_still_compute_what_is_recorded(tmp_path):
    record_peers.record(tmp_path / "peers")
    paths = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file())
    assert paths == sorted(path.relative_to(tmp_path / "peers") for path in (tmp_path / "peers").rglob("*")
                           if path.is_file())
    for path in paths:
        today = tmp_path / "peers" / path
        if path.suffix == ".safetensors":
            assert_all_close(load_file(today), load_file(FOLDER / path))
        elif path.name in ("tokens.json", "vocab.txt"):  # the other files name versions
            assert today.read_text() == (FOLDER / path).read_text()
