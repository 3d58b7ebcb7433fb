"""Folders for TensorFlow Serving, read by its own protocol buffers and run as it runs them; and broken ones, which
`keras-bert serve` watches."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2
from text_reference import TOKENIZER

from keras_bert.errors import InputError
from keras_bert.export import export_version
from keras_bert.export.serving_folder import _rename_to_next
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertMultipleChoice, BertSpanLabeler
from keras_bert.serving import model as model_module
from keras_bert.serving.model import Model
from keras_bert.serving.saved_model import SavedModel
from keras_bert.serving.settings import Settings, find_first_version

from conftest import TINY, randomize


@pytest.fixture(scope="module")
def classifier():
    return randomize(BertClassifier(randomize(BertLayer(TINY)), 2))


@pytest.fixture(scope="module")
def folder(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "intents"
    assert export_version(classifier, TOKENIZER, folder, labels=["a", "b"]) == str(folder / "1")
    return folder


@pytest.fixture(scope="module")
def batching_parameters():
    """The message `BatchingParameters`, which the package lacks, from the numbers and types of its fields in
    tensorflow_serving/servables/tensorflow/session_bundle_config.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="batching.proto", package="test", syntax="proto3",
                                              dependency=[wrappers_pb2.DESCRIPTOR.name])
    message = file.message_type.add(name="BatchingParameters")
    for number, name in enumerate(
            ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"), 1):
        message.field.add(name=name, number=number, type=11, label=1, type_name=".google.protobuf.Int64Value")
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.BatchingParameters"))


@pytest.mark.slow
def test_the_settings_are_those_of_tensorflow_serving(folder, batching_parameters):
    config = text_format.Parse((folder / "models.config").read_text(), model_server_config_pb2.ModelServerConfig())
    model, = config.model_config_list.config
    assert (model.name, model.base_path, model.model_platform) == ("intents", "/models/intents", "tensorflow")
    batching = text_format.Parse((folder / "batching_parameters.txt").read_text(), batching_parameters())
    assert batching.max_batch_size.value == 2048 // 128
    assert batching.max_batch_size.value * batching.max_enqueued_batches.value == 512
    assert batching.batch_timeout_micros.value > 0 and batching.num_batch_threads.value > 0


def records_of(version):
    records = tf.data.TFRecordDataset(str(version / "assets.extra" / "tf_serving_warmup_requests"))
    return [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]


@pytest.mark.slow
def test_the_warm_up_runs_as_tensorflow_serving_runs_it(folder):
    records, seen = records_of(folder / "1"), []
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], str(folder / "1")).signature_def
        assert {"serving_default", "encode", "explain"} <= signatures.keys()
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


@pytest.mark.slow
def test_keras_bert_serve_warms_up_by_it_and_joins_no_explanations(folder):
    called = []
    saved_model = SavedModel(str(folder / "1"), 1)
    inputs = {"text": np.array([b"a"], object), "layers": np.zeros(1, np.int32)}
    assert saved_model.batch_key("explain", inputs) != saved_model.batch_key("explain", inputs)
    saved_model._call = lambda name, inputs: called.append((name, inputs["text"].shape))
    saved_model.warm_up()
    assert called == [("serving_default", (rows,)) for rows in (1, 1, 16, 16)]
    saved_model.warm_up_others()
    assert called[4:] == [("explain", (1,))]
    del saved_model._call
    outputs, = saved_model.run("explain", [inputs])
    saved_model.close()
    assert outputs["tokens"].tolist() == [[b"[CLS]", b"a", b"[SEP]"]] and outputs["attention"].shape == (1, 1, 4, 3, 3)


@pytest.mark.slow
def test_the_warm_up_of_a_compiled_model_has_each_length_in_batches_that_are_accepted(tmp_path):
    model = BertSpanLabeler(BertLayer(dataclasses.replace(TINY, max_position_embeddings=384)))
    version = export_version(model, TOKENIZER, tmp_path / "spans", max_length=384, jit_compile=True)
    settings = (tmp_path / "spans/batching_parameters.txt").read_text()
    most = int(re.search(r"max_batch_size \{ value: (\d+)", settings)[1])
    shapes = set()
    for record in records_of(tmp_path / "spans" / "1"):
        inputs = record.predict_log.request.inputs
        texts = [tf.make_ndarray(inputs[name])[0].decode() for name in ("question", "context")]
        tokens = 3 + sum(len(TOKENIZER.ids([text])[0]) for text in texts)
        rows = len(tf.make_ndarray(inputs["context"]))
        assert rows <= most
        shapes.add((rows, tokens))
    assert shapes == {(rows, length) for rows in (1, 2, 4, 5) for length in (16, 32, 64, 128, 256, 384)}
    assert tf.saved_model.load(version)(["a"] * 5, ["a b"] * 5)["start"].shape == (5,)


@pytest.mark.slow
def test_choices_are_four_a_prompt(tmp_path):
    model = BertMultipleChoice(BertLayer(TINY))
    version = export_version(model, TOKENIZER, tmp_path / "swag", "endings", max_length=64)
    requests = [record.predict_log.request for record in records_of(tmp_path / "swag" / "1")]
    assert version.endswith("1") and {request.model_spec.name for request in requests} == {"endings"}
    assert [tf.make_ndarray(request.inputs["choices"]).shape for request in requests] == [(1, 4)] * 2 + [(32, 4)] * 2
    assert "explain" not in tf.saved_model.load(version).signatures


@pytest.mark.slow
def test_versions_go_up_and_settings_changed_by_hand_stay(classifier, folder):
    before = {path: path.stat().st_mtime_ns for path in (folder / "1").rglob("*")}
    with open(folder / "batching_parameters.txt", "a") as file:
        file.write("# slower\n")
    (folder / "7").mkdir()
    (folder / "notes").mkdir()
    version = export_version(classifier, TOKENIZER, folder, "other", labels=["a", "b"], max_length=64)
    assert version == str(folder / "8")
    assert {path: path.stat().st_mtime_ns for path in (folder / "1").rglob("*")} == before
    assert (folder / "batching_parameters.txt").read_text().endswith("# slower\n")
    assert "value: 16 }" in (folder / "batching_parameters.txt").read_text()
    assert 'name: "other"' in (folder / "models.config").read_text()
    assert sorted(path.name for path in folder.iterdir()) == [
        "1", "7", "8", "batching_parameters.txt", "models.config", "notes"]


def write_number(path, number):
    """Writes a SavedModel that returns a number, and that appears at once."""
    module = tf.Module()
    module.function = tf.function(lambda: {"number": tf.constant(number)}, input_signature=[])
    tf.saved_model.save(module, f"{path}.new", {"serving_default": module.function})
    os.rename(f"{path}.new", path)


@pytest.mark.slow
def test_a_broken_version_stops_no_other_and_is_logged_once(tmp_path, caplog, monkeypatch):
    folder, settings = tmp_path / "models", Settings(models={}, row_wise={}, host="", port=0, grpc_port=0, workers=1,
                                                     body_timeout_s=1, grace_s=1, drain_s=0)
    model, vanishing = Model("m", str(folder), settings), folder / "7"
    caplog.set_level(logging.INFO, "keras_bert.serving")

    def fingerprint(path, original=model_module._fingerprint):
        value = original(path)
        shutil.rmtree(vanishing, ignore_errors=True)  # between the two times that it is read
        return value

    async def check():
        """The versions that failed now, and the served one."""
        caplog.clear()
        await model._check_folder()
        failed = [record.msg["version"] for record in caplog.records if record.msg["event"] == "failed"]
        return failed, model.current and model.current.number

    async def main():
        assert await check() == ([6, 5, 4, 3, 2], 1)
        assert all(f"models/{number}" in model.states[number][1] for number in range(2, 7))
        assert await check() == ([], 1)
        (folder / "6").chmod(0o700)  # as if it had been unreadable
        (folder / "5").unlink()
        write_number(tmp_path / "later", 5)
        shutil.copytree(tmp_path / "later", vanishing)
        monkeypatch.setattr(model_module, "_fingerprint", fingerprint)
        assert await check() == ([7, 6], 4)
        shutil.rmtree(folder)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(model._watch(), 1.5)
        await model.current.close()

    folder.mkdir()
    write_number(folder / "1", 1)
    (folder / "2").mkdir(0o000)
    (folder / "3").mkdir()
    (folder / "3/saved_model.pb").symlink_to(tmp_path / "nothing")
    (folder / "4").symlink_to(tmp_path / "later")
    (folder / "5").symlink_to("5")
    (folder / "6").mkdir()
    (folder / "6/saved_model.pb").write_bytes(b"broken")
    assert find_first_version(folder) == (6, str(folder / "6"))
    asyncio.run(main())
    warnings = [record.msg["message"] for record in caplog.records if record.msg["event"] == "warning"]
    assert warnings == [f"{folder}: cannot be read: No such file or directory"]


def test_exports_at_once_take_different_numbers(tmp_path):
    made = [tmp_path / f"new{number}" for number in range(40)]
    for path in made:
        path.mkdir()
        (path / "name").write_text(path.name)
    (tmp_path / "2").write_text("a file")
    (tmp_path / str(2**63)).mkdir()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda path: _rename_to_next(str(path), str(tmp_path)), made))
    assert sorted(int(path.rpartition("/")[2]) for path in taken) == list(range(3, 43))
    assert sorted((tmp_path / path / "name").read_text() for path in taken) == sorted(path.name for path in made)


def test_what_it_refuses(classifier, run, tmp_path, trained):
    with pytest.raises(InputError, match="name must consist of letters, digits and . _ -; got 'a b'"):
        export_version(classifier, TOKENIZER, tmp_path / "a b", labels=["a", "b"])
    with pytest.raises(InputError, match="max_length must be"):
        export_version(classifier, TOKENIZER, tmp_path / "x", labels=["a", "b"], max_length=999)
    assert not (tmp_path / "x").exists()
    status, _, messages = run("export", "text-model", f"--model={trained}", f"--output={tmp_path / 'o'}", "--name=a")
    assert (status, messages) == (1, ["keras-bert: --name needs --versioned; got --name=a without it"])


@pytest.mark.slow
def test_the_command_line(run, trained, tmp_path):
    (tmp_path / "served/1").mkdir(parents=True)
    status, output, _ = run("export", "text-model", f"--model={trained}", f"--output={tmp_path / 'served'}",
                            "--versioned", "--name=mine")
    assert (status, output) == (0, [str(tmp_path / "served/2")])
    saved_model = SavedModel(str(tmp_path / "served" / "2"), 1)
    outputs, = saved_model.run("serving_default", [{"text": np.array([b"play music"], object)}])
    saved_model.close()
    assert outputs["label"].shape == (1,)
