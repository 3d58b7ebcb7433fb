"""Every layout with every dtype in everything that a Keras user does with a layer, on the backend of KERAS_BACKEND.

`REFUSED` lists the cells that cannot work, with the error that says so. All others are compared with a BERT in NumPy.
"""

import contextlib
import functools
import itertools
import math
import os
import tempfile

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert import kernels
from keras_bert.config import BertConfig
from keras_bert.data import PackedBatches
from keras_bert.layers import BertLayer, BertOutput
from keras_bert.text import pad

from conftest import few_objects, randomize

CONFIG = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
                    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
LAYOUTS = ("padded", "packed", "unpadded")
DTYPES = ("float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
ON_JAX = kernels.BACKEND == "jax"

# The word ids of each text and how many of them are in segment 0. Rows of 9 tokens hold all of them in three.
TEXTS = [(list(range(1, 10)), 4), ([11, 12, 13, 14, 15], 5), ([21, 22, 23], 1), ([28, 29], 1)]
LENGTHS = [len(ids) for ids, _ in TEXTS]
ROW = max(LENGTHS)
POSITIONS = np.array([[3, 8], [0, 4], [2, 2], [1, 0]], "int32")

# Differences from NumPy's float64: of states up to 3 after two blocks; of gradients, as a share of the largest.
# float32 has 24 bits of precision, float16 11, bfloat16 8.
ATOL = {"float32": 5e-6, "float16": 0.02, "bfloat16": 0.1}
GRADIENT = {"float32": 1e-5, "float16": 0.03, "bfloat16": 0.2}


def refused(operation, layout, dtype):
    """The error of a cell that cannot work; None for all others."""
    if operation == "quantize" and "float16" in dtype and "bfloat16" not in dtype:
        return "mode='int8' doesn't work well with compute_dtype='float16'"  # Keras's own
    if operation == "positions" and layout == "packed":
        return "positions are of rows with one text each; got layout='packed'"
    if layout == "unpadded" and ON_JAX and operation not in ("attention", "positions"):  # those keep the padding
        return "layout='unpadded' .* only on Keras's TensorFlow backend \\(KERAS_BACKEND is 'jax'\\)"
    if layout == "unpadded" and operation == "xla":
        return "layout='unpadded' has shapes that depend on the values, so it runs only .* without XLA"
    return None


# The inputs of each layout, and what can be compared in its outputs.

def inputs_of(layout):
    if layout == "packed":
        return PackedBatches(TEXTS, 0, None, ROW).inputs(range(len(TEXTS)))
    return pad(TEXTS, 0)


def starts_of(layout):
    """Where each text begins, in all rows after one another."""
    return inputs_of("packed")["pooled_positions"] if layout == "packed" else np.arange(len(TEXTS)) * ROW


def by_text(layout, rows):
    """The states of each text's tokens, [length, width], out of [batch, seq, width]."""
    tokens = numpy(rows).reshape(-1, *rows.shape[2:])
    return [tokens[start:start + length] for start, length in zip(starts_of(layout), LENGTHS, strict=True)]


def attention_by_text(layout, probabilities):
    """[heads, length, length] of each text, out of [batch, heads, seq, seq]."""
    return [numpy(probabilities)[start // ROW, :, start % ROW:, start % ROW:][:, :length, :length]
            for start, length in zip(starts_of(layout), LENGTHS, strict=True)]


def numpy(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def assert_close(got, wanted, atol):
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


# BERT in NumPy, one text at a time, without padding.

@functools.cache
def reference():
    """The weights of all layers, and for each text (pooled [H], states of embeddings and blocks [length, H], attention
    of each block [N, length, length])."""
    layer = randomize(BertLayer(CONFIG))
    weights = {weight.path.split("/", 1)[1]: numpy(weight).astype("float64") for weight in layer.weights}
    return weights, [numpy_bert(weights, *text) for text in TEXTS]


def numpy_bert(weights, ids, first_segment):
    def dense(x, name):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + CONFIG.layer_norm_eps)
        return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def heads(x):
        return x.reshape(len(x), CONFIG.num_attention_heads, -1).swapaxes(0, 1)

    segments = (np.arange(len(ids)) >= first_segment).astype(int)
    tables = {"word": ids, "position": range(len(ids)), "segment": segments}
    x = norm(sum(weights[f"embeddings/{name}_embeddings/embeddings"][list(rows)] for name, rows in tables.items()),
             "embeddings/norm")
    states, attention = [x], []
    for block in (f"block_{i}" for i in range(CONFIG.num_hidden_layers)):
        query, key, value = (heads(dense(x, f"{block}/attention/{name}")) for name in ("query", "key", "value"))
        scores = np.exp(query @ key.swapaxes(1, 2) / math.sqrt(CONFIG.head_size))
        attention.append(scores / scores.sum(-1, keepdims=True))
        context = (attention[-1] @ value).swapaxes(0, 1).reshape(x.shape)
        x = norm(x + dense(context, f"{block}/attention/output_dense"), f"{block}/attention_norm")
        inner = dense(x, f"{block}/intermediate")
        inner *= (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
        x = norm(x + dense(inner, f"{block}/output_dense"), f"{block}/output_norm")
        states.append(x)
    return np.tanh(dense(x[0], "pooler")), states, attention


# A loss that every token of every text has a part in, and its gradients.

RNG = np.random.default_rng(0)
POOLED_WEIGHTS = RNG.normal(size=(len(TEXTS), CONFIG.hidden_size))
TOKEN_WEIGHTS = RNG.normal(size=(len(TEXTS), ROW, CONFIG.hidden_size)) / 4


def numpy_loss(weights):
    outputs = [numpy_bert(weights, *text) for text in TEXTS]
    return sum((pooled * weight).sum() + (states[-1] * tokens[:len(states[-1])]).sum()
               for (pooled, states, _), weight, tokens in zip(outputs, POOLED_WEIGHTS, TOKEN_WEIGHTS, strict=True))


@functools.cache
def slopes():
    """Of each weight a random direction, and the slope of the loss in it."""
    weights, rng = reference()[0], np.random.default_rng(1)
    directions = {name: rng.normal(size=value.shape) for name, value in weights.items()}
    losses = {name: [numpy_loss(weights | {name: weights[name] + step * direction}) for step in (1e-5, -1e-5)]
              for name, direction in directions.items()}
    return {name: (direction, (losses[name][0] - losses[name][1]) / 2e-5) for name, direction in directions.items()}


def loss_of(layout, outputs):
    inputs = inputs_of(layout)
    token_weights = np.zeros((inputs["input_mask"].size, CONFIG.hidden_size), "float32")
    for start, length, weights in zip(starts_of(layout), LENGTHS, TOKEN_WEIGHTS, strict=True):
        token_weights[start:start + length] = weights[:length]
    pooled, sequence = (ops.cast(output, "float32") for output in outputs)
    return ops.sum(pooled * POOLED_WEIGHTS.astype("float32")) + ops.sum(
        ops.reshape(sequence, token_weights.shape) * token_weights)


def gradients_of(layer, layout):
    """The gradients of training, by the paths of the trainable variables."""
    inputs = inputs_of(layout)
    if ON_JAX:
        import jax

        def loss(trainable):
            frozen = [variable.value for variable in layer.non_trainable_variables]
            return loss_of(layout, layer.stateless_call(trainable, frozen, inputs, training=True)[0])

        gradients = jax.grad(loss)([variable.value for variable in layer.trainable_variables])
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of(layout, layer(inputs, training=True))
        gradients = map(tf.convert_to_tensor, tape.gradient(loss, [v.value for v in layer.trainable_variables]))
    return {variable.path.split("/", 1)[1]: numpy(gradient)
            for variable, gradient in zip(layer.trainable_variables, gradients, strict=True)}


# The encoders under test.

@functools.cache
def shared(layout, dtype):
    """One layer for all cells that do not change it."""
    return encoder(layout, dtype)


def encoder(layout, dtype, **arguments):
    layer = BertLayer(CONFIG, layout=layout, dtype=dtype, name="bert", **arguments)
    weights = reference()[0]
    for weight in layer.weights:
        if "lora" not in weight.name:
            weight.assign(weights[weight.path.split("/", 1)[1]])
    return layer


def atol(layer):
    return ATOL[layer.compute_dtype]


def symbolic(layout):
    return {name: keras.Input(value.shape[1:], dtype="int32", name=name) for name, value in inputs_of(layout).items()}


def functional(layer):
    """The layer in a functional model, whose outputs are the pair."""
    tensors = symbolic(layer.layout)
    return keras.Model(tensors, layer(tensors))


def assert_reference(layer, outputs, tolerance=None):
    """The pair is NumPy's."""
    pooled, sequence = outputs
    assert {keras.backend.standardize_dtype(output.dtype) for output in outputs} == {layer.compute_dtype}
    tolerance = tolerance or atol(layer)
    _, wanted = reference()
    assert_close(numpy(pooled), np.stack([pooled for pooled, _, _ in wanted]), tolerance)
    assert_close(by_text(layer.layout, sequence), [states[-1] for _, states, _ in wanted], tolerance)


def assert_equal_outputs(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))


# One function for each column of the matrix.

def forward(layout, dtype):
    layer = shared(layout, dtype)
    inputs = inputs_of(layout)
    outputs = layer(inputs)
    assert_reference(layer, outputs)
    assert_close(numpy(layer.pool(inputs)), numpy(outputs[0]), atol(layer))
    if layout == "unpadded":
        assert not numpy(outputs[1])[inputs["input_mask"] == 0].any()


def gradients(layout, dtype):
    """float32 against the slopes, which float16 and bfloat16 are too coarse for: they are compared with float32."""
    layer = shared(layout, dtype)
    got = gradients_of(layer, layout)
    assert got.keys() == slopes().keys() and all(np.isfinite(gradient).all() for gradient in got.values())
    if layer.dtype_policy.name == "float32":
        for name, (direction, slope) in slopes().items():
            scale = max(1, np.abs(got[name] * direction).sum())
            assert abs((got[name] * direction).sum() - slope) < GRADIENT["float32"] * scale, name
    else:
        exact = gradients_of(shared(layout, "float32"), layout)
        for name, wanted in exact.items():
            # That of a bias of keys is 0 but for rounding.
            largest = 1 if name.endswith("key/bias") else np.abs(wanted).max()
            np.testing.assert_allclose(got[name] / largest, wanted / largest, rtol=0,
                                       atol=GRADIENT[layer.compute_dtype], err_msg=name)


def attention(layout, dtype):
    layer = shared(layout, dtype)
    inputs = inputs_of(layout)
    outputs = layer.encode(inputs, return_attention=True)
    rows, length = inputs["input_mask"].shape
    for block, probabilities in enumerate(outputs.attention_probabilities):
        assert probabilities.shape == (rows, CONFIG.num_attention_heads, length, length)
        assert_close(attention_by_text(layout, probabilities), [attention[block] for _, _, attention in reference()[1]],
                     atol(layer))
    for block, states in enumerate([outputs.embedding_output, *outputs.encoder_outputs]):
        assert_close(by_text(layout, states), [states[block] for _, states, _ in reference()[1]], atol(layer))


def positions(layout, dtype):
    layer = shared(layout, dtype)
    outputs = layer.encode(inputs_of(layout), positions=POSITIONS)
    wanted = [states[-1][chosen] for (_, states, _), chosen in zip(reference()[1], POSITIONS, strict=True)]
    assert_close(numpy(outputs.sequence_output), wanted, atol(layer))
    assert_close(numpy(outputs.pooled_output), [pooled for pooled, _, _ in reference()[1]], atol(layer))


def symbolic_call(layout, dtype):
    layer, tensors, inputs = shared(layout, dtype), symbolic(layout), inputs_of(layout)
    outputs = [layer(tensors), layer.pool(tensors), layer.encode(tensors, return_attention=True)]
    model = keras.Model(tensors, outputs)
    assert isinstance(outputs[2], BertOutput) and len(outputs[2].attention_probabilities) == CONFIG.num_hidden_layers
    wanted = [layer(inputs), layer.pool(inputs), layer.encode(inputs, return_attention=True)]
    for spec, got, value in zip(*map(keras.tree.flatten, (outputs, model(inputs), wanted)), strict=True):
        assert spec.dtype == layer.compute_dtype and len(spec.shape) == len(value.shape)
        assert all(size in (None, actual) for size, actual in zip(spec.shape, value.shape))
        assert_close(numpy(got), numpy(value), atol(layer))


def xla(layout, dtype):
    layer = shared(layout, dtype)
    if ON_JAX:
        import jax

        compiled = jax.jit(lambda inputs: layer(inputs))
    else:
        import tensorflow as tf

        compiled = tf.function(layer, jit_compile=True, autograph=False)
    assert_reference(layer, compiled(inputs_of(layout)))


def save_and_reload(layout, dtype):
    layer, inputs = shared(layout, dtype), inputs_of(layout)
    model = functional(layer)
    again = saved(model)
    assert again.get_layer("bert").get_config() == layer.get_config()
    assert again.get_layer("bert").supports_jit == (layout != "unpadded")
    assert_equal_outputs(again(inputs), model(inputs))


def clone(layout, dtype):
    model, inputs = functional(shared(layout, dtype)), inputs_of(layout)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    assert copy.get_layer("bert").get_config() == model.get_layer("bert").get_config()
    assert_equal_outputs(copy(inputs), model(inputs))


def freeze(layout, dtype):
    """Without the 5 variables of the embeddings and the 16 of the first block, 18 are left."""
    layer = encoder(layout, dtype, frozen=["embeddings", "block_0"])
    expected = gradients_of(shared(layout, dtype), layout)
    for each in (layer, layer.rebuild()):
        got = gradients_of(each, layout)
        assert len(got) == 18 and not any(name.startswith(("embeddings", "block_0")) for name in got)
        for name, gradient in got.items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-3, atol=1e-5)
        assert_reference(layer, each(inputs_of(layout)))


def lora(layout, dtype):
    layer = encoder(layout, dtype, lora_rank=2)
    inputs = inputs_of(layout)
    assert_equal_outputs(layer(inputs), shared(layout, dtype)(inputs))
    names = {name.rsplit("/", 1)[1] for name in gradients_of(layer, layout)}
    assert names == {"lora_kernel_a", "lora_kernel_b"} and len(layer.trainable_variables) == 8
    rng = np.random.default_rng(0)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(0, 0.3, variable.shape))
    changed = layer(inputs)
    assert np.abs(numpy(changed[0]) - numpy(shared(layout, dtype)(inputs)[0])).max() > 0.01
    for rank, count in ((None, 39), (2, 8)):
        copy = layer.rebuild(lora_rank=rank)
        assert len(copy.trainable_variables) == count
        # The sum of kernel and addition is rounded to the dtype of the kernel.
        for got, wanted in zip(copy(inputs), changed, strict=True):
            np.testing.assert_allclose(numpy(got), numpy(wanted), rtol=0, atol=atol(layer))


def quantize(layout, dtype):
    """Integers of 8 bits, with a scale for each column: 0.15 for states up to 3."""
    inputs = inputs_of(layout)
    model = functional(encoder(layout, dtype))
    with few_objects(), pytest.warns(UserWarning, match="does not have a `quantize` method"):  # inputs and norms
        model.quantize("int8")
    layer = model.get_layer("bert")
    assert_reference(layer, model(inputs), tolerance=0.15 + atol(layer))
    again = saved(model)
    kernels = [block.attention.query.kernel for block in again.get_layer("bert").blocks]
    assert {keras.backend.standardize_dtype(kernel.dtype) for kernel in kernels} == {"int8"}
    assert_equal_outputs(again(inputs), model(inputs))
    assert_equal_outputs(layer.rebuild(name="other")(inputs), model(inputs))


def saved(model):
    """The model from a `.keras` file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        return keras.saving.load_model(path)


@pytest.fixture(autouse=True)
def _rows_with_empty_slots(monkeypatch):
    """Rows for attention without padding that are as long as the longest text, and not full."""
    if not ON_JAX:
        monkeypatch.setattr("keras_bert.kernels.unpadded._SHORTEST_ROW", 1)


OPERATIONS = (
    forward, gradients, attention, positions, symbolic_call, xla, save_and_reload, clone, freeze, lora, quantize)


def marks_of(operation, layout, dtype):
    """The cells that `make test` and `make test-slow` run have each two of the three once; the others take minutes."""
    place = sum(axis.index(value) for axis, value in ((OPERATIONS, operation), (LAYOUTS, layout), (DTYPES, dtype)))
    if place % len(LAYOUTS):
        return [pytest.mark.long, pytest.mark.backend("tensorflow")]
    return [pytest.mark.slow("an encoder that XLA, LoRA or 8 bits change")] * (operation in (xla, quantize, lora))


CELLS = [
    pytest.param(operation, layout, dtype, id=f"{operation.__name__}-{layout}-{dtype}",
                 marks=marks_of(operation, layout, dtype))
    for operation, layout, dtype in itertools.product(OPERATIONS, LAYOUTS, DTYPES)]


@pytest.mark.parametrize("operation,layout,dtype", CELLS)
def test_cell(operation, layout, dtype):
    error = refused(operation.__name__, layout, dtype)
    with pytest.raises(ValueError, match=error) if error else contextlib.nullcontext():
        operation(layout, dtype)
