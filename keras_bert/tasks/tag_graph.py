"""The answers of the task tag as TensorFlow operations, see `Tag` in tag.py."""

from collections.abc import Callable

import tensorflow as tf

from keras_bert.data.tagged import OUTSIDE, type_of
from keras_bert.tasks.base import Answers
from keras_bert.tasks.graph import Reader, characters, is_own, split
from keras_bert.tasks.tag import Tag

_PADDING = {"start": -1, "end": -1, "label": "", "text": "", "score": 0.0}


def answer(task: Tag, reader: Reader, texts: tf.Tensor) -> Answers:
    """Computes `exported_outputs` of texts, string [batch]."""
    inputs, tokens, decode = encode(task, reader, texts)
    return decode(reader.run_windows(reader.run, inputs, tokens))


def encode(task: Tag, reader: Reader, texts: tf.Tensor
           ) -> tuple[list[tf.Tensor], tf.RaggedTensor, Callable[[tf.Tensor], Answers]]:
    """Returns the model's inputs, a row for each window of the texts, string [batch]; the tokens of the texts; and the
    function from logits, float32 [rows, seq, labels], to `exported_outputs`."""
    ids, starts, limits = reader.tokenizer.tokenize_with_offsets(texts)
    tokens = ids.merge_dims(1, 2)  # [batch, (tokens)]
    size = tf.fill([tokens.nrows()], tf.constant(reader.max_length - 2, tf.int64))
    parts = split(tokens, size, task.doc_stride, task.max_windows)
    inputs = reader.pack(parts.of(tokens))
    text, head, tail = _words(task, ids, tokens, starts.flat_values)
    read = head  # of each word, the index of its first token among those of all windows
    if task.max_windows is not None:
        last_end = tf.math.segment_max(parts.end, parts.row)
        is_read = head < tf.gather(last_end, text)
        text, head, tail = (tf.boolean_mask(part, is_read) for part in (text, head, tail))
        read = head - tf.gather(tf.cumsum(tokens.row_limits() - last_end, exclusive=True), text)
    begin, limit = tf.gather(starts.flat_values, head), tf.gather(limits.flat_values, tail)
    start, end = characters(texts, text, begin), characters(texts, text, limit)

    def decode(outputs: tf.Tensor) -> Answers:
        logits = tf.boolean_mask(outputs[:, 1:-1], inputs[1][:, 2:] > 0)  # without [CLS], the final [SEP]
        logits = tf.boolean_mask(logits, is_own(parts))
        probabilities = tf.gather(tf.nn.softmax(logits), read)
        label, score = tf.argmax(probabilities, axis=1), tf.reduce_max(probabilities, axis=1)
        kind, first, last = _entities(task.labels, label, text)
        entity_text, entity_begin = tf.gather(text, first), tf.gather(begin, first)
        words = {"start": start, "end": end, "label": tf.gather(tf.constant(task.labels), label), "score": score}
        entities = {"start": tf.gather(start, first), "end": tf.gather(end, last), "label": kind,
                    "score": tf.reduce_mean(tf.gather(score, tf.ragged.range(first, last + 1)), axis=1),
                    "text": tf.strings.substr(
                        tf.gather(texts, entity_text), entity_begin, tf.gather(limit, last) - entity_begin)}
        return _padded("word", words, text, ids.nrows()) | _padded("entity", entities, entity_text, ids.nrows())

    return inputs, tokens, decode


def _words(task: Tag, ids: tf.RaggedTensor, tokens: tf.RaggedTensor,
           starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the index of each word's text, and of its first and last token: each int64 [words]."""
    if task.unit == "character":  # see `TokenOffsets.heads`
        text = tokens.value_rowids()
        begins = tf.not_equal(starts[1:], starts[:-1]) | tf.not_equal(text[1:], text[:-1])
        head = tf.where(tf.concat([tf.ones_like(starts[:1], tf.bool), begins], 0))[:, 0]
        return tf.gather(text, head), head, tf.concat([head[1:], tf.shape(starts, tf.int64)], 0) - 1
    return ids.value_rowids(), ids.values.row_starts(), ids.values.row_limits() - 1


def _entities(labels: list[str], label: tf.Tensor, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the type of each entity, string [entities], and its first and last word, each int64 [entities], from the
    indices of each word's label and text, each int64 [words]. An I-X that does not follow an X begins an entity, as in
    `spans_of` of keras_bert/data/tagged.py."""
    kind = tf.gather(tf.constant(["" if label == OUTSIDE else type_of(label) for label in labels]), label)
    is_i = tf.gather(tf.constant([not label.startswith("B-") for label in labels]), label)
    has_same_kind = (kind == tf.concat([[""], kind], 0)[:-1]) & (text == tf.concat([[-1], text], 0)[:-1])
    is_inside = is_i & has_same_kind
    first = tf.where((kind != "") & ~is_inside)[:, 0]
    last = tf.where((kind != "") & ~tf.concat([is_inside, [False]], 0)[1:])[:, 0]
    return tf.gather(kind, first), first, last


def _padded(part: str, columns: Answers, text: tf.Tensor, batch: tf.Tensor) -> Answers:
    """Returns the values of words or entities as [batch, longest], a padded row for each text. `text` holds the index
    of each value's text."""
    return {f"{part}_{name}": tf.RaggedTensor.from_value_rowids(values, text, batch).to_tensor(_PADDING[name])
            for name, values in columns.items()}
