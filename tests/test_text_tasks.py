"""Raw-text SavedModels of all heads against plain Python over the heads' own outputs."""

import dataclasses
import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from text_reference import LABELS, LENGTH, TOKENIZER, close, find, rows_of, softmax, spans_of, tag

from keras_bert.errors import InputError
from keras_bert.export import export_text_model
from keras_bert.export.text_heads import Reader, SpanFinder, Tagger, check_same_batch
from keras_bert.layers import BertLayer
from keras_bert.models import BertMultipleChoice, BertRegressor, BertSpanLabeler, BertTokenClassifier
from keras_bert.text import packing
from keras_bert.text.graph_tokenizer import GraphTokenizer

from conftest import TINY, TINY_VOCABULARY, randomize

SMALL = dataclasses.replace(TINY, num_hidden_layers=1)
SPANS = {"doc_stride": 4, "max_query_length": 6, "max_answer_length": 5}
WORDS = [word for word in TINY_VOCABULARY if word.isalpha()]
ODD = ["", " \t\n", "각각의 집 é!", "play\tsome 🎵🎶 music,now", "e\u0301t is\u0301 my song", "\u0301", "İ it ﬁ ß",
       "👩\u200d👩\u200d👧 turn", "the lamps singing?\u3000on\u200b off", "가a나is 中文the"]
rng = np.random.default_rng(0)
TEXTS = ODD + [" ".join(rng.choice([*WORDS, "playing", "songs", "🎵", "집", "é"], size)) for size in (1, 14, 15, 60)]
QUESTIONS = [" ".join(rng.choice(WORDS, size)) for size in rng.integers(0, 9, len(TEXTS))]
CHOICES = [[TEXTS[(row * 3 + place) % len(TEXTS)] for place in range(4)] for row in range(len(TEXTS))]
BROKEN = [b"\xff\xfe", b"pl\0ay\xf0\x9f some music\xe2\x82", b"\x80turn off", b"\xed\xa0\x80"]  # not UTF-8
NONE = np.array([], object)
# What to ask the SavedModels: the signature, or "" for the root, and its arguments.
CALLS = {
    "regress": {"texts": ("serving_default", {"text": TEXTS, "text_pair": QUESTIONS}),
                "none": ("", {"text": NONE, "text_pair": NONE}), "ids": ("encode", TOKENIZER(TEXTS, None, LENGTH))},
    "tag": {"texts": ("serving_default", {"text": TEXTS}), "ids": ("encode", TOKENIZER(TEXTS, None, LENGTH)),
            "none": ("", {"text": NONE}), "blank": ("", {"text": [" "]}), "broken": ("", {"text": BROKEN})},
    "span": {"texts": ("serving_default", {"question": QUESTIONS, "context": TEXTS}),
             "ids": ("encode", TOKENIZER(QUESTIONS, TEXTS, LENGTH)), "none": ("", {"question": NONE, "context": NONE}),
             "broken": ("", {"question": BROKEN[::-1], "context": BROKEN})},
    "choice": {"texts": ("serving_default", {"prompt": QUESTIONS, "choices": CHOICES}),
               "ids": ("encode", {name: ids[None] for name, ids in TOKENIZER(QUESTIONS, TEXTS, LENGTH).items()}),
               "none": ("", {"prompt": NONE, "choices": NONE.reshape(0, 3)})},
}


def sharp(model):
    """A model with random weights whose answers differ from text to text."""
    randomize(model)
    model.layers[-1].kernel.assign(np.random.default_rng(1).normal(0, 2, model.layers[-1].kernel.shape))
    return model


@pytest.fixture(scope="module")
def models():
    return {"regress": sharp(BertRegressor(BertLayer(SMALL))),
            "tag": sharp(BertTokenClassifier(BertLayer(SMALL), len(LABELS))),
            "span": sharp(BertSpanLabeler(BertLayer(SMALL))),
            "choice": sharp(BertMultipleChoice(BertLayer(SMALL)))}


@pytest.fixture(scope="module")
def answers(models, tmp_path_factory):
    """A function of a task that returns what its SavedModel gives to `CALLS`."""
    options = {"regress": {"pairs": True}, "tag": {"labels": LABELS}, "span": SPANS, "choice": {}}
    folder = tmp_path_factory.mktemp("exports")

    @functools.cache
    def answer(task):
        export_text_model(models[task], TOKENIZER, folder / task, max_length=LENGTH, **options[task])
        loaded, found = tf.saved_model.load(str(folder / task)), {}
        for name, (signature, arguments) in CALLS[task].items():
            dtype = tf.int32 if name == "ids" else tf.string
            tensors = {key.replace("segment", "input_type"): tf.constant(value, dtype)
                       for key, value in arguments.items()}
            outputs = loaded.signatures[signature](**tensors) if signature else loaded(*tensors.values())
            found[name] = {key: output.numpy() for key, output in outputs.items()}
        return found

    return answer


@pytest.fixture(scope="module")
def pieces():
    """For each text, for each word, for each piece: (id, first character, character behind the last)."""
    tokens = GraphTokenizer(TOKENIZER).tokenize_with_offsets(tf.constant(TEXTS))
    ids, starts, limits = (part.to_list() for part in tokens)
    assert [sum(words, []) for words in ids] == TOKENIZER.ids(TEXTS)
    return [[[(piece, *(len(text.encode()[:byte].decode()) for byte in place)) for piece, *place in zip(*word)]
             for word in zip(*parts)] for text, *parts in zip(TEXTS, ids, starts, limits)]


@pytest.fixture(scope="module")
def answer_by():
    """What makes a function of texts from a head and a function that stands for the model."""
    reader = Reader(None, TOKENIZER, LENGTH)

    def answer_by(head, run):
        reader.run = run
        function = tf.function(lambda *texts: head.answer(reader, *texts), input_signature=head.texts, autograph=False)
        function.get_concrete_function()  # traced while the reader has this run
        return lambda *texts: {name: tensor.numpy() for name, tensor in function(*texts).items()}

    return answer_by


@pytest.mark.slow("graphs of raw texts")
def test_regression_of_pairs(models, answers):
    wanted = models["regress"](TOKENIZER(TEXTS, QUESTIONS, LENGTH))[:, 0].numpy()
    assert np.ptp(wanted) > 0.05 and answers("regress")["texts"]["value"] == close(wanted)


@pytest.mark.slow("graphs of raw texts")
def test_words_and_entities_of_texts_of_any_length(models, answers, pieces):
    found = []
    for row, (text, words) in enumerate(zip(TEXTS, pieces)):
        tagged, entities = tag(models["tag"], text, words)
        assert rows_of(answers("tag")["texts"], "word", row, "start", "end", "label", "score") == tagged
        assert rows_of(answers("tag")["texts"], "entity", row, "start", "end", "label", "score", "text") == entities
        found += entities
    assert {kind for _, _, kind, _, _ in found} == {"곳", "x"} and any(" " in text for *_, text in found)


def test_entities_of_any_labels(answer_by):
    answer = answer_by(Tagger(labels=LABELS), lambda ids, *_: tf.one_hot(ids - TOKENIZER.ids(WORDS)[0][0], len(LABELS)))

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.lists(st.integers(0, len(LABELS) - 1), max_size=20), max_size=5))
    def check(batch):
        answers = answer(tf.constant([" ".join(WORDS[label] for label in row) for row in batch], tf.string))
        for row, labels in enumerate(batch):
            starts = np.cumsum([0, *(len(WORDS[label]) + 1 for label in labels)])
            assert rows_of(answers, "entity", row, "start", "end", "label") == [
                (starts[first], starts[last + 1] - 1, kind)
                for kind, first, last in get_entities([LABELS[label] for label in labels])]

    check()


@pytest.mark.slow("graphs of raw texts")
def test_answers_from_contexts_of_any_length(models, answers, pieces):
    wanted = [find(lambda *ids: models["span"](ids), question, sum(words, []), text, **SPANS)
              for question, words, text in zip(TOKENIZER.ids(QUESTIONS), pieces, TEXTS)]
    assert spans_of(answers("span")["texts"]) == wanted
    assert any(start > 30 for start, *_ in wanted) and sum(start < 0 for start, *_ in wanted) == 3


def whole_numbers(ids, mask, segments):
    """Logits that are often equal, and differ from window to window."""
    number = ids * 7 + tf.range(tf.shape(ids)[1]) * 3 + tf.reduce_sum(ids, axis=1, keepdims=True)
    return {"start_logits": tf.cast(number % 4, tf.float32), "end_logits": tf.cast(number * 5 % 3, tf.float32)}


@pytest.mark.parametrize("options", [
    {}, {"null_threshold": -2.0, "doc_stride": 1, "max_answer_length": 1},
    pytest.param({"null_threshold": 0.0, "doc_stride": 50, "max_query_length": 1, "max_answer_length": 30},
                 marks=pytest.mark.slow("graphs of raw texts"))])
def test_answers_of_equal_scores_and_null_answers(answer_by, options):
    options = SPANS | options
    answer = answer_by(SpanFinder(**options), whole_numbers)
    texts = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
    def check(batch):
        questions, contexts = zip(*batch)
        wanted = []
        for question, text in zip(TOKENIZER.ids(questions), contexts):
            places = [(word.start(), word.end()) for word in re.finditer("[a-z]+", text)]
            context = [(piece, *place) for piece, place in zip(TOKENIZER.ids([text])[0], places)]
            wanted.append(find(whole_numbers, question, context, text, **options))
        assert spans_of(answer(questions, contexts)) == wanted

    check()


@pytest.mark.slow("graphs of raw texts")
def test_choices(models, answers):
    rows = [row for prompt, endings in zip(QUESTIONS, CHOICES) for row in TOKENIZER.pack([prompt] * 4, endings, LENGTH)]
    ids = packing.pad(rows, TOKENIZER.pad_id)
    logits = models["choice"]({name: array.reshape(-1, 4, array.shape[1]) for name, array in ids.items()}).numpy()
    found = answers("choice")["texts"]
    assert found["probabilities"] == close(np.array([softmax(row) for row in logits]))
    assert found["choice"].tolist() == logits.argmax(1).tolist() and len(set(found["choice"])) > 1


@pytest.mark.slow("graphs of token ids")
@pytest.mark.parametrize("task", CALLS)
def test_token_ids_get_what_the_head_gives(models, answers, task):
    inputs = CALLS[task]["ids"][1]
    outputs = models[task](inputs)
    wanted = {"regress": lambda: {"value": outputs[:, 0]}, "span": lambda: outputs,
              "tag": lambda: {"probabilities": keras.ops.softmax(outputs)},
              "choice": lambda: {"probabilities": keras.ops.softmax(outputs), "choice": np.argmax(outputs, axis=1)}}

    def real(tensor):
        """Without what stands at padding, which says nothing."""
        return np.array(tensor)[inputs["input_mask"] > 0] if task in ("span", "tag") else np.array(tensor)

    assert {name: real(tensor) for name, tensor in answers(task)["ids"].items()} == {
        name: close(real(tensor)) for name, tensor in wanted[task]().items()}


@pytest.mark.slow("graphs of an empty batch")
@pytest.mark.parametrize("task", CALLS)
def test_no_texts(answers, task):
    shapes = {"regress": {(0,)}, "tag": {(0, 0)}, "span": {(0,)}, "choice": {(0,), (0, 3)}}
    assert {array.shape for array in answers(task)["none"].values()} == shapes[task]
    if task == "tag":
        assert {array.shape for array in answers(task)["blank"].values()} == {(1, 0)}


@pytest.mark.slow("graphs of bytes that are not UTF-8")
def test_what_is_not_utf8_is_left_out(answers):
    tags = answers("tag")["broken"]
    assert (tags["word_start"] >= 0).sum(axis=1).tolist() == [0, 3, 2, 0]
    for text, entities, answer in zip(BROKEN, tags["entity_text"], answers("span")["broken"]["answer"]):
        assert all(part in text for part in [*entities, answer])


def test_arguments_must_be_of_one_batch():
    with pytest.raises(tf.errors.InvalidArgumentError, match="question and context must have the same batch"):
        check_same_batch(SpanFinder.texts, [tf.constant(["a"]), tf.constant(["b", "c"])])


@pytest.mark.parametrize("task, options, message", [
    ("tag", {"labels": LABELS[:4]}, "the names of the 5 classes of this BertTokenClassifier; got 4 names"),
    ("tag", {"labels": ["O", "", *LABELS[:3]]}, "labels must not be empty"),
    ("span", {"max_length": 67}, "max_length must be at least 68; got 67"),
    ("span", {"doc_stride": 0}, "doc_stride must be at least 1; got 0")])
def test_what_it_refuses(models, tmp_path, task, options, message):
    with pytest.raises(InputError, match=message):
        export_text_model(models[task], TOKENIZER, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())
