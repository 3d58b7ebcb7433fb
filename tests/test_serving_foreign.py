"""`keras-bert serve` with models of other exporters, whose outputs may have anything but one row for each row."""

import asyncio
import concurrent.futures
import dataclasses
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from serving_server import connections, serving, write_echo
from tensorflow_serving.apis import predict_pb2

from keras_bert.export import export_text_model
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertMultipleChoice, BertTokenClassifier
from keras_bert.serving.grpc_api import _predict
from keras_bert.serving.logs import Entry
from keras_bert.serving.memory import MemoryBudget
from keras_bert.serving.model import Model
from keras_bert.serving.saved_model import SavedModel
from keras_bert.serving.settings import Settings
from keras_bert.serving.tensors import RequestError
from keras_bert.serving.version import LoadedVersion
from keras_bert.text import BertTokenizer

from conftest import TINY, TINY_VOCABULARY, randomize

TEXTS = [f"secret {number} " + "word " * (number % 7) for number in range(40)]


def ragged(text):
    words = tf.strings.split(text)
    return {"words": words.flat_values, "counts": words.row_lengths()}


def share(text):
    """Each row's part of the whole batch."""
    sizes = tf.cast(tf.strings.length(text), tf.float64)
    return {"share": sizes / tf.reduce_sum(sizes), "rows": tf.ones_like(text, tf.int32) * tf.size(text)}


def total(text):
    """A sum over the batch; the size of its dimension, 1, is not known to the signature."""
    return {"total": tf.boolean_mask([tf.reduce_sum(tf.strings.length(text))], tf.constant([True]))}


def scalar(text):
    return {"size": tf.size(text), "joined": tf.strings.reduce_join(text)}


def backwards(text):
    """As many rows, in another order."""
    return {"text": tf.reverse(text, [0])}


SETTINGS = Settings(
    models={}, row_wise={}, host="", port=0, grpc_port=0, workers=1, max_batch_tokens=100, batch_timeout_ms=0,
    max_queue=9, max_body=16 * 2**20, max_output=2**25, max_instances=1024, max_characters=1000, body_timeout_s=1,
    timeout_s=30, grace_s=1, drain_s=0)
FUNCTIONS = {function.__name__: function for function in (ragged, share, total, scalar, backwards)}


def write(path, function, **names):
    """Writes a SavedModel with a function of strings as its only signature."""
    module = tf.Module()
    module.function = tf.function(function, input_signature=[tf.TensorSpec([None], tf.string, "text")])
    tf.saved_model.save(module, str(path), {names.get("signature", "serving_default"): module.function})
    return path


def write_constant(path):
    """Writes a SavedModel with a signature without inputs."""
    module = tf.Module()
    module.function = tf.function(lambda: {"value": tf.constant([1, 2])}, input_signature=[])
    tf.saved_model.save(module, str(path), {"serving_default": module.function})
    return path


def write_pair(path):
    """Writes a SavedModel with a signature that returns a ragged tensor, and one that returns a dense one."""
    module, spec = tf.Module(), tf.TensorSpec([None], tf.string, "text")
    module.words = tf.function(lambda text: {"words": tf.strings.split(text)}, input_signature=[spec])
    module.sizes = tf.function(lambda text: {"size": tf.strings.length(text)}, input_signature=[spec])
    tf.saved_model.save(module, str(path), {"serving_default": module.words, "sizes": module.sizes})
    return path


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    echo = write_echo(folder / "echo")
    return {name: write(folder / name, function) for name, function in FUNCTIONS.items()} | {
        "declared_ragged": folder / "ragged", "declared_total": folder / "total", "declared_echo": echo, "echo": echo,
        "unnamed": write(folder / "unnamed", backwards, signature="other"),
        "constant": write_constant(folder / "constant"), "pair": write_pair(folder / "pair")}


@pytest.fixture(scope="module")
def server(paths):
    declared = [f"--row_wise={name}:serving_default" for name in paths if name.startswith(("declared", "unnamed"))]
    with serving(paths, *declared) as server:
        yield server


def wanted(function, texts):
    """The answer to a request alone, as JSON."""
    outputs = {name: output.numpy() for name, output in function(tf.constant(texts)).items()}
    values = {name: (output.astype("U") if output.dtype == object else output).tolist()
              if isinstance(output, np.ndarray) else output.decode() if isinstance(output, bytes) else output
              for name, output in outputs.items()}
    return values if len(values) > 1 else next(iter(values.values()))


@pytest.mark.parametrize("name", [*FUNCTIONS, "declared_ragged", "declared_total"])
def test_concurrent_requests_get_what_they_would_get_alone(server, name):
    function = FUNCTIONS[name.removeprefix("declared_")]

    def client(number):
        (connection,) = connections(server, 1)
        for turn in range(5):
            texts = TEXTS[number:number + 1 + turn % 3]
            assert server.predict(name, connection, inputs=texts) == wanted(function, texts)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(client, range(16)))


def test_declared_signatures_run_in_batches_until_one_has_other_rows(server):
    def sizes(name):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            rows = pool.map(lambda i: server.predict(name, instances=[f"sleep 0.0{i % 3}"]), range(40))
        return {row["batch"] for (row,) in rows}

    assert sizes("echo") == {1} and max(sizes("declared_echo")) > 1
    events = [event for event in server.events() if event.get("event") == "not row-wise"]
    assert sorted(event["model"] for event in events) in (
        [], ["declared_ragged"], ["declared_total"], ["declared_ragged", "declared_total"])  # each once at most
    available = {event["model"]: event["row_wise"] for event in server.events() if event.get("event") == "available"}
    assert available["echo"] == [] and available["declared_echo"] == ["serving_default"]


def test_a_signature_needs_no_inputs(server):
    assert server.predict("constant", inputs={}) == [1, 2]


def test_a_declared_signature_that_there_is_not_gives_a_warning(server):
    assert warnings(server, "unnamed") == [
        "--row_wise=unnamed:serving_default: there is no such signature; there are other"]


def warnings(server, model):
    """Waits for the warnings about a model; returns their messages."""
    events = server.wait(lambda: [event for event in server.events() if event.get("event") == "warning"
                                  and event["model"] == model])
    assert all(event.keys() == {"time", "event", "model", "version", "message"} for event in events)
    return [event["message"] for event in events]


def test_a_signature_of_ragged_tensors_is_left_out(server):
    assert server.predict("pair", signature_name="sizes", instances=["a", "bcd"]) == [1, 3]
    status, answer, _ = server.ask("/v1/models/pair:predict", {"instances": ["a"]})
    assert (status, answer["error"]) == (400, 'signature_name: must be one of sizes; got "serving_default"')
    assert warnings(server, "pair") == [
        "the signature serving_default is left out: its inputs and outputs must be dense tensors"]
    signatures = server.ask("/v1/models/pair/metadata")[1]["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == {"serving_default", "sizes"}


def test_requests_are_joined_if_their_rows_have_equal_sizes(tmp_path):
    module = tf.Module()
    module.function = tf.function(lambda ids: {"sum": tf.reduce_sum(ids, 1)},
                                  input_signature=[tf.TensorSpec([None, None], tf.int32, "ids")])
    tf.saved_model.save(module, str(tmp_path / "sums"), {"serving_default": module.function})
    model = SavedModel(str(tmp_path / "sums"), 1, row_wise=["serving_default"])
    one, two, longer = (model.batch_key("serving_default", {"ids": np.zeros(shape, np.int32)})
                        for shape in ((1, 3), (2, 3), (1, 4)))
    assert one == two != longer


def test_instances_need_as_many_rows(server):
    status, answer, _ = server.ask("/v1/models/ragged:predict", {"instances": ["a b", "c"]})
    assert status == 400 and "ask with inputs instead of instances" in answer["error"]
    status, answer, _ = server.ask("/v1/models/total:predict", {"instances": ["a b", "c"]})
    assert status == 400 and "ask with inputs instead of instances" in answer["error"]


def test_a_model_needs_no_serving_default(server):
    assert server.predict("unnamed", signature_name="other", inputs=["a", "b"]) == ["b", "a"]
    status, answer, _ = server.ask("/v1/models/unnamed:predict", {"inputs": ["a"]})
    assert (status, answer["error"]) == (400, 'signature_name: must be one of other; got "serving_default"')


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder, bert = tmp_path_factory.mktemp("models"), randomize(BertLayer(TINY))
    models = {"classify": (BertClassifier(bert, 2), {"labels": ["a", "b"]}),
              "tag": (BertTokenClassifier(bert, 3), {"labels": ["O", "B-x", "I-x"]}),
              "choose": (BertMultipleChoice(bert), {})}
    for name, (model, options) in models.items():
        export_text_model(randomize(model), BertTokenizer(TINY_VOCABULARY), folder / name, max_length=16, **options)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "tag", "choose"])
def test_parts_of_a_request_give_the_same_answer(exported, task):
    model = SavedModel(str(exported / task), 1)
    texts = np.array([text.encode() for text in TEXTS[:20]], object)
    inputs = {"prompt": texts, "choices": np.stack([texts, texts[::-1]], 1)} if task == "choose" else {"text": texts}
    whole, = model.run("serving_default", [inputs])
    parts = model.split("serving_default", inputs, model.count_tokens("serving_default", inputs), 40)
    assert len(parts) > 2 and all(tokens <= 40 or len(next(iter(part.values()))) == 1 for part, tokens in parts)
    joined = model.join("serving_default", [model.run("serving_default", [part])[0] for part, _ in parts])
    assert joined.keys() == whole.keys()
    for name, output in whole.items():
        assert joined[name].dtype == output.dtype and joined[name].shape == output.shape
        if output.dtype.kind == "f":
            np.testing.assert_allclose(joined[name], output, atol=1e-5)
        else:
            assert joined[name].tolist() == output.tolist()


@pytest.mark.slow
def test_the_mark_of_the_exporter_belongs_to_the_graph(exported, tmp_path, paths):
    marked = SavedModel(str(exported / "tag"), 1)
    assert marked.row_wise == {"serving_default", "encode"} and not marked.is_unmarked
    other = write(tmp_path / "other", ragged)
    shutil.copytree(exported / "tag/assets.extra", other / "assets.extra")
    assert SavedModel(str(other), 1).row_wise == set()


@pytest.mark.slow
def test_the_outputs_of_a_request_are_limited_before_they_are_computed(exported):
    model = SavedModel(str(exported / "classify"), 1)
    settings = dataclasses.replace(SETTINGS, max_output=1000)

    async def predict(signature, **inputs):
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
    with pytest.raises(RequestError, match=r"at most 1000 are allowed: send at most (\d+) instances") as error:
        asyncio.run(predict("serving_default", text=texts))
    # Its first part says how large all will be; the next one may have begun.
    assert error.value.status == 413 and len(calls) <= 2
    calls.clear()
    with pytest.raises(RequestError, match="at most 1000 are allowed"):
        asyncio.run(predict("explain", text=texts, layers=np.int32([])))
    with pytest.raises(RequestError, match="row 1 has about .* tokens"):
        ids = {name: np.zeros((2, 4000), np.int32) for name in model.signatures["encode"].inputs}
        asyncio.run(predict("encode", **ids))
    assert not calls


@pytest.mark.slow
def test_a_version_answers_while_its_explanation_is_warmed_up(tmp_path, monkeypatch):
    texts, layers = tf.TensorSpec([None], tf.string, "text"), tf.TensorSpec([None], tf.int32, "layers")
    module = tf.Module()
    module.answer = tf.function(lambda text: {"size": tf.strings.length(text)}, input_signature=[texts])
    module.explain = tf.function(lambda text, layers: {"tokens": text, "sum": tf.reduce_sum(layers)[None]},
                                 input_signature=[texts, layers])
    tf.saved_model.save(module, str(tmp_path / "1"), {"serving_default": module.answer, "explain": module.explain})
    model, called, call = Model("m", str(tmp_path), SETTINGS), [], SavedModel._call
    state = dict.fromkeys(("is_served", "leases"))

    def record(self, name, inputs, *more):
        called.append((name, {column: array.tolist() for column, array in inputs.items()}))
        state.update(is_served=model.current is not None, leases=model.current and model.current.leases)
        return call(self, name, inputs, *more)

    async def main():
        await model._check_folder()
        assert model.states[1] == ("AVAILABLE", "") and not state["is_served"]  # the answer was warmed up before
        await asyncio.gather(*model._tasks)
        assert state == {"is_served": True, "leases": 1} and model.current.leases == 0
        await model.current.close()

    monkeypatch.setattr(SavedModel, "_call", record)
    asyncio.run(main())
    assert called == [("serving_default", {"text": [b"warm up"]}), ("explain", {"layers": [0], "text": [b"warm up"]})]


@pytest.mark.slow
def test_compact_strings_neither_stop_the_event_loop_nor_grow_beyond_the_limit(tmp_path):
    """A request of 60 bytes can claim two million strings, as many as a body of the maximum size has."""
    module = tf.Module()
    module.function = tf.function(lambda choices: {"sizes": tf.reduce_sum(tf.strings.length(choices), 1)},
                                  input_signature=[tf.TensorSpec([None, None], tf.string, "choices")])
    tf.saved_model.save(module, str(tmp_path / "choices"), {"serving_default": module.function})
    model = Model("m", "", SETTINGS)

    async def ask(text):
        request = predict_pb2.PredictRequest(inputs={"choices": tf.make_tensor_proto([[text]])})
        request.inputs["choices"].tensor_shape.dim[1].size = 2_000_000
        worst = 0
        with MemoryBudget().request() as memory:
            answer = asyncio.create_task(_predict(model, request, request.ByteSize(), Entry("", "", ""), memory))
            while not answer.done():
                start = time.monotonic()
                await asyncio.sleep(0.005)
                worst = max(worst, time.monotonic() - start)
        return predict_pb2.PredictResponse.FromString(answer.result()).outputs["sizes"].int_val, worst

    async def main():
        model.current = LoadedVersion("m", 1, SavedModel(str(tmp_path / "choices"), 1), SETTINGS)
        sizes, worst = await ask("x")
        assert list(sizes) == [2_000_000] and worst < 0.7
        with pytest.raises(RequestError, match="choices: may have at most 16777216 bytes; got 200000000"):
            await ask("x" * 100)
        await asyncio.to_thread(model.current._threads.shutdown)

    asyncio.run(main())
