"""`keras-bert serve` with LiteRT folders: the answers of `LiteModel`, the outputs of SavedModels, and no TensorFlow."""

import contextlib
import importlib.util
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
from serving_server import Server, count_wrong, serving, write_echo
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_bert.errors import InputError
from keras_bert.export.text_heads import characters
from keras_bert.inference.lite_model import LiteModel
from keras_bert.serving import litert_model, supervisor
from keras_bert.serving.litert_model import LiteRTModel
from keras_bert.serving.loading import load_model
from keras_bert.serving.saved_model import SavedModel
from keras_bert.serving.tensors import DEFAULT, STRING, RequestError
from keras_bert.tasks.embedding_scores import unit_vectors

from zoo import CASES, LABELS, OF_EACH_TASK, numbers

# Run by each Python process that has its folder in PYTHONPATH.
CORES = len(os.sched_getaffinity(0))  # the server has a worker for each
WITHOUT_TENSORFLOW = """
import sys

class NoKeras:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("keras", "jax", "torch"):
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, NoKeras())
sys.modules.update(dict.fromkeys(["tensorflow", "grpc", "google.protobuf", "tensorflow_serving"]))  # not installed
"""


def rows_of(case, texts):
    """The rows of a request for `predict`'s arguments."""
    return [dict(zip(CASES[case][1].inputs, row)) for row in zip(*texts)]


def arrays_of(case, texts):
    return {name: np.vectorize(str.encode, [STRING])(np.array(column, STRING))
            for name, column in zip(CASES[case][1].inputs, texts)}


def one_row(case):
    """Two texts for each input, so that the choices of all rows are equally many."""
    return [column[:2] if case != "choice" or not isinstance(column[0], list) else [row[:2] for row in column[:2]]
            for column in CASES[case][2]]


@pytest.fixture(scope="module")
def folders(lite_models, tmp_path_factory):
    versions = tmp_path_factory.mktemp("models") / "versions"
    shutil.copytree(lite_models("intent")[1], versions / "1")
    return {case: lite_models(case)[1] for case in OF_EACH_TASK} | {"versions": versions}


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    """A server whose processes cannot import TensorFlow, nor what brings it."""
    path = tmp_path_factory.mktemp("site")
    (path / "sitecustomize.py").write_text(WITHOUT_TENSORFLOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        server = Server(folders, "--max_instances=50", "--max_characters=5000", has_grpc=False)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def ask(server, case, rows, connection=None):
    return server.predict(case.replace(" ", "_"), connection, instances=rows)


@pytest.mark.filterwarnings("ignore:texts cut at max_length")
@pytest.mark.parametrize("case", OF_EACH_TASK)
def test_answers_are_those_of_predict(server, folders, case):
    model, texts = LiteModel.load(folders[case]), one_row(case)
    rows = [row if isinstance(row, dict) else {model.task.output: row}
            for row in ask(server, case, rows_of(case, texts))]
    found, expected = (numbers(list(answers)) for answers in (map(model.task.answer_of, rows), model.predict(*texts)))
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tag", "span", "choice"])
def test_outputs_are_those_of_the_saved_model(lite_models, tmp_path, case):
    """tests/test_decoding.py compares the outputs of all tasks, without exports."""
    model, folder = lite_models(case)
    model.export(tmp_path / "saved")
    lite, saved = load_model(folder, 1), load_model(str(tmp_path / "saved"), 1)
    assert isinstance(lite, LiteRTModel) and isinstance(saved, SavedModel)
    assert lite.signatures == {DEFAULT: saved.signatures[DEFAULT]}
    assert without_names(lite.signature_defs[DEFAULT]) == without_names(saved.signature_defs[DEFAULT])
    assert (lite.labels, lite.has_hangul, lite.max_values) == (saved.labels, saved.has_hangul, saved.max_values)
    assert lite.max_length == model.task.max_length
    saved.max_length = lite.max_length  # a graph does not say where it cuts texts
    everything = arrays_of(case, one_row(case) if case == "choice" else CASES[case][2])
    nothing = {name: array[:0] for name, array in everything.items()}
    for inputs, budget in ((everything, 10_000), (everything, 1), (nothing, 1)):
        tokens = lite.count_tokens(DEFAULT, inputs)
        assert tokens.tolist() == saved.count_tokens(DEFAULT, inputs).tolist()
        parts = lite.split(DEFAULT, inputs, tokens, budget)
        assert len(parts) == (max(1, len(tokens)) if budget == 1 else 1)
        found = lite.join(DEFAULT, [lite.run(DEFAULT, [part])[0] for part, _ in parts])
        expected, = saved.run(DEFAULT, [inputs])
        assert list(found) == list(expected)
        for name, array in expected.items():
            assert (found[name].dtype, found[name].ndim) == (array.dtype, array.ndim)
            if array.size == 0:
                assert found[name].size == 0
            elif array.dtype.kind == "f":
                np.testing.assert_allclose(found[name], array, atol=1e-4)
            else:
                np.testing.assert_array_equal(found[name], array)
    saved.close()


def without_names(signature_def):
    """A signature without the names that the tensors have in the graph."""
    return signature_def | {part: {name: info | {"name": ""} for name, info in signature_def[part].items()}
                            for part in ("inputs", "outputs")}


def test_no_answer_is_another_requests(server, folders):
    models = {case: (case, LiteModel.load(folders[case])) for case in OF_EACH_TASK}
    assert count_wrong(server, models, requests=2000, atol=1e-5) == 0


def test_nothing_needs_tensorflow(server):
    assert server.grpc_port is None
    assert "keras-bert: gRPC is off: its messages need TensorFlow, which LiteRT folders do not\n" in (
        server.lines)
    assert server.ask("/readyz")[0] == server.ask("/openapi.json")[0] == server.ask("/")[0] == 200
    assert server.ask("/v1/models")[1]["models"] == [*OF_EACH_TASK, "versions"]
    metadata = server.ask("/v1/models/intent/metadata")[1]["metadata"]
    assert metadata["labels"] == LABELS and metadata["hangul"] is False
    assert metadata["signature_def"]["signature_def"].keys() == {DEFAULT}
    loaded = f'keras_bert_version_workers{{model="versions",version="1"}} {CORES}.0'
    server.wait(lambda: loaded in server.ask("/metrics")[1])
    metrics = server.ask("/metrics")[1]
    assert all(f'keras_bert_{name}_total{{model="{case}"}} 0.0' in metrics  # before the first event
               for name in ("rejected_requests", "load_failures") for case in OF_EACH_TASK)
    available = [event for event in server.events() if event.get("event") == "available"]
    assert len(available) == CORES * (len(OF_EACH_TASK) + 1)
    assert all(event["row_wise"] == [DEFAULT] for event in available)


def test_embeddings(server, folders):
    texts = ["play some music", "stop"]
    status, answer, _ = server.ask("/v1/embeddings", {"model": "mean", "input": texts})
    assert status == 200 and answer["usage"] == {"prompt_tokens": 5 + 3, "total_tokens": 5 + 3}
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]],
                               unit_vectors(LiteModel.load(folders["mean"]).predict(texts)), atol=1e-6)


def test_rerank(server, folders):
    documents = ["a song", "stop", "the lamp"]
    status, answer, _ = server.ask("/rerank", {"query": "play", "texts": documents, "return_text": True})
    scores = LiteModel.load(folders["rerank"]).predict(["play"] * 3, documents)
    assert status == 200 and [row["text"] for row in answer] == [documents[i] for i in np.argsort(scores)[::-1]]
    np.testing.assert_allclose([row["score"] for row in answer], sorted(scores, reverse=True), rtol=1e-5)


@pytest.mark.parametrize("case,request_,status,message", [
    ("intent", {"instances": ["a", 5]}, 400, "instances: text: row 2: must be a string of valid Unicode"),
    ("intent", {"instances": ["a"], "signature_name": "explain"}, 400,
     'signature_name: must be one of serving_default; got "explain"'),
    ("span", {"instances": [{"question": "a"}]}, 400, "row 1: must be an object with the keys context, question; got"),
    ("span", {"inputs": {"question": ["a"], "context": ["a", "b"]}}, 400,
     "the model refuses the inputs: question and context must have the same batch size"),
    ("choice", {"inputs": {"prompt": ["a"], "choices": [[]]}}, 400, "the model refuses the inputs: choices must not"),
    ("intent", {"instances": ["a"] * 51}, 413, "a request may have at most 50 instances (--max_instances); got 51"),
    ("intent", {"instances": ["a", "b" * 5001]}, 413, "row 2: a text may have at most 5000 characters; got 5001")])
def test_bad_requests(server, case, request_, status, message):
    got, answer, _ = server.ask(f"/v1/models/{case}:predict", request_)
    assert got == status and message in answer["error"]


def test_many_rows_and_bytes_that_are_not_utf8(server):
    rows = ["play", {"b64": "cGxhef8="}, "stop the music"] * 16  # the second is play and a byte that is left out
    answers = ask(server, "tag", rows)
    assert answers[0] == answers[1] != answers[2] and answers[:3] * 16 == answers
    assert len(answers[0]["word_start"]) == 3  # padded, as in a SavedModel


def test_positions_in_bytes_that_are_not_utf8_are_those_of_a_saved_model():
    rng = random.Random(0)
    parts = ["각".encode(), "🎵".encode(), b"a", b"\xed\xa0\xbd\xed\xb8\x80", b"\xed\xa0\x80", b"\xff", b"\x80",
             b"\xc0\xaf", b"\xf0\x9f", b"\xf4\x90\x80\x80"]
    for _ in range(300):
        text = b"".join(rng.choices(parts, k=rng.randint(0, 6))) + b"z"
        (found,), expected = litert_model._decoded([text]), characters(tf.constant([text]), [0], [len(text) - 1])
        assert found.index("z") == expected.numpy(), text


def test_a_later_version_is_served_and_a_saved_model_needs_a_restart(server, folders, tmp_path):
    def states():
        return {status["version"]: (status["state"], status["status"]["error_message"])
                for status in server.ask("/v1/models/versions")[1]["model_version_status"]}

    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(b"")
    (tmp_path / "saved").rename(folders["versions"] / "3")
    shutil.copytree(folders["pairs"], tmp_path / "lite")
    (tmp_path / "lite").rename(folders["versions"] / "2")
    switched = 'keras_bert_version_workers{model="versions",version="%d"} %d.0'
    server.wait(lambda: {switched % (1, 0), switched % (2, CORES)} <= set(server.ask("/metrics")[1].splitlines()))
    state, message = states()["3"]
    assert state == "END" and message.startswith(
        f"{folders['versions']}/3: is a SavedModel, and the server runs without TensorFlow")
    assert ask(server, "versions", [{"text": "play", "text_pair": "stop"}])[0]["label"] in LABELS
    failed = [event["error"] for event in server.events() if event.get("event") == "failed"]
    assert failed == [message] * CORES
    assert f'keras_bert_load_failures_total{{model="versions"}} {CORES}.0' in server.ask("/metrics")[1]
    shutil.rmtree(folders["versions"] / "3")
    server.wait(lambda: states() == {"1": ("END", ""), "2": ("AVAILABLE", "")})


def test_without_tensorflow_a_saved_model_is_refused_unless_there_is_a_litert_folder(monkeypatch, folders, tmp_path):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorflow" else find_spec(name))
    (tmp_path / "model/2").mkdir(parents=True)
    (tmp_path / "model/2/saved_model.pb").write_bytes(b"")
    with pytest.raises(InputError, match="model/2: is a SavedModel, which needs TensorFlow: pip install tensorflow"):
        supervisor._needs_tensorflow({"model": str(tmp_path / "model")})
    shutil.copytree(folders["pairs"], tmp_path / "model/1")
    assert not supervisor._needs_tensorflow({"model": str(tmp_path / "model")})


def test_a_long_context_ends_with_the_time(lite_models):
    model = LiteRTModel(str(lite_models("span")[1]), 1, timeout_s=1e-9)
    with pytest.raises(RequestError, match="the model takes too long for these inputs") as error:
        model.run(DEFAULT, [arrays_of("span", [["what"], ["play some music " * 100]])])
    assert error.value.status == 504


def test_bad_starts_are_one_line(folders, run, monkeypatch, tmp_path):
    flags = "serve", f"--model=lite={folders['intent']}"
    status, _, messages = run(*flags, "--row_wise=lite:serving_default")
    assert (status, messages) == (1, ["keras-bert: --row_wise=lite:serving_default: must be left out for a LiteRT "
                                      "folder, whose texts never run in batches"])
    (tmp_path / "token").write_text("a secret\nanother\n")
    assert run(*flags, f"--token_file={tmp_path}/token")[2] == [
        f"keras-bert: {tmp_path}/token: must contain one token, on one line; got 2 lines; write the token alone into "
        "the file"]
    for module in ("orjson", "uvloop"):
        monkeypatch.setitem(sys.modules, module, None)
    assert run(*flags)[2] == ["keras-bert: serving needs more packages: pip install uvloop orjson"]


def test_it_starts_while_the_disk_of_its_log_is_full(folders):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = f"--port={port}", f"--model=lite={folders['intent']}", "--workers=1"
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "keras_bert.cli", "serve"]
        assert subprocess.run(command, stderr=full).returncode == 2  # --model is missing
        process = subprocess.Popen([*command, *flags], stderr=full)
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
                assert answer.status == 200
                break
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.terminate()
    assert process.wait(40) == 0


def test_a_changed_model_file_is_not_served(folders, tmp_path):
    folder = shutil.copytree(folders["intent"], tmp_path / "lite")
    with open(folder / "model.tflite", "ab") as file:
        file.write(b"more")
    LiteModel.load(folder)
    with pytest.raises(InputError, match="lite: model.tflite must be as it was exported: it decides the answers; copy"):
        load_model(str(folder), 1)


def test_a_port_for_grpc_is_refused_if_grpc_is_off(folders, run, monkeypatch, tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "grpc_health", None)  # not installed
    for path, reason in ((folders["intent"], "its messages need TensorFlow, which LiteRT folders do not"),
                         (tmp_path, "to turn it on, pip install grpcio grpcio-health-checking tensorflow-serving-api")):
        status, _, messages = run("serve", f"--model=a={path}", "--grpc_port=0")
        assert (status, messages) == (1, [f"keras-bert: --grpc_port=0: must be left out while gRPC is off: {reason}"])


def test_neither_kind(tmp_path):
    with pytest.raises(InputError, match="must be a SavedModel or a LiteRT folder; there is neither"):
        load_model(str(tmp_path), 1)


@pytest.mark.slow
def test_beside_saved_models_there_is_grpc(folders, tmp_path):
    shutil.copytree(folders["intent"], tmp_path / "models/2")
    write_echo(tmp_path / "models/1")
    with serving({"model": tmp_path / "models", "echo": tmp_path / "models/1"}) as server:
        assert server.predict("echo", instances=["a"])[0]["echo"] == "a"
        row, = server.predict("model", instances=["play"])
        with grpc.insecure_channel(f"localhost:{server.grpc_port}") as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "model"
            request.inputs["text"].CopyFrom(tf.make_tensor_proto([b"play"]))
            answer = stub.Predict(request, timeout=60)
            outputs = {name: tf.make_ndarray(tensor) for name, tensor in answer.outputs.items()}
            assert outputs["label"].tolist() == [row["label"].encode()]
            np.testing.assert_allclose(outputs["probabilities"], [row["probabilities"]], atol=1e-6)
            asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
            asked.model_spec.name = "model"
            found = get_model_metadata_pb2.SignatureDefMap()
            stub.GetModelMetadata(asked, timeout=60).metadata["signature_def"].Unpack(found)
            assert found.signature_def[DEFAULT].inputs["text"].dtype == tf.string.as_datatype_enum
        shutil.rmtree(tmp_path / "models/2")
        server.wait(lambda: "echo" in json.dumps(server.ask("/v1/models/model:predict", {"instances": ["a"]})[1]))
