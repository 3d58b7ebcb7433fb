"""A `--jit_compile` export beside the plain one, compiled here by XLA for the CPU."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_bert.hub import HubLayer

from conftest import random_inputs


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


def test_the_attribute_survives_saving(exports):
    def compiled(path):
        graph = tf.saved_model.load(path).signatures["serving_default"].graph.as_graph_def()
        return [function.signature.name for function in graph.library.function if function.attr["_XlaMustCompile"].b]

    plain, jit = exports
    assert compiled(plain) == []
    assert len(compiled(jit)) == 1


@pytest.mark.slow
def test_one_compilation_a_shape(exports, tmp_path):
    """XLA dumps each module that it compiles."""
    code = ("import tensorflow as tf, sys; encoder = tf.saved_model.load(sys.argv[1])\n"
            "for shape in [(2, 5), (2, 5), (3, 5), (2, 5), (3, 5), (2, 9)]: encoder([tf.ones(shape, tf.int32)] * 3)")
    subprocess.run([sys.executable, "-c", code, exports[1]], check=True, capture_output=True,
                   env=os.environ | {"XLA_FLAGS": f"--xla_dump_to={tmp_path}"})
    assert len(list(tmp_path.glob("*encode*.before_optimizations.txt"))) == 3


@pytest.mark.parametrize("training", [False, True])
def test_lowered_for_gpu_nothing_goes_through_the_host(exports, training):
    """TensorFlow lowers for a GPU without one, but for variables: they are frozen first."""
    loaded = tf.saved_model.load(exports[1])
    inputs = [tf.constant(value) for value in random_inputs(2, 5).values()]
    call = tf.function(lambda *inputs: loaded(list(inputs), training=training))
    frozen = convert_variables_to_constants_v2(call.get_concrete_function(*inputs))
    module = tf.function(lambda *inputs: frozen(*inputs), jit_compile=True).experimental_get_compiler_ir(*inputs)(
        stage="hlo", platform_name="GPU")
    operations = set(re.findall(r"= \S+ ([a-z-]+)\(", module))
    assert "dot" in operations
    assert not operations & {"infeed", "outfeed", "send", "recv", "custom-call"}
