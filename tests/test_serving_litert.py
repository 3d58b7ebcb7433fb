"""`keras-bert serve` with LiteRT folders: the answers of `LiteModel`, the outputs of SavedModels, and no TensorFlow."""

import contextlib
import importlib.util
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from serving_server import assert_same, count_wrong, refused, serving, wait, write_echo

from keras_bert.errors import InputError
from keras_bert.inference import lite_model, served_model
from keras_bert.inference.answering import load_served_model
from keras_bert.inference.lite_model import LiteModel, LiteRTModel
from keras_bert.inference.saved_model import SavedModel
from keras_bert.inference.served_model import DEFAULT, STRING, RequestError
from keras_bert.serving import settings
from keras_bert.tasks.embedding_scores import unit_vectors
from keras_bert.tasks.graph import characters

import zoo
from zoo import CASES, LABELS

SERVED = ["intent", "tag", "span", "choice", "mean"]  # test_decoding has the outputs of all tasks
CORES = len(os.sched_getaffinity(0))  # the server has a worker for each
# Run by each Python process that has its folder in PYTHONPATH.
WITHOUT_TENSORFLOW = """
import sys

class NoKeras:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("keras", "jax", "torch"):
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, NoKeras())
sys.modules.update(dict.fromkeys(["tensorflow", "grpc", "google.protobuf", "tensorflow_serving"]))  # not installed
"""


def arrays_of(case, texts):
    return {name: np.vectorize(str.encode, [STRING])(np.array(column, STRING))
            for name, column in zip(CASES[case][1].inputs, texts)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    versions = tmp_path_factory.mktemp("models") / "versions"
    shutil.copytree(zoo.litert("intent"), versions / "1")
    return {case: zoo.litert(case) for case in SERVED} | {"versions": versions}


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    """A server whose processes cannot import TensorFlow, nor what brings it."""
    path = tmp_path_factory.mktemp("site")
    (path / "sitecustomize.py").write_text(WITHOUT_TENSORFLOW)
    environment = {"PYTHONPATH": f"{path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with serving(folders, has_grpc=False, environment=environment) as server:
        yield server


@pytest.mark.slow("an export of TensorFlow and one of LiteRT that the server answers differently")
def test_outputs_are_those_of_the_saved_model():
    """tests/test_decoding.py compares the outputs of all tasks, without exports."""
    task, texts = CASES["tag"][1], CASES["tag"][2]
    lite, saved = load_served_model(str(zoo.litert("tag")), 1), load_served_model(str(zoo.saved_model("tag")), 1)
    assert isinstance(lite, LiteRTModel) and isinstance(saved, SavedModel)
    assert lite.signatures == {DEFAULT: saved.signatures[DEFAULT]}
    assert without_names(lite.signature_defs[DEFAULT]) == without_names(saved.signature_defs[DEFAULT])
    assert (lite.labels, lite.has_hangul, lite.max_values) == (saved.labels, saved.has_hangul, saved.max_values)
    assert lite.max_length == task.max_length
    saved.max_length = lite.max_length  # a graph does not say where it cuts texts
    everything = arrays_of("tag", texts)
    nothing = {name: array[:0] for name, array in everything.items()}
    for inputs, budget in ((everything, 10_000), (everything, 1), (nothing, 1)):
        tokens = lite.count_tokens(DEFAULT, inputs)
        assert tokens.tolist() == saved.count_tokens(DEFAULT, inputs).tolist()
        parts = lite.split(DEFAULT, inputs, tokens, budget)
        assert len(parts) == (max(1, len(tokens)) if budget == 1 else 1)
        found = lite.join(DEFAULT, [lite.run(DEFAULT, [part])[0] for part, _ in parts])
        expected, = saved.run(DEFAULT, [inputs])
        assert list(found) == list(expected)
        assert_same(*({name: array if array.size else array.ravel() for name, array in outputs.items()}
                      for outputs in (found, expected)), atol=1e-4)
    saved.close()


def without_names(signature_def):
    """A signature without the names that the tensors have in the graph."""
    return signature_def | {part: {name: info | {"name": ""} for name, info in signature_def[part].items()}
                            for part in ("inputs", "outputs")}


def test_each_answer_is_that_of_the_model_and_none_is_another_requests(server, folders):
    models = {case: (case, LiteModel.load(folders[case])) for case in SERVED}
    assert count_wrong(server, models, requests=800, atol=1e-5) == 0


def test_nothing_needs_tensorflow(server):
    assert server.grpc_port is None
    assert "keras-bert: gRPC is off: its messages need TensorFlow, which LiteRT folders do not\n" in (
        server.lines)
    assert server.ask("/readyz")[0] == server.ask("/openapi.json")[0] == server.ask("/")[0] == 200
    assert server.ask("/v1/models")[1]["models"] == [*SERVED, "versions"]
    metadata = server.ask("/v1/models/intent/metadata")[1]["metadata"]
    assert metadata["labels"] == LABELS and metadata["hangul"] is False
    assert metadata["signature_def"]["signature_def"].keys() == {DEFAULT, "word_weights"}
    server.wait_metric('version_workers{model="versions",version="1"}', CORES)
    metrics = server.metrics()
    assert {metrics[f'{name}_total{{model="{case}"}}'] for name in ("rejected_requests", "load_failures")
            for case in SERVED} == {0}  # before the first event
    available = server.events(event="available")
    assert len(available) == CORES * (len(SERVED) + 1)
    assert all({*event["row_wise"]} - {"word_weights"} == {DEFAULT} for event in available)


def test_embeddings(server, folders):
    texts = ["play some music", "stop"]
    status, answer, _ = server.ask("/v1/embeddings", {"model": "mean", "input": texts})
    assert status == 200 and answer["usage"] == {"prompt_tokens": 5 + 3, "total_tokens": 5 + 3}
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]],
                               unit_vectors(LiteModel.load(folders["mean"]).predict(texts)), atol=1e-6)


@pytest.mark.parametrize("case,inputs,message", [
    ("span", {"question": ["a"], "context": ["a", "b"]}, "question and context must have the same batch size"),
    ("choice", {"prompt": ["a"], "choices": [[]]}, "choices must not be empty")])
def test_what_the_model_refuses(server, case, inputs, message):
    answer = server.ask(f"/v1/models/{case}:predict", {"inputs": inputs})
    assert refused(answer) == (400, f"the model refuses the inputs: {message}")


def test_many_rows_and_bytes_that_are_not_utf8(server):
    rows = ["play", {"b64": "cGxhef8="}, "stop the music"] * 16  # the second is play and a byte that is left out
    answers = server.predict("tag", instances=rows)
    assert answers[0] == answers[1] != answers[2] and answers[:3] * 16 == answers
    assert len(answers[0]["word_start"]) == 3  # padded, as in a SavedModel


def test_positions_in_bytes_that_are_not_utf8_are_those_of_a_saved_model():
    rng = random.Random(0)
    parts = ["각".encode(), "🎵".encode(), b"a", b"\xed\xa0\xbd\xed\xb8\x80", b"\xed\xa0\x80", b"\xff", b"\x80",
             b"\xc0\xaf", b"\xf0\x9f", b"\xf4\x90\x80\x80"]
    for _ in range(100):
        text = b"".join(rng.choices(parts, k=rng.randint(0, 6))) + b"z"
        found, = served_model.to_lists(np.array([text], STRING), lite_model._ERRORS)
        expected = characters(tf.constant([text]), [0], [len(text) - 1])
        assert found.index("z") == expected.numpy(), text


def test_a_later_version_is_served_and_a_saved_model_needs_a_restart(server, folders, tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(b"")
    (tmp_path / "saved").rename(folders["versions"] / "3")
    shutil.copytree(folders["intent"], tmp_path / "lite")
    (tmp_path / "lite").rename(folders["versions"] / "2")
    for version, count in (("2", CORES), ("1", 0)):
        server.wait_metric(f'version_workers{{model="versions",version="{version}"}}', count)
    state, code, message = server.states("versions")["3"]
    assert (state, code) == ("END", "INTERNAL") and message.startswith(
        f"{folders['versions']}/3: is a SavedModel, and the server runs without TensorFlow")
    assert server.predict("versions", instances=["play"])[0]["label"] in LABELS
    assert [event["error"] for event in server.events(event="failed")] == [message] * CORES
    assert server.metrics()['load_failures_total{model="versions"}'] == CORES
    server.wait_metric('failed_versions{model="versions"}', CORES)
    shutil.rmtree(folders["versions"] / "3")
    server.wait(lambda: server.states("versions") == {"1": ("END", "OK", ""), "2": ("AVAILABLE", "OK", "")})


def test_without_tensorflow_a_saved_model_is_refused_unless_there_is_a_litert_folder(monkeypatch, folders, tmp_path):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorflow" else find_spec(name))
    (tmp_path / "model/2").mkdir(parents=True)
    (tmp_path / "model/2/saved_model.pb").write_bytes(b"")
    with pytest.raises(InputError, match="model/2: is a SavedModel, which needs TensorFlow: pip install tensorflow"):
        settings.needs_tensorflow({"model": str(tmp_path / "model")})
    shutil.copytree(folders["intent"], tmp_path / "model/1")
    assert not settings.needs_tensorflow({"model": str(tmp_path / "model")})


def test_a_long_context_ends_with_the_time(folders):
    model = LiteRTModel(str(folders["span"]), 1, timeout_s=1e-9)
    with pytest.raises(RequestError, match="the model takes too long for these inputs") as error:
        model.run(DEFAULT, [arrays_of("span", [["what"], ["play some music " * 100]])])
    assert error.value.status == 504


SAVED, LITE = "--model=saved", "--model=lite"


@pytest.fixture
def start(run, monkeypatch, tmp_path):
    """Function of flags that starts the server, which must fail with one message; returns it and the status."""
    monkeypatch.chdir(tmp_path)
    for name in ("saved", "empty/7"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "saved/saved_model.pb").write_bytes(b"")
    (tmp_path / "lite").symlink_to(zoo.litert("intent"))
    (tmp_path / "blank").write_text(" \n")
    (tmp_path / "tokens").write_text("a secret\nanother\n")
    (tmp_path / "tokén").write_text("tokén\n", encoding="utf-8")

    def start(*flags):
        status, _, (message,) = run("serve", *flags)
        return status, message

    return start


@pytest.mark.parametrize("status,message,flags", [
    (1, "no: cannot be read: No such file or directory", ["--model=no"]),
    (1, ".: must be a SavedModel or a LiteRT folder, or", ["--model=name=."]),
    (1, "empty/7: must be a SavedModel or a LiteRT folder; there is neither", ["--model=empty"]),
    (1, "another model has the name 'saved'; give this one another: --model=NAME=", [SAVED, SAVED]),
    (1, "needs a name of letters, digits and . _ -, not 'a b'", ["--model=a b=saved"]),
    (1, "PORT: cannot be served: Address already in use; choose another with --port, or any free one with --port=0",
     [SAVED, "--port=PORT"]),
    (1, "; choose another with --grpc_port, or any free one with", [SAVED, "--port=0", "--grpc_port=PORT"]),
    (1, "no host:8501: cannot be served: ", [SAVED, "--host=no host"]),
    (1, "; choose another with --host", [SAVED, "--host=192.0.2.1"]),  # an example, of nobody
    (1, "blank: must contain one token, on one line; got 0 lines", [LITE, "--token_file=blank"]),
    (1, "tokens: must contain one token, on one line; got 2 lines", [LITE, "--token_file=tokens"]),
    (1, "tokén: the token must have only printable ASCII characters, because others cannot be sent over gRPC; character"
        " 4 is 'é': choose another token", [LITE, "--token_file=tokén"]),
    (1, "workers must be at least 1; got 0", [LITE, "--workers=0"]),
    (1, "--row_wise=lite:serving_default: must be left out for a", [LITE, "--row_wise=lite:serving_default"]),
    (1, "--grpc_port=0: must be left out while gRPC is off: its messages need TensorFlow", [LITE, "--grpc_port=0"]),
    (2, "missing --model", []), (2, "port", [LITE, "--port=http"])])
def test_bad_starts_are_one_line(start, status, message, flags):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = start(*(flag.replace("PORT", port) for flag in flags))
    assert code == status and message.replace("PORT", port) in said, said


@pytest.mark.parametrize("missing,message,flags", [
    (["grpc_health"], "gRPC is off: to turn it on, pip install grpcio grpcio-health-", [SAVED, "--grpc_port=0"]),
    (["orjson", "uvloop"], "serving needs more packages: pip install uvloop orjson", [SAVED])])
def test_packages_that_are_missing(start, monkeypatch, missing, message, flags):
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    status, said = start(*flags)
    assert status == 1 and message in said


@pytest.mark.slow("a log that cannot be written")
def test_it_starts_while_the_disk_of_its_log_is_full():
    def is_ready():
        """Asks at the port at which the process listens, once it does."""
        with contextlib.suppress(OSError):
            sockets = {os.readlink(path) for path in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()}
            for row in map(str.split, pathlib.Path("/proc/net/tcp").read_text().splitlines()):
                if row[3] == "0A" and f"socket:[{row[9]}]" in sockets:
                    with urllib.request.urlopen(f"http://127.0.0.1:{int(row[1][-4:], 16)}/readyz", timeout=60):
                        return True

    with open("/dev/full", "wb") as full:
        process = subprocess.Popen([sys.executable, "-m", "keras_bert.cli", "serve", "--port=0", "--workers=1",
                                    f"--model=lite={zoo.litert('intent')}"], stderr=full)
    try:
        wait(is_ready, process)
    finally:
        process.terminate()
    assert process.wait(60) == 0


def test_a_changed_model_file_is_not_served(folders, tmp_path):
    folder = shutil.copytree(folders["intent"], tmp_path / "lite")
    with open(folder / "model.tflite", "ab") as file:
        file.write(b"more")
    LiteModel.load(folder)
    with pytest.raises(InputError, match="lite: model.tflite must be as it was written; copy"):
        load_served_model(str(folder), 1)


@pytest.mark.slow("LiteRT and TensorFlow in one worker")
def test_beside_saved_models_there_is_grpc(tmp_path):
    shutil.copytree(zoo.litert("tag"), tmp_path / "models/2")
    write_echo(tmp_path / "models/1")
    with serving({"model": tmp_path / "models", "echo": tmp_path / "models/1"}) as server:
        assert server.predict("echo", instances=["a"])[0]["echo"] == "a"
        row, = server.predict("model", instances=["play"])
        outputs = {name: tf.make_ndarray(tensor)
                   for name, tensor in server.rpc("model", {"text": ["play"]}).outputs.items()}
        assert outputs.keys() == row.keys()
        assert outputs["word_label"].tolist() == [[label.encode() for label in row["word_label"]]]
        np.testing.assert_allclose(outputs["word_score"], [row["word_score"]], atol=1e-6)
        shutil.rmtree(tmp_path / "models/2")
        server.wait(lambda: "echo" in json.dumps(server.ask("/v1/models/model:predict", {"instances": ["a"]})[1]))
