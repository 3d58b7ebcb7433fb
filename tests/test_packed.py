"""Several texts in a row beside the same texts in rows of their own."""

import collections
import dataclasses
import itertools
import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from keras import ops

from keras_bert.data import PackedBatches, TextBatches
from keras_bert.data.batches import pack
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.training import finetune

from conftest import TINY, randomize, write_huggingface

ROW = 24


def random_texts(count, seed=0):
    rng = np.random.default_rng(seed)
    packed = []
    for length in rng.integers(3, 17, count):
        packed.append((rng.integers(5, TINY.vocab_size, length).tolist(), int(rng.integers(2, length + 1))))
    return packed, rng.integers(0, 3, count).astype(np.int32)


def both(packed, targets, pools_last=False):
    return PackedBatches(packed, 0, targets, ROW, pools_last), TextBatches(packed, 0, targets)


def test_outputs_equal_those_of_rows_of_their_own():
    """From left to right; test_matrix.py has both directions."""
    bert = randomize(BertLayer(dataclasses.replace(TINY, directionality="ltr")))
    packed, plain = both(*random_texts(9), pools_last=True)
    everything = np.arange(9)
    inputs = packed.inputs(everything)
    pooled, sequence = map(ops.convert_to_numpy, bert(inputs, layout="packed"))
    wanted_pooled, wanted = map(ops.convert_to_numpy, bert(plain.inputs(everything)))
    # Float32 sums of values about 1, in another order.
    np.testing.assert_allclose(pooled, wanted_pooled, atol=5e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(bert.pool(inputs, layout="packed")), wanted_pooled, atol=5e-6)
    tokens = sequence.reshape(-1, TINY.hidden_size)
    for text, begin in enumerate(inputs["pooled_positions"]):
        length = plain.lengths[text]
        begin -= length - 1
        np.testing.assert_allclose(tokens[begin:begin + length], wanted[text, :length], atol=5e-6)


@hypothesis.given(st.lists(st.integers(1, 24), min_size=1, max_size=80))
def test_rows_hold_every_text_once(lengths):
    rows = pack(lengths, ROW)
    assert sorted(itertools.chain(*rows)) == list(range(len(lengths)))
    filled = [sum(lengths[i] for i in row) for row in rows]
    assert max(filled) <= ROW
    assert all(one + other > ROW for one, other in itertools.combinations(filled, 2))  # else they were one row


def test_the_batches_of_an_epoch_have_one_shape_and_hold_every_text_once():
    packed, targets = random_texts(1000)
    batches = PackedBatches(packed, 0, targets, 64)
    shapes, seen = collections.Counter(), collections.Counter()
    for inputs, labels in batches.training_dataset(50, seed=0, epoch=0).as_numpy_iterator():
        shapes[inputs["input_word_ids"].shape] += 1
        real = inputs["input_mask"] == 1
        seen.update(inputs["input_word_ids"][real].tolist())
        assert len(labels) == len(inputs["pooled_positions"]) == 50
    assert max(shapes.values()) == sum(shapes.values()) == batches.steps(50)
    assert seen == collections.Counter(itertools.chain(*(ids for ids, _ in packed)))


@pytest.mark.backend("tensorflow")
@pytest.mark.slow("packed rows that do not reach the model")
def test_finetune_learns_from_packed_rows(tmp_path, intents):
    train, valid = intents
    encoder = randomize(BertLayer(dataclasses.replace(TINY, directionality="ltr", num_hidden_layers=1)))
    finetune(train, valid, model=write_huggingface(tmp_path / "ltr", encoder), output=tmp_path / "model", epochs=30,
             batch_size=4, learning_rate=1e-2, max_length=16, pack=True)
    with open(tmp_path / "model/metrics.json") as file:
        assert json.load(file)["accuracy"] == 1


def test_pack_is_for_one_answer_a_text(tmp_path, intents):
    with pytest.raises(InputError, match="^pack must be left out unless task is classify or intent or multilabel or "):
        finetune(*intents, model="minilm", output=tmp_path / "model", task="tag", pack=True)
