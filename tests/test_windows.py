"""Long texts in windows: their definitions taken literally, and what models trained on windows answer."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from keras_bert.data.batches import UNLABELLED
from keras_bert.data.tagged import TaggedExample, TaggedText
from keras_bert.errors import InputError
from keras_bert.export.litert import default_task
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertEmbedder
from keras_bert.tasks import Classify, Embed, EmbedExample, MultiLabel, Regress, Rerank, Span, Tag, restored
from keras_bert.tasks.graph import Windows
from keras_bert.tasks.windows import aggregated, own_tokens, windows
from keras_bert.text import BertTokenizer, pad
from keras_bert.training import FineTuned, finetune

import zoo
from conftest import SMALL, TINY_VOCABULARY, randomize

TOKENIZER = BertTokenizer(TINY_VOCABULARY)
WORDS = [word for word in TINY_VOCABULARY if word.isalpha()]
LONG = " ".join(WORDS * 3)
SHORT = ["play some music", "", "turn off the light please"]
SIZES = st.integers(1, 40)


@settings(deadline=None)
@given(st.integers(0, 200), SIZES, SIZES)
@example(0, 5, 3)
@example(11, 5, 1)
def test_each_token_is_labelled_where_it_has_the_most_context(tokens, size, stride):
    parts = windows(tokens, size, stride)
    own = own_tokens(parts)
    assert [token for part in own for token in range(*part)] == list(range(tokens))
    for window, (first, last) in enumerate(own):
        for token in range(first, last):
            context = [min(token - begin, end - 1 - token) for begin, end in parts]  # negative outside
            assert window == context.index(max(context))


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=6), st.integers(0, 2**32))
def test_aggregated(counts, seed):
    values = np.random.default_rng(seed).normal(size=(sum(counts), 3)).astype("float32")
    firsts = np.cumsum([0, *counts], dtype=int)[:-1]
    texts = np.split(values, firsts[1:]) if counts else []
    for aggregate, function in (("mean", np.mean), ("max", np.max)):
        wanted = np.array([function(text, axis=0) for text in texts]).reshape(-1, 3)
        np.testing.assert_allclose(aggregated(values, firsts, aggregate), wanted, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=4), st.none() | st.lists(st.integers(0, 60), min_size=4),
       st.integers(5, 30), st.integers(1, 30), st.none() | st.integers(1, 3))
def test_inputs_of_texts_and_pairs(lengths, pairs, max_length, stride, most):
    texts = [" ".join(itertools.islice(itertools.cycle(WORDS), length)) for length in lengths]
    seconds = None if pairs is None else [
        " ".join(itertools.islice(itertools.cycle(reversed(WORDS)), length)) for length in pairs[:len(texts)]]
    task = Regress(max_length, pairs=pairs is not None, doc_stride=stride, max_windows=most)
    found, cut = task.split_texts(TOKENIZER, texts, seconds)
    packed, longer = TOKENIZER.pack_with_cuts(texts, seconds, max_length)
    for index, (rows, row) in enumerate(zip(found, packed)):
        assert rows[0] == row and len(rows) <= (most or len(rows))
        assert (len(rows) > 1 or index in cut) == (index in longer)
        assert all(len(ids) <= max_length for ids, _ in rows)
        head = row[1] if seconds else 1
        assert {tuple(ids[:head]) for ids, _ in rows} == {tuple(row[0][:head])}
        ids, = TOKENIZER.ids([(seconds or texts)[index]])
        step, tails = min(stride, max_length - head - 1), [ids[head:-1] for ids, _ in rows]
        assert [ids[number * step:][:len(tail)] for number, tail in enumerate(tails)] == tails
        if not seconds:
            assert (index in cut) == (step * (len(rows) - 1) + len(tails[-1]) < len(ids))


@pytest.mark.parametrize("make", [
    lambda **more: Regress(pairs=True, **more), lambda **more: MultiLabel(labels=["a"], pairs=True, **more), Rerank])
def test_windows_of_pairs_need_a_token_of_each_text(make):
    task, pair = make(max_length=5, doc_stride=1), (["play some music"], ["turn off the light"])
    assert [len(ids) for ids, _ in task.split_texts(TOKENIZER, *pair)[0][0]] == [5] * 4
    make(max_length=4)  # without windows, pairs of any length are cut
    settings = task.settings() | {"max_length": 4}
    with pytest.raises(InputError, match="settings of the task .*: max_length must be at least 5 with a doc_stride"):
        restored(settings, "settings.json")
    Regress(3, pairs=False, doc_stride=1)


def test_windows_of_questions_have_a_token_of_the_context():
    task = Span(max_length=4)
    encoded = task.encode(task.arguments([LONG], ["play some music"]), TOKENIZER)
    assert [(len(ids), start) for ids, start in encoded.rows] == [(4, 2)] * 3
    with pytest.raises(InputError, match="^max_length must be at least 4 for questions, .*; got 3$"):
        Span(max_length=3)


def test_targets_of_taggers():
    words = WORDS * 2
    tags = ["B-x" if word == "play" else "O" for word in words]
    task = Tag.from_examples("train", [row := next(Tag.iterate(Tag.open([(words, tags)], "train")))], max_length=16)
    assert task.doc_stride == 8
    encoded = task.encode([row], TOKENIZER)
    assert encoded.split == 1 and {len(ids) for ids, _ in encoded.rows[:-1]} == {16}
    labelled = [(token, label) for (ids, _), target in zip(encoded.rows, encoded.targets, strict=True)
                for token, label in zip(ids, target, strict=True) if label != UNLABELLED]
    ids, = TOKENIZER.ids([" ".join(words)])
    assert labelled == [(token, task.labels.index(tag)) for token, tag in zip(ids, tags, strict=True)]


@pytest.mark.parametrize("unit", ["word", "character"])
def test_entities_after_the_last_window_are_missed(unit):
    words = WORDS * 2
    tags = ["B-x" if word == "play" else "O" for word in words]
    example = TaggedExample(words, tags, 1)
    if unit == "character":
        example = TaggedText(" ".join(words), [part for word, tag in zip(words, tags) for part in (
            tag, *[tag.replace("B", "I")] * (len(word) - 1), "O")][:-1], 1)
    task = Tag(16, ["O", "B-x", "I-x"], unit=unit, doc_stride=8, max_windows=1)
    whole, encoded = (one.encode([example], TOKENIZER) for one in (dataclasses.replace(task, max_windows=9), task))
    assert (encoded.cut, encoded.split, len(encoded.rows)) == (1, 0, 1) and whole.cut == 0
    found = [one.score(encoded, [np.eye(3)[np.maximum(target, 0)] for target in encoded.targets])
             for one, encoded in ((task, whole), (task, encoded))]
    assert found[0]["recall"] == 1 and found[1]["precision"] == 1
    assert found[1]["recall"] == pytest.approx(tags[:14].count("B-x") / tags.count("B-x"))
    assert task.describe_long({"cut": 1}, 1) == ["texts cut at max_windows 1: 1 of 1"]


def test_pairs_of_windows_train_an_embedder():
    examples = [EmbedExample((LONG, "play music"), 0.5, 2), EmbedExample(("lamp", "light"), 1.0, 3)]
    task = Embed(16, "cosent", doc_stride=8)
    encoded = task.encode(examples, TOKENIZER)
    trained = task.for_training(encoded)
    rows, _ = task.split_texts(TOKENIZER, [LONG, "play music", "lamp", "light"])
    assert encoded.rows == [[row] for of_text in rows for row in of_text] and encoded.split == 1
    assert trained.rows == [*([window, rows[1][0]] for window in rows[0]), [rows[2][0], rows[3][0]]]
    assert trained.targets.tolist() == [0.5] * len(rows[0]) + [1.0]
    short = dataclasses.replace(task, doc_stride=None)
    assert short.for_training(encoded := short.encode(examples, TOKENIZER)) is encoded
    assert encoded.cut == 1 and encoded.split == 0


def test_labels_whose_probability_is_1_in_litert_weigh_the_same_everywhere():
    task = MultiLabel(16, ["a"], doc_stride=4)
    encoded = task.encode(task.arguments([LONG]), TOKENIZER)
    logits = np.full((len(encoded.rows), 1), -8, np.float32)
    logits[0] = 40  # whose sigmoid is 1 in float32
    probabilities, count = task.probabilities(encoded, logits), len(logits)
    np.testing.assert_allclose(probabilities, [[expit((15 - 8 * (count - 1)) / count)]], rtol=1e-5)
    parts = Windows(tf.zeros(count, tf.int64), *tf.zeros([2, count], tf.int64))
    answers = task.combine_in_graph(tf.constant(logits), None, parts)
    np.testing.assert_allclose(answers["probabilities"], probabilities, rtol=1e-5)


def model_of(task, make):
    return FineTuned(randomize(make(randomize(BertLayer(SMALL)))), TOKENIZER, task)


def test_short_texts_are_answered_as_without_windows_and_long_ones_by_the_mean_or_the_maximum(eager):
    task = Classify(16, ["a", "b", "c"], doc_stride=8)
    model = model_of(task, lambda bert: BertClassifier(bert, 3))
    rows, = task.split_texts(TOKENIZER, [LONG])[0]
    probabilities = softmax(np.array(model.model(pad(rows, TOKENIZER.pad_id)), np.float64), axis=1)
    highest = probabilities.max(axis=0)
    for aggregate, wanted in (("mean", probabilities.mean(axis=0)), ("max", highest / highest.sum())):
        answer, = model.with_task(dataclasses.replace(task, aggregate=aggregate)).predict([LONG], top_k=3)
        assert dict(zip(answer.labels, answer.scores)) == pytest.approx(dict(zip("abc", wanted)), abs=1e-5)
    plain = model.with_task(dataclasses.replace(task, doc_stride=None))
    assert model.predict(SHORT, top_k=3) == plain.predict(SHORT, top_k=3)  # bit by bit


def test_a_document_is_as_relevant_as_its_best_window():
    task, tokenizer = Rerank(16, doc_stride=4), BertTokenizer(TINY_VOCABULARY, has_segments=False)
    encoded = task.encode(task.arguments(["play music"], [LONG]), tokenizer)
    assert len(encoded.rows) > 2 and all(first == len(ids) for ids, first in encoded.rows)
    logits = np.linspace(-1, 1, len(encoded.rows))[::-1, None]
    assert task.answers(encoded, logits)[0] == pytest.approx(expit(1))


def test_vectors_of_long_texts_keep_their_length(eager):
    task = Embed(16, doc_stride=8)
    model = model_of(task, lambda bert: BertEmbedder(bert, "mean", normalize=True))
    vectors = model.predict([*SHORT, LONG])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    rows, = task.split_texts(TOKENIZER, [LONG])[0]
    mean = np.mean(model.model(pad(rows, TOKENIZER.pad_id)), axis=0)
    np.testing.assert_allclose(vectors[3], mean / np.linalg.norm(mean), atol=1e-5)


def operations_of_variables(path):
    """Returns the operations of loops and branches that each answer runs for the variables of the encoder."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], str(path)).signature_def["serving_default"]
        metadata = tf.compat.v1.RunMetadata()
        session.run([tensor.name for tensor in signature.outputs.values()], {signature.inputs["text"].name: ["play"]},
                    tf.compat.v1.RunOptions(output_partition_graphs=True), metadata)
    nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    assert any(node.op == "Enter" for node in nodes)  # of the tokenizer
    return [node.name for node in nodes if node.op in ("Enter", "Switch")
            and node.attr["T"].type == tf.resource.as_datatype_enum]


@pytest.mark.slow("an operation that short texts do not need")
def test_an_export_runs_no_more_than_it_needs_for_a_short_text():
    assert not operations_of_variables(zoo.saved_model("prompts"))


@pytest.mark.parametrize("name, kept", [("query", 3), ("long", 7)])
def test_each_window_begins_with_the_prompt(name, kept):
    model = zoo.make("prompts")
    assert dataclasses.replace(default_task(model.model, TOKENIZER, model.task.settings()), max_length=16) == model.task
    task = model.task.with_prompt(name)
    prompt, text, both = TOKENIZER.ids([task.prompts[name], LONG, task.prompts[name] + LONG])
    first, *others = [ids[1:-1] for (ids, _), in task.encode(task.arguments([LONG]), TOKENIZER).rows]
    assert first == both[:14] and all(window[:kept] == prompt[:7] for window in others)
    assert name == "long" or [window[kept:] for window in others] == [text[4:15], text[8:19]]


def test_training_on_windows(tmp_path, pretrained_once, eager):
    rows = [(f"{word} " * 30 + "music", label) for word, label in (("play", "music"), ("light", "light")) * 2]
    model = finetune(rows, rows, model=pretrained_once, output=tmp_path / "model", task="classify", epochs=1,
                     batch_size=4, max_length=16, doc_stride=8, aggregate="max", max_windows=3)
    assert (model.task.doc_stride, model.task.aggregate, model.task.max_windows) == (8, "max", 3)
    card = (tmp_path / "model/README.md").read_text()
    assert "texts split into windows of max_length 16: 4 of 4" in card
    assert "texts cut at max_windows 3: 4 of 4" in card
    loaded = FineTuned.load(tmp_path / "model")
    assert loaded.task == model.task and loaded.evaluate(rows)["accuracy"] == model.evaluate(rows)["accuracy"]
