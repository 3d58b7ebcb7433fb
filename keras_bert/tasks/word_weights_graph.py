"""The signature `word_weights` of a SavedModel as TensorFlow operations, see word_weights.py."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_bert.tasks.base import Answers, Task
from keras_bert.tasks.graph import characters, check_same_batch
from keras_bert.tasks.word_weights import OUTPUTS, SPACES, output_size
from keras_bert.text import Tokenizer

_BYTES = 16384  # of the variants that are answered in a call, which limits its memory
_EMPTY = 16  # bytes as which an empty text counts


def weigh(task: Task, tokenizer: Tokenizer, answer: Callable[..., Answers], *texts: tf.Tensor) -> Answers:
    """Computes `OUTPUTS` for a text for each of the task's `inputs`, string [batch]. `answer` computes the task's
    `exported_outputs`. As it is called in a loop, the graph has the model once, and only the strings of one call are in
    memory. A batch of short texts is one call."""
    check_same_batch(task.inputs, texts)
    count, every = len(texts), tf.reshape(tf.stack(texts, axis=1), [-1])  # the texts of an input follow each other
    of, begin, end = _words(every)
    first = tf.searchsorted(of, tf.range(tf.size(every)))  # of each text, its first word
    number = tf.range(tf.size(of)) - tf.gather(first, of)
    if (most := task.tokens_read(tokenizer)) <= tf.int32.max:
        if tokenizer.truncation_side == "left":
            number = tf.gather(tf.concat([first[1:], tf.shape(of)], 0), of) - 1 - tf.range(tf.size(of))
        is_read = number < most
    else:
        is_read = tf.ones_like(of, tf.bool)

    # Before the variants, each input itself is answered, as if an empty word of its first text were left out.
    batch = tf.range(tf.size(texts[0]))
    left_out = [tf.concat([whole, tf.boolean_mask(part, is_read)], 0) for whole, part in
                ((batch * count, of), (tf.zeros_like(batch), begin), (tf.zeros_like(batch), end))]
    values = _answers(answer, task, texts, every, *left_out)
    row = of // count
    place = tf.boolean_mask(tf.range(tf.size(of)), is_read)
    weight = tf.scatter_nd(place[:, None], tf.gather(values, tf.boolean_mask(row, is_read)) - values[tf.size(batch):],
                           [tf.size(of), output_size(task)])

    starts, ends = (characters(every, of, tf.cast(byte, tf.int64)) for byte in (begin, end))
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(row), row, tf.size(batch))
    columns = [tf.RaggedTensor.from_row_lengths(part, lengths, validate=False).to_tensor(padding)
               for part, padding in ((starts, -1), (ends, -1), (of % count, -1), (weight, 0.0))]
    return dict(zip(OUTPUTS, columns))


def _words(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the text of each word of string [batch], and the bytes at which it begins and ends: int32 [words]."""
    for size, spaces in SPACES.items():  # with as many bytes, so that positions stay
        texts = tf.strings.regex_replace(texts, f"[{spaces}]", " " * size)
    joined = tf.strings.join([" ", tf.strings.reduce_join(texts, separator=" "), " "])
    is_space = tf.io.decode_raw(joined, tf.uint8) == ord(" ")
    begin, end = (tf.cast(tf.where(border)[:, 0], tf.int32) for border in (
        is_space[:-1] & ~is_space[1:], ~is_space[:-1] & is_space[1:]))
    text_start = tf.cumsum(tf.strings.length(texts) + 1, exclusive=True)
    of = tf.searchsorted(text_start, begin, side="right") - 1
    return of, begin - tf.gather(text_start, of), end - tf.gather(text_start, of)


def _answers(answer: Callable[..., Answers], task: Task, texts: Sequence[tf.Tensor], every: tf.Tensor, of: tf.Tensor,
             begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Returns the weighed outputs of variants, float32 [variants, outputs]: of the inputs of the texts `of`, without
    these bytes of it."""
    row, segment = of // len(texts), of % len(texts)
    sizes = tf.add_n([tf.gather(tf.strings.length(part) + _EMPTY, row) for part in texts])
    before = tf.concat([[0], tf.cumsum(tf.cast(sizes, tf.int64))], 0)

    def step(first: tf.Tensor, call: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        fitting = tf.searchsorted(before, before[first:first + 1] + _BYTES, side="right")[0] - 1
        last = tf.maximum(first + 1, fitting)
        text, head = tf.gather(every, of[first:last]), begin[first:last]
        rest = tf.strings.substr(text, end[first:last], tf.fill(tf.shape(head), tf.int32.max))
        changed = tf.strings.join([tf.strings.substr(text, tf.zeros_like(head), head), rest])
        columns = [tf.where(segment[first:last] == number, changed, tf.gather(part, row[first:last]))
                   for number, part in enumerate(texts)]
        values = tf.reshape(answer(*columns)[task.weighed], [-1, output_size(task)])
        return last, call + 1, found.write(call, values)

    found = tf.TensorArray(tf.float32, 1, dynamic_size=True, infer_shape=False, element_shape=[None, output_size(task)])
    *_, found = tf.while_loop(lambda first, call, _: (first < tf.size(of)) | (call < 1), step,  # also without inputs
                              (tf.constant(0), tf.constant(0), found), parallel_iterations=1)
    return found.concat()
