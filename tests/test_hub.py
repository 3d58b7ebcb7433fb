"""Exports under `hub.KerasLayer` (tf_keras) and `HubLayer` (Keras 3)."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
from keras.src.backend.common import global_state

from keras_bert.errors import InputError
from keras_bert.hub import HubLayer

from conftest import TINY_VOCABULARY, random_inputs

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def path(exported):
    return str(exported())


def classifier(path):
    """The notebook's model in Keras 3."""
    names = ("input_word_ids", "input_mask", "segment_ids")
    tensors = [keras.Input((None,), dtype="int32", name=name) for name in names]
    pooled, _ = HubLayer(path, trainable=True)(tensors)
    output = keras.layers.Dense(176, activation="softmax")(keras.layers.Dropout(0.2)(pooled))
    return keras.Model(tensors, output)


@pytest.mark.slow("a layer of Keras 2, whose variable must be set before TensorFlow is imported")
def test_the_notebook_with_legacy_keras(path, tmp_path):
    process = subprocess.run([sys.executable, HERE / "legacy_keras.py", path, tmp_path], text=True,
                             capture_output=True, env=os.environ | {"TF_USE_LEGACY_KERAS": "1"})
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.mark.slow("a layer that Keras trains, saves or exports otherwise than its own")
def test_the_notebook_with_keras_3(path, tmp_path):
    model = classifier(path)
    inputs = list(random_inputs(16, 9).values())
    hub_layer = model.layers[3]
    before = [keras.ops.convert_to_numpy(v) for v in hub_layer.trainable_variables]
    # XLA compiles the steps of training, as it may on a GPU.
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=True)
    model.fit(inputs, np.arange(16), epochs=2, batch_size=16, verbose=0)
    assert all((old != keras.ops.convert_to_numpy(v)).any() for old, v in zip(before, hub_layer.trainable_variables))
    wanted = model(inputs)
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "served", verbose=False)
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=False)
    np.testing.assert_array_equal(loaded(inputs), wanted)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(inputs), wanted, atol=1e-6)


def test_starts_with_the_exported_weights_and_answers(path, source):
    layer = HubLayer(path)
    inputs = random_inputs(3, 7)
    for got, wanted in zip(layer(list(inputs.values())), source(inputs)):
        np.testing.assert_allclose(got, wanted, atol=2e-6)
    assert sorted(layer(inputs)) == ["default", "encoder_outputs", "pooled_output", "sequence_output"]
    peer = hub.KerasLayer(path, trainable=True)
    for got, wanted, theirs in zip(layer.weights, source.weights, peer.trainable_weights, strict=True):
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(theirs, wanted)


@pytest.mark.slow("dropout that is equal in all steps")
def test_dropout_follows_the_seed_of_keras_while_the_layer_is_trainable(path, monkeypatch):
    encoder = tf.saved_model.load(path)
    monkeypatch.setattr(tf.saved_model, "load", lambda _: encoder)  # it takes longer than the layers
    inputs = list(random_inputs(2, 5).values())

    def draw(seed):
        keras.utils.set_random_seed(seed)
        layer = HubLayer(path, trainable=True)
        return layer, layer(inputs, training=True)[0].numpy()

    (_, first), (_, other), (layer, again) = map(draw, (1, 2, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    for trainable in (False, True):
        layer.trainable = trainable
        one, two = (layer(inputs, training=True)[0] for _ in range(2))
        assert bool(np.abs(one - two).max() > 1e-3) == trainable
        assert len(layer.trainable_weights) == 39 * trainable


def test_other_exporters_with_losses_and_frozen_variables(tmp_path):
    root = tf.train.Checkpoint(scale=tf.Variable(2.0, name="scale"),
                               offset=tf.Variable(1.0, trainable=False, name="offset"))
    root.__call__ = tf.function(lambda x: x * root.scale + root.offset, input_signature=[tf.TensorSpec([None, 3])])
    root.variables, root.trainable_variables = [root.scale, root.offset], [root.scale]
    root.regularization_losses = [tf.function(lambda: 0.5 * root.scale**2, input_signature=[])]
    tf.saved_model.save(root, str(tmp_path))
    layer = HubLayer(tmp_path, trainable=True)
    np.testing.assert_allclose(layer(np.ones((2, 3), "float32"), training=True), np.full((2, 3), 3.0))
    assert float(layer.losses[0]) == 2.0
    assert (len(layer.trainable_weights), len(layer.non_trainable_weights)) == (1, 1)


@pytest.mark.peers
def test_an_encoder_that_the_model_garden_exported(tmp_path):
    from official.legacy.bert import configs
    from official.nlp.tools import export_tfhub_lib as exporter

    config = configs.BertConfig(60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    _, encoder = exporter._create_model(bert_config=config, encoder_config=None, with_mlm=False)
    checkpoint = tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "checkpoint/test"))
    (tmp_path / "vocab.txt").write_text("\n".join(TINY_VOCABULARY))
    exporter.export_model(str(tmp_path / "garden"), bert_config=config, model_checkpoint_path=checkpoint,
                          with_mlm=False, vocab_file=str(tmp_path / "vocab.txt"), do_lower_case=True)
    layer = HubLayer(tmp_path / "garden", trainable=True)
    assert len(layer.trainable_weights) == len(encoder.trainable_weights)
    inputs = dict(zip(("input_word_ids", "input_mask", "input_type_ids"), random_inputs(4, 7).values()))
    np.testing.assert_allclose(layer(inputs)["pooled_output"], encoder(inputs)["pooled_output"], atol=2e-6)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(inputs, training=True)["pooled_output"] ** 2)
    assert all(gradient is not None for gradient in tape.gradient(loss, [v.value for v in layer.trainable_weights]))


@pytest.fixture
def moved(path, tmp_path, monkeypatch):
    """A copy of the SavedModel in the working directory; the model of its relative path, saved, and what it answers."""
    shutil.copytree(path, tmp_path / "made/encoder")
    monkeypatch.chdir(tmp_path / "made")
    model = classifier("encoder")
    model.layers[3].weights[0].assign(model.layers[3].weights[0] + 1)
    model.save(tmp_path / "model.keras")
    monkeypatch.chdir(tmp_path)
    return model, answers(model)


def answers(model):
    return keras.ops.convert_to_numpy(model(list(random_inputs(2, 5).values())))


@pytest.mark.slow("a graph that a file brings along")
def test_safe_mode_refuses_the_graph_of_others(moved, tmp_path, monkeypatch):
    model, wanted = moved
    calls = [lambda: keras.saving.load_model("model.keras"), lambda: keras.models.clone_model(model),
             lambda: keras.models.model_from_json(model.to_json()),
             lambda: HubLayer.from_config(model.layers[3].get_config())]
    for load in calls:
        with pytest.raises(InputError, match=f"{tmp_path}/made/encoder: a HubLayer runs the graph.*safe_mode=False"):
            load()
    keras.config.enable_unsafe_deserialization()
    try:
        loaded, *_ = [load() for load in calls]
    finally:  # Keras has no function for this
        global_state.set_global_attribute("safe_mode_saving", None)
    np.testing.assert_array_equal(answers(loaded), wanted)


@pytest.mark.slow("a path that depends on the folder of a process")
def test_a_file_finds_its_saved_model_by_the_absolute_path(moved, tmp_path, monkeypatch):
    """A file of version 0.1 holds the path as it was passed to the layer."""
    with zipfile.ZipFile("model.keras") as new, zipfile.ZipFile("old.keras", "w") as old:
        for name in new.namelist():
            old.writestr(name, new.read(name).replace(f"{tmp_path}/made/encoder".encode(), b"encoder"))
        assert b'"path": "encoder"' in old.read("config.json")
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "made")
        loaded = keras.saving.load_model(tmp_path / "old.keras", safe_mode=False)
    np.testing.assert_array_equal(answers(loaded), moved[1])
    (tmp_path / "made/encoder").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{tmp_path}/made/encoder: must be the folder of the SavedModel") as error:
        keras.saving.load_model("model.keras", safe_mode=False)
    assert "\n" not in str(error.value)
    rebuilt = classifier(tmp_path / "elsewhere")  # as the message says
    rebuilt.load_weights("model.keras")
    np.testing.assert_array_equal(answers(rebuilt), moved[1])


def test_bad_paths(tmp_path):
    with pytest.raises(InputError, match="https://example.com/encoder: cannot be read: .*; download it"):
        HubLayer("https://example.com/encoder")
    with pytest.raises(InputError, match="path must be that of a SavedModel's folder, .*; got a function; call a func"):
        HubLayer(tf.function(lambda inputs: inputs).python_function)
    with pytest.raises(InputError, match="saved_model.pb"):
        HubLayer(tmp_path)
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    with pytest.raises(InputError, match="callable root"):
        HubLayer(tmp_path / "empty")
