"""A `--jit_compile` export beside the plain model, compiled here by XLA for the CPU."""

import functools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_bert.export import export_text_model
from keras_bert.export.encoder import EncoderModule
from keras_bert.export.text_model import TextModel, make_head
from keras_bert.hub import HubLayer
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertEmbedder, BertMultipleChoice, BertSpanLabeler, BertTokenClassifier
from keras_bert.text import BertTokenizer

from conftest import TINY, TINY_VOCABULARY, random_inputs, randomize


@pytest.fixture(scope="module")
def exports(exported):
    return str(exported()), str(exported(jit_compile=True))


def hub_layer(path, **kwargs):
    return hub.KerasLayer(path, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("layer", [HubLayer, hub_layer])
def test_outputs_and_gradients_equal_the_plain_export(exports, layer):
    inputs = [tf.constant(value) for value in random_inputs(4, 11).values()]
    inputs[1] = tf.constant(np.arange(11) < np.array([[11], [7], [3], [1]]), tf.int32)
    results = []
    for path in exports:
        loaded = layer(path, trainable=True)
        with tf.GradientTape() as tape:
            pooled, sequence = loaded(inputs, training=False)
            loss = tf.reduce_sum(pooled**2) + tf.reduce_sum(sequence[:, 0] ** 3)
        gradients = tape.gradient(loss, [getattr(v, "value", v) if layer is HubLayer else v
                                         for v in loaded.trainable_weights])
        results.append([pooled, sequence, *map(tf.convert_to_tensor, gradients)])
    for plain, jit in zip(*results, strict=True):
        scale = max(1.0, np.abs(plain).max())  # sums over tokens reach 100
        np.testing.assert_allclose(jit, plain, rtol=0, atol=1e-5 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("layer", [HubLayer, hub_layer])
def test_dropout_lives_in_training_only(exports, layer):
    inputs = [tf.constant(value) for value in random_inputs(2, 5).values()]
    loaded, frozen = layer(exports[1], trainable=True), layer(exports[1], trainable=False)
    for call, varies in ((lambda: loaded(inputs, training=True), True), (lambda: loaded(inputs, training=False), False),
                         (lambda: frozen(inputs, training=True), False)):
        first, second = call()[0], call()[0]
        assert (np.abs(first - second).max() > 1e-3) == varies


@pytest.mark.slow
def test_the_attribute_survives_saving(exports):
    def compiled(path):
        graph = tf.saved_model.load(path).signatures["serving_default"].graph.as_graph_def()
        return [function.signature.name for function in graph.library.function if function.attr["_XlaMustCompile"].b]

    plain, jit = exports
    assert compiled(plain) == []
    assert len(compiled(jit)) == 1


@pytest.mark.slow
def test_one_compilation_a_shape(exports, tmp_path):
    code = ("import tensorflow as tf, sys; encoder = tf.saved_model.load(sys.argv[1])\n"
            "for shape in [(2, 5), (2, 5), (3, 5), (2, 5), (3, 5), (2, 9)]: encoder([tf.ones(shape, tf.int32)] * 3)")
    run_with_dumps(tmp_path, code, exports[1])
    assert len(list(tmp_path.glob("*encode*.before_optimizations.txt"))) == 3


def run_with_dumps(folder, code, path):
    """Runs code with an argument in another process, in which XLA dumps each module that it compiles."""
    subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True,
                   env=os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_dump_to={folder}"})


def lowered_for_gpu(call, *inputs):
    """The names of the operations of a function, as XLA gets them for a GPU.

    TensorFlow lowers for a GPU without one, but for variables: they are frozen first.
    """
    frozen = convert_variables_to_constants_v2(tf.function(call).get_concrete_function(*inputs))
    module = tf.function(lambda *inputs: frozen(*inputs), jit_compile=True).experimental_get_compiler_ir(*inputs)(
        stage="hlo", platform_name="GPU")
    return set(re.findall(r"= \S+ ([a-z-]+)\(", module))


THROUGH_THE_HOST = {"infeed", "outfeed", "send", "recv", "custom-call"}


def test_lowered_for_gpu_nothing_goes_through_the_host(exports, source):
    loaded = tf.saved_model.load(exports[1])
    module = EncoderModule(source, "float32", jit_compile=True)
    inputs = [tf.constant(value) for value in random_inputs(2, 5).values()]
    for call in (lambda *inputs: loaded(list(inputs)),
                 # Of a step in training what is compiled: the count of steps around it cannot be frozen.
                 lambda *inputs: module._train(*inputs, tf.constant([1, 2]))):
        operations = lowered_for_gpu(call, *inputs)
        assert "dot" in operations
        assert not operations & THROUGH_THE_HOST


TEXTS = ["play some music", "", "turn the lamp off please " * 6, "turn the lamp off please " * 40, "각각의 집 é!", " "]
MODELS = {
    "classify": (lambda bert: BertClassifier(bert, 3), {"labels": ["a", "b", "c"]}, [TEXTS]),
    "tag": (lambda bert: BertTokenClassifier(bert, 3), {"labels": ["O", "B-x", "I-x"]}, [TEXTS]),
    "span": (BertSpanLabeler, {"max_query_length": 8, "doc_stride": 16}, [TEXTS[::-1], TEXTS]),
    "choice": (BertMultipleChoice, {}, [TEXTS, [TEXTS[:3]] * len(TEXTS)]),
    "embed": (lambda bert: BertEmbedder(bert, "mean", normalize=True), {}, [TEXTS]),
}
TOKENIZER, LENGTH = BertTokenizer(TINY_VOCABULARY), 40


@pytest.fixture(scope="module")
def text_models(tmp_path_factory):
    """A function of a kind of model that returns the model and the path of its raw-text SavedModel, compiled by XLA."""
    @functools.cache
    def export(kind):
        make, options, _ = MODELS[kind]
        model, path = randomize(make(randomize(BertLayer(TINY)))), tmp_path_factory.mktemp(kind) / "compiled"
        export_text_model(model, TOKENIZER, path, max_length=LENGTH, jit_compile=True, **options)
        return model, str(path)

    return export


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_raw_text_models_answer_as_without_xla(text_models, kind):
    (model, path), (_, options, columns) = text_models(kind), MODELS[kind]
    head = make_head(model, options)
    plain = TextModel(model, head, TOKENIZER, LENGTH, "float32").serve
    jit = tf.saved_model.load(path).signatures["serving_default"]
    for rows in (slice(0), slice(1, 2), slice(None)):
        texts = [tf.constant(np.array(column, object)[rows], tf.string) for column in columns]
        wanted, got = plain(*texts), jit(**{spec.name: text for spec, text in zip(head.texts, texts)})
        assert wanted.keys() == got.keys()
        for name, value in wanted.items():
            if value.dtype.is_floating:
                np.testing.assert_allclose(got[name], value, rtol=0, atol=2e-6)
            else:
                np.testing.assert_array_equal(got[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("change,message", [
    ({"input_word_ids": TINY.vocab_size}, "input_word_ids must be"), ({"input_word_ids": -1}, "input_word_ids must be"),
    ({"input_type_ids": TINY.type_vocab_size}, "input_type_ids must be"), ({}, "inputs must not exceed")])
def test_what_has_no_embedding_is_refused(exports, text_models, change, message):
    length = 5 if change else TINY.max_position_embeddings + 1
    inputs = dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), 1) | change
    inputs = {name: tf.fill([2, length], value) for name, value in inputs.items()}
    for path, name in ((exports[1], "serving_default"), (text_models("classify")[1], "encode")):
        loaded = tf.saved_model.load(path)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            loaded.signatures[name](**inputs)


@pytest.mark.slow
def test_raw_text_models_compile_few_shapes(text_models, tmp_path):
    code = ("import tensorflow as tf, sys; model = tf.saved_model.load(sys.argv[1])\n"
            "for rows, words in [(1, 1), (1, 9), (3, 9), (4, 14), (3, 15), (4, 30), (3, 31), (4, 99)]:\n"
            "    model(['play'] * (rows - 1) + ['play ' * words])")
    run_with_dumps(tmp_path, code, text_models("classify")[1])
    # 1 row of 16; 4 rows of 16, of 32, and of 40, the longest.
    assert len(list(tmp_path.glob("*.before_optimizations.txt"))) == 4


@pytest.mark.slow
def test_raw_text_models_are_lowered_for_gpu(text_models):
    """What is compiled holds the model and no text."""
    loaded = tf.saved_model.load(text_models("classify")[1])
    signature = loaded.signatures["encode"]
    names = ("input_word_ids", "input_mask", "input_type_ids")
    inputs = [tf.constant(value) for value in random_inputs(2, 16).values()]
    operations = lowered_for_gpu(
        lambda *inputs: signature(**dict(zip(names, inputs)))["probabilities"], *inputs)
    assert "dot" in operations
    assert not operations & THROUGH_THE_HOST
