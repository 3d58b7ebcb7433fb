"""`--jit_compile` exports, compiled here by XLA for the CPU; test_export.py has the contract of the encoder."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_bert.export.encoder import EncoderModule
from keras_bert.export.text_model import TextModel

import zoo
from conftest import TINY, eagerly, random_inputs


@pytest.fixture(scope="module")
def encoder(exported):
    return zoo.loaded(exported(jit_compile=True))


@pytest.fixture(scope="module")
def classifier():
    """The path of a raw-text SavedModel that XLA compiles."""
    return zoo.saved_model("intent", jit_compile=True, max_length=40)


@pytest.mark.slow("an attribute of XLA that saving loses")
def test_the_attribute_survives_saving(exported, encoder):
    def compiled(loaded):
        graph = loaded.signatures["serving_default"].graph.as_graph_def()
        return [function.signature.name for function in graph.library.function if function.attr["_XlaMustCompile"].b]

    assert compiled(zoo.loaded(exported())) == []
    assert len(compiled(encoder)) == 1


# Runs both models, and prints how many modules XLA has compiled after each.
COMPILED = """
import pathlib, sys, tensorflow as tf
encoder, model = map(tf.saved_model.load, sys.argv[1:3])

def print_count(pattern):
    print(len([*pathlib.Path(sys.argv[3]).glob(f"{pattern}.before_optimizations.txt")]))

for shape in [(2, 5), (2, 5), (3, 5), (2, 5), (3, 5)]:
    encoder([tf.ones(shape, tf.int32)] * 3)
print_count("*encode*")
for rows, words in [(1, 1), (1, 9), (3, 9), (4, 14), (3, 15), (4, 30), (4, 99)]:
    model(["play"] * (rows - 1) + ["play " * words])
print_count("*")
"""


@pytest.mark.slow("more compilations than shapes")
def test_few_compilations(exported, classifier, tmp_path):
    # In another process, in which XLA dumps each module that it compiles.
    done = subprocess.run([sys.executable, "-c", COMPILED, exported(jit_compile=True), classifier, tmp_path],
                          capture_output=True, text=True,
                          env=os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_dump_to={tmp_path}"})
    assert done.returncode == 0, done.stderr[-2000:]
    # Raw text: 1 row of 16; 4 rows of 16, of 32, and of 40, the longest.
    assert done.stdout.split() == ["2", "6"]


def lowered_for_gpu(call, *inputs):
    """The names of the operations of a function, as XLA gets them for a GPU.

    TensorFlow lowers for a GPU without one, but for variables: they are frozen first.
    """
    frozen = convert_variables_to_constants_v2(tf.function(call).get_concrete_function(*inputs))
    module = tf.function(lambda *inputs: frozen(*inputs), jit_compile=True).experimental_get_compiler_ir(*inputs)(
        stage="hlo", platform_name="GPU")
    return set(re.findall(r"= \S+ ([a-z-]+)\(", module))


THROUGH_THE_HOST = {"infeed", "outfeed", "send", "recv", "custom-call"}


@pytest.mark.slow("an operation that a GPU does not have")
def test_lowered_for_gpu_nothing_goes_through_the_host(source):
    module = EncoderModule(source, "float32", jit_compile=True)
    inputs = [tf.constant(value) for value in random_inputs(2, 5).values()]
    for call in (lambda *inputs: module(list(inputs)),
                 # Of a step in training what is compiled: the count of steps around it cannot be frozen.
                 lambda *inputs: module._train(*inputs, tf.constant([1, 2]))):
        operations = lowered_for_gpu(call, *inputs)
        assert "dot" in operations
        assert not operations & THROUGH_THE_HOST


@pytest.mark.slow("a head whose model XLA compiles")
@pytest.mark.parametrize("kind", ["intent", "tag", "span", "choice", "mean"])
def test_raw_text_models_answer_as_without_xla(kind):
    tuned, columns = zoo.make(kind), zoo.CASES[kind][2]
    if kind == "choice":
        columns = [zoo.TEXTS, [zoo.TEXTS[:3]] * len(zoo.TEXTS)]
    plain, jit = (TextModel(tuned.model, tuned.task, tuned.tokenizer, "float32", jit_compile).serve
                  for jit_compile in (False, True))
    for rows in [slice(None)] + [slice(0)] * (kind == "intent"):
        texts = [tf.constant(np.array(column, object)[rows], tf.string) for column in columns]
        with eagerly():
            wanted = plain(*texts)
        got = jit(*texts)
        assert wanted.keys() == got.keys()
        for name, value in wanted.items():
            if value.dtype.is_floating:
                np.testing.assert_allclose(got[name], value, rtol=0, atol=2e-6)
            else:
                np.testing.assert_array_equal(got[name], value)


@pytest.mark.slow("inputs that XLA computes without an error")
@pytest.mark.parametrize("change,message", [
    ({"input_word_ids": TINY.vocab_size}, "input_word_ids must be"), ({"input_word_ids": -1}, "input_word_ids must be"),
    ({"input_type_ids": TINY.type_vocab_size}, "input_type_ids must be"), ({}, "inputs must not exceed")])
def test_what_has_no_embedding_is_refused(encoder, classifier, change, message):
    length = 5 if change else TINY.max_position_embeddings + 1
    inputs = dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), 1) | change
    inputs = {name: tf.fill([2, length], value) for name, value in inputs.items()}
    for signature in encoder.signatures["serving_default"], zoo.loaded(classifier).signatures["encode"]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            signature(**inputs)


@pytest.mark.slow("an operation on texts in what XLA compiles")
def test_raw_text_models_are_lowered_for_gpu(classifier):
    signature = zoo.loaded(classifier).signatures["encode"]
    names = ("input_word_ids", "input_mask", "input_type_ids")
    inputs = [tf.constant(value) for value in random_inputs(2, 16).values()]
    operations = lowered_for_gpu(
        lambda *inputs: signature(**dict(zip(names, inputs)))["probabilities"], *inputs)
    assert "dot" in operations
    assert not operations & THROUGH_THE_HOST
