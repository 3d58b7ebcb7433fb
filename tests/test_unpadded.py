"""The encoder on the real tokens alone beside the same on padded rows."""

import collections
import dataclasses

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies

from keras_bert import kernels
from keras_bert.layers import BertLayer

from conftest import TINY, random_inputs, randomize

if kernels.BACKEND != "tensorflow":
    pytest.skip("the shapes depend on the values, which JAX has no way for", allow_module_level=True)

import tensorflow as tf
from tensorflow.python.framework import test_util

from keras_bert.kernels.unpadded import UnpaddedLayout, assign_rows


@pytest.fixture(scope="module", params=["bidi", "ltr", "rtl"])
def bert(request):
    return randomize(BertLayer(dataclasses.replace(TINY, directionality=request.param)))


def mask_of(lengths, width=64):
    return (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)


# Padding before or within a text, too; the first place then still is the pooled one, or of `ltr` the last.
HOLES = np.random.default_rng(0).integers(0, 2, (8, 9), dtype=np.int32)


@pytest.mark.parametrize("mask", [
    *map(mask_of, ([40, 1, 64, 7, 33, 2, 64], [0, 3], [0], [1] * 9, [64] * 3 + [63])), HOLES], ids=[
        "any lengths", "no text among others", "no text", "single tokens", "no padding", "holes"])
def test_outputs_equal_those_of_padded_rows(bert, mask):
    """Float32 sums in another order, of values of about 1, through two blocks: 5e-6."""
    inputs = random_inputs(*mask.shape) | {"input_mask": mask}
    has_text, is_real = mask.any(axis=1), mask > 0
    padded, unpadded = (bert.encode(inputs, layout=layout) for layout in ("padded", "unpadded"))
    for name in ("embedding_output", "encoder_outputs", "sequence_output"):
        for got, wanted in zip(*(tf.nest.flatten(getattr(each, name)) for each in (unpadded, padded)), strict=True):
            np.testing.assert_allclose(got[is_real], wanted[is_real], atol=5e-6)
    for pooled in unpadded.pooled_output, bert.pool(inputs, layout="unpadded"), bert.pool(inputs):
        np.testing.assert_allclose(pooled[has_text], padded.pooled_output[has_text], atol=5e-6)


@pytest.mark.parametrize("tokens", [1, 255, 256])  # the form changes at 256
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("bfloat16", 0.03)])
def test_norms_of_few_and_of_many_tokens(tokens, dtype, tolerance):
    norm = keras.layers.LayerNormalization(epsilon=1e-12)
    norm.build((None, 48))
    rng = np.random.default_rng(0)
    norm.gamma.assign(rng.normal(1, 0.2, 48))
    norm.beta.assign(rng.normal(0, 0.2, 48))
    x = tf.cast(rng.normal(5, 2, (tokens, 48)), dtype)
    layout = UnpaddedLayout(np.ones((1, tokens), np.int32), 2, "bidi", dtype, training=False)
    values = np.float64(tf.cast(x, "float64"))
    deviation = np.sqrt(values.var(axis=1, keepdims=True) + 1e-12)
    wanted = (values - values.mean(axis=1, keepdims=True)) / deviation * norm.gamma.numpy() + norm.beta.numpy()
    for function in layout.normalize, tf.function(layout.normalize):
        np.testing.assert_allclose(tf.cast(function(x, norm), "float64"), wanted, atol=tolerance)


@pytest.mark.parametrize("directionality,training,decorate", [
    ("ltr", False, lambda function: function), ("rtl", True, lambda function: function),
    pytest.param("bidi", True, tf.function, marks=pytest.mark.slow("gradients of a graph"))])
def test_gradients(directionality, training, decorate):
    """The gradients of training are our own; without dropout they are those of any call."""
    config = dataclasses.replace(TINY, directionality=directionality, hidden_dropout_prob=0.0,
                                 attention_probs_dropout_prob=0.0)
    bert = randomize(BertLayer(config, gradient_checkpointing=directionality != "ltr"))
    inputs = random_inputs(5, 40) | {"input_mask": mask_of([3, 40, 1, 33, 9], 40)}  # two rows of 64 places
    weights = np.random.default_rng(0).normal(size=(5, 40, TINY.hidden_size)).astype(np.float32)
    weights *= inputs["input_mask"][:, :, None]

    @decorate
    def gradients(layout):
        with tf.GradientTape() as tape:
            pooled, sequence = bert(inputs, training=training, layout=layout)
            loss = tf.reduce_sum(sequence * weights) + tf.reduce_sum(pooled)
            loss += tf.reduce_sum(bert.pool(inputs, training=training, layout=layout))
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, bert.trainable_variables)]

    for variable, got, wanted in zip(
            bert.trainable_variables, gradients("unpadded"), gradients("padded"), strict=True):
        largest = max(1, np.abs(wanted).max())  # of sums of dozens of terms, up to 50
        np.testing.assert_allclose(got / largest, wanted / largest, atol=1e-5, err_msg=variable.path)


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(strategies.lists(strategies.integers(1, 40), min_size=1, max_size=40), strategies.integers(0, 30))
def test_texts_packed_into_rows_do_not_overlap(lengths, more):
    width = max(lengths) + more
    row, begin, rows = (part.numpy() for part in assign_rows(tf.constant(lengths), tf.constant(width)))
    taken = collections.Counter(
        (r, b + i) for r, b, length in zip(row, begin, lengths, strict=True) for i in range(length))
    assert max(taken.values()) == 1
    assert all(0 <= column < width for _, column in taken)
    assert set(row) == set(range(rows))
    # Two rows that are at most half full together would have been one.
    filled = np.bincount(row, weights=lengths)
    assert rows == 1 or np.sort(filled)[:2].sum() > width


@pytest.mark.skipif(not test_util.IsMklEnabled(), reason="oneDNN is off: needs x86-64 and TF_ENABLE_ONEDNN_OPTS=1")
def test_tensorflow_fuses_what_can_be_fused():
    """Bias and GELU into the products, a norm into one operation: what `docs/performance.md` counts on."""
    from tensorflow.python.eager import context

    bert = randomize(BertLayer(TINY))
    inputs = [tf.constant(value) for value in random_inputs(3, 9).values()]
    pool = tf.function(
        lambda *tensors: bert(list(tensors), layout="unpadded")[1],
        input_signature=[tf.TensorSpec([None, None], tf.int32)] * 3, autograph=False)
    context.enable_run_metadata()
    pool(*inputs)
    metadata = context.export_run_metadata()
    context.disable_run_metadata()
    nodes = collections.Counter(node.op for graph in metadata.partition_graphs for node in graph.node)
    blocks = TINY.num_hidden_layers
    assert nodes["_MklLayerNorm"] == 1 + 2 * blocks
    assert nodes["_MklNativeFusedMatMul"] == 6 * blocks
    assert not nodes["Erf"] and not nodes["_MklTranspose"] and not nodes["Transpose"]
