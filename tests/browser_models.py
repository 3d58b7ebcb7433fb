"""A small model of each kind for the page of `keras-bert serve`, which a browser then asks."""

import dataclasses

import numpy as np
import tensorflow as tf

from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertSpanLabeler, BertTokenClassifier
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

import zoo
from conftest import TINY, TINY_VOCABULARY, randomize

INTENTS = [f"의도 {i}" for i in range(11)]
TOPICS = [f"topic {i}" for i in range(11)]
LAYERS, HEADS = 3, 4
PAIR = [tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair")]


class Characters(tf.Module):
    """A regressor of pairs, with the signature `explain`: each character is a token, and token i of layer l and head h
    looks at token i + l + h with 3/4 of its attention, at all with the rest."""

    @tf.function(input_signature=PAIR)
    def answer(self, text, text_pair):
        return {"value": tf.cast(tf.strings.length(text) - tf.strings.length(text_pair), tf.float32) / 7}

    @tf.function(input_signature=[*PAIR, tf.TensorSpec([None], tf.int32, "layers")])
    def explain(self, text, text_pair, layers):
        first, second = (tf.strings.unicode_split(part[0], "UTF-8") for part in (text, text_pair))
        a, b = tf.size(first), tf.size(second)
        spots = tf.concat([[-1], tf.range(a), [-1], tf.range(b), [-1]], 0)
        size = a + b + 3
        layers = tf.cond(tf.size(layers) > 0, lambda: layers, lambda: tf.range(LAYERS))
        target = (tf.range(size) + layers[:, None, None] + tf.range(HEADS)[:, None]) % size
        return {"tokens": tf.concat([["[CLS]"], first, ["[SEP]"], second, ["[SEP]"]], 0)[None],
                "starts": spots[None], "ends": tf.where(spots < 0, -1, spots + 1)[None],
                "segment": tf.concat([tf.zeros(a + 2, tf.int32), tf.ones(b + 1, tf.int32)], 0)[None],
                "attention": (tf.one_hot(target, size) * .75 + .25 / tf.cast(size, tf.float32))[None]}


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
        FineTuned(model, BertTokenizer(TINY_VOCABULARY), task).export_litert(folder / name)
    module = Characters()
    tf.saved_model.save(module, str(folder / "characters"), {
        "serving_default": module.answer.get_concrete_function(), "explain": module.explain.get_concrete_function()})
    return {path.name: path for path in sorted(folder.iterdir())} | {
        "likeness": zoo.litert("regress"), "choice": zoo.litert("choice")}
