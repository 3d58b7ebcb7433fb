"""Tiny models, and what is written from them: each folder that several tests read is made once for a run.

`zoo.litert("intent", dtype="int8")` returns the path of a folder. Whoever asks first makes it, in any process of the
run; the others wait. A test that changes a folder copies it: at the end of the run, `changed` compares digests.

A new kind of folder is a function decorated with `made_once`. Its arguments must determine what it writes.
"""

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np
import tensorflow as tf

from keras_bert.convert import convert
from keras_bert.export import export_encoder
from keras_bert.layers import BertLayer
from keras_bert.models import (
    BertClassifier,
    BertEmbedder,
    BertEmbeddingClassifier,
    BertJointClassifier,
    BertMultipleChoice,
    BertRegressor,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned, finetune

from conftest import SMALL, TINY, TINY_VOCABULARY, eagerly, randomize, remove, write_huggingface, write_intents


def made_once(write):
    """Decorates a function of a path, which writes a folder there, and of what to write."""
    @functools.wraps(write)
    def path_of(*arguments, **options):
        words = [write.__name__, *arguments, *(part for option in sorted(options.items()) for part in option)]
        path = pathlib.Path(os.environ["KERAS_BERT_ZOO"], "-".join(map(str, words)).replace(" ", "_"))
        if not path.exists():
            with open(f"{path}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    _make(path, lambda folder: write(folder, *arguments, **options))
        return path

    return path_of


def _make(path, write):
    partial, digest = (path.with_name(f"{path.name}.{suffix}") for suffix in ("partial", "new"))
    if partial.exists():  # of a process that was killed
        remove(partial)
    eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    try:
        write(partial)
    finally:
        tf.config.run_functions_eagerly(eager)
    for name in [partial, *partial.rglob("*")]:
        name.chmod(0o555 if name.is_dir() else 0o444)  # which does not stop root
    digest.write_text(_digest(partial))
    partial.rename(path)
    digest.rename(f"{path}.digest")


def copy(path, target):
    """Copies a folder that a test changes; returns the path of the copy."""
    shutil.copytree(path, target)
    for name in [target, *target.rglob("*")]:
        name.chmod(0o755 if name.is_dir() else 0o644)
    return target


def _digest(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def changed():
    """The names of the folders that are not as they were made."""
    made = pathlib.Path(os.environ["KERAS_BERT_ZOO"]).glob("*.digest")
    return [path.stem for path in made if _digest(path.with_name(path.stem)) != path.read_text()]


@functools.cache
def loaded(path):
    """A SavedModel, loaded once for each process."""
    return tf.saved_model.load(str(path))


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
    "joint": (lambda bert: BertJointClassifier(bert, 3, 3), TASKS["joint"](16, LABELS, ["O", "B-x", "I-x"]), [TEXTS],
              [(["play", "music"], ["O", "B-x"], "a"), (["stop"], ["O"], "b")]),
    "span": (BertSpanLabeler, TASKS["span"](24, doc_stride=8), [["what music"] * 5, TEXTS],
             [("what", "some music", {"text": ["music"], "answer_start": [5]})]),
    "choice": (BertMultipleChoice, TASKS["choice"](16), [TEXTS[:2], [["now", "stop the music"], ["a", "i", "lamp ."]]],
               [{"prompt": "play", "choices": ["now", "some music"], "label": 1}]),
    "mean": (lambda bert: BertEmbedder(bert, "mean"), TASKS["embed"](16), [TEXTS],
             [("play", "stop", 0.5), ("lamp", "light", 0.9), ("now", "two", 0.1)]),
    "cls": (lambda bert: BertEmbedder(bert, "cls", normalize=True), TASKS["embed"](16), [TEXTS], None),
    "max": (lambda bert: BertEmbedder(bert, "max"), TASKS["embed"](16), [TEXTS], None),
    "prompts": (lambda bert: BertEmbedder(bert, "mean", normalize=True), TASKS["embed"](
        16, doc_stride=4, max_windows=3, default_prompt_name="long", prompts={
            "query": "play some: ", "long": "stop the song " * 3}), [TEXTS], None),
}
OF_EACH_TASK = ["intent", "pairs", "multilabel", "regress", "tag", "joint", "span", "choice", "mean", "rerank"]
WORDS = [word for word in TINY_VOCABULARY if word.isalpha()]


def make(case):
    """A `FineTuned` with random weights, whose encoder has a Keras mask that nothing here reads."""
    (model, task, _, _), bert = CASES[case], randomize(BertLayer(SMALL, output_mask=True))
    return FineTuned(randomize(model(bert)), BertTokenizer(TINY_VOCABULARY), task)


@made_once
def pretrained(path):
    """A Hugging Face folder of a tiny encoder."""
    write_huggingface(path, randomize(BertLayer(TINY)))


@made_once
def finetuned(path):
    """The folder of a model of two intents that `finetune` trained."""
    with tempfile.TemporaryDirectory() as folder, eagerly():
        train, valid = write_intents(pathlib.Path(folder))
        finetune(train, valid, model=pretrained(), output=path, epochs=1, batch_size=2)


@made_once
def model(path, case):
    """The folder of a model in `CASES`."""
    make(case).save(path)


@made_once
def saved_model(path, case, **options):
    """The raw-text SavedModel of a model in `CASES`."""
    make(case).export(path, **options)


@made_once
def litert(path, case, **options):
    """The LiteRT folder of a model in `CASES`."""
    make(case).export_litert(path, **options)


@made_once
def encoder(path, **options):
    """The SavedModel of a tiny encoder."""
    tf.random.set_seed(7)  # must not reach the exported dropout
    export_encoder(randomize(BertLayer(TINY, output_mask=True)), path, BertTokenizer(TINY_VOCABULARY), **options)
    tf.random.set_seed(None)


@made_once
def converted(path, case, form):
    """A model in `CASES`, converted to another format."""
    convert(model(case), path, form)


def random_row(case, rng):
    """A row of a request."""
    def text():
        return " ".join(rng.choices([*WORDS, "각각의", "é🎵!"], k=rng.choice([0, 1, 4, 40])))

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
