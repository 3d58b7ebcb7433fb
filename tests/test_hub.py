"""Exports under `hub.KerasLayer` (tf_keras) and `HubLayer` (Keras 3)."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub

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


@pytest.mark.slow
def test_the_notebook_with_legacy_keras(path, tmp_path):
    def run(*more):
        process = subprocess.run([sys.executable, HERE / "legacy_keras.py", path, tmp_path, *more], text=True,
                                 capture_output=True, env=os.environ | {"TF_USE_LEGACY_KERAS": "1"})
        assert process.returncode == 0, process.stderr[-2000:]

    run()
    run("keras", "h5", "tf")


@pytest.mark.slow
def test_the_notebook_with_keras_3(path, tmp_path):
    model = classifier(path)
    inputs = list(random_inputs(16, 9).values())
    hub_layer = model.layers[3]
    assert len(hub_layer.trainable_variables) == 5 + 16 * 2 + 2
    before = [keras.ops.convert_to_numpy(v) for v in hub_layer.trainable_variables]
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(inputs, np.arange(16), epochs=2, verbose=0)
    assert all((old != keras.ops.convert_to_numpy(v)).any() for old, v in zip(before, hub_layer.trainable_variables))
    answers = model.predict(inputs, verbose=0)
    np.save(tmp_path / "inputs.npy", np.stack(inputs))
    np.save(tmp_path / "answers.npy", answers)
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "served", verbose=False)
    code = ("import sys, numpy as np, keras, keras_bert, tensorflow as tf; folder = sys.argv[1]\n"
            "inputs = list(np.load(f'{folder}/inputs.npy')); answers = np.load(f'{folder}/answers.npy')\n"
            "model = keras.saving.load_model(f'{folder}/model.keras', safe_mode=False)\n"
            "np.testing.assert_array_equal(model.predict(inputs, verbose=0), answers)\n"
            "served = tf.saved_model.load(f'{folder}/served')\n"
            "np.testing.assert_allclose(served.serve(inputs), answers, atol=1e-6)")
    process = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]


def test_starts_with_the_exported_weights_and_answers(path, source):
    layer = HubLayer(path)
    inputs = random_inputs(3, 7)
    for got, wanted in zip(layer(list(inputs.values())), source(inputs)):
        np.testing.assert_allclose(got, wanted, atol=2e-6)
    assert sorted(layer(inputs)) == ["default", "encoder_outputs", "pooled_output", "sequence_output"]
    for got, wanted in zip(layer.weights, source.weights, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_trainable_can_be_switched(path):
    layer = HubLayer(path, trainable=True)
    inputs = list(random_inputs(2, 5).values())

    def varies():
        first, second = layer(inputs, training=True)[0], layer(inputs, training=True)[0]
        return bool(np.abs(first - second).max() > 1e-3)

    assert varies() and len(layer.trainable_weights) == 39
    layer.trainable = False
    assert not varies() and layer.trainable_weights == []
    layer.trainable = True
    assert varies() and len(layer.trainable_weights) == 39


def test_same_weights_as_hub_keras_layer(path):
    peer, ours = hub.KerasLayer(path, trainable=True), HubLayer(path, trainable=True)
    assert len(peer.trainable_weights) == len(ours.trainable_weights)
    for one, other in zip(peer.trainable_weights, ours.trainable_weights):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_xla_fit(path):
    model = classifier(path)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    history = model.fit(list(random_inputs(16, 8).values()), np.arange(16), epochs=2, batch_size=8, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


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
    names = ("input_word_ids", "input_mask", "input_type_ids")
    inputs = dict(zip(names, random_inputs(4, 7).values()))
    outputs = layer(inputs)
    wanted = encoder(inputs)
    np.testing.assert_allclose(outputs["pooled_output"], wanted["pooled_output"], atol=2e-6)
    tensors = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    model = keras.Model(tensors, keras.layers.Dense(3)(layer(tensors)["pooled_output"]))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = [keras.ops.convert_to_numpy(v) for v in layer.trainable_weights]
    model.fit(inputs, np.arange(4) % 3, verbose=0)
    assert all((old != keras.ops.convert_to_numpy(v)).any() for old, v in zip(before, layer.trainable_weights))


def save(model, path):
    """Saves a model, with what it answers."""
    inputs = list(random_inputs(2, 5).values())
    model.save(path)
    return inputs, model.predict(inputs, verbose=0)


def test_safe_mode_refuses_the_graph_of_others(path, tmp_path):
    model = classifier(path)
    inputs, answers = save(model, tmp_path / "model.keras")
    message = re.escape(path) + ": a HubLayer runs the graph.*safe_mode=False"
    for load in (lambda: keras.saving.load_model(tmp_path / "model.keras"), lambda: keras.models.clone_model(model),
                 lambda: keras.models.model_from_json(model.to_json()),
                 lambda: HubLayer.from_config(model.layers[3].get_config())):
        with pytest.raises(InputError, match=message) as error:
            load()
        assert "\n" not in str(error.value)
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=False)
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), answers)


@pytest.mark.slow
def test_unsafe_deserialization_can_be_enabled(path, tmp_path):
    """In a process of its own: Keras has no function to disable it again."""
    inputs, answers = save(classifier(path), tmp_path / "model.keras")
    np.savez(tmp_path / "arrays.npz", *inputs, answers)
    code = ("import sys, numpy as np, keras, keras_bert\n"
            "*inputs, answers = np.load('arrays.npz').values()\n"
            "keras.config.enable_unsafe_deserialization()\n"
            "model = keras.saving.load_model('model.keras')\n"
            "np.testing.assert_array_equal(model.predict(inputs, verbose=0), answers)\n"
            "np.testing.assert_array_equal(keras.models.clone_model(model).layers[3].weights[0],"
            " model.layers[3].weights[0])\n")
    process = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
                             env=os.environ | {"PYTHONPATH": str(HERE.parent)})
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.fixture
def moved(path, tmp_path, monkeypatch):
    """A copy of the SavedModel in the working directory, and the model of its relative path."""
    shutil.copytree(path, tmp_path / "made/encoder")
    monkeypatch.chdir(tmp_path / "made")
    return classifier("encoder")


def test_reloads_from_another_working_directory(moved, tmp_path, monkeypatch):
    inputs, answers = save(moved, tmp_path / "model.keras")
    monkeypatch.chdir(tmp_path)
    loaded = keras.saving.load_model("model.keras", safe_mode=False)
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), answers)


def test_a_saved_model_that_is_gone_is_named(moved, tmp_path):
    moved.layers[3].weights[0].assign(moved.layers[3].weights[0] + 1)
    inputs, answers = save(moved, tmp_path / "model.keras")
    (tmp_path / "made/encoder").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{tmp_path}/made/encoder: must be the folder of the SavedModel") as error:
        keras.saving.load_model(tmp_path / "model.keras", safe_mode=False)
    assert "\n" not in str(error.value)
    rebuilt = classifier(tmp_path / "elsewhere")  # as the message says
    rebuilt.load_weights(tmp_path / "model.keras")
    np.testing.assert_array_equal(rebuilt.predict(inputs, verbose=0), answers)


def test_a_file_of_version_0_1_loads(moved, tmp_path):
    """It holds the path as it was passed to the layer."""
    inputs, answers = save(moved, tmp_path / "new.keras")
    with zipfile.ZipFile(tmp_path / "new.keras") as new, zipfile.ZipFile(tmp_path / "old.keras", "w") as old:
        for name in new.namelist():
            old.writestr(name, new.read(name).replace(f"{tmp_path}/made/encoder".encode(), b"encoder"))
    assert b'"path": "encoder"' in zipfile.ZipFile(tmp_path / "old.keras").read("config.json")
    loaded = keras.saving.load_model(tmp_path / "old.keras", safe_mode=False)
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), answers)


def test_dropout_follows_the_seed_of_keras(exported):
    draws = []
    for seed in (1, 2, 1):
        keras.utils.set_random_seed(seed)
        layer = HubLayer(exported(), trainable=True)
        draws.append([layer([np.ones((1, 5), np.int32)] * 3, training=True)[0] for _ in range(2)])
    np.testing.assert_array_equal(draws[0], draws[2])
    assert np.abs(np.subtract(draws[0], draws[1])).max() > 1e-3


def test_bad_paths(tmp_path):
    with pytest.raises(InputError, match="https://example.com/encoder: cannot be read: .*; download it"):
        HubLayer("https://example.com/encoder")
    with pytest.raises(InputError, match="saved_model.pb"):
        HubLayer(tmp_path)
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    with pytest.raises(InputError, match="callable root"):
        HubLayer(tmp_path / "empty")
