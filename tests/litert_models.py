"""A tiny model of each kind for LiteRT."""

import dataclasses
import json

import numpy as np

from keras_bert.export.litert import export_litert
from keras_bert.layers import BertLayer
from keras_bert.models import (
    BertClassifier,
    BertEmbedder,
    BertEmbeddingClassifier,
    BertMultipleChoice,
    BertRegressor,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

from conftest import TINY, TINY_VOCABULARY, randomize

TEXTS = ["play some music", "turn off the light", "", "stop the music please now . " * 20, "각각의 집 é!"]
LABELS = ["a", "b", "c"]
# For each kind of model: the head, the task, the texts, and rows of labelled data.
CASES = {
    "intent": (lambda bert: BertClassifier(bert, 3), TASKS["intent"](16, labels=LABELS, threshold=0.4), [TEXTS],
               [("play", "a"), ("stop", "b")]),
    "pairs": (lambda bert: BertClassifier(bert, 3), TASKS["classify"](16, labels=LABELS, pairs=True),
              [TEXTS, TEXTS[::-1]], [("play", "stop", "a"), ("stop", "play", "b")]),
    "few shot": (lambda bert: BertEmbeddingClassifier(bert, 3), TASKS["intent"](16, labels=LABELS), [TEXTS],
                 [("play", "a"), ("stop", "b")]),
    "multilabel": (lambda bert: BertClassifier(bert, 3), TASKS["multilabel"](16, labels=LABELS), [TEXTS],
                   [("play", ["a", "b"]), ("stop", ["c"])]),
    "rerank": (BertRegressor, TASKS["rerank"](16), [TEXTS, TEXTS[::-1]], [("play", "stop", 1), ("play", "now", 0)]),
    "regress": (BertRegressor, TASKS["regress"](16), [TEXTS], [("play", 0.5), ("stop", 1.5)]),
    "tag": (lambda bert: BertTokenClassifier(bert, 3), TASKS["tag"](16, labels=["O", "B-x", "I-x"]), [TEXTS],
            [(["play", "music"], ["O", "B-x"])]),
    "span": (BertSpanLabeler, TASKS["span"](80), [["what music"] * 5, TEXTS],
             [("what", "some music", {"text": ["music"], "answer_start": [5]})]),
    "choice": (BertMultipleChoice, TASKS["choice"](16), [TEXTS[:2], [["now", "stop the music"], ["a", "i", "lamp ."]]],
               [{"prompt": "play", "choices": ["now", "some music"], "label": 1}]),
    "mean": (lambda bert: BertEmbedder(bert, "mean"), TASKS["embed"](16), [TEXTS],
             [("play", "stop", 0.5), ("lamp", "light", 0.9), ("now", "two", 0.1)]),
    "cls": (lambda bert: BertEmbedder(bert, "cls", normalize=True), TASKS["embed"](16), [TEXTS], None),
    "max": (lambda bert: BertEmbedder(bert, "max"), TASKS["embed"](16), [TEXTS], None),
}
OF_EACH_TASK = ["intent", "pairs", "multilabel", "regress", "tag", "span", "choice", "mean", "rerank"]
WORDS = [word for word in TINY_VOCABULARY if word.isalpha()]


def make(case):
    """A `FineTuned` with random weights."""
    model, task, _, _ = CASES[case]
    return FineTuned(randomize(model(randomize(BertLayer(TINY)))), BertTokenizer(TINY_VOCABULARY), task)


def write(case, folder, **options):
    """Writes the LiteRT folder of the model that `make` returns; returns its path."""
    model = make(case)
    export_litert(model.model, model.tokenizer, folder, model.task, **options)
    return folder


def random_row(case, rng):
    """A row of a request."""
    def text():
        return " ".join(rng.choices(WORDS, k=rng.choice([1, 4, 40])))

    return {name: [text() for _ in range(rng.choice([2, 3]))] if name == "choices" else text()
            for name in CASES[case][1].inputs}


def exported_row(model, row):
    """What a server must answer to a row, by a model in this process: without its numbers, and the numbers."""
    encoded = model.task.encode(model.task.arguments(*([row[name]] for name in model.task.inputs)), model.tokenizer)
    answer, = model.task.exported_rows(encoded, model.outputs(encoded))
    return numbers(json.loads(json.dumps(answer, default=lambda array: array.tolist())))


def numbers(answers):
    """Returns answers or scores without their numbers, and the numbers."""
    found = []

    def strip(value):
        if isinstance(value, float | np.floating):
            return found.append(value)
        if dataclasses.is_dataclass(value) or isinstance(value, dict):
            return {key: strip(part) for key, part in (value if isinstance(value, dict) else vars(value)).items()}
        return [strip(part) for part in value] if isinstance(value, list | tuple | np.ndarray) else value

    return strip(answers), found
