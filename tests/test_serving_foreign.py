"""SavedModels of this exporter and of others, as the server loads and runs them, in this process."""

import asyncio
import dataclasses
import itertools
import json
import logging
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
from serving_server import assert_same, write_function
from tensorflow_serving.apis import predict_pb2

from keras_bert.errors import InputError
from keras_bert.inference.saved_model import SavedModel
from keras_bert.inference.served_model import RequestError
from keras_bert.serving import grpc_api, tensors
from keras_bert.serving import model as model_module
from keras_bert.serving.logs import Entry
from keras_bert.serving.memory import MemoryBudget
from keras_bert.serving.model import Model
from keras_bert.serving.settings import Settings, find_first_version
from keras_bert.serving.version import LoadedVersion

import zoo
from conftest import TINY

SETTINGS = Settings(
    models={}, row_wise={}, host="", port=0, grpc_port=0, workers=1, max_batch_tokens=100, batch_timeout_ms=0,
    max_characters=1000, body_timeout_s=1, timeout_s=300, grace_s=1, drain_s=0)
TEXTS = np.array([f"secret {number} {'word ' * (number % 7)}".encode() for number in range(20)], object)


def test_requests_are_joined_if_their_rows_have_equal_sizes_and_too_little_memory_gives_503(tmp_path, monkeypatch):
    path = write_function(tmp_path / "sums", [tf.TensorSpec([None, None], tf.int32, "ids")],
                          serving_default=lambda ids: {"sum": tf.reduce_sum(ids, 1)})
    model = SavedModel(str(path), 1, row_wise=["serving_default"])
    one, two, longer = (model.batch_key("serving_default", {"ids": np.zeros(shape, np.int32)})
                        for shape in ((1, 3), (2, 3), (1, 4)))
    assert one == two != longer

    def run(*inputs, options):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    # TensorFlow's own error; it tries for ten seconds before, too long for a test.
    monkeypatch.setattr(model, "_calls", {"serving_default": run})
    with pytest.raises(RequestError) as error:
        model.run("serving_default", [{"ids": np.zeros((1, 1), np.int32)}])
    assert (error.value.status, error.value.headers) == (503, {"Retry-After": "1"})


@pytest.mark.slow("an export as the server runs it: in parts, marked, and limited")
@pytest.mark.parametrize("case", ["intent", "tag", "choice"])
def test_parts_of_a_request_give_the_same_answer(case):
    model = SavedModel(str(zoo.saved_model(case)), 1)
    inputs = {"prompt": TEXTS, "choices": np.stack([TEXTS, TEXTS[::-1]], 1)} if case == "choice" else {"text": TEXTS}
    whole, = model.run("serving_default", [inputs])
    parts = model.split("serving_default", inputs, model.count_tokens("serving_default", inputs), 40)
    assert len(parts) > 2 and all(tokens <= 40 or len(next(iter(part.values()))) == 1 for part, tokens in parts)
    alone = [model.run("serving_default", [part])[0] for part, _ in parts]
    assert_same(model.join("serving_default", alone), whole)
    # In a batch with others, each is padded to its own longest text.
    for found, expected in zip(model.run("serving_default", [part for part, _ in parts]), alone, strict=True):
        assert_same(found, expected)


@pytest.mark.slow("an export as the server runs it: in parts, marked, and limited")
def test_the_mark_of_the_exporter_belongs_to_the_graph(tmp_path):
    marked = SavedModel(str(zoo.saved_model("tag")), 1)
    assert marked.row_wise == {"serving_default", "encode"} and not marked.is_unmarked
    other = write_function(tmp_path / "other", serving_default=lambda text: {"size": tf.strings.length(text)})
    shutil.copytree(zoo.saved_model("tag") / "assets.extra", other / "assets.extra")
    with pytest.raises(InputError, match="other: assets/bert_config.json must be as it was written; it is missing; "):
        SavedModel(str(other), 1)
    (other / "assets.extra/sha256.json").unlink()  # as versions before 0.4 wrote it
    assert SavedModel(str(other), 1).row_wise == set()


@pytest.mark.slow("an export as the server runs it: in parts, marked, and limited")
def test_the_outputs_of_a_request_are_limited_before_they_are_computed(tmp_path):
    model = SavedModel(str(zoo.saved_model("intent")), 1)
    settings = dataclasses.replace(SETTINGS, max_output=1000)

    async def predict(signature, model=model, **inputs):
        version, entry = LoadedVersion("m", 1, model, settings), Entry("", "", "")
        try:
            with MemoryBudget().request() as memory:
                return (await version.predict(signature, inputs, 0, entry, memory))[0]
        finally:
            await asyncio.to_thread(version._threads.shutdown)

    texts = np.array([b"play some music"] * 200, object)
    assert len(asyncio.run(predict("serving_default", text=texts[:10]))["score"]) == 10
    calls, run = [], model.run
    model.run = lambda *arguments: calls.append(arguments) or run(*arguments)
    with pytest.raises(RequestError, match=r"at most 1000 are allowed .*: send at most (\d+) instances") as error:
        asyncio.run(predict("serving_default", text=texts))
    # Its first part says how large all will be; the next ones may have begun.
    assert error.value.status == 413 and len(calls) < 10
    calls.clear()
    model._split_texts = {"word_weights"}  # as if it split long texts
    with pytest.raises(RequestError, match="row 1 would be about 37674 tokens: the text once more for each of its "
                                           "words; at most 16512 are allowed"):
        asyncio.run(predict("word_weights", text=np.array([b"a " * 272], object)))
    old = write_function(tmp_path / "old", explain=lambda text, layers: {"tokens": text})  # as version 0.3 wrote it
    (old / "assets").mkdir(exist_ok=True)
    TINY.to_json(old / "assets/bert_config.json")
    with pytest.raises(RequestError, match="would have 1638400 bytes"):  # 200 · 2 · 4 · 16² · 4
        asyncio.run(predict("explain", SavedModel(str(old), 1), layers=np.int32([]),
                            text=np.repeat(np.array([b"a " * 28], object), 200)))
    with pytest.raises(RequestError, match="row 1 has about .* tokens"):
        ids = {name: np.zeros((2, 4000), np.int32) for name in model.signatures["encode"].inputs}
        asyncio.run(predict("encode", **ids))
    assert not calls


def test_a_version_answers_once_each_of_its_signatures_has_run(tmp_path, monkeypatch):
    write_function(tmp_path / "1", serving_default=lambda text: {"size": tf.strings.length(text)},
                   encode=lambda ids, mask: {"kept": ids[mask == 1]},
                   explain=lambda text, layers: {"tokens": text, "sum": tf.reduce_sum(layers)[None]},
                   fails=lambda text: {"number": tf.strings.to_number(text)})
    model, called, call = Model("m", str(tmp_path), SETTINGS), [], SavedModel._call

    def record(self, name, inputs, *more):
        assert model.current is None
        called.append((name, {column: array.tolist() for column, array in inputs.items()}))
        return call(self, name, inputs, *more)

    async def main():
        await model._check_folder()
        assert model.states[1] == ("AVAILABLE", "")
        await model.current.close()

    monkeypatch.setattr(SavedModel, "_call", record)
    asyncio.run(main())
    text = {"text": [b"warm up"]}
    assert called == [("serving_default", text), ("encode", {"ids": [0], "mask": [1]}),
                      ("explain", {"layers": [0]} | text), ("fails", text)]


def test_what_takes_long_neither_stops_the_event_loop_nor_grows_beyond_the_limit(tmp_path, monkeypatch):
    """What a large request needs runs in threads. A request of 60 bytes can claim millions of strings, as many as a
    body of the maximum size has."""
    path = write_function(tmp_path / "choices", [tf.TensorSpec([None, None], tf.string, "choices")],
                          serving_default=lambda choices: {"sizes": tf.strings.length(choices)})
    model, threads = Model("m", "", SETTINGS), {}

    def record(owner, name):
        function = getattr(owner, name)

        def call(*arguments):
            threads[name] = threading.current_thread()
            return function(*arguments)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((grpc_api, "_to_arrays"), (grpc_api, "_write"), (tensors, "read_request"),
                        (tensors, "write_response"), (LoadedVersion, "_check_and_split"), (SavedModel, "join")):
        record(owner, name)

    async def by_grpc(text):
        request = predict_pb2.PredictRequest(inputs={"choices": tf.make_tensor_proto([[text]])})
        request.inputs["choices"].tensor_shape.dim[1].size = 200_000
        with MemoryBudget().request() as memory:
            answer = await grpc_api._predict(model, request, request.ByteSize(), Entry("", "", ""), memory)
        return tf.make_ndarray(predict_pb2.PredictResponse.FromString(answer).outputs["sizes"])

    async def by_rest():
        body = json.dumps({"inputs": [["a"] * 5000]}).encode()
        with MemoryBudget().request() as memory:
            return await model.current.answer(body, Entry("", "", ""), memory)

    async def main():
        model.current = LoadedVersion("m", 1, SavedModel(str(path), 1), SETTINGS)
        assert (await by_grpc("x")).tolist() == [[1] * 200_000]
        assert json.loads(await by_rest())["outputs"] == [[1] * 5000]
        with pytest.raises(RequestError, match="choices: may have at most 16777216 bytes; got 20000000"):
            await by_grpc("x" * 100)
        await asyncio.to_thread(model.current._threads.shutdown)

    asyncio.run(main())
    assert len(threads) == 6 and threading.main_thread() not in threads.values()


@pytest.mark.slow("versions that are broken in each way")
def test_a_broken_version_stops_no_other_and_is_logged_once(tmp_path, caplog, monkeypatch):
    folder = tmp_path / "models"
    model, vanishing = Model("m", str(folder), SETTINGS), folder / "7"
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
        write_function(tmp_path / "later", serving_default=lambda text: {"text": text})
        shutil.copytree(tmp_path / "later", vanishing)
        monkeypatch.setattr(model_module, "_fingerprint", fingerprint)
        assert await check() == ([7, 6], 4)
        shutil.rmtree(folder)
        monkeypatch.setattr(asyncio, "sleep", end_after_two)
        with pytest.raises(KeyError):
            await model._watch()
        await model.current.close()

    turns = itertools.count()

    async def end_after_two(_):
        if next(turns):
            raise KeyError

    folder.mkdir()
    write_function(folder / "1", serving_default=lambda text: {"text": text})
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
