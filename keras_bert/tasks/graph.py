"""What the answers of a SavedModel need as TensorFlow operations, because it cannot run NumPy: `Reader`, and windows as
in windows.py. tests/test_decoding.py compares the two.

A batch of texts is a ragged tensor with a row for each; `row` is the index of the text of each window, int64
[windows]."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_bert.arguments import Aggregate
from keras_bert.tasks.windows import WindowTask
from keras_bert.text import Tokenizer
from keras_bert.text.graph_packing import flatten, pack_segments

_TOKENS = 4096  # of the windows that are computed together


class Reader:
    """A model, with the tokenizer and the packing of its inputs.

    Args:
        run: the model, a function of int32 word ids, mask and segment ids [batch, seq].
        max_length: maximum length of an input, in tokens.
        lengths: the lengths to pad inputs to, increasing up to `max_length`. If None, inputs are padded to the longest
            of their batch.
    """

    def __init__(self, run: Callable, tokenizer: Tokenizer, max_length: int,
                 lengths: list[int] | None = None) -> None:
        self.run = run
        self.max_length = max_length
        self._lengths = lengths
        self.tokenizer, self.packing = tokenizer.graph(), tokenizer

    def tokens(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts string [batch] to ids: int32 ragged [batch, (tokens)]."""
        return flatten(self.tokenizer.tokenize(texts))

    def tokens_with_offsets(self, texts: tf.Tensor) -> list[tf.RaggedTensor]:
        """Converts string [batch] as `GraphTokenizer.tokenize_with_offsets`, to ragged [batch, (tokens)]."""
        return list(map(flatten, self.tokenizer.tokenize_with_offsets(texts)))

    def pack(self, *segments: tf.RaggedTensor) -> list[tf.Tensor]:
        """Packs one or two segments, int32 [batch, (tokens)], as [CLS] a [SEP] or [CLS] a [SEP] b [SEP], truncated to
        `max_length` and padded to the longest of the batch or, if there are `lengths`, to the next of them. Returns
        word ids, mask and segment ids: int32 [batch, seq]."""
        added = self.packing.special_tokens(len(segments))
        longest = tf.reduce_max(tf.add_n([tf.cast(segment.row_lengths(), tf.int32) for segment in segments]))
        length = tf.clip_by_value(longest, 0, self.max_length - added) + added
        if self._lengths is not None:
            length = next_of(self._lengths, length)
        return list(pack_segments(segments, length, self.packing, "round_robin").values())

    def run_windows(self, run: Callable, inputs: list[tf.Tensor], texts: tf.RaggedTensor) -> tf.Tensor:
        """Returns the output of `run`, float32 [rows, …], for the windows of texts. If a text is split, a few windows
        are computed at a time, so that the memory does not grow with the length of a text."""
        rows, most = tf.shape(inputs[0])[0], max(1, _TOKENS // self.max_length)
        size = tf.where(tf.cast(rows, tf.int64) > texts.nrows(), most, rows)

        def run_others(outputs: tf.Tensor, *inputs: tf.Tensor) -> tf.Tensor:
            """Returns the outputs of all windows from those of the first ones."""
            def step(begin: tf.Tensor, outputs: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
                part = run(*(tensor[begin:begin + most] for tensor in inputs))
                return begin + most, outputs.write(begin // most, part)

            found = tf.TensorArray(tf.float32, 1, dynamic_size=True, infer_shape=False).write(0, outputs)
            _, found = tf.while_loop(lambda begin, _: begin < tf.shape(inputs[0])[0], step, (tf.constant(most), found),
                                     parallel_iterations=1)
            return found.concat()

        outputs = run(*(tensor[:size] for tensor in inputs))
        return tf.ensure_shape(_changed_if(rows > size, run_others, outputs, *inputs), [None, *outputs.shape[1:]])


def text_specs(inputs: Sequence[str]) -> list[tf.TensorSpec]:
    """Returns the arguments of a signature for the `inputs` of a task: strings [batch], or [batch, n] for choices."""
    return [tf.TensorSpec([None, None] if name == "choices" else [None], tf.string, name) for name in inputs]


def next_of(sizes: list[int], size: tf.Tensor) -> tf.Tensor:
    """Returns the first of increasing sizes that is at least `size`, an int32 scalar, at most the last of them."""
    return tf.gather(sizes, tf.searchsorted(sizes, [size])[0])


def check_same_batch(names: Sequence[str], texts: Sequence[tf.Tensor]) -> None:
    """Adds an operation that fails if two arguments have different batch sizes."""
    if len(texts) == 2:
        tf.debugging.assert_equal(
            tf.shape(texts[0])[0], tf.shape(texts[1])[0], f"{' and '.join(names)} must have the same batch size")


def characters(texts: tf.Tensor, row: tf.Tensor, byte: tf.Tensor) -> tf.Tensor:
    """Converts positions in bytes, int64 [positions], to positions in characters (code points), int32: counts the bytes
    before a position that begin a UTF-8 character. `row` is the index of the text of each position."""
    begins = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8) & 0xC0 != 0x80
    before = tf.concat([[0], tf.cumsum(tf.cast(begins, tf.int32))], 0)
    start = tf.gather(tf.cumsum(tf.strings.length(texts), exclusive=True), row)
    return tf.gather(before, start + tf.cast(byte, tf.int32)) - tf.gather(before, start)


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

    def aggregated(self, values: tf.Tensor, aggregate: Aggregate) -> tf.Tensor:
        """Returns the mean or the maximum of the values of the windows of each text: float32 [texts, width]."""
        combine = tf.math.segment_max if aggregate == "max" else tf.math.segment_mean
        return combine(values, self.row)


def run_windows(task: WindowTask, reader: Reader, inputs: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, Windows]:
    """Returns the model's output for each window of the texts that `Task.answer_in_graph` gets, the mask of each, int32
    [windows, seq], and the windows, as `WindowTask.split_texts` makes them."""
    *first, text = map(reader.tokens, inputs[:len(task.inputs)])
    added = reader.packing.special_tokens(len(task.inputs))
    size = tf.fill([text.nrows()], tf.constant(reader.max_length - added, tf.int64))
    heads = []  # what each window begins with
    if first:
        # As `truncate_pair` in keras_bert/text/packing.py does; what is left of the second text is a window.
        kept = tf.minimum(first[0].row_lengths(), tf.maximum(size - text.row_lengths(), (size + 1) // 2))
        heads = [divide(first[0], kept)[0]]
    elif task.named_prompts:
        head, text = divide(text, tf.minimum(inputs[-1], size // 2))
        heads = [head]
    for head in heads:
        size = tf.maximum(size - head.row_lengths(), 1)
    parts = split(text, size, task.doc_stride, task.max_windows)
    segments = [*(tf.gather(head, parts.row) for head in heads), parts.of(text)]
    packed = reader.pack(*[tf.concat(segments, axis=1)] if task.named_prompts else segments)
    return reader.run_windows(reader.run, packed, text), packed[1], parts


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
