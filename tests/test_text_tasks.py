"""The graphs of raw texts against plain Python over the outputs of a model."""

import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from text_reference import LABELS, LENGTH, TOKENIZER, find, rows_of, spans_of, tag

from keras_bert.errors import InputError
from keras_bert.export import export_text_model
from keras_bert.export.text_heads import Reader, SpanFinder, Tagger, check_same_batch
from keras_bert.layers import BertLayer
from keras_bert.models import BertSpanLabeler, BertTokenClassifier
from keras_bert.text.graph_tokenizer import GraphTokenizer

from conftest import SMALL, TINY_VOCABULARY, randomize

SPANS = {"doc_stride": 4, "max_query_length": 6, "max_answer_length": 5}
WORDS = [word for word in TINY_VOCABULARY if word.isalpha()]
ODD = ["", " \t\n", "각각의 집 é!", "play\tsome 🎵🎶 music,now", "e\u0301t is\u0301 my song", "\u0301", "İ it ﬁ ß",
       "👩\u200d👩\u200d👧 turn", "the lamps singing?\u3000on\u200b off", "가a나is 中文the"]
rng = np.random.default_rng(0)
TEXTS = ODD + [" ".join(rng.choice([*WORDS, "playing", "songs", "🎵", "집", "é"], size)) for size in (1, 14, 15, 60)]
QUESTIONS = [" ".join(rng.choice(WORDS, size)) for size in rng.integers(0, 9, len(TEXTS))]
BROKEN = [b"\xff\xfe", b"pl\0ay\xf0\x9f some music\xe2\x82", b"\x80turn off", b"\xed\xa0\x80"]  # not UTF-8


@pytest.fixture(scope="module")
def tagger():
    """A model with random weights whose answers differ from text to text."""
    model = randomize(BertTokenClassifier(BertLayer(SMALL), len(LABELS)))
    model.layers[-1].kernel.assign(np.random.default_rng(1).normal(0, 2, model.layers[-1].kernel.shape))
    return model


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


def test_words_and_entities_of_texts_of_any_length(answer_by, tagger, pieces):
    names = "input_word_ids", "input_mask", "segment_ids"
    answer = answer_by(Tagger(labels=LABELS), lambda *ids: tagger(dict(zip(names, ids))))
    answers, found = answer(TEXTS), []
    for row, (text, words) in enumerate(zip(TEXTS, pieces)):
        tagged, entities = tag(tagger, text, words)
        assert rows_of(answers, "word", row, "start", "end", "label", "score") == tagged
        assert rows_of(answers, "entity", row, "start", "end", "label", "score", "text") == entities
        found += entities
    assert {kind for _, _, kind, _, _ in found} == {"곳", "x"} and any(" " in text for *_, text in found)
    # What is not UTF-8 is left out.
    answers = answer(BROKEN)
    assert (answers["word_start"] >= 0).sum(axis=1).tolist() == [0, 3, 2, 0]
    assert all(part in text for text, entities in zip(BROKEN, answers["entity_text"]) for part in entities)


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


def whole_numbers(ids, mask, segments):
    """Logits that are often equal, and differ from window to window."""
    number = ids * 7 + tf.range(tf.shape(ids)[1]) * 3 + tf.reduce_sum(ids, axis=1, keepdims=True)
    return {"start_logits": tf.cast(number % 4, tf.float32), "end_logits": tf.cast(number * 5 % 3, tf.float32)}


@pytest.mark.parametrize("options", [{}, {"null_threshold": -2.0, "doc_stride": 1, "max_answer_length": 1}])
def test_answers_of_equal_scores_and_null_answers(answer_by, pieces, options):
    options = SPANS | options
    answer = answer_by(SpanFinder(**options), whole_numbers)
    assert spans_of(answer(QUESTIONS, TEXTS)) == [
        find(whole_numbers, question, sum(words, []), text, **options)
        for question, words, text in zip(TOKENIZER.ids(QUESTIONS), pieces, TEXTS)]
    assert all(part in text for text, part in zip(BROKEN, answer(BROKEN[::-1], BROKEN)["answer"]))
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


def test_arguments_must_be_of_one_batch():
    with pytest.raises(tf.errors.InvalidArgumentError, match="question and context must have the same batch"):
        check_same_batch(SpanFinder.texts, [tf.constant(["a"]), tf.constant(["b", "c"])])


@pytest.mark.parametrize("task, options, message", [
    ("tag", {"labels": LABELS[:4]}, "the names of the 5 classes of this BertTokenClassifier; got 4 names"),
    ("tag", {"labels": ["O", "", *LABELS[:3]]}, "labels must not be empty"),
    ("span", {"max_length": 67}, "max_length must be at least 68; got 67"),
    ("span", {"doc_stride": 0}, "doc_stride must be at least 1; got 0")])
def test_what_it_refuses(tagger, tmp_path, task, options, message):
    models = {"tag": tagger, "span": BertSpanLabeler(tagger.bert)}
    with pytest.raises(InputError, match=message):
        export_text_model(models[task], TOKENIZER, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())
