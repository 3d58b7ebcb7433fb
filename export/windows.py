"""The windows of keras_bert/tasks/windows.py as TensorFlow operations: the parts of long texts, and what their outputs
become. Each text is a row of a ragged tensor; `row` is the index of the text of each window, int64 [windows]."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_bert.arguments import Aggregate


class Windows(NamedTuple):
    """The windows of a batch of texts: the index of their texts, and the positions of their first tokens and of those
    after their last ones among the tokens of all texts. Each int64 [windows]."""

    row: tf.Tensor
    begin: tf.Tensor
    end: tf.Tensor

    def of(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the tokens of each window: [windows, (tokens)]."""
        return tf.gather(tokens.values, self.positions())

    def positions(self) -> tf.RaggedTensor:
        """Returns the positions of the tokens of each window among those of all texts: int64 [windows, (tokens)]."""
        return tf.ragged.range(self.begin, self.end)


def divide(tokens: tf.RaggedTensor, kept: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Divides texts, [batch, (tokens)], after their first `kept` tokens, int64 [batch]."""
    begin, end = tokens.row_starts(), tokens.row_limits()
    border = tf.minimum(begin + kept, end)
    return (tf.gather(tokens.values, tf.ragged.range(begin, border)),
            tf.gather(tokens.values, tf.ragged.range(border, end)))


def split(tokens: tf.RaggedTensor, size: tf.Tensor, stride: int | None, most: int | None = None) -> Windows:
    """Splits texts, [batch, (tokens)], into windows of at most `size` tokens, int64 [batch]. For `stride` and `most`
    see `windows` in keras_bert/tasks/windows.py; a stride of None is that of consecutive windows."""
    start = tokens.row_starts()
    step = size if stride is None else tf.minimum(tf.constant(stride, tf.int64), size)
    begins = tf.ragged.range(start, start + tf.maximum(tokens.row_lengths() - size, 0) + step, step)[:, :most]
    row = begins.value_rowids()
    end = tf.minimum(begins.values + tf.gather(size, row), tf.gather(tokens.row_limits(), row))
    return Windows(row, begins.values, end)


def is_own(windows: Windows) -> tf.Tensor:
    """Returns True for the tokens that each window answers, see `own_tokens`: bool [tokens of all windows]."""
    follows = windows.row[1:] == windows.row[:-1]
    border = (windows.end[:-1] + windows.begin[1:] + 1) // 2
    first = tf.concat([windows.begin[:1], tf.where(follows, border, windows.begin[1:])], 0)
    last = tf.concat([tf.where(follows, border, windows.end[:-1]), windows.end[-1:]], 0)
    positions = windows.positions()
    window = positions.value_rowids()
    return (positions.values >= tf.gather(first, window)) & (positions.values < tf.gather(last, window))


def run_in_parts(run: Callable[..., tf.Tensor], inputs: Sequence[tf.Tensor], texts: tf.Tensor, most: int) -> tf.Tensor:
    """Runs a model, whose output is float32 [rows, …], on the windows of `texts` texts. If a text is split, `most`
    windows are computed at a time, so that the memory does not grow with the length of a text."""
    rows = tf.shape(inputs[0])[0]
    size = tf.where(tf.cast(rows, texts.dtype) > texts, most, rows)

    def run_others(outputs: tf.Tensor, *inputs: tf.Tensor) -> tf.Tensor:
        """Returns the outputs of all windows from those of the first ones."""
        def step(begin: tf.Tensor, outputs: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            return begin + most, outputs.write(begin // most, run(*(tensor[begin:begin + most] for tensor in inputs)))

        found = tf.TensorArray(tf.float32, 1, dynamic_size=True, infer_shape=False).write(0, outputs)
        _, found = tf.while_loop(
            lambda begin, _: begin < tf.shape(inputs[0])[0], step, (tf.constant(most), found), parallel_iterations=1)
        return found.concat()

    outputs = run(*(tensor[:size] for tensor in inputs))
    return tf.ensure_shape(_changed_if(rows > size, run_others, outputs, *inputs), [None, *outputs.shape[1:]])


def _changed_if(condition: tf.Tensor, function: Callable[..., tf.Tensor], value: tf.Tensor,
                *inputs: tf.Tensor) -> tf.Tensor:
    """Returns `function(value, *inputs)` if a condition holds, otherwise `value`, which costs next to nothing: the
    graph of `tf.cond` has an operation for each variable that a branch reads, and runs it in either case."""
    def traced(function: Callable[..., tf.Tensor], *inputs: tf.Tensor) -> Any:
        return tf.function(function, autograph=False).get_concrete_function(
            *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs))

    # TensorFlow fuses operations and assigns devices in functions that are called, but not in those of an `If`.
    called = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    changed = traced(called, value, *inputs)
    arguments = [value, *inputs, *changed.captured_inputs]
    unchanged = traced(lambda value, *others: value, *arguments)
    result, = tf.raw_ops.If(cond=condition, input=arguments, Tout=[value.dtype], then_branch=changed,
                            else_branch=unchanged)
    return result


def aggregated(values: tf.Tensor, windows: Windows, aggregate: Aggregate) -> tf.Tensor:
    """Returns the mean or the maximum of the values of the windows of each text: float32 [texts, width]."""
    combine = tf.math.segment_max if aggregate == "max" else tf.math.segment_mean
    return combine(values, windows.row)
