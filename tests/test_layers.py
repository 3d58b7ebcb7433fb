"""The layers, on the backend of KERAS_BACKEND."""

import contextlib
import dataclasses

import numpy as np
import pytest
from keras import ops

from keras_bert import kernels
from keras_bert.kernels.layout import Layout
from keras_bert.layers import BertLayer
from keras_bert.layers.attention import SelfAttention
from keras_bert.models import BertClassifier

from conftest import SMALL, TINY, random_inputs, randomize


def numpy(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


@pytest.fixture(scope="module")
def shared_bert():
    return randomize(BertLayer(TINY))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_row_of_padding_alone_is_finite(dtype):
    inputs = random_inputs(2, 5)
    inputs["input_mask"][1] = 0
    assert all(np.isfinite(numpy(output)).all() for output in BertLayer(SMALL, dtype=dtype)(inputs))


def test_what_stands_behind_the_mask_changes_no_bit(shared_bert):
    inputs = random_inputs(2, 20)
    inputs["input_mask"][:, 9:] = 0
    pooled, sequence = map(numpy, shared_bert(inputs))
    inputs["input_word_ids"][:, 9:] = 5
    inputs["segment_ids"][:, 9:] = 1
    other_pooled, other_sequence = map(numpy, shared_bert(inputs))
    np.testing.assert_array_equal(other_pooled, pooled)
    np.testing.assert_array_equal(other_sequence[:, :9], sequence[:, :9])


def test_forms_of_input(shared_bert):
    inputs = random_inputs(2, 6)
    as_list = shared_bert([*inputs.values()])
    hub_names = {"aardvark": inputs["input_mask"], "input_type_ids": inputs["segment_ids"],
                 **{name: inputs[name] for name in ("input_word_ids", "input_mask")}}
    for other in (inputs, hub_names):
        for got, wanted in zip(shared_bert(other), as_list):
            np.testing.assert_array_equal(numpy(got), numpy(wanted))


def test_wrong_inputs(shared_bert):
    inputs = random_inputs(2, 6)
    with pytest.raises(ValueError, match="missing input_mask"):
        shared_bert({"input_word_ids": inputs["input_word_ids"], "segment_ids": inputs["segment_ids"]})
    with pytest.raises(ValueError, match="three tensors.*got 2"):
        shared_bert([inputs["input_word_ids"], inputs["input_mask"]])
    with pytest.raises(ValueError, match="max_position_embeddings.*128.*got 129"):
        shared_bert(random_inputs(1, 129))


@pytest.mark.parametrize("layout", ["padded", "unpadded"])
@pytest.mark.parametrize("name, count", [("input_word_ids", TINY.vocab_size), ("segment_ids", TINY.type_vocab_size)])
def test_ids_without_an_embedding_are_refused(shared_bert, layout, name, count):
    """Negative ones, too, which Keras counts from the end of the table."""
    if layout == "unpadded" and kernels.BACKEND == "jax":
        pytest.skip("only on TensorFlow")
    model = BertClassifier(shared_bert.rebuild(layout=layout), 3)
    for value in (-1, -2**31, count):
        inputs = random_inputs(2, 5)
        inputs[name][1, 2] = value
        with pytest.raises(ValueError, match=f"{name} must be from 0 to {count - 1}; got") if (
                kernels.BACKEND == "tensorflow") else contextlib.nullcontext():
            model(inputs)
        if kernels.BACKEND == "jax":
            assert np.isnan(model.predict_on_batch(inputs)[1]).all()
        else:
            with pytest.raises(Exception, match=r"is not in \[0, ") as caught:
                model.predict_on_batch(inputs)
            assert type(caught.value).__name__ == "InvalidArgumentError"


def test_dropout_follows_the_seed(shared_bert):
    """test_heads.py has more, of each model."""
    inputs, seed = random_inputs(2, 6), np.array([1, 2], "int32")
    given = numpy(shared_bert(inputs, training=True, seed=seed)[1])
    in_dict = shared_bert(inputs | {"dropout_seed": np.tile(seed, (2, 1))}, training=True)[1]
    np.testing.assert_array_equal(numpy(in_dict), given)
    fresh = [numpy(shared_bert(inputs, training=True)[1]) for _ in range(2)]
    assert np.abs(fresh[0] - fresh[1]).max() > 1e-3
    silent = numpy(shared_bert(inputs, training=False, seed=seed)[1])
    np.testing.assert_array_equal(silent, numpy(shared_bert(inputs)[1]))


def test_dropout_rate_and_scale():
    for dtype in ("float32", "bfloat16"):
        dropped = numpy(kernels.dropout(ops.ones((1000, 1000), dtype), 0.1, np.array([3, 4], "int32")))
        assert (dropped == 0).mean() == pytest.approx(0.1, abs=0.0015)  # five standard deviations of a million draws
        assert np.unique(dropped[dropped > 0]) == pytest.approx(1 / 0.9, rel=4e-3)
        # Neighbours come from the same 32 bits; both are kept or both dropped with 0.9**2 + 0.1**2.
        assert ((dropped[:, ::2] > 0) == (dropped[:, 1::2] > 0)).mean() == pytest.approx(0.82, abs=0.003)
    rare = numpy(kernels.dropout(ops.ones(2**22), 0.99999, np.array([3, 4], "int32")))
    assert set(np.unique(rare)) == {0, 2**16} and rare.mean() == pytest.approx(1, abs=0.6)  # 64 of 2**22 are kept
    assert not np.isnan(numpy(kernels.dropout(ops.full((999,), np.inf), 0.1, np.array([3, 4], "int32")))).any()


def test_attention_drops_probabilities():
    """The values are scaled in place of the probabilities."""
    attention = SelfAttention(dataclasses.replace(TINY, attention_probs_dropout_prob=0.3))
    attention.build()
    x = np.random.default_rng(0).normal(size=(2, 5, TINY.hidden_size)).astype(np.float32)
    layout, seed = Layout(np.ones((2, 5), np.int32), TINY.num_attention_heads, "bidi", "float32"), np.int32([5, 6])
    got, probabilities = attention(x, layout=layout, seed=seed)
    dropped = probabilities * kernels.dropout(ops.ones_like(probabilities), 0.3, seed)
    wanted = attention.output_dense(layout.merge_heads(ops.matmul(dropped, layout.split_heads(attention.value(x)))))
    assert 0.1 < np.mean(numpy(dropped) == 0) < 0.5
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_layers_have_independent_dropout():
    seed = ops.convert_to_tensor(np.array([1, 2], "int32"))
    masks = [numpy(kernels.dropout(ops.ones(10_000), 0.5, kernels.fold_in(seed, i))) > 0 for i in range(3)]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert (masks[first] == masks[second]).mean() == pytest.approx(0.5, abs=0.03)


def test_each_dropout_of_the_encoder_has_its_own_seed(shared_bert, monkeypatch):
    seeds, drop = [], kernels.drop

    def record(x, rate, seed):
        seeds.append(tuple(ops.convert_to_numpy(seed).tolist()))
        return drop(x, rate, seed)

    monkeypatch.setattr(kernels, "drop", record)
    shared_bert(random_inputs(2, 6), training=True, seed=np.array([1, 2], "int32"))
    assert len(seeds) == len(set(seeds)) == 1 + 3 * TINY.num_hidden_layers  # of the embeddings, and of each block


@pytest.mark.parametrize("directionality,untouched", [("ltr", slice(0, 4)), ("rtl", slice(5, None))])
def test_a_token_sees_one_side_alone(directionality, untouched):
    bert = randomize(BertLayer(dataclasses.replace(TINY, directionality=directionality)))
    inputs = random_inputs(2, 9)
    before = numpy(bert(inputs)[1])
    inputs["input_word_ids"][:, 4] += 1
    changed = np.abs(numpy(bert(inputs)[1]) - before).max(axis=(0, 2)) > 1e-6
    assert changed.sum() == 5 and not changed[untouched].any()


def test_the_last_block_for_some_tokens_alone():
    bert = randomize(BertLayer(dataclasses.replace(TINY, directionality="ltr")))  # test_matrix.py has the other
    inputs = random_inputs(3, 9)
    inputs["input_mask"][1, 6:] = 0
    positions = np.array([[3, 0], [5, 5], [8, 1]], "int32")
    whole = bert.encode(inputs, return_attention=True)
    part = bert.encode(inputs, return_attention=True, positions=positions)
    assert bert.encode(inputs).attention_probabilities == []
    rows = np.arange(3)[:, None], positions
    # The products are of other shapes, so that they sum in another order.
    np.testing.assert_allclose(numpy(part.sequence_output), numpy(whole.sequence_output)[rows], atol=2e-6)
    np.testing.assert_allclose(numpy(part.pooled_output), numpy(whole.pooled_output), atol=2e-6)
    np.testing.assert_allclose(numpy(part.encoder_outputs[0]), numpy(whole.encoder_outputs[0]), atol=2e-6)
    attention = numpy(part.attention_probabilities[-1])
    assert attention.shape == (3, 4, 3, 9)  # of [CLS] and the two
    np.testing.assert_allclose(attention[0, :, 1], numpy(whole.attention_probabilities[-1])[0, :, 3], atol=2e-6)
