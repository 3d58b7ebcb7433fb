"""The encoder part of the contract of a Hub-style SavedModel (docs/hub_contract.md); tests name its lines."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

from keras_bert.errors import InputError
from keras_bert.export import export_encoder
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier

import zoo
from conftest import TINY, TINY_VOCABULARY, random_inputs

NAMES = ("input_word_ids", "input_mask", "input_type_ids")


@pytest.fixture(scope="module", params=[
    "plain", pytest.param("jit", marks=pytest.mark.slow("a graph compiled by XLA"))])
def path(request, exported):
    return exported(jit_compile=True) if request.param == "jit" else exported()


@pytest.fixture(scope="module")
def loaded(path):
    return zoo.loaded(path)


def as_dict(inputs, segments="input_type_ids"):
    return {"input_word_ids": tf.constant(inputs["input_word_ids"]), "input_mask": tf.constant(inputs["input_mask"]),
            segments: tf.constant(inputs["segment_ids"])}


@pytest.mark.parametrize("batch,length,segments", [
    (1, 1, "input_type_ids"), (2, 5, "segment_ids"), (2, 128, "input_type_ids")])
def test_lines_1_3_and_4(loaded, source, batch, length, segments):
    inputs = random_inputs(batch, length)
    outputs = loaded(as_dict(inputs, segments))
    assert sorted(outputs) == ["default", "encoder_outputs", "pooled_output", "sequence_output"]
    assert len(outputs["encoder_outputs"]) == TINY.num_hidden_layers
    assert {tensor.dtype for tensor in tf.nest.flatten(outputs)} == {tf.float32}
    expected = source.encode(inputs)._asdict()
    for key in outputs.keys() - {"default"}:
        for got, value in zip(tf.nest.flatten(outputs[key]), tf.nest.flatten(expected[key]), strict=True):
            np.testing.assert_allclose(got, value, atol=2e-6)  # XLA and oneDNN sum in other orders
    np.testing.assert_array_equal(outputs["default"], outputs["pooled_output"])


def test_line_1_list(loaded):
    inputs = as_dict(random_inputs(2, 5))
    outputs = loaded(list(inputs.values()))
    assert isinstance(outputs, list)
    for got, key in zip(outputs, ("pooled_output", "sequence_output"), strict=True):
        np.testing.assert_allclose(got, loaded(inputs)[key], atol=2e-6)


def test_lines_2_and_6_dropout(loaded):
    inputs = as_dict(random_inputs(2, 5))
    for training, low, high in ((False, 0, 1e-6), (True, 1e-3, 1)):
        outputs = np.stack([loaded(inputs, training=training)["pooled_output"] for _ in range(20)])
        assert low <= outputs.std(axis=0).max() <= high


def test_what_it_refuses(bert, tokenizer, tmp_path):
    with pytest.raises(InputError, match="a BertLayer or a BertPretrainer; got BertClassifier; .*pass model.bert"):
        export_encoder(BertClassifier(bert, 2), tmp_path / "out", tokenizer)
    small = BertLayer(dataclasses.replace(TINY, vocab_size=59))
    with pytest.raises(InputError, match=r"at most vocab_size \(59\) tokens; got 60"):
        export_encoder(small, tmp_path / "out", tokenizer)
    with pytest.raises(InputError, match="float32, bfloat16.*int8"):
        export_encoder(bert, tmp_path / "out", tokenizer, dtype="int8")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow("recomputation, which an export must drop")
def test_an_encoder_that_recomputes(bert, tokenizer, tmp_path):
    inputs = random_inputs(2, 5)
    export_encoder(bert.rebuild(gradient_checkpointing=True), tmp_path / "out", tokenizer)
    outputs = tf.saved_model.load(str(tmp_path / "out"))(as_dict(inputs))
    np.testing.assert_allclose(outputs["sequence_output"], bert(inputs)[1], atol=2e-6)


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


def test_line_7_static_shapes(loaded):
    @tf.function(input_signature=[[tf.TensorSpec([None, 10], tf.int32)] * 3])
    def shapes(inputs):
        outputs = loaded(dict(zip(NAMES, inputs)))
        static.update({key: value[-1].shape.as_list() if isinstance(value, list) else value.shape.as_list()
                       for key, value in outputs.items()})
        return outputs["pooled_output"]

    static = {}
    shapes.get_concrete_function()
    assert static == {"pooled_output": [None, 16], "default": [None, 16], "sequence_output": [None, 10, 16],
                      "encoder_outputs": [None, 10, 16]}


def test_line_8_variables(loaded, source):
    assert len(loaded.trainable_variables) == len(source.weights) == 5 + 16 * 2 + 2
    assert all(variable.trainable for variable in loaded.trainable_variables)
    assert {id(v) for v in loaded.trainable_variables} <= {id(v) for v in loaded.variables}
    assert list(loaded.regularization_losses) == []
    names = [variable.name for variable in loaded.variables]
    assert len(set(names)) == len(names)
    assert "bert/block_1/attention/query/kernel:0" in names
    for got, wanted in zip(loaded.variables, source.weights):
        np.testing.assert_array_equal(got, wanted)


def test_line_9_weights_are_saved_once_and_nothing_else(path, source):
    size = (path / "variables/variables.data-00000-of-00001").stat().st_size
    assert size < 4 * source.count_params() + 20_000


def test_line_10_assets(path, loaded):
    with open(loaded.vocab_file.asset_path.numpy()) as file:
        assert file.read().split("\n")[:-1] == TINY_VOCABULARY
    with open(loaded.bert_config.asset_path.numpy()) as file:
        assert json.load(file) == TINY.to_dict()
    assert loaded.do_lower_case.numpy() and not loaded.do_lower_case.trainable
    assert sorted(os.listdir(path / "assets")) == ["bert_config.json", "vocab.txt"]


def test_serving_default(loaded):
    signature = loaded.signatures["serving_default"]
    inputs = as_dict(random_inputs(2, 5))
    inputs["input_mask"] = tf.constant([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    outputs = signature(**inputs)
    expected = loaded(inputs)
    assert sorted(outputs) == ["pooled_output", "sequence_output"]
    # Another graph, other fusions; unless XLA compiles it, it leaves padding out.
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], atol=2e-6)
    is_real = inputs["input_mask"].numpy() > 0
    np.testing.assert_allclose(
        outputs["sequence_output"].numpy()[is_real], expected["sequence_output"].numpy()[is_real], atol=2e-6)


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
    pooled, _ = source(inputs)
    output = served(as_dict(inputs))["pooled_output"]
    assert output.dtype == tf.float32
    np.testing.assert_allclose(output, pooled, atol=0.05)  # 8 bits of precision, two blocks deep, values up to 1


def test_line_14_never_overwrites_and_leaves_nothing_half_written(source, tmp_path, tokenizer, monkeypatch):
    path = tmp_path / "encoder"
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
