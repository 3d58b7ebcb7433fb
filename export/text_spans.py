"""The raw-text head of a `BertSpanLabeler`: answers from contexts of any length."""

import dataclasses
import math

import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.text.graph_packing import flatten

from .text_heads import Head, characters, check_equally_many, strings

_N_BEST = 20  # as in google-research/bert `run_squad.py`


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanFinder(Head):
    """The best span over the windows of a context (Devlin et al., 2018, sections 4.2 and 4.3; google-research/bert
    `run_squad.py`).

    Args:
        doc_stride: pieces from the start of one window to that of the next, at most a window's.
        max_query_length: longest question in pieces; longer ones are cut.
        max_answer_length: longest answer in pieces.
        null_threshold: by how much the score of no answer must exceed the best span's; where None, there is no answer
            only to a context without words.
    """

    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    null_threshold: float | None = None

    texts = strings("question", "context")
    truncator = "waterfall"

    def __post_init__(self):
        for name in ("doc_stride", "max_query_length", "max_answer_length"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}")

    @property
    def shortest(self):
        return self.max_query_length + 4

    def read(self, reader, *texts):
        question, context = super().read(reader, *texts)
        return [part[:, :self.max_query_length] for part in question], context

    def encode(self, outputs, mask):
        return outputs

    def answer(self, reader, questions, contexts):
        check_equally_many(question=questions, context=contexts)
        question = flatten(reader.tokenizer.tokenize(questions))[:, :self.max_query_length]
        context, starts, limits = map(flatten, reader.tokenizer.tokenize_with_offsets(contexts))
        row, windows = self._windows(context, reader.max_length - 3 - question.row_lengths())
        inputs = reader.pack(tf.gather(question, row), tf.gather(context.values, windows))
        outputs = reader.run(*inputs)
        logits = tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=2)

        segments = inputs[2]
        of_windows = tf.boolean_mask(logits[:, :-1], segments[:, :-1] * segments[:, 1:] > 0)  # without the last, [SEP]
        scores, best = _best(context.with_values(self._scores(of_windows, windows, context)))
        null = tf.math.unsorted_segment_min(tf.reduce_sum(logits[:, 0], axis=1), row, context.nrows())
        if self.null_threshold is None:
            null = tf.where(context.row_lengths() > 0, -math.inf, null)
        is_null = null - scores[:, 0] > (self.null_threshold or 0.0)
        probabilities = tf.nn.softmax(tf.concat([scores, null[:, None]], axis=1))

        first = context.row_starts() + best // self.max_answer_length
        last = first + best % self.max_answer_length
        begin, end = _unless(is_null, starts, first), _unless(is_null, limits, last)
        rows = tf.range(tf.size(contexts))
        return {"answer": tf.strings.substr(contexts, begin, end - begin),
                "start": tf.where(is_null, -1, characters(contexts, rows, begin)),
                "end": tf.where(is_null, -1, characters(contexts, rows, end)),
                "score": tf.where(is_null, probabilities[:, -1], probabilities[:, 0])}

    def _windows(self, context, size):
        """The windows of all contexts.

        Args:
            context: ragged [batch, (pieces)].
            size: int64 [batch], the most pieces of a window.

        Returns:
            (the context that each window is of, int64 [windows]; its pieces, as places in `context.values`, ragged
            int64 [windows, (pieces)]).
        """
        begin, stride = context.row_starts(), tf.minimum(tf.constant(self.doc_stride, tf.int64), size)
        begins = tf.ragged.range(begin, begin + tf.maximum(context.row_lengths() - size, 0) + stride, stride)
        row = begins.value_rowids()
        ends = tf.minimum(begins.values + tf.gather(size, row), tf.gather(context.row_limits(), row))
        return row, tf.ragged.range(begins.values, ends)

    def _scores(self, logits, windows, context):
        """The score of each span in the window where it is highest, -inf where no window holds it.

        Args:
            logits: float32 [pieces of all windows, 2], of starts and ends.
            windows: ragged int64 [windows, (pieces)], which pieces these are.
            context: ragged [batch, (pieces)].

        Returns:
            float32 [pieces of all contexts, max_answer_length], by the first piece and how many more there are.
        """
        last = tf.range(tf.size(windows.values, tf.int64))[:, None] + tf.range(self.max_answer_length, dtype=tf.int64)
        limit = tf.gather(windows.row_limits(), windows.value_rowids())[:, None]
        scores = logits[:, :1] + tf.gather(logits[:, 1], tf.minimum(last, limit - 1))
        return tf.math.unsorted_segment_max(
            tf.where(last < limit, scores, -math.inf), windows.values, tf.size(context.values))


def _best(scores):
    """The n best of each row of ragged float32 [batch, (pieces), lengths], the earlier first where they are equal.

    Returns:
        (scores, float32 [batch, n], -inf where there are no more; int64 [batch], the place of the best one in its row).
    """
    dense = scores.to_tensor(-math.inf)
    batch, pieces, lengths = tf.unstack(tf.shape(dense))
    dense = tf.reshape(dense, [batch, pieces * lengths])
    dense = tf.pad(dense, [[0, 0], [0, _N_BEST]], constant_values=-math.inf)
    scores, places = tf.math.top_k(dense, _N_BEST)
    return scores, tf.cast(places[:, 0], tf.int64)


def _unless(is_null, bytes, pieces):
    """The bytes at some pieces of ragged [batch, (pieces)], 0 where `is_null`: int64 [batch]."""
    values = tf.concat([bytes.values, [0]], 0)
    return tf.gather(values, tf.where(is_null, tf.size(values, tf.int64) - 1, pieces))
