"""The function `explain` of raw-text models, against the encoders that they were made from."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from text_reference import LABELS, LENGTH, TOKENIZER

from keras_bert.export.text_model import TextModel, task_of
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertRegressor, BertSpanLabeler, BertTokenClassifier
from keras_bert.tasks import Span
from keras_bert.text import packing
from keras_bert.text.offsets import tokens_with_offsets

from conftest import TINY, eagerly, randomize

pytestmark = pytest.mark.slow("pieces or attention of other inputs than the model's")

TEXTS = ["play some 🎵🎶 music,now", "각각의 집 é!", "e\u0301t is\u0301 my\tsong\t\ton", "", " \t\n", "the lamps " * 20,
         "👩\u200d👩\u200d👧 turn"]
OTHERS = ["what time", "a b c", "", "off 가", "table", "light on", "play " * 30]
# For each task: the kind of model, its options, the layers asked for, the texts.
MODELS = {
    "classify": (lambda bert: BertClassifier(bert, 2), {"labels": ["a", "b"]}, [], [TEXTS]),
    "regress": (BertRegressor, {"pairs": True}, [1], [TEXTS, OTHERS]),
    "embed": (lambda bert: bert, {}, [1, 0, 1], [TEXTS]),
    "tag": (lambda bert: BertTokenClassifier(bert, len(LABELS)), {"labels": LABELS}, [0], [TEXTS]),
    "span": (BertSpanLabeler, {"max_query_length": LENGTH - 4}, [], [OTHERS, TEXTS]),
}
TRACED = ["regress"]  # the others run as Python, which takes less time


@pytest.fixture(scope="module")
def bert():
    bert = randomize(BertLayer(TINY))
    for block in bert.blocks:  # so that the attention differs from token to token
        block.attention.query.kernel.assign(block.attention.query.kernel * 10)
    return bert


def first_inputs(task, texts):
    """What the encoder gets first, dict of [batch, seq]."""
    if task != "span":
        return TOKENIZER(*texts, *[None] * (2 - len(texts)), LENGTH)
    encoded = Span(LENGTH).encode(Span(LENGTH).arguments(*texts), TOKENIZER)
    _, windows = encoded.decoding
    return packing.pad([row for row, (_, begin, *_) in zip(encoded.rows, windows) if begin == 0], TOKENIZER.pad_id)


@pytest.mark.parametrize("task", MODELS)
def test_pieces_and_attention_are_the_encoders(bert, task):
    make, options, layers, texts = MODELS[task]
    model = make(bert)
    dtype = "bfloat16" if task == "embed" else "float32"
    explain = TextModel(
        model, task_of(model, TOKENIZER, None, {"max_length": LENGTH} | options), TOKENIZER, dtype).explain
    with contextlib.nullcontext() if task in TRACED else eagerly():
        found, nothing = ({name: output.numpy() for name, output in explain(
            *(tf.constant(column[part], tf.string) for column in texts), tf.constant(layers, tf.int32)).items()}
            for part in (slice(None), slice(0)))
    inputs = first_inputs(task, texts)
    ids, mask, segments = inputs.values()
    np.testing.assert_array_equal(found["segment"], segments)
    for row, columns in enumerate(zip(*(tokens_with_offsets(column, TOKENIZER) for column in texts))):
        wanted = [(-1, -1)]
        for number, tokens in enumerate(columns):
            count = int(((segments[row] == number) & (mask[row] > 0)).sum()) - (1 if number else 2)  # without specials
            wanted += [*zip(tokens.starts[:count], tokens.ends[:count]), (-1, -1)]
        wanted += [(-1, -1)] * (ids.shape[1] - len(wanted))
        assert list(zip(found["starts"][row], found["ends"][row])) == wanted
        assert [token.decode() for token in found["tokens"][row]] == [
            TOKENIZER.vocabulary[piece] if real else "" for piece, real in zip(ids[row], mask[row])]
    attention = keras.ops.stack(bert.encode(inputs, return_attention=True).attention_probabilities, axis=1)
    np.testing.assert_allclose(found["attention"], np.array(attention)[:, layers or [0, 1]],
                               atol=0.02 if task == "embed" else 1e-6)
    assert found["attention"].dtype == np.float32 and np.ptp(found["attention"][0, 0, 0, 0, :5]) > 0.05
    for name, array in nothing.items():
        assert (array.dtype, len(array), array.ndim) == (found[name].dtype, 0, found[name].ndim)
