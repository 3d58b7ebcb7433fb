"""The answers of the task span as TensorFlow operations: the best span over the windows of a context, see `best_spans`
in squad.py."""

import math

import tensorflow as tf

from keras_bert.tasks.base import Answers
from keras_bert.tasks.graph import Reader, characters, split
from keras_bert.tasks.squad import N_BEST, Span


def answer(task: Span, reader: Reader, questions: tf.Tensor, contexts: tf.Tensor) -> Answers:
    """Computes `exported_outputs` of questions and contexts, each string [batch]."""
    question = reader.tokens(questions)[:, :task.query_length(reader.packing)]
    context, starts, limits = reader.tokens_with_offsets(contexts)
    added = reader.packing.special_tokens(2)
    size = reader.max_length - added - question.row_lengths()
    parts = split(context, size, task.doc_stride, task.max_windows)
    inputs = reader.pack(tf.gather(question, parts.row), parts.of(context))

    def run(*ids: tf.Tensor) -> tf.Tensor:
        outputs = reader.run(*ids)
        return tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=2)

    logits = reader.run_windows(run, inputs, context)

    head = tf.gather(question.row_lengths(), parts.row)[:, None] + added - 1  # [CLS], the question and [SEP]
    column = tf.range(tf.shape(logits, tf.int64)[1])
    positions = parts.positions()
    is_window = (column >= head) & (column < head + positions.row_lengths()[:, None])
    scores, best = _best(context.with_values(_scores(task, tf.boolean_mask(logits, is_window), positions, context)))
    null = tf.math.segment_min(tf.reduce_sum(logits[:, 0], axis=1), parts.row)
    if task.null_threshold is None:
        null = tf.where(context.row_lengths() > 0, -math.inf, null)
    is_null = null - scores[:, 0] > (task.null_threshold or 0.0)
    probabilities = tf.nn.softmax(tf.concat([scores, null[:, None]], axis=1))

    first = context.row_starts() + best // task.max_answer_length
    last = first + best % task.max_answer_length
    begin, end = _unless(is_null, starts, first), _unless(is_null, limits, last)
    rows = tf.range(tf.size(contexts))
    return {"answer": tf.strings.substr(contexts, begin, end - begin),
            "start": tf.where(is_null, -1, characters(contexts, rows, begin)),
            "end": tf.where(is_null, -1, characters(contexts, rows, end)),
            "score": tf.where(is_null, probabilities[:, -1], probabilities[:, 0])}


def _scores(task: Span, logits: tf.Tensor, positions: tf.RaggedTensor, context: tf.RaggedTensor) -> tf.Tensor:
    """Returns the highest score of each span over the windows that contain it, -inf if no window does: float32
    [tokens of all contexts, max_answer_length], by the first token of the span and the number of tokens after it.
    `logits` are those of starts and ends, float32 [tokens of all windows, 2]."""
    last = tf.range(tf.size(positions.values, tf.int64))[:, None] + tf.range(task.max_answer_length, dtype=tf.int64)
    limit = tf.gather(positions.row_limits(), positions.value_rowids())[:, None]
    scores = logits[:, :1] + tf.gather(logits[:, 1], tf.minimum(last, limit - 1))
    return tf.math.unsorted_segment_max(
        tf.where(last < limit, scores, -math.inf), positions.values, tf.size(context.values))


def _best(scores: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the `N_BEST` highest of float32 [batch, (tokens), lengths] scores of each row, padded with -inf, and the
    index of the highest in its row, flattened to [tokens * lengths]: int64 [batch]. Of equal scores, the earlier one
    comes first. Each row by itself, because rows that were padded to the longest would need its memory each."""
    def best(row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scores, positions = tf.math.top_k(
            tf.pad(tf.reshape(row, [-1]), [[0, N_BEST]], constant_values=-math.inf), N_BEST)
        return scores, tf.cast(positions[0], tf.int64)

    return tf.map_fn(best, scores, fn_output_signature=(
        tf.TensorSpec([N_BEST], tf.float32), tf.TensorSpec([], tf.int64)))


def _unless(is_null: tf.Tensor, bytes: tf.RaggedTensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the byte positions of some tokens of ragged [batch, (tokens)], 0 where `is_null`: int64 [batch]."""
    values = tf.concat([bytes.values, [0]], 0)
    return tf.gather(values, tf.where(is_null, tf.size(values, tf.int64) - 1, tokens))
