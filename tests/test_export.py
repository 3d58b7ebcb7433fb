"""The encoder part of the contract of a Hub-style SavedModel (docs/hub_contract.md); tests name its lines."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

from keras_bert.errors import InputError
from keras_bert.export import export_encoder, export_text_model
from keras_bert.export.checking import FAILED
from keras_bert.export.text_model import TextModel, task_of
from keras_bert.export.verify import verify
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertPretrainer

import zoo
from conftest import SMALL, TINY, TINY_VOCABULARY, few_objects, random_inputs, randomize


@pytest.fixture(scope="module", params=[
    "plain", pytest.param("jit", marks=pytest.mark.slow("a graph compiled by XLA"))])
def path(request, exported):
    return exported(jit_compile=True) if request.param == "jit" else exported()


@pytest.fixture(scope="module")
def loaded(path):
    return zoo.loaded(path)


@pytest.fixture
def with_lora(bert):
    """Whose additions are large, in a dense layer besides those of `enable_lora` too."""
    inputs = random_inputs(3, 7)
    before = bert(inputs)[0]
    bert.enable_lora(2)
    bert.blocks[1].intermediate.enable_lora(3, lora_alpha=6)
    randomize(bert)
    assert np.abs(bert(inputs)[0] - before).max() > 0.2
    return bert


def as_dict(inputs, segments="input_type_ids"):
    return dict(zip(("input_word_ids", "input_mask", segments), map(tf.constant, inputs.values())))


@pytest.mark.parametrize("batch,length,segments", [
    (1, 1, "input_type_ids"), (2, 5, "segment_ids"), (2, 128, "input_type_ids")])
def test_lines_1_3_and_4(loaded, source, batch, length, segments):
    inputs = random_inputs(batch, length)
    outputs = loaded(as_dict(inputs, segments))
    assert len(outputs["encoder_outputs"]) == TINY.num_hidden_layers
    expected = source.encode(inputs)._asdict()
    for key in outputs.keys() - {"default"}:
        for got, value in zip(tf.nest.flatten(outputs[key]), tf.nest.flatten(expected[key]), strict=True):
            np.testing.assert_allclose(got, value, atol=2e-6)  # XLA and oneDNN sum in other orders
    np.testing.assert_array_equal(outputs["default"], outputs["pooled_output"])


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_what_it_refuses(tokenizer, tmp_path):
    model = BertClassifier(BertLayer(SMALL), 2)
    small = BertLayer(dataclasses.replace(SMALL, vocab_size=59))
    for call, message in (
            (lambda: export_encoder(model, tmp_path / "out", tokenizer),
             "a BertLayer or a BertPretrainer; got BertClassifier; .*pass model.bert"),
            (lambda: export_encoder(small, tmp_path / "out", tokenizer),
             r"at most the model's vocab_size \(59\) tokens; got 60"),
            (lambda: export_encoder(model.bert, tmp_path / "out", tokenizer, dtype="int8"),
             "float32, bfloat16.*int8")):
        with pytest.raises(InputError, match=message):
            call()
    with few_objects():
        keras.Model.quantize(model, "int8")
    with pytest.raises(InputError, match="model must not be quantized"):
        export_encoder(model.bert, tmp_path / "out", tokenizer)
    with pytest.raises(InputError, match="model must not be quantized"):
        export_text_model(model, tokenizer, tmp_path / "out", labels=["a", "b"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow("LoRA or recomputation, which an export must drop")
def test_an_encoder_that_recomputes_and_a_masked_lm_with_lora(with_lora, tokenizer, tmp_path):
    inputs, positions = random_inputs(3, 7), np.array([[1, 2], [0, 1], [2, 0]], np.int32)
    pretrainer = BertPretrainer(with_lora)
    wanted = pretrainer(inputs | {"masked_lm_positions": positions})
    recomputing = randomize(BertLayer(TINY, gradient_checkpointing=True))  # `bert` has LoRA too
    for name, model in ("recomputing", recomputing), ("lora", pretrainer):
        export_encoder(model, tmp_path / name, tokenizer)
        loaded = tf.saved_model.load(str(tmp_path / name))
        for outputs in loaded(as_dict(inputs)), loaded.signatures["serving_default"](**as_dict(inputs)):
            np.testing.assert_allclose(outputs["sequence_output"], getattr(model, "bert", model)(inputs)[1], atol=2e-6)
    got = loaded.mlm(as_dict(inputs) | {"masked_lm_positions": tf.constant(positions)})
    np.testing.assert_allclose(got["mlm_logits"], wanted["mlm_logits"], atol=1e-5)
    assert len(loaded.variables) == 5 + 16 * 2 + 2 and not [v for v in loaded.variables if "lora" in v.name]
    assert [v for v in with_lora.trainable_weights if v.name.startswith("lora")]  # the source is as it was


@pytest.mark.usefixtures("eager")
def test_text_models_have_no_lora(with_lora, tokenizer):
    inputs, classifier = random_inputs(3, 7), randomize(BertClassifier(with_lora, 3))
    for model, dtype, options, key, wanted, atol in (
            (classifier, "bfloat16", {"labels": ["a", "b", "c"]}, "probabilities", tf.nn.softmax(classifier(inputs)),
             0.05), (with_lora, "float32", {}, "pooled_output", with_lora(inputs)[0], 2e-6)):
        exported = TextModel(model, task_of(model, tokenizer, None, {"max_length": 16} | options), tokenizer, dtype)
        assert not [variable for variable in exported.weights if "lora" in variable.name]
        np.testing.assert_allclose(exported.encode(*as_dict(inputs).values())[key], wanted, atol=atol)


@pytest.mark.slow("dropout that repeats itself, or differs between processes")
def test_dropout_draws_anew_in_each_call_and_the_same_in_each_load(exported):
    """Eagerly, in batches of other lengths, and twice in a function; also under op determinism."""
    def draws():
        loaded = tf.saved_model.load(str(exported()))

        def call(length):
            return loaded([tf.ones([1, length], tf.int32)] * 3, training=True)[0]

        @tf.function
        def both():
            return call(5), call(5)

        return np.reshape([*map(call, (5, 5, 6, 5)), *both(), *both()], [8, -1])

    first = draws()
    tf.config.experimental.enable_op_determinism()
    try:
        second = draws()
    finally:
        disable_op_determinism()
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)
    distances = np.abs(first[:, None] - first[None]).max(-1) + np.eye(len(first))
    assert distances.min() > 1e-3


@pytest.mark.slow("a graph compiled by XLA")
def test_every_line_under_xla(exported):
    """test_verify.py has the others."""
    assert not [result for result in verify(exported(jit_compile=True)) if result.status == FAILED]


def test_lines_8_to_10_variables_and_assets(path, loaded, source):
    assert len(loaded.trainable_variables) == len(source.weights) == 5 + 16 * 2 + 2
    assert list(loaded.regularization_losses) == []
    names = [variable.name for variable in loaded.variables]
    assert len(set(names)) == len(names) and "bert/block_1/attention/query/kernel:0" in names
    for got, wanted in zip(loaded.variables, source.weights):
        np.testing.assert_array_equal(got, wanted)
    # Weights are saved once, and nothing else.
    size = (path / "variables/variables.data-00000-of-00001").stat().st_size
    assert size < 4 * source.count_params() + 20_000
    vocabulary, config = (pathlib.Path(os.fsdecode(asset.asset_path.numpy())).read_text() for asset in (
        loaded.vocab_file, loaded.bert_config))
    assert vocabulary.split("\n")[:-1] == TINY_VOCABULARY and json.loads(config) == TINY.to_dict()
    assert loaded.do_lower_case.numpy() and sorted(os.listdir(path / "assets")) == ["bert_config.json", "vocab.txt"]


def test_serving_default(loaded):
    mask = tf.cast(tf.range(TINY.max_position_embeddings) < [[3], [128]], tf.int32)  # the longest
    inputs = as_dict(random_inputs(*mask.shape)) | {"input_mask": mask}
    outputs, expected = loaded.signatures["serving_default"](**inputs), loaded(inputs)
    assert sorted(outputs) == ["pooled_output", "sequence_output"]
    # Another graph, other fusions; unless XLA compiles it, it leaves padding out.
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], atol=2e-6)
    np.testing.assert_allclose(outputs["sequence_output"][mask > 0], expected["sequence_output"][mask > 0], atol=2e-6)


@pytest.mark.parametrize("name, count", [("input_word_ids", TINY.vocab_size), ("input_type_ids", TINY.type_vocab_size)])
def test_ids_without_an_embedding_are_refused(request, loaded, name, count):
    calls = [lambda given: loaded.signatures["serving_default"](**given)]
    if "jit" not in request.node.callspec.id:  # XLA takes the nearest one: there, only the signature checks ids
        calls.append(loaded)
    for value, call in itertools.product((-1, -count, count), calls):
        inputs = as_dict(random_inputs(2, 5))
        inputs[name] = tf.tensor_scatter_nd_update(inputs[name], [[1, 2]], [value])
        with pytest.raises(tf.errors.InvalidArgumentError):
            call(inputs)


@pytest.mark.parametrize("training", [
    pytest.param(False, marks=pytest.mark.slow("gradients of another function")), True])
def test_gradients_reach_every_variable(loaded, source, training):
    inputs = random_inputs(2, 5)
    inputs["input_mask"][1, 3:] = 0
    gradients = []
    for call, variables in ((lambda: loaded(list(as_dict(inputs).values()), training=training),
                             loaded.trainable_variables),
                            (lambda: source(inputs), [weight.value for weight in source.weights])):
        with tf.GradientTape() as tape:
            pooled, sequence = call()
            loss = tf.reduce_sum(pooled ** 2) + tf.reduce_sum(sequence[:, 0] ** 3)
        gradients.append(tape.gradient(loss, variables))
    assert all(gradient is not None for gradient in gradients[0])
    for got, wanted in zip(*map(tf.nest.flatten, gradients)) if not training else ():
        got, wanted = map(tf.convert_to_tensor, (got, wanted))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))


@pytest.mark.slow("the dtypes of a bfloat16 export")
def test_bfloat16_is_for_serving(source, exported):
    served = zoo.loaded(exported(dtype="bfloat16"))
    assert served.trainable_variables == [] and {variable.dtype for variable in served.variables} == {tf.bfloat16}
    inputs = random_inputs(3, 7)
    output = served(as_dict(inputs))["pooled_output"]
    assert output.dtype == tf.float32
    np.testing.assert_allclose(output, source(inputs)[0], atol=0.05)  # 8 bits of values up to 1


def test_line_14_never_overwrites_and_leaves_nothing_half_written(tmp_path, tokenizer, monkeypatch):
    source, path = BertLayer(SMALL), tmp_path / "encoder"
    path.mkdir()
    (path / "keep").write_text("me")
    with pytest.raises(InputError, match="exists already"):
        export_encoder(source, path, tokenizer)

    def save(_, folder, *signatures, full, **options):
        pathlib.Path(folder, "saved_model.pb").touch()
        if full:  # made up: a real full disk needs root to mount
            raise tf.errors.ResourceExhaustedError(None, None, "variables.data: No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", functools.partial(save, full=True))
    with pytest.raises(InputError, match="encoder: cannot be written: .*No space left"):
        export_encoder(source, path, tokenizer, overwrite=True)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["encoder", "encoder/keep"]
    monkeypatch.setattr(tf.saved_model, "save", functools.partial(save, full=False))
    export_encoder(source, path, tokenizer, overwrite=True)
    assert tf.saved_model.contains_saved_model(str(path)) and not (path / "keep").exists()


def test_a_moved_export_loads_without_its_sources(exported, tmp_path):
    shutil.copytree(exported(), tmp_path / "moved")
    again = tf.saved_model.load(str(tmp_path / "moved"))
    assert again.vocab_file.asset_path.numpy().startswith(str(tmp_path / "moved").encode())
    assert str(exported()).encode() not in (tmp_path / "moved/saved_model.pb").read_bytes()
