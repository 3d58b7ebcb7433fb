"""What raw-text SavedModels must answer, in plain Python over the outputs of a model."""

import numpy as np
import pytest
import tensorflow as tf
from seqeval.metrics.sequence_labeling import get_entities

from keras_bert.text import BertTokenizer, packing

from conftest import TINY_VOCABULARY

LABELS = ["O", "B-곳", "I-곳", "B-x", "I-x"]
LENGTH = 16  # of the inputs, so that texts need several
TOKENIZER = BertTokenizer(TINY_VOCABULARY)


def softmax(logits):
    powers = np.exp(np.asarray(logits, float) - np.max(logits))
    return powers / powers.sum()


def close(value):
    return pytest.approx(value, abs=1e-5)


def tag(model, text, words):
    """What words and entities there are: lists of (start, end, label, score), and (start, end, label, score, text)."""
    ids = [piece for word in words for piece, _, _ in word]
    chunks = [ids[begin:begin + LENGTH - 2] for begin in range(0, len(ids), LENGTH - 2)]
    rows = [([TOKENIZER.cls_id, *chunk, TOKENIZER.sep_id], len(chunk) + 2) for chunk in chunks]
    outputs = model(packing.pad(rows, TOKENIZER.pad_id)) if rows else []
    logits = [logits for chunk, output in zip(chunks, outputs) for logits in output.numpy()[1:len(chunk) + 1]]
    firsts = np.cumsum([0, *map(len, words)])
    chances = [softmax(logits[first]) for first in firsts[:-1]]
    tagged = [(word[0][1], word[-1][2], LABELS[row.argmax()], close(row.max())) for word, row in zip(words, chances)]
    entities = []
    for kind, first, last in get_entities([label for _, _, label, _ in tagged]):
        begin, end = tagged[first][0], tagged[last][1]
        score = np.mean([row.max() for row in chances[first:last + 1]])
        entities.append((begin, end, kind, close(score), text[begin:end]))
    return tagged, entities


def rows_of(answers, part, row, *names):
    """The columns of a row without its padding, which must be nothing else than padding."""
    columns = [answers[f"{part}_{name}"][row] for name in names]
    count = int((columns[0] >= 0).sum())
    for name, column in zip(names, columns):
        assert set(column[count:].tolist()) <= {{"start": -1, "end": -1, "score": 0.0}.get(name, b"")}
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in values)
            for values in zip(*(column[:count] for column in columns))]


def find(read, question, context, text, doc_stride, max_query_length, max_answer_length, null_threshold=None):
    """(start, end, answer, score), from the ids of the question and the pieces of the context."""
    question = question[:max_query_length]
    size = LENGTH - len(question) - 3
    begins = [0]
    while begins[-1] + size < len(context):
        begins.append(begins[-1] + min(doc_stride, size))
    rows = [([TOKENIZER.cls_id, *question, TOKENIZER.sep_id, *(piece for piece, _, _ in context[begin:begin + size]),
              TOKENIZER.sep_id], len(question) + 2) for begin in begins]
    outputs = read(*map(tf.constant, packing.pad(rows, TOKENIZER.pad_id).values()))
    starts, ends = outputs["start_logits"].numpy(), outputs["end_logits"].numpy()
    spans = {}
    for begin, start, end in zip(begins, starts[:, len(question) + 2:], ends[:, len(question) + 2:]):
        count = min(size, len(context) - begin)
        for i in range(count):
            for j in range(i, min(count, i + max_answer_length)):
                spans[begin + i, begin + j] = max(start[i] + end[j], spans.get((begin + i, begin + j), -np.inf))
    best = sorted(spans.items(), key=lambda span: (-span[1], span[0]))[:20]
    null = (starts[:, 0] + ends[:, 0]).min()
    scores = softmax([score for _, score in best] + [null] * (null_threshold is not None or not best))
    if not best or null_threshold is not None and null - best[0][1] > null_threshold:
        return -1, -1, "", close(scores[-1])
    start, end = context[best[0][0][0]][1], context[best[0][0][1]][2]
    return start, end, text[start:end], close(scores[0])


def spans_of(answers):
    return [(start, end, answer.decode(), score) for start, end, answer, score in
            zip(*(answers[name] for name in ("start", "end", "answer", "score")))]
