"""Folders for TensorFlow Serving, read by its own protocol buffers and run as it runs them."""

import concurrent.futures
import dataclasses
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2
from text_reference import TOKENIZER

from keras_bert.errors import InputError
from keras_bert.export import export_version, serving_folder
from keras_bert.inference.saved_model import SavedModel
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertMultipleChoice, BertSpanLabeler
from keras_bert.tasks import Classify

import zoo
from conftest import TINY, randomize


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("models") / "intents", BertClassifier(randomize(BertLayer(TINY)), 2)
    assert export_version(randomize(model), TOKENIZER, folder, labels=["a", "b"]) == str(folder / "1")
    return folder


def settings_of(folder):
    """The model in `models.config`, and the fields of `batching_parameters.txt`, whose message the package lacks."""
    config = text_format.Parse((folder / "models.config").read_text(), model_server_config_pb2.ModelServerConfig())
    model, = config.model_config_list.config
    lines = re.findall(r"^[^#].*$", (folder / "batching_parameters.txt").read_text(), re.MULTILINE)
    fields = [re.fullmatch(r"(\w+) { value: (\d+) }", line).groups() for line in lines]
    return model, {name: int(value) for name, value in fields}


@pytest.mark.slow("a folder as TensorFlow Serving reads and runs it")
def test_the_settings_are_those_of_tensorflow_serving(folder):
    model, batching = settings_of(folder)
    assert (model.name, model.base_path, model.model_platform) == ("intents", "/models/intents", "tensorflow")
    # As in tensorflow_serving/servables/tensorflow/session_bundle_config.proto.
    assert batching.keys() == {"max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"}
    assert min(batching.values()) > 0 and batching["max_batch_size"] == 2048 // 128
    assert batching["max_batch_size"] * batching["max_enqueued_batches"] == 512


def records_of(version):
    records = tf.data.TFRecordDataset(str(version / "assets.extra" / "tf_serving_warmup_requests"))
    return [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]


@pytest.mark.slow("a folder as TensorFlow Serving reads and runs it")
def test_the_warm_up_runs_as_tensorflow_serving_runs_it(folder):
    records, seen = records_of(folder / "1"), []
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], str(folder / "1")).signature_def
        assert {"serving_default", "encode", "word_weights"} <= signatures.keys()
        assert {signature.method_name for name, signature in signatures.items() if not name.startswith("__")} == {
            "tensorflow/serving/predict"}
        for record in records:
            assert record.WhichOneof("log_type") == "predict_log"
            request = record.predict_log.request
            assert request.model_spec.name == "intents"
            signature = signatures[request.model_spec.signature_name]
            assert request.inputs.keys() == signature.inputs.keys()
            arrays = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
            outputs = session.run({name: info.name for name, info in signature.outputs.items()},
                                  {signature.inputs[name].name: array for name, array in arrays.items()})
            assert {len(array) for array in outputs.values()} == {len(arrays["text"])}
            seen.append((len(arrays["text"]), len(TOKENIZER.ids([arrays["text"][0].decode()])[0])))
    assert seen == [(1, 1), (1, 128), (16, 1), (16, 128)]


@pytest.mark.slow("a folder as TensorFlow Serving reads and runs it")
def test_keras_bert_serve_warms_up_by_it(folder):
    called = []
    saved_model = SavedModel(str(folder / "1"), 1)
    saved_model._call = lambda name, inputs: called.append((name, len(next(iter(inputs.values())))))
    saved_model.warm_up()
    assert called == [("serving_default", rows) for rows in (1, 1, 16, 16)] + [
        (name, 1) for name in ("serving_default", "encode", "word_weights")]
    del saved_model._call
    saved_model.close()


def test_the_warm_up_of_a_compiled_model_has_each_length_in_batches_that_are_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(serving_folder, "export_text_model", lambda *_, **options: os.makedirs(_[2]))
    export_version(BertSpanLabeler(BertLayer(dataclasses.replace(TINY, max_position_embeddings=384))), TOKENIZER,
                   tmp_path / "spans", max_length=384, jit_compile=True)
    most = settings_of(tmp_path / "spans")[1]["max_batch_size"]
    shapes = set()
    for record in records_of(tmp_path / "spans" / "1"):
        inputs = record.predict_log.request.inputs
        texts = [tf.make_ndarray(inputs[name])[0].decode() for name in ("question", "context")]
        shapes.add((len(tf.make_ndarray(inputs["context"])), 3 + sum(map(len, TOKENIZER.ids(texts)))))
    assert shapes == {(rows, length) for rows in (1, 2, 4, 5) for length in (16, 32, 64, 128, 256, 384)} and most == 5


def test_choices_are_four_a_prompt(tmp_path, monkeypatch):
    monkeypatch.setattr(serving_folder, "export_text_model", lambda *_, **options: os.makedirs(_[2]))
    export_version(BertMultipleChoice(BertLayer(TINY)), TOKENIZER, tmp_path / "swag", "endings", max_length=64)
    requests = [record.predict_log.request for record in records_of(tmp_path / "swag" / "1")]
    assert {request.model_spec.name for request in requests} == {"endings"}
    assert [tf.make_ndarray(request.inputs["choices"]).shape for request in requests] == [(1, 4)] * 2 + [(32, 4)] * 2


def test_none_replaces_what_a_task_has(tmp_path, monkeypatch):
    exported, task = [], Classify(16, labels=["a", "b"], doc_stride=8)
    monkeypatch.setattr(serving_folder, "export_text_model",
                        lambda *_, **options: (os.makedirs(_[2]), exported.append(_[3])))
    export_version(BertClassifier(BertLayer(TINY), 2), TOKENIZER, tmp_path / "x", task=task, doc_stride=None)
    assert exported == [dataclasses.replace(task, doc_stride=None)]


@pytest.mark.slow("a folder as TensorFlow Serving reads and runs it")
def test_versions_go_up_and_settings_changed_by_hand_stay(run, folder):
    before = {path: path.stat().st_mtime_ns for path in (folder / "1").rglob("*")}
    with open(folder / "batching_parameters.txt", "a") as file:
        file.write("# slower\n")
    (folder / "7").mkdir()
    (folder / "notes").mkdir()
    status, output, _ = run("export", "text-model", f"--model={zoo.model('intent')}", f"--output={folder}",
                            "--versioned", "--name=other", "--max_length=64")
    assert (status, output) == (0, [str(folder / "8")])
    assert {path: path.stat().st_mtime_ns for path in (folder / "1").rglob("*")} == before
    assert (folder / "batching_parameters.txt").read_text().endswith("# slower\n")
    model, batching = settings_of(folder)
    assert (model.name, batching["max_batch_size"]) == ("other", 16)
    assert sorted(path.name for path in folder.iterdir()) == [
        "1", "7", "8", "batching_parameters.txt", "models.config", "notes"]
    saved_model = SavedModel(str(folder / "8"), 1)
    outputs, = saved_model.run("serving_default", [{"text": np.array([b"play music"], object)}])
    saved_model.close()
    assert outputs["label"].shape == (1,)


def test_exports_at_once_take_different_numbers(tmp_path):
    made = [tmp_path / f"new{number}" for number in range(40)]
    for path in made:
        path.mkdir()
        (path / "name").write_text(path.name)
    (tmp_path / "2").write_text("a file")
    (tmp_path / str(2**63)).mkdir()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda path: serving_folder._rename_to_next(str(path), str(tmp_path)), made))
    assert sorted(int(path.rpartition("/")[2]) for path in taken) == list(range(3, 43))
    assert sorted((tmp_path / path / "name").read_text() for path in taken) == sorted(path.name for path in made)


def test_what_it_refuses(run, tmp_path):
    classifier = BertClassifier(BertLayer(TINY), 2)
    with pytest.raises(InputError, match="name must consist of letters, digits and . _ -; got 'a b'"):
        export_version(classifier, TOKENIZER, tmp_path / "a b", labels=["a", "b"])
    with pytest.raises(InputError, match="max_length must be"):
        export_version(classifier, TOKENIZER, tmp_path / "x", labels=["a", "b"], max_length=999)
    assert not (tmp_path / "x").exists()
    status, _, messages = run("export", "text-model", f"--model={tmp_path}", f"--output={tmp_path}/o", "--name=a")
    assert (status, messages) == (1, ["keras-bert: --name needs --versioned; got --name=a without it"])
