"""How much words count, in Python, in a SavedModel and in a LiteRT folder, against one prediction for each word."""

import itertools
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from serving_server import assert_same
from text_reference import LABELS, LENGTH, TOKENIZER, XLM_R

from keras_bert.errors import InputError
from keras_bert.export.text_model import TextModel
from keras_bert.inference.lite_model import LiteModel, LiteRTModel
from keras_bert.inference.saved_model import SavedModel
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertRegressor
from keras_bert.tasks import Classify, Intent, MultiLabel, Regress, Rerank, WordWeight, word_weights_graph
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

import zoo
from conftest import SMALL, TINY_VOCABULARY, randomize

pytestmark = pytest.mark.filterwarnings("ignore:texts cut")
TEXTS = ["play some 🎵🎶 music,now", "각각의 집 é!", "", "  ", " e\u0301t is\u0301 my\tsong\t\ton\r\n",
         "the lamps turn on " * 4,
         "stop\u00a0the\u3000lamp\u2003now\u2028a", "off\x0boff \u200b\x85 ﬁ\ufeff 👩\u200d👩\u200d👧 İ"]
FROM_LEFT = BertTokenizer(TINY_VOCABULARY, truncation_side="left")


def words_of(text):
    """The start and the end of each word, by the categories of Unicode."""
    is_space = [c in "\t\n\r" or unicodedata.category(c) in ("Zs", "Zl", "Zp") for c in text]
    groups = [list(group) for space, group in itertools.groupby(range(len(text)), is_space.__getitem__) if not space]
    return [(group[0], group[-1] + 1) for group in groups]


def outputs(model, inputs):
    """What `predict` answers to inputs, [inputs, outputs]: the scores of the labels, or the number."""
    labels = getattr(model.task, "labels", None)
    if not labels:
        return np.array(model.predict(*zip(*inputs)))[:, None]
    answers = model.predict(*map(list, zip(*inputs)), top_k=len(labels))
    pairs = [dict(answer.top if isinstance(model.task, MultiLabel) else zip(answer.labels, answer.scores))
             for answer in answers]
    return np.array([[scores[label] for label in labels] for scores in pairs])


def expected(model, texts):
    """The words of an input, (segment, start, end), and their weights, [words, outputs]."""
    words = [(segment, *span) for segment, text in enumerate(texts) for span in words_of(text)]
    variants = [[text[:start] + text[end:] if number == segment else text for number, text in enumerate(texts)]
                for segment, start, end in words]
    values = outputs(model, [texts, *variants])
    return words, values[0] - values[1:], values[0]


def check(found, wanted, least=1e-3):
    """Compares the outputs of a signature, which are padded, with those of `expected` for each input."""
    for number, (words, weights, _) in enumerate(wanted):
        columns = [found[f"word_{name}"][number] for name in ("segment", "start", "end")]
        padding = [(-1, -1, -1)] * (len(columns[0]) - len(words))
        assert list(zip(*(column.tolist() for column in columns))) == words + padding
        np.testing.assert_allclose(found["word_weight"][number, :len(words)], weights, rtol=0, atol=1e-5)
        assert not found["word_weight"][number, len(words):].any()
    assert np.abs(found["word_weight"]).max() > least


def make(task, tokenizer):
    encoder = randomize(BertLayer(SMALL))
    labels = getattr(task, "labels", None)
    model = randomize(BertClassifier(encoder, len(labels)) if labels else BertRegressor(encoder))
    kernel = model.layers[-1].kernel
    kernel.assign(np.random.default_rng(3).normal(0, 2, kernel.shape))
    return FineTuned(model, tokenizer, task)


@pytest.mark.parametrize("task,tokenizer", [
    (Intent(LENGTH, LABELS, threshold=0.5), TOKENIZER), (Classify(LENGTH, LABELS, pairs=True), XLM_R),
    (Regress(LENGTH), FROM_LEFT),
    *(pytest.param(task, TOKENIZER, marks=pytest.mark.slow("words in windows")) for task in (
        Classify(LENGTH, LABELS, pairs=True, doc_stride=5, aggregate="max"), Rerank(LENGTH, doc_stride=4),
        MultiLabel(LENGTH, LABELS, doc_stride=4, max_windows=2)))])
def test_weights_are_the_differences_of_predictions(task, tokenizer, monkeypatch, eager):
    model = make(task, tokenizer)
    columns = [TEXTS, TEXTS[::-1]][:len(task.inputs)]
    inputs = list(zip(*columns))
    wanted = [expected(model, texts) for texts in inputs]
    for texts, found, (words, weights, values) in zip(inputs, model.word_weights(*columns), wanted, strict=True):
        assert [(task.inputs.index(word.text), word.start, word.end) for word in found] == words
        assert all(texts[segment][start:end] == word.word for word, (segment, start, end) in zip(found, words))
        np.testing.assert_allclose([word.weight for word in found], weights[:, values.argmax()], rtol=0, atol=1e-5)
    monkeypatch.setattr(word_weights_graph, "_BYTES", 900)  # the loop takes several steps
    graph = TextModel(model.model, task, model.tokenizer, "float32").word_weights
    check({name: tensor.numpy() for name, tensor in graph(*map(tf.constant, columns)).items()}, wanted)
    size = len(getattr(task, "labels", "1"))
    assert {name: tuple(tensor.shape) for name, tensor in graph(*(tf.zeros([0], tf.string) for _ in columns)).items()
            } == dict.fromkeys(("word_start", "word_end", "word_segment"), (0, 0)) | {"word_weight": (0, 0, size)}


def request(model, inputs):
    """A request for inputs, lists of texts each."""
    return {name: np.array([text if isinstance(text, bytes) else text.encode() for text in column], object)
            for name, column in zip(model.task.inputs, zip(*inputs))}


@pytest.mark.parametrize("case", ["multilabel", "rerank"])
@pytest.mark.parametrize("kind,options", [
    (LiteRTModel, {}), pytest.param(SavedModel, {}, marks=pytest.mark.slow("words in an export")),
    pytest.param(SavedModel, {"jit_compile": True}, marks=pytest.mark.slow("words in a compiled export"))])
def test_served_models_weigh_words_and_requests_are_joined_and_divided(case, kind, options):
    made = zoo.litert if kind is LiteRTModel else zoo.saved_model
    served, model = kind(str(made(case, **options)), 1), zoo.make(case)
    inputs = list(zip(*[TEXTS, TEXTS[::-1]][:len(model.task.inputs)]))
    asked = request(model, inputs)
    whole, = served.run("word_weights", [asked])
    check(whole, [expected(model, texts) for texts in inputs], least=1e-5)
    tokens = served.count_tokens("word_weights", asked)
    once = served.count_tokens("serving_default", asked)
    assert (tokens // once).tolist() == [
        1 + sum(min(len(words_of(text)), served.max_length) for text in texts) for texts in inputs]
    parts = served.split("word_weights", asked, tokens, 100)
    assert len(parts) > 3
    alone = [served.run("word_weights", [part])[0] for part, _ in parts]
    for found, wanted in zip(served.run("word_weights", [part for part, _ in parts]), alone, strict=True):
        assert_same(found, wanted)
    assert_same(served.join("word_weights", alone), whole)
    odd = request(model, [[b"play \xff\xe3\x80 now\xed\xa0\x80 \xf0\x9f\xc2\xa0x"] * len(asked)])
    found, = served.run("word_weights", [odd])
    assert found["word_start"][0, :4].tolist() == [0, 5, 8, 13] and found["word_end"][0, :4].tolist() == [4, 7, 12, 14]


def test_labels_and_what_is_refused():
    model, lite = zoo.make("pairs"), LiteModel.load(zoo.litert("pairs"))
    (found,), (others,) = (each.word_weights(["play it"], ["now"], label="b", batch_size=1) for each in (model, lite))
    assert [(word.word, word.start, word.end, word.text) for word in found] == [
        ("play", 0, 4, "text"), ("it", 5, 7, "text"), ("now", 0, 3, "text_pair")]
    wanted = expected(model, ["play it", "now"])[1][:, 1]
    for each in (found, others):
        np.testing.assert_allclose([word.weight for word in each], wanted, rtol=0, atol=1e-5)
    assert isinstance(found[0], WordWeight) and model.word_weights([], []) == []
    for case, texts, label, message in (
            ("pairs", [["a"], ["b"]], "bb", "label must be a label of the model; got 'bb'; did you mean b"),
            ("pairs", [["a"]], None, r"this model takes pairs of texts, as lists: predict\(texts, text_pairs\); got"),
            ("regress", [["a"]], "a", "label must be left out for the task regress; got 'a'"),
            ("tag", [["a"]], None, "only answers of the tasks classify, intent, multilabel, regress, joint, rerank "
             "have word weights; this model is of the task tag")):
        with pytest.raises(InputError, match=message):
            zoo.make(case).word_weights(*texts, label=label)
