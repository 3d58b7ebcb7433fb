"""Models in int8 against exact products of integers, Keras's int8 layers, and the same model in float32."""

import dataclasses
import os
import pathlib
import platform
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.export import export_text_model, int8
from keras_bert.export.verify import verify
from keras_bert.layers import BertLayer
from keras_bert.layers.base import Dense
from keras_bert.models import (
    BertClassifier,
    BertMultipleChoice,
    BertRegressor,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.serving.saved_model import SavedModel
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

from conftest import TINY, TINY_VOCABULARY, few_objects, random_inputs, randomize

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the operation is only in builds for x86-64")
TEXTS = ["play some music", "", "turn the lamp off please " * 40, "각각의 집 é!"]
# Multiplies, in a process of its own, the largest integers that kernels have: neighbours of 128 together. oneDNN has
# blocks of an odd number of rows for some numbers of inputs from 257 to 758.
MULTIPLY = """
import numpy as np, tensorflow as tf
from keras_bert.export import int8
rng = np.random.default_rng(0)
for rows, inputs, outputs in (1, 16, 16), (7, 768, 768), (300, 3072, 64), (9, 257, 16), (3, 510, 6), (0, 16, 16):
    x = rng.choice([127, -127, 1], (rows, inputs)).astype(np.int8)
    first = rng.integers(1, 128, outputs)
    kernel = np.resize([first, 128 - first], (inputs, outputs))
    kernel = (kernel * rng.choice([-1, 1, 1], kernel.shape)).astype(np.int8)
    limits = rng.uniform(0.5, 2, outputs).astype(np.float32)
    variable = tf.Variable(limits)
    multiply = tf.function(lambda x, kernel: int8._multiply(x, kernel, tf.convert_to_tensor(variable)))
    for scales in limits, 3 * limits[::-1]:  # TensorFlow's caches must not keep the scales of an address
        variable.assign(scales)
        exact = x.astype(np.int64) @ kernel.astype(np.int64) * (scales.astype(np.float64) / 127)
        np.testing.assert_allclose(multiply(tf.constant(x), tf.constant(kernel)), exact, rtol=1e-5, atol=1e-3)
"""


@pytest.fixture(autouse=True)
def _few_objects():
    with few_objects():
        yield


def classifier(seed=0):
    return randomize(BertClassifier(randomize(BertLayer(TINY), seed), 3), seed)


def export(model, path, **options):
    export_text_model(model, BertTokenizer(TINY_VOCABULARY), path, dtype="int8", **options)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["SSE41", "AVX2", "AVX512_CORE", "DEFAULT"])
def test_products_are_exact_on_every_processor(instructions):
    subprocess.run([sys.executable, "-c", MULTIPLY], check=True, env=os.environ | {"ONEDNN_MAX_CPU_ISA": instructions})


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_a_model_computes_what_keras_computes_in_int8(activation):
    bert = BertLayer(dataclasses.replace(TINY, hidden_act=activation))
    bert.enable_lora(2)
    model, inputs = randomize(BertClassifier(randomize(bert), 3)), random_inputs(3, 9)
    reference = model.rebuild(layout="unpadded", lora_rank=None)
    for layer in reference._flatten_layers():
        if isinstance(layer, Dense):
            kernel = layer.kernel.numpy()
            largest = (np.abs(kernel[1:]) + np.abs(kernel[:-1])).max(axis=0)
            layer.quantize("int8")
            layer.kernel.assign(np.round(kernel * 127 / largest))
            layer.kernel_scale.assign(127 / largest)
    reference.bert.embeddings.word_embeddings.quantize("int8")
    answers = int8.quantized(model).predict_on_batch(inputs)
    np.testing.assert_allclose(answers, reference.predict_on_batch(inputs), atol=1e-5)
    assert 0 < np.abs(answers - model.predict_on_batch(inputs)).max() < 0.05


@pytest.mark.parametrize("inputs", [1, 7, 768])
def test_kernels_are_as_fine_as_16_bit_sums_of_two_products_allow(inputs):
    layer = Dense(5)
    layer.build((None, inputs))
    kernel = np.random.default_rng(inputs).normal(size=(inputs, 5)).astype("float32")
    layer.kernel.assign(kernel)
    int8.quantize_dense(layer)
    integers, steps = layer.kernel.numpy().astype(int), layer.kernel_scale.numpy() / 127
    sums = [np.abs(integers[row:row + 2]).sum(axis=0) for row in range(inputs)]
    assert (np.max(sums, axis=0) >= 126).all() and 255 * np.max(sums) < 2**15
    assert (np.abs(integers * steps - kernel) <= 0.5001 * steps).all()


def test_columns_and_rows_of_zeros():
    model = classifier()
    model.bert.blocks[0].intermediate.kernel.assign(np.zeros((16, 32)))
    assert np.isfinite(int8.quantized(model).predict_on_batch(random_inputs(2, 5))).all()
    model.bert.embeddings.norm.gamma.assign(np.zeros(16))
    model.bert.embeddings.norm.beta.assign(np.zeros(16))
    assert np.isfinite(int8.quantized(model).predict_on_batch(random_inputs(2, 5))).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts cut at max_length")
def test_an_export_answers_as_predict_does(trained, run, tmp_path):
    status, lines, messages = run("export", "text-model", f"--model={trained}", f"--output={tmp_path / 'out'}",
                                  "--dtype=int8")
    assert (status, lines) == (0, [str(tmp_path / "out")])
    assert not int8.is_slow_here() or messages == [
        "warning: int8 may be slower than float32 on this processor, which has neither VNNI nor AMX"]
    answers = tf.saved_model.load(str(tmp_path / "out"))(TEXTS)
    tuned = FineTuned.load(trained)
    for prediction, label, row in zip(tuned.to_int8().predict(TEXTS, top_k=2), answers["label"].numpy(),
                                      answers["probabilities"].numpy()):
        assert label.decode() == prediction.label
        np.testing.assert_allclose(sorted(row, reverse=True), prediction.scores, atol=1e-5)
    np.testing.assert_allclose([prediction.score for prediction in tuned.predict(TEXTS)],
                               answers["score"].numpy(), atol=0.02)
    explained = [tf.saved_model.load(str(path)).signatures["explain"](text=tf.constant(TEXTS), layers=tf.constant([1]))
                 for path in (tmp_path / "out", export_float(tuned, tmp_path / "float"))]
    np.testing.assert_array_equal(*(parts["tokens"] for parts in explained))
    np.testing.assert_allclose(*(parts["attention"] for parts in explained), atol=0.02)


def export_float(tuned, path):
    tuned.export(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("make,options,texts", [
    (lambda bert: bert, {"pairs": True}, [TEXTS, TEXTS]),
    (BertMultipleChoice, {}, [TEXTS, [TEXTS] * 4])], ids=["embed", "choice"])
def test_exports_of_other_heads(make, options, texts, tmp_path):
    model = randomize(make(randomize(BertLayer(TINY))))
    answers = []
    for dtype in "float32", "int8":
        path = tmp_path / dtype
        export_text_model(model, BertTokenizer(TINY_VOCABULARY), path, dtype=dtype, **options)
        loaded = tf.saved_model.load(str(path))
        answers.append({name: values.numpy() for name, values in loaded(*map(tf.constant, texts)).items()})
    for name, values in answers[0].items():
        if values.dtype == np.float32 and values.shape == answers[1][name].shape:
            np.testing.assert_allclose(values, answers[1][name], atol=0.03)
    assert answers[0].keys() == answers[1].keys()


@pytest.mark.slow
@pytest.mark.parametrize("make", [BertRegressor, lambda bert: BertTokenClassifier(bert, 3), BertSpanLabeler,
                                  BertMultipleChoice], ids=["regress", "tag", "span", "choice"])
def test_every_head(make):
    """The exports of heads differ only in the model that they run."""
    model, inputs = randomize(make(randomize(BertLayer(TINY)))), random_inputs(4, 9)
    inputs["input_mask"][0, 5:] = 0
    if isinstance(model, BertMultipleChoice):
        inputs = {name: values.reshape(2, 2, 9) for name, values in inputs.items()}
    for got, wanted in zip(*(keras.tree.flatten(each.predict_on_batch(inputs)) for each in (
            int8.quantized(model), model.rebuild(layout="unpadded"))), strict=True):
        np.testing.assert_allclose(got, wanted, atol=0.03)


@pytest.mark.slow
def test_the_weights_take_a_quarter(tmp_path):
    model = BertClassifier(BertLayer.from_pretrained("minilm"), 3)
    loaded = tf.saved_model.load(str(export(model, tmp_path / "out", labels=["a", "b", "c"])))
    size = sum(weight.dtype.size * weight.shape.num_elements() for weight in loaded.weights)
    assert size < 0.27 * sum(4 * weight.shape.num_elements() for weight in map(tf.convert_to_tensor, model.weights))


@pytest.mark.slow
def test_answers_hardly_depend_on_the_batch(minilm):
    """Rounding can move a value to the next integer, more often if the norm had one form for few tokens and another
    for many: a third of these texts then differed by more than 0.01."""
    texts = [f"wake me up at {i} tomorrow please" for i in range(40)]
    bert, inputs = int8.quantized(BertLayer.from_pretrained("minilm")), BertTokenizer.from_folder(minilm)(texts)
    pool = tf.function(bert.pool)
    together = pool(inputs).numpy()
    alone = np.concatenate([
        pool({name: values[i:i + 1] for name, values in inputs.items()}) for i in range(len(texts))])
    assert (np.abs(together - alone).max(axis=1) > 0.01).mean() < 0.1


@pytest.mark.parametrize("action,error,message", [
    (lambda model, inputs, path: model.save(path / "model.keras"), InputError, "cannot be saved or copied"),
    (lambda model, inputs, path: model.rebuild(layout="padded"), InputError, "cannot be saved or copied"),
    (lambda model, inputs, path: model(inputs), InputError, "runs in predict, in predict_on_batch or in a tf.function"),
    (lambda model, inputs, path: int8.quantized(model), InputError, "model must not be quantized"),
    (lambda model, inputs, path: train(model, inputs), LookupError, "a model in int8 cannot be trained")])
def test_what_a_model_in_int8_cannot_do(action, error, message, tmp_path):
    with pytest.raises(error, match=message):
        action(int8.quantized(classifier()), random_inputs(2, 5), tmp_path)


def train(model, inputs):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(inputs, np.array([0, 1]), verbose=0)


@pytest.mark.slow
def test_models_of_equal_shapes_in_one_process(tmp_path):
    paths = [export(classifier(seed), tmp_path / str(seed), labels=["a", "b", "c"]) for seed in range(2)]
    texts = {"text": np.array(["play some music"], object)}
    answers = []
    for path in paths * 3:
        model = SavedModel(str(path), threads=1)
        answers.append(model.run("serving_default", [texts])[0]["probabilities"])
        model.close()
    for seed in range(2):
        wanted = probabilities(classifier(seed))
        for answer in answers[seed::2]:
            np.testing.assert_allclose(answer, wanted, atol=1e-5)


def probabilities(model):
    inputs = BertTokenizer(TINY_VOCABULARY)(["play some music"])
    logits = int8.quantized(model).predict_on_batch(inputs)
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


@pytest.mark.slow
def test_scores_are_compared_before_an_export(trained, intents, run, tmp_path, monkeypatch):
    command = ("export", "text-model", f"--model={trained}", "--dtype=int8", f"--data={intents[1]}")
    status, lines, _ = run(*command, f"--output={tmp_path / 'out'}", "--max_loss=100")
    assert status == 0 and lines[0].startswith("accuracy ") and "on 4 examples; " in lines[0]
    tuned = FineTuned.load(trained)
    assert f"accuracy {tuned.evaluate(intents[1])['accuracy']:.4f} in float32" in lines[0]
    strange = tmp_path / "strange.tsv"
    strange.write_text(pathlib.Path(intents[1]).read_text() + "book a table\tstrange\n")
    status, with_strange, _ = run(*command[:-1], f"--data={strange}", f"--output={tmp_path / 'strange'}",
                                  "--out_of_scope_label=strange", "--max_loss=100")
    assert status == 0 and with_strange[0].partition(" on ")[0] == lines[0].partition(" on ")[0]
    right = tmp_path / "right.tsv"  # according to the model in float32
    right.write_text("text\tlabel\n" + "".join(
        f"{text}\t{tuned.predict([text])[0].label}\n" for text in ("play some music", "turn off the light")))
    monkeypatch.setattr(FineTuned, "to_int8", opposite)
    status, lines, messages = run(*command[:-1], f"--data={right}", f"--output={tmp_path / 'other'}")
    assert status and not lines and not (tmp_path / "other").exists()
    assert messages[-1].endswith(
        "int8 must lose at most --max_loss=0.5 points; it loses 100.00: accuracy 1.0000 in float32, 0.0000 in int8 on "
        "2 examples; 0.00% of the answers are equal; export in float32 or bfloat16, or allow more")


@pytest.mark.slow
def test_losses_of_scores_in_percent(monkeypatch):
    model, other = (randomize(BertSpanLabeler(BertLayer(dataclasses.replace(TINY, max_position_embeddings=80))), seed)
                    for seed in (0, 5))
    tuned = FineTuned(model, BertTokenizer(TINY_VOCABULARY), TASKS["span"](80))
    question, context = "play what", "some music and the light"
    answer, = tuned.predict([question], [context])
    right = [(question, context, {"text": [answer.text], "answer_start": [answer.start]})]
    assert tuned.compare_int8(right).float32 == pytest.approx(100)
    monkeypatch.setattr(FineTuned, "to_int8", lambda tuned: FineTuned(other, tuned.tokenizer, tuned.task))
    found = tuned.compare_int8(right)
    assert found.int8 < 100 and found.loss == pytest.approx(100 - found.int8)


def opposite(tuned):
    """Returns a model that gives the other label."""
    copy = FineTuned(tuned.model.rebuild(), tuned.tokenizer, tuned.task)
    head = copy.model.classifier
    head.kernel.assign(-head.kernel)
    head.bias.assign(-head.bias)
    return copy


@pytest.mark.parametrize("flags,message", [
    (["--dtype=int8", "--jit_compile"], "--jit_compile must be left out with the dtype int8"),
    (["--data=valid.tsv"], "--data must be left out unless the dtype is int8; got 'valid.tsv'"),
    (["--dtype=int8", "--data=missing.tsv"], "missing.tsv"),
    (["--dtype=int8", "--out_of_scope_label=a"], "--out_of_scope_label must be left out without data; got 'a'"),
    (["--dtype=int8", "--max_loss=-1"], "--max_loss must be at least 0; got -1")])
def test_what_it_refuses(trained, run, tmp_path, flags, message):
    status, _, messages = run("export", "text-model", f"--model={trained}", f"--output={tmp_path / 'out'}", *flags)
    assert status and message in messages[-1] and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_tensorflow_without_the_operation(tmp_path, monkeypatch):
    path = export(classifier(), tmp_path / "out", labels=["a", "b", "c"])
    graph = path / "saved_model.pb"
    graph.write_bytes(graph.read_bytes().replace(b"_QuantizedMatMul", b"_QuantizedMatMux"))
    monkeypatch.setattr(int8, "OPERATION", "_QuantizedMatMux")
    with pytest.raises(InputError, match="int8 needs TensorFlow for x86-64 processors, with oneDNN; this one has no"):
        int8.quantized(classifier())
    with pytest.raises(InputError, match="cannot be loaded: .* a model in int8 needs TensorFlow for x86-64"):
        verify(str(path))


def test_an_encoder_is_not_exported_in_int8(bert, tokenizer, tmp_path):
    from keras_bert.export import export_encoder

    with pytest.raises(InputError, match="dtype must be one of float32, bfloat16; got 'int8'"):
        export_encoder(bert, tmp_path / "out", tokenizer, dtype="int8")
