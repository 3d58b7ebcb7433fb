"""A small model of each kind for the page of `keras-bert serve`, which a browser then asks."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf
from text_reference import TOKENIZER

from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertSpanLabeler, BertTokenClassifier
from keras_bert.tasks import TASKS, word_weights_graph
from keras_bert.training import FineTuned

import zoo
from conftest import TINY, randomize

INTENTS = [f"의도 {i}" for i in range(11)]
TOPICS = [f"topic {i}" for i in range(11)]
PAIR = [tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair")]


@tf.function(input_signature=PAIR)
def difference(text, text_pair):
    """A regressor of pairs: a seventh of the difference between the numbers of bytes."""
    return {"value": tf.cast(tf.strings.length(text) - tf.strings.length(text_pair), tf.float32) / 7}


def write_models(folder):
    """Returns a dict of names to paths: LiteRT folders, which are made and loaded fast, and one SavedModel."""
    bert = randomize(BertLayer(dataclasses.replace(TINY, num_hidden_layers=1)))
    for name, model, task in (
            ("intents", BertClassifier(bert, len(INTENTS)), TASKS["intent"](64, labels=INTENTS, threshold=0.99)),
            ("topics", BertClassifier(bert, len(TOPICS)), TASKS["multilabel"](64, labels=TOPICS)),
            ("names", BertTokenClassifier(bert, 5),
             TASKS["tag"](64, labels=["O", "B-place", "I-place", "B-person", "I-person"])),
            ("reader", BertSpanLabeler(bert), TASKS["span"](80))):
        kernel = randomize(model).layers[-1].kernel
        kernel.assign(np.random.default_rng(3).normal(0, 2, kernel.shape))
        FineTuned(model, TOKENIZER, task).export_litert(folder / name)
    weigh = functools.partial(word_weights_graph.weigh, TASKS["regress"](64, pairs=True), TOKENIZER, difference)
    tf.saved_model.save(tf.Module(), str(folder / "characters"), {
        "serving_default": difference, "word_weights": tf.function(weigh, input_signature=PAIR, autograph=False)})
    return {path.name: path for path in sorted(folder.iterdir())} | {
        "likeness": zoo.litert("regress"), "choice": zoo.litert("choice"), "frames": zoo.litert("joint")}
