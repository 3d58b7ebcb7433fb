"""The heads of raw-text SavedModels, which take strings: one class for each head of `keras_bert.models`."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from keras_bert.arguments import Activation, Aggregate, Count, check
from keras_bert.data.tagged import OUTSIDE, type_of
from keras_bert.errors import InputError
from keras_bert.tasks.embed import Embed
from keras_bert.tasks.multilabel import LARGEST_LOGIT
from keras_bert.tasks.rerank import Rerank
from keras_bert.tasks.squad import MAX_ANSWER_LENGTH, MAX_QUERY_LENGTH, N_BEST, Span
from keras_bert.tasks.windows import check_truncation_side
from keras_bert.text import BertTokenizer
from keras_bert.text.graph_packing import flatten, pack_segments
from keras_bert.text.graph_tokenizer import GraphTokenizer

from . import windows

Answers = dict[str, tf.Tensor]
_TOKENS = 4096  # of the windows that are computed together


class Reader:
    """A model, with the tokenizer and the packing of its inputs.

    Args:
        run: the model, a function of int32 word ids, mask and segment ids [batch, seq].
        max_length: maximum length of an input, in tokens.
        lengths: the lengths to pad inputs to, increasing up to `max_length`. If None, inputs are padded to the longest
            of their batch.
    """

    def __init__(self, run: Callable, tokenizer: BertTokenizer, max_length: int,
                 lengths: list[int] | None = None) -> None:
        self.run = run
        self.max_length = max_length
        self._lengths = lengths
        self.tokenizer = GraphTokenizer(tokenizer)
        self._special_tokens, self.truncation_side = tokenizer, tokenizer.truncation_side

    def tokens(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts string [batch] to ids: int32 ragged [batch, (tokens)]."""
        return flatten(self.tokenizer.tokenize(texts))

    def pack(self, *segments: tf.RaggedTensor, truncator: str = "round_robin") -> list[tf.Tensor]:
        """Packs one or two segments, int32 [batch, (tokens)], as [CLS] a [SEP] or [CLS] a [SEP] b [SEP], truncated to
        `max_length` and padded to the longest of the batch or, if there are `lengths`, to the next of them. Returns
        word ids, mask and segment ids: int32 [batch, seq]."""
        added = len(segments) + 1  # [CLS] and a [SEP] per segment
        longest = tf.reduce_max(tf.add_n([tf.cast(segment.row_lengths(), tf.int32) for segment in segments]))
        length = tf.clip_by_value(longest, 0, self.max_length - added) + added
        if self._lengths is not None:
            length = next_of(self._lengths, length)
        return list(pack_segments(segments, length, self._special_tokens, truncator).values())

    def run_windows(self, run: Callable, inputs: list[tf.Tensor], texts: tf.RaggedTensor) -> tf.Tensor:
        """Returns the output of `run` for the windows of texts, see `windows.run_in_parts`."""
        check_truncation_side(self._special_tokens)
        return windows.run_in_parts(run, inputs, texts.nrows(), max(1, _TOKENS // self.max_length))


def strings(*names: str) -> list[tf.TensorSpec]:
    """Returns arguments with these names: strings of shape [batch]."""
    return [tf.TensorSpec([None], tf.string, name) for name in names]


class Head:
    """Base class of the heads: the inputs and the answers of a SavedModel. The fields of a subclass are the options of
    `export_text_model` for one kind of model."""

    labels: list[str] | None = None  # names of the classes
    explains = True  # a row of texts is a row of the encoder's input or begins with one, as `explain` requires
    truncator = "round_robin"  # how texts that are too long together are truncated, see `graph_packing`
    root: str | None = None  # the output that the root object returns, as a tensor; if None, it returns all outputs

    @property
    def splits_texts(self) -> bool:
        """True if a long text is split into several inputs instead of truncated."""
        return False

    @property
    def texts(self) -> list[tf.TensorSpec]:
        """The texts of a row, as the arguments of a signature."""
        return strings("text")

    @property
    def shortest(self) -> int:
        """The minimum `max_length`."""
        return 4

    @property
    def named_prompts(self) -> Mapping[str, str]:
        """Texts to put before those of further signatures, which have these names."""
        return {}

    @property
    def default_prompt(self) -> str:
        """Text to put before those of `serving_default`."""
        return ""

    @property
    def inputs(self) -> list[tf.TensorSpec]:
        """The arguments of `answer`: the texts and, if there are prompts, the number of tokens of the prompt that they
        begin with."""
        return [*self.texts, *[tf.TensorSpec([], tf.int64, "prompt_length")] * bool(self.named_prompts)]

    def read(self, reader: Reader, *texts: tf.Tensor) -> list[list[tf.RaggedTensor]]:
        """Returns the tokens of each text, before they are truncated to an input: (ids, starts, limits) as returned by
        `GraphTokenizer.tokenize_with_offsets`, but ragged [batch, (tokens)]."""
        return [[flatten(part) for part in reader.tokenizer.tokenize_with_offsets(text)] for text in texts]

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        """Returns the answers to token ids, by default the outputs of the model. `mask` is int32 [batch, seq], 1 for
        real tokens."""
        return outputs

    def answer(self, reader: Reader, *inputs: tf.Tensor) -> Answers:
        """Returns the answers to texts: dense tensors."""
        raise NotImplementedError


class _OneInput(Head):
    """Base class of the heads that read the texts of a row as one input, truncated to `max_length`."""

    def answer(self, reader: Reader, *inputs: tf.Tensor) -> Answers:
        packed = reader.pack(*map(reader.tokens, inputs[:len(self.texts)]))
        return self.encode(reader.run(*packed), packed[1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Windows(_OneInput):
    """Base class of the heads that answer a text from the outputs of its windows, see `WindowTask`.

    Args:
        doc_stride: number of tokens from the start of one window to the start of the next; None to truncate texts.
        aggregate: mean or maximum of the outputs of the windows.
        max_windows: maximum number of windows of a text. None for no limit.
    """

    doc_stride: Count | None = None
    aggregate: Aggregate = "mean"
    max_windows: Count | None = None

    def __post_init__(self) -> None:
        check(_Windows, vars(self))

    @property
    def splits_texts(self) -> bool:
        return self.doc_stride is not None

    @property
    def shortest(self) -> int:
        return max(super().shortest, 1 + 2 * len(self.texts) if self.splits_texts else 0)

    def answer(self, reader: Reader, *inputs: tf.Tensor) -> Answers:
        if self.doc_stride is None:
            return super().answer(reader, *inputs)
        *first, text = map(reader.tokens, inputs[:len(self.texts)])
        size = tf.fill([text.nrows()], tf.constant(reader.max_length - len(self.texts) - 1, tf.int64))
        heads = []  # what each window begins with
        if first:
            # As `truncate_pair` in keras_bert/text/packing.py does; what is left of the second text is a window.
            kept = tf.minimum(first[0].row_lengths(), tf.maximum(size - text.row_lengths(), (size + 1) // 2))
            heads = [windows.divide(first[0], kept)[0]]
        elif self.named_prompts:
            head, text = windows.divide(text, tf.minimum(inputs[-1], size // 2))
            heads = [head]
        for head in heads:
            size = tf.maximum(size - head.row_lengths(), 1)
        parts = windows.split(text, size, self.doc_stride, self.max_windows)
        segments = [*(tf.gather(head, parts.row) for head in heads), parts.of(text)]
        packed = reader.pack(*[tf.concat(segments, axis=1)] if self.named_prompts else segments)
        return self.combine(reader.run_windows(reader.run, packed, text), packed[1], parts)

    def combine(self, outputs: tf.Tensor, mask: tf.Tensor, parts: windows.Windows) -> Answers:
        """Returns the answers to texts from the outputs of their windows, float32 [windows, width]."""
        return self.encode(windows.aggregated(outputs, parts, self.aggregate), mask)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedder(_Windows):
    """The head of a `BertEmbedder`. The root returns the embeddings alone, float32 [batch, hidden], as TF-Hub's text
    embeddings do (https://www.tensorflow.org/hub/common_saved_model_apis/text).

    Args:
        prompts, default_prompt_name: see `keras_bert.tasks.Embed`.
        doc_stride, aggregate, max_windows: see `_Windows`.
    """

    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    default_prompt_name: str | None = None

    root = "embedding"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._task()  # checks the prompts

    def _task(self) -> Embed:
        return Embed(0, prompts=self.prompts, default_prompt_name=self.default_prompt_name)

    @property
    def named_prompts(self) -> Mapping[str, str]:
        return self._task().named_prompts

    @property
    def default_prompt(self) -> str:
        return self._task().default_prompt

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        return {"embedding": outputs, "tokens": tf.reduce_sum(mask, axis=1)}

    def combine(self, outputs: tf.Tensor, mask: tf.Tensor, parts: windows.Windows) -> Answers:
        vectors = windows.aggregated(outputs, parts, self.aggregate)
        length = tf.math.segment_mean(tf.norm(outputs, axis=1), parts.row)
        scale = tf.math.divide_no_nan(length, tf.norm(vectors, axis=1))
        return {"embedding": vectors * scale[:, None],
                "tokens": tf.math.segment_sum(tf.reduce_sum(mask, axis=1), parts.row)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WholeTexts(_Windows):
    """Base class of the heads that read a text or, with `pairs`, a pair of texts."""

    pairs: bool = False

    @property
    def texts(self) -> list[tf.TensorSpec]:
        return strings("text", "text_pair") if self.pairs else strings("text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder(_OneInput):
    """The head of a `BertLayer`, which reads a text or, with `pairs`, a pair of texts."""

    pairs: bool = False

    texts = _WholeTexts.texts

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        pooled, sequence = (tf.cast(output, tf.float32) for output in outputs)
        is_real = tf.cast(mask, tf.float32)[:, :, None]
        count = tf.maximum(tf.reduce_sum(is_real, axis=1), 1.0)
        return {"pooled_output": pooled, "mean_output": tf.reduce_sum(sequence * is_real, axis=1) / count}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier(_WholeTexts):
    """The head of a `BertClassifier`.

    Args:
        labels: names of the classes.
        threshold: texts with a lower score are out of scope. None for no threshold.
        doc_stride, aggregate, max_windows: see `_Windows`.
    """

    labels: list[str]
    threshold: float | None = None

    def combine(self, outputs: tf.Tensor, mask: tf.Tensor, parts: windows.Windows) -> Answers:
        probabilities = windows.aggregated(tf.nn.softmax(outputs), parts, self.aggregate)
        return self._answers(probabilities / tf.reduce_sum(probabilities, axis=1, keepdims=True))

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        return self._answers(tf.nn.softmax(outputs))

    def _answers(self, probabilities: tf.Tensor) -> Answers:
        score = tf.reduce_max(probabilities, axis=1)
        answers = {"label": tf.gather(tf.constant(self.labels), tf.argmax(probabilities, axis=1)), "score": score,
                   "probabilities": probabilities}
        return answers if self.threshold is None else answers | {"in_scope": score >= self.threshold}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelClassifier(_WholeTexts):
    """The head of a `BertClassifier` whose texts have any number of labels.

    Args:
        labels: names of the labels.
        thresholds: a threshold for each label. A label holds if its probability (sigmoid) is at least its threshold.
        doc_stride, aggregate, max_windows: see `_Windows`.
    """

    labels: list[str]
    thresholds: list[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.thresholds, list | tuple) and len(self.thresholds) == len(self.labels) and all(
                isinstance(value, int | float) and 0 <= value <= 1 for value in self.thresholds)):
            raise InputError(f"thresholds must be {len(self.labels)} numbers from 0 to 1, one for each label; "
                             f"got {self.thresholds!r:.80}")

    def combine(self, outputs: tf.Tensor, mask: tf.Tensor, parts: windows.Windows) -> Answers:
        return super().combine(tf.clip_by_value(outputs, -LARGEST_LOGIT, LARGEST_LOGIT), mask, parts)

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        probabilities = tf.sigmoid(outputs)
        holds = probabilities >= tf.constant(self.thresholds, tf.float32)
        order = tf.argsort(tf.where(holds, probabilities, -1.0), direction="DESCENDING", stable=True)
        labels = tf.where(tf.gather(holds, order, batch_dims=1), tf.gather(tf.constant(self.labels), order), "")
        return {"labels": labels, "probabilities": probabilities, "holds": holds}


class Regressor(_WholeTexts):
    """The head of a `BertRegressor`."""

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        return {"value": outputs[:, 0]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reranker(_Windows):
    """The head of a `BertRegressor` that says how relevant the second text is to the first.

    Args:
        activation_fn: sigmoid; or identity, so that the score is the logit itself.
        doc_stride, aggregate, max_windows: see `_Windows`.
    """

    activation_fn: Activation
    aggregate: Aggregate = Rerank.aggregate

    texts = strings("text", "text_pair")

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        logit = outputs[:, 0]
        return {"score": tf.sigmoid(logit) if self.activation_fn == "sigmoid" else logit, "logit": logit}


class Chooser(Head):
    """The head of a `BertMultipleChoice`."""

    texts = [*strings("prompt"), tf.TensorSpec([None, None], tf.string, "choices")]
    explains = False  # a row is multiple inputs

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        return {"choice": tf.argmax(outputs, axis=1, output_type=tf.int32), "probabilities": tf.nn.softmax(outputs)}

    def answer(self, reader: Reader, *texts: tf.Tensor) -> Answers:
        prompts, choices = texts
        batch, count = tf.unstack(tf.shape(choices))
        prompts = tf.gather(reader.tokens(prompts), tf.repeat(tf.range(batch), count))
        inputs = reader.pack(prompts, reader.tokens(tf.reshape(choices, [batch * count])))
        inputs = [tf.reshape(part, [batch, count, tf.shape(part)[1]]) for part in inputs]
        return self.encode(reader.run(*inputs), inputs[1])


def next_of(sizes: list[int], size: tf.Tensor) -> tf.Tensor:
    """Returns the first of increasing sizes that is at least `size`, an int32 scalar, at most the last of them."""
    return tf.gather(sizes, tf.searchsorted(sizes, [size])[0])


def check_same_batch(specs: list[tf.TensorSpec], texts: Sequence[tf.Tensor]) -> None:
    """Adds an operation that fails if two arguments have different batch sizes."""
    if len(texts) == 2:
        names = " and ".join(spec.name for spec in specs)
        tf.debugging.assert_equal(
            tf.shape(texts[0])[0], tf.shape(texts[1])[0], f"{names} must have the same batch size")


def characters(texts: tf.Tensor, row: tf.Tensor, byte: tf.Tensor) -> tf.Tensor:
    """Converts positions in bytes, int64 [positions], to positions in characters (code points), int32: counts the bytes
    before a position that begin a UTF-8 character. `row` is the index of the text of each position."""
    begins = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8) & 0xC0 != 0x80
    before = tf.concat([[0], tf.cumsum(tf.cast(begins, tf.int32))], 0)
    start = tf.gather(tf.cumsum(tf.strings.length(texts), exclusive=True), row)
    return tf.gather(before, start + tf.cast(byte, tf.int32)) - tf.gather(before, start)


_PADDING = {"start": -1, "end": -1, "label": "", "text": "", "score": 0.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagger(Head):
    """The head of a token classifier (Devlin et al., 2018, section 5.3). Texts longer than an input are split into
    windows, and each token is labelled by the window in which it has the most context.

    Args:
        labels: names of the classes in BIO notation: O, and B-X and I-X for each entity type X. A label of another form
            counts as I- of a type of this name.
        unit: "word" if a word has the label of its first WordPiece token; "character" if each token has a label, so
            that entities can begin and end inside words. The outputs for words are then those for tokens.
        doc_stride: number of tokens from the start of one window to the start of the next. If None, windows are
            consecutive.
        max_windows: maximum number of windows of a text. The words that begin after them are left out. None for no
            limit.
    """

    labels: list[str]
    unit: Literal["word", "character"] = "word"
    doc_stride: Count | None = None
    max_windows: Count | None = None

    def __post_init__(self) -> None:
        if not all(self.labels):
            raise InputError(f"labels must not be empty; got {self.labels!r:.200}")
        if self.unit not in ("word", "character"):
            raise InputError(f"unit must be word or character; got {self.unit!r}")
        check(Tagger, {"doc_stride": self.doc_stride, "max_windows": self.max_windows})

    def encode(self, outputs: Any, mask: tf.Tensor) -> Answers:
        return {"probabilities": tf.nn.softmax(outputs)}

    def answer(self, reader: Reader, *columns: tf.Tensor) -> Answers:
        texts, = columns
        ids, starts, limits = reader.tokenizer.tokenize_with_offsets(texts)
        tokens = ids.merge_dims(1, 2)  # [batch, (tokens)]
        size = tf.fill([tokens.nrows()], tf.constant(reader.max_length - 2, tf.int64))
        parts = windows.split(tokens, size, self.doc_stride, self.max_windows)
        inputs = reader.pack(parts.of(tokens))
        outputs = reader.run_windows(reader.run, inputs, tokens)[:, 1:-1]
        logits = tf.boolean_mask(outputs, inputs[1][:, 2:] > 0)  # without [CLS], the final [SEP]
        logits = tf.boolean_mask(logits, windows.is_own(parts))
        text, head, tail = self._words(ids, tokens)
        read = head  # of each word, the index of its first token among those of all windows
        if self.max_windows is not None:
            limit = tf.math.segment_max(parts.end, parts.row)
            is_read = head < tf.gather(limit, text)
            text, head, tail = (tf.boolean_mask(part, is_read) for part in (text, head, tail))
            read = head - tf.gather(tf.cumsum(tokens.row_limits() - limit, exclusive=True), text)
        probabilities = tf.gather(tf.nn.softmax(logits), read)
        label, score = tf.argmax(probabilities, axis=1), tf.reduce_max(probabilities, axis=1)
        begin, limit = tf.gather(starts.flat_values, head), tf.gather(limits.flat_values, tail)
        start, end = characters(texts, text, begin), characters(texts, text, limit)
        kind, first, last = self._entities(label, text)
        entity_text, entity_begin = tf.gather(text, first), tf.gather(begin, first)
        words = {"start": start, "end": end, "label": tf.gather(tf.constant(self.labels), label), "score": score}
        entities = {"start": tf.gather(start, first), "end": tf.gather(end, last), "label": kind,
                    "score": tf.reduce_mean(tf.gather(score, tf.ragged.range(first, last + 1)), axis=1),
                    "text": tf.strings.substr(
                        tf.gather(texts, entity_text), entity_begin, tf.gather(limit, last) - entity_begin)}
        return _padded("word", words, text, ids.nrows()) | _padded("entity", entities, entity_text, ids.nrows())

    def _words(self, ids: tf.RaggedTensor, tokens: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the index of each word's text, and of its first and last token: each int64 [words]."""
        if self.unit == "character":  # each token is a word
            each = tf.range(tf.size(tokens.values, tf.int64))
            return tokens.value_rowids(), each, each
        return ids.value_rowids(), ids.values.row_starts(), ids.values.row_limits() - 1

    def _entities(self, label: tf.Tensor, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the type of each entity, string [entities], and its first and last word, each int64 [entities], from
        the indices of each word's label and text, each int64 [words]. An I-X that does not follow an X begins an
        entity, as in `spans_of` of keras_bert/data/tagged.py."""
        kinds = ["" if label == OUTSIDE else type_of(label) for label in self.labels]
        kind = tf.gather(tf.constant(kinds), label)
        is_i = tf.gather(tf.constant([not label.startswith("B-") for label in self.labels]), label)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanFinder(Head):
    """The head of a `BertSpanLabeler`, which finds the best span over the windows of a context (Devlin et al., 2018,
    sections 4.2 and 4.3; google-research/bert `run_squad.py`). The spans are those of `best_spans` in
    keras_bert/tasks/squad.py.

    Args:
        doc_stride: number of tokens from the start of one window to the start of the next; limited to the length of a
            window.
        max_windows: maximum number of windows of a context, which is cut after them. None for no limit.
        max_query_length: maximum length of a question in tokens; longer questions are truncated.
        max_answer_length: maximum length of an answer in tokens.
        null_threshold: the answer is "no answer" if its score minus the score of the best span is greater than this. If
            None, only a context without words has no answer.
    """

    doc_stride: Count = Span.doc_stride
    max_windows: Count | None = None
    max_query_length: Count = MAX_QUERY_LENGTH
    max_answer_length: Count = MAX_ANSWER_LENGTH
    null_threshold: float | None = None

    texts = strings("question", "context")
    truncator = "waterfall"

    def __post_init__(self) -> None:
        check(SpanFinder, vars(self))

    @property
    def shortest(self) -> int:
        return self.max_query_length + 4

    def read(self, reader: Reader, *texts: tf.Tensor) -> list[list[tf.RaggedTensor]]:
        question, context = super().read(reader, *texts)
        return [[part[:, :self.max_query_length] for part in question], context]

    def answer(self, reader: Reader, *texts: tf.Tensor) -> Answers:
        questions, contexts = texts
        (question, _, _), (context, starts, limits) = self.read(reader, questions, contexts)
        size = reader.max_length - 3 - question.row_lengths()
        parts = windows.split(context, size, self.doc_stride, self.max_windows)
        inputs = reader.pack(tf.gather(question, parts.row), parts.of(context))

        def run(*ids: tf.Tensor) -> tf.Tensor:
            outputs = reader.run(*ids)
            return tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=2)

        logits = reader.run_windows(run, inputs, context)

        head = tf.gather(question.row_lengths(), parts.row)[:, None] + 2  # [CLS], the question and [SEP]
        column = tf.range(tf.shape(logits, tf.int64)[1])
        positions = parts.positions()
        is_window = (column >= head) & (column < head + positions.row_lengths()[:, None])
        scores, best = _best(context.with_values(self._scores(tf.boolean_mask(logits, is_window), positions, context)))
        null = tf.math.segment_min(tf.reduce_sum(logits[:, 0], axis=1), parts.row)
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

    def _scores(self, logits: tf.Tensor, positions: tf.RaggedTensor, context: tf.RaggedTensor) -> tf.Tensor:
        """Returns the highest score of each span over the windows that contain it, -inf if no window does: float32
        [tokens of all contexts, max_answer_length], by the first token of the span and the number of tokens after it.
        `logits` are those of starts and ends, float32 [tokens of all windows, 2]."""
        last = tf.range(tf.size(positions.values, tf.int64))[:, None] + tf.range(self.max_answer_length, dtype=tf.int64)
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
