"""`tokens_with_offsets` gives what the tokenizer in the graph gives."""

import dataclasses
import functools
import itertools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from test_graph_tokenizer import letters, lines, pieces_of, real, with_graph
from test_rules import GOOGLES, OPTIONS, hard_texts

from keras_bert.data.tagged import read_tagged
from keras_bert.tasks.squad import read_questions
from keras_bert.text import BertTokenizer
from keras_bert.text.offsets import tokens_with_offsets

from conftest import DATA

KOREAN = (True, True, True, "NFC")


def of_graph(graph, texts):
    """Yields the ids, starts, ends and firsts of each text, from a batch of the graph."""
    ragged = graph.traced(tf.constant([text.encode() for text in texts], tf.string))
    ids, starts, limits = (part.flat_values.numpy() for part in ragged)
    words, tokens = (splits.numpy() for splits in ragged[0].nested_row_splits)
    for text, (word, next_word) in zip(texts, itertools.pairwise(words), strict=True):
        byte = np.cumsum([0, *(len(character.encode()) for character in text)])
        of_text = slice(tokens[word], tokens[next_word])
        yield (ids[of_text], *(np.searchsorted(byte, part[of_text]) for part in (starts, limits)),
               tokens[word:next_word] - tokens[word])


def assert_same(tokenizer, graph, texts):
    for at in range(0, len(texts), 1000):
        batch = texts[at:at + 1000]
        for text, got, expected in zip(batch, tokens_with_offsets(batch, tokenizer), of_graph(graph, batch),
                                       strict=True):
            for field, want in zip(dataclasses.fields(got), expected, strict=True):
                values = getattr(got, field.name)
                assert values.dtype == want.dtype and values.tolist() == want.tolist(), (field.name, ascii(text))


@functools.cache
def real_texts():
    """The longest of all real texts, and, from the longest on, those with a character that none before has."""
    contexts = {question.context for path in sorted((DATA / "qa").rglob("*.json")) for question in read_questions(path)}
    sentences = {example.text for path in sorted((DATA / "ner").rglob("*.conll"))
                 for example in read_tagged(path, "conll")}
    texts = sorted({*contexts, *sentences, *lines()}, key=lambda text: (-len(text), text))
    chosen, seen = texts[:200], set()
    for text in texts:
        if not seen.issuperset(text):
            chosen.append(text)
            seen.update(text)
    return chosen


@pytest.mark.parametrize("name,lower_case", [("bert-base-chinese", False), ("koelectra35000", True)])
def test_real_texts(name, lower_case):
    assert_same(*real(name, lower_case), real_texts())


@pytest.mark.parametrize("options,count", [
    *((options, 450) for options in (*GOOGLES, KOREAN)),
    *(pytest.param(options, 50_000, marks=pytest.mark.long) for options in OPTIONS)], ids=str)
def test_hard_texts(options, count):
    texts = hard_texts(count, seed=7)
    texts += ["".join(texts[at:at + 3]) + " ".join(texts[at + 3:at + 6]) for at in range(0, len(texts), 3)]
    assert_same(*with_graph(BertTokenizer(pieces_of(texts, options), *options)), texts)


def test_texts_are_repeated_empty_and_long():
    words = ["a" + "b" * 199, "a" + "b" * 200, "a" * 10_000, "ab"]
    assert_same(*letters(), ["", "ab", " ".join(words), "", "\u200b", "ab", "[UNK]", *words])
    assert tokens_with_offsets([], letters()[0]) == []


def test_surrogates_are_deleted_characters():
    tokenizer, _ = letters()
    for text in "a\ud800b c", "\udfffa\ud800 e\udc00", "\ud800":
        [got], [expected] = (tokens_with_offsets([one], tokenizer) for one in (
            text, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))
        for field in dataclasses.fields(got):
            assert getattr(got, field.name).tolist() == getattr(expected, field.name).tolist()


def test_neither_tensorflow_nor_keras_is_imported(tmp_path):
    for package in "tensorflow", "keras":
        (tmp_path / f"{package}.py").write_text("raise ImportError")
    program = """from keras_bert.text.offsets import tokens_with_offsets
from keras_bert.text import BertTokenizer
tokens, = tokens_with_offsets(["a e\u0301"], BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "e"]))
print(tokens.ids, tokens.starts, tokens.ends, tokens.firsts)"""
    paths = os.pathsep.join(map(str, (tmp_path, pathlib.Path(__file__).parents[1])))
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True,
                          env=os.environ | {"PYTHONPATH": paths})
    assert (done.stdout, done.stderr) == ("[4 5] [0 2] [1 3] [0 1]\n", "")
