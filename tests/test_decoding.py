"""The decoders of tasks in Python and in the graph of a SavedModel give the same answers, and the same outputs."""

import re
import types

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_reference import LABELS, LENGTH, TOKENIZER, XLM_R

from keras_bert.inference.lite_model import _signature
from keras_bert.inference.served_model import STRING, Spec
from keras_bert.tasks import (
    Classify,
    Embed,
    Intent,
    Joint,
    MultiLabel,
    MultipleChoice,
    Regress,
    Rerank,
    Span,
    Tag,
    graph,
    run_model,
)
from keras_bert.tasks import windows as numpy_windows

from conftest import TINY_VOCABULARY

WORDS = [word for word in TINY_VOCABULARY if word.isalpha()]
ODD = ["집", "각각의", "한글이", "e\u0301t", "\u0301", "🎵🎶", "👩\u200d👩\u200d👧", "İ", "ﬁ",
       "music,now", "中文the", "\t", "\u200b"]
TEXTS = st.lists(st.sampled_from(WORDS) | st.sampled_from(ODD), max_size=40).map(" ".join)
LONG = " ".join([*WORDS, *ODD] * 3)
# Lone surrogates; a client that encodes one sends three bytes.
SURROGATES = ["\ud800play some\udfff music 한글이 \ud83d the lamp", "\udc00", "a \ud800\ud800lamp"]


@pytest.fixture(autouse=True, scope="module")
def quickly_called():
    """Without passes over the graphs that take longer than all calls."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def decoder(task, model, tokenizer=TOKENIZER):
    """Returns a function that answers lists of texts in Python. It compares each output with that of the graph. Both
    run the same model, a function of int32 word ids, mask and segment ids."""
    reader, specs = graph.Reader(model, tokenizer, LENGTH), graph.text_specs(task.inputs)
    in_graph = tf.function(lambda *texts: task.answer_in_graph(reader, *texts), input_signature=specs, autograph=False)

    def predict_on_batch(inputs):
        ids = [inputs[name] for name in ("input_word_ids", "input_mask", "segment_ids")]
        rows = [tf.constant(part.reshape(-1, part.shape[-1])) for part in ids]
        return tf.nest.map_structure(lambda tensor: tensor.numpy().reshape(*ids[0].shape[:-1], *tensor.shape[1:]),
                                     model(*rows))

    def answer(*texts):
        encoded = task.encode(task.arguments(*texts), tokenizer)
        outputs = run_model(types.SimpleNamespace(predict_on_batch=predict_on_batch), encoded.batched(tokenizer))
        columns = (np.vectorize(lambda text: text.encode("utf-8", "surrogatepass"), [STRING])(np.array(column, STRING))
                   for column in texts)
        check_rows(task.exported_rows(encoded, outputs),
                   {name: tensor.numpy() for name, tensor in in_graph(*map(tf.constant, columns)).items()})
        return list(task.answers(encoded, outputs))

    signature = _signature(task, HIDDEN)
    outputs = in_graph.get_concrete_function().structured_outputs
    assert signature.inputs == {spec.name: Spec(STRING, tuple(spec.shape)) for spec in specs}
    assert signature.outputs == {name: Spec(np.dtype(tensor.dtype.as_numpy_dtype), tuple(tensor.shape))
                                 for name, tensor in outputs.items()}
    nothing = in_graph(*(tf.zeros([0, 2][:spec.shape.rank], tf.string) for spec in specs))
    assert {tensor.shape[0] for tensor in nothing.values()} == {0}
    return answer


def check_rows(rows, outputs):
    """Compares rows of outputs with the outputs of the graph, whose words and entities are padded."""
    for number, row in enumerate(rows):
        for name, column in outputs.items():
            starts = outputs.get(f"{name.rpartition('_')[0]}_start")
            expected = column[number]
            if starts is not None:
                assert set(expected[starts[number] < 0]) <= {-1, 0.0, b""}
                expected = expected[starts[number] >= 0]
            if column.dtype == STRING:
                expected = np.vectorize(decoded, [STRING])(np.array(expected, STRING))
            if column.dtype.kind == "f":
                np.testing.assert_allclose(row[name], expected, atol=1e-6)
            else:
                np.testing.assert_array_equal(row[name], expected)


def decoded(text):
    return re.sub("[\ud800-\udfff]", "\ufffd", text.decode("utf-8", "surrogatepass"))


def label_logits(ids, mask, segments):
    """Logits that give every token one of the labels, which depends on its position; all are equal for some tokens, and
    O is the first."""
    labels = tf.one_hot((ids + tf.range(tf.shape(ids)[1]) // 4) % 7, len(LABELS))
    return labels * tf.cast(ids % 3, tf.float32)[:, :, None]


def scores(count):
    """A model that gives each text or choice some numbers, which are often equal."""
    def run(ids, mask, segments):
        total = tf.reduce_sum(ids * mask * (segments + 1), axis=-1)
        return tf.cast(tf.stack([total % (3 + number) for number in range(count)], axis=-1), tf.float32) / 2 - 0.5

    return run


HIDDEN = 5


@pytest.mark.slow("an output of windows that the graph joins differently")
@pytest.mark.parametrize(("task", "model", "tokenizer"), [
    (Intent(LENGTH, LABELS, threshold=0.6, temperature=1.7), scores(len(LABELS)), TOKENIZER),
    (Regress(LENGTH, pairs=True), scores(1), XLM_R),
    (MultipleChoice(LENGTH), lambda *inputs: scores(1)(*inputs)[..., 0], TOKENIZER),
    (Embed(LENGTH), scores(HIDDEN), TOKENIZER)])
def test_outputs_of_whole_texts(task, model, tokenizer):
    texts = ["", *WORDS[:8], "play some music", "각각의 집 é! İ ﬁ", LONG]
    columns = [texts, texts[::-1]][:len(task.inputs)]
    if "choices" in task.inputs:
        columns[1] = [[text, *texts[:2]] for text in texts]
    assert len(decoder(task, model, tokenizer)(*columns)) == len(texts)


@pytest.mark.slow("an entity that the graph finds differently")
@pytest.mark.parametrize(("labels", "options"), [
    (LABELS, {"unit": "character", "doc_stride": 4, "max_windows": 2}),
    (["O", "PER", "B-곳", "LABEL_3", "I-LABEL_3"], {"unit": "word", "max_windows": 3})])
def test_entities(labels, options, monkeypatch):
    monkeypatch.setattr(graph, "_TOKENS", 2 * LENGTH)
    answer, found = decoder(Tag(LENGTH, labels, **options), label_logits), set()

    @settings(max_examples=15, deadline=None)
    @given(st.lists(TEXTS, min_size=1, max_size=4))
    @example([""])
    @example([LONG, "", LONG[::-1]])
    @example(SURROGATES)
    def check(texts):
        found.update(entity.text for entities in answer(texts) for entity in entities)

    check()
    assert any(" " in text for text in found) and any("한" <= text[0] <= "힣" for text in found)


@pytest.mark.slow("a frame that the graph finds differently")
@pytest.mark.parametrize("unit", ["character", "word"])
def test_frames(unit):
    answer = decoder(Joint(LENGTH, ["a", "b"], LABELS, unit), lambda *inputs: {
        "label_logits": scores(2)(*inputs), "tag_logits": label_logits(*inputs)})

    @settings(max_examples=15, deadline=None)
    @given(st.lists(TEXTS, min_size=1, max_size=4))
    @example([LONG, "", LONG[::-1]])
    @example(SURROGATES)
    def check(texts):
        for frame in answer(texts):
            assert frame.label in "ab" and 0 <= frame.frame_score <= frame.score <= 1

    check()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.integers(1, 60), st.integers(1, 80),
       st.none() | st.integers(1, 5))
@example([0, 5, 6, 5000], 5, 3, None)
@example([0, 5, 6], 5, 9, 1)
@example([7], 1, 1, None)
def test_windows(lengths, size, stride, most):
    texts = tf.RaggedTensor.from_row_lengths(tf.range(sum(lengths)), lengths)
    found = graph.split(texts, tf.fill([len(lengths)], tf.constant(size, tf.int64)), stride, most)
    starts = texts.row_starts().numpy()
    parts = [numpy_windows.windows(length, size, stride, most) for length in lengths]
    assert list(zip(found.row.numpy().tolist(), found.of(texts).to_list())) == [
        (row, list(range(starts[row] + begin, starts[row] + end)))
        for row, of_text in enumerate(parts) for begin, end in of_text]
    assert tf.boolean_mask(found.positions().values, graph.is_own(found)).numpy().tolist() == [
        starts[row] + token for row, of_text in enumerate(parts)
        for first, last in numpy_windows.own_tokens(of_text) for token in range(first, last)]


def vectors(width):
    """Returns a model whose outputs, [rows, width], depend on all tokens of a row."""
    def run(ids, mask, segments):
        number = tf.reduce_sum((ids + segments) * mask * (1 + tf.range(tf.shape(ids)[1]) % 5), axis=1, keepdims=True)
        return tf.sin(tf.cast(number * tf.range(1, width + 1), tf.float32))

    return run


@pytest.mark.slow("an answer from windows that the graph gives differently")
@pytest.mark.parametrize(("task", "width", "tokenizer"), [
    (Classify(LENGTH, LABELS, True, None, 0.4, doc_stride=4, aggregate="max", max_windows=4), len(LABELS), TOKENIZER),
    (MultiLabel(LENGTH, LABELS, thresholds=[0.5, 0.6, 0.3, 0.2, 0.9], doc_stride=5), len(LABELS), TOKENIZER),
    (Rerank(LENGTH, doc_stride=4, max_windows=4), 1, XLM_R), (Embed(LENGTH, doc_stride=5), HIDDEN, TOKENIZER)])
def test_answers_from_windows(task, width, tokenizer, monkeypatch):
    monkeypatch.setattr(graph, "_TOKENS", 3 * LENGTH)  # the loop takes several steps
    texts = [[LONG, LONG[:60], "music", "", "now"], ["play", LONG, "", LONG[::-1], "turn off the light"]]
    answer = decoder(task, vectors(width), tokenizer)
    for columns in (texts[-len(task.inputs):], [part[-1:] for part in texts[-len(task.inputs):]]):
        assert len(answer(*columns)) == len(columns[0])


def span_logits(ids, mask, segments):
    """Logits that are often equal, and differ from window to window."""
    number = ids * 7 + tf.range(tf.shape(ids)[1]) * 3 + tf.reduce_sum(ids * mask, axis=1, keepdims=True)
    return {"start_logits": tf.cast(number % 4, tf.float32), "end_logits": tf.cast(number * 5 % 3, tf.float32)}


@pytest.mark.parametrize("doc_stride, max_windows, null_threshold, max_query_length, max_answer_length, tokenizer", [
    (4, None, None, 6, 30, TOKENIZER), (1, 3, -2.0, 1, 1, XLM_R)])
def test_answers(doc_stride, max_windows, null_threshold, max_query_length, max_answer_length, tokenizer):
    task = Span(LENGTH, doc_stride, null_threshold, max_windows=max_windows, max_query_length=max_query_length,
                max_answer_length=max_answer_length)
    answer, nulls = decoder(task, span_logits, tokenizer), set()

    @settings(max_examples=10, deadline=None)
    @given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
    @example(list(zip(SURROGATES[::-1], SURROGATES)))
    @example([("", ""), (LONG, LONG), ("", LONG), (LONG, ""), ("the", "한글이 🎵🎶")])
    def check(pairs):
        nulls.update(found.start < 0 for found in answer(*map(list, zip(*pairs))))

    check()
    assert nulls == {False, True}  # both answers and null answers occur
