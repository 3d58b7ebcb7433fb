"""The function `explain` of raw-text models, against the encoders that they were made from."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from text_reference import LABELS, LENGTH, TOKENIZER

from keras_bert.export.text_model import TextModel, make_head
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertRegressor, BertSpanLabeler, BertTokenClassifier
from keras_bert.text import packing
from keras_bert.text.graph_tokenizer import GraphTokenizer

from conftest import TINY, eagerly, randomize

pytestmark = pytest.mark.slow("pieces or attention of other inputs than the model's")

TEXTS = ["play some 🎵🎶 music,now", "각각의 집 é!", "e\u0301t is\u0301 my\tsong\t\ton", "", " \t\n", "the lamps " * 20,
         "👩\u200d👩\u200d👧 turn"]
OTHERS = ["what time", "a b c", "", "off 가", "table", "light on", "play " * 30]
MAX_QUERY = 6
# For each task: the kind of model, its options, the layers asked for, the texts.
MODELS = {
    "classify": (lambda bert: BertClassifier(bert, 2), {"labels": ["a", "b"]}, [], [TEXTS]),
    "regress": (BertRegressor, {"pairs": True}, [1], [TEXTS, OTHERS]),
    "embed": (lambda bert: bert, {}, [1, 0, 1], [TEXTS]),
    "tag": (lambda bert: BertTokenClassifier(bert, len(LABELS)), {"labels": LABELS}, [0], [TEXTS]),
    "span": (BertSpanLabeler, {"max_query_length": MAX_QUERY}, [], [OTHERS, TEXTS]),
}
TRACED = ["regress"]  # the others run as Python, which takes less time


@pytest.fixture(scope="module")
def bert():
    bert = randomize(BertLayer(TINY))
    for block in bert.blocks:  # so that the attention differs from token to token
        block.attention.query.kernel.assign(block.attention.query.kernel * 10)
    return bert


@pytest.fixture(scope="module")
def answers(bert):
    """A function of a task that returns what its raw-text model answers to all texts and to none."""
    @functools.cache
    def answer(task):
        make, options, layers, columns = MODELS[task]
        model = make(bert)
        dtype = "bfloat16" if task == "embed" else "float32"
        explain = TextModel(model, make_head(model, options), TOKENIZER, LENGTH, dtype).explain
        found = []
        with contextlib.nullcontext() if task in TRACED else eagerly():
            for part in slice(None), slice(0):
                texts = [tf.constant(column[part], tf.string) for column in columns]
                outputs = explain(*texts, tf.constant(layers, tf.int32))
                found.append({key: output.numpy() for key, output in outputs.items()})
        return found

    return answer


def places(texts):
    """For each text the characters (start, end) of its pieces."""
    found = []
    _, starts, limits = GraphTokenizer(TOKENIZER).tokenize_with_offsets(tf.constant(texts))
    for text, *parts in zip(texts, starts.to_list(), limits.to_list()):
        found.append([tuple(len(text.encode()[:byte].decode()) for byte in place)
                      for place in zip(*(sum(words, []) for words in parts))])
    return found


def first_inputs(task, texts):
    """What the encoder gets first, dict of [batch, seq]."""
    if task != "span":
        return TOKENIZER(*texts, *[None] * (2 - len(texts)), LENGTH)
    rows = []
    for question, context in zip(*map(TOKENIZER.ids, texts)):
        head = [TOKENIZER.cls_id, *question[:MAX_QUERY], TOKENIZER.sep_id]
        rows.append(([*head, *context[:LENGTH - len(head) - 1], TOKENIZER.sep_id], len(head)))
    return packing.pad(rows, TOKENIZER.pad_id)


@pytest.mark.parametrize("task", MODELS)
def test_pieces_and_attention_are_the_encoders(bert, answers, task):
    *_, layers, texts = MODELS[task]
    found, _ = answers(task)
    inputs = first_inputs(task, texts)
    ids, mask, segments = inputs.values()
    np.testing.assert_array_equal(found["segment"], segments)
    for row, parts in enumerate(zip(*map(places, texts))):
        wanted = [(-1, -1)]
        for number, part in enumerate(parts):
            count = int(((segments[row] == number) & (mask[row] > 0)).sum()) - (1 if number else 2)  # without specials
            wanted += [*part[:count], (-1, -1)]
        wanted += [(-1, -1)] * (ids.shape[1] - len(wanted))
        assert list(zip(found["starts"][row], found["ends"][row])) == wanted
        assert [token.decode() for token in found["tokens"][row]] == [
            TOKENIZER.vocabulary[piece] if real else "" for piece, real in zip(ids[row], mask[row])]
    attention = keras.ops.stack(bert.encode(inputs, return_attention=True).attention_probabilities, axis=1)
    np.testing.assert_allclose(found["attention"], np.array(attention)[:, layers or [0, 1]],
                               atol=0.02 if task == "embed" else 1e-6)
    assert found["attention"].dtype == np.float32 and np.ptp(found["attention"][0, 0, 0, 0, :5]) > 0.05


@pytest.mark.parametrize("task", MODELS)
def test_no_texts(answers, task):
    assert {name: (array.dtype, len(array), array.ndim) for name, array in answers(task)[1].items()} == {
        "tokens": (object, 0, 2), "starts": (np.int32, 0, 2), "ends": (np.int32, 0, 2), "segment": (np.int32, 0, 2),
        "attention": (np.float32, 0, 5)}
