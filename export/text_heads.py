"""What the heads of raw-text SavedModels share, and those that read a text, or a pair of texts, at once."""

import dataclasses

import tensorflow as tf

from keras_bert.text.graph_packing import flatten, pack
from keras_bert.text.graph_tokenizer import GraphTokenizer


class Reader:
    """A model that reads the pieces of texts.

    Args:
        run: the model, a function of int32 word ids, mask and segment ids [batch, seq].
        tokenizer: its `BertTokenizer`.
        max_length: longest input in tokens.
        lengths: the lengths to pad inputs to, increasing ints that end with `max_length`; if None, inputs are padded
            to the longest of their batch.
    """

    def __init__(self, run, tokenizer, max_length, lengths=None):
        self.run = run
        self.max_length = max_length
        self._lengths = lengths
        self.tokenizer = GraphTokenizer(tokenizer)
        self._specials = tokenizer

    def pack(self, *segments, truncator="round_robin"):
        """[CLS] a [SEP], or [CLS] a [SEP] b [SEP]; padded to the longest of the batch or, from there, to the next of
        `lengths`, and cut to `max_length`.

        Args:
            segments: one or two ragged int32 [batch, (tokens)].
            truncator: how longer ones are cut, see `graph_packing`.

        Returns:
            list of int32 [batch, seq]: word ids, mask, segment ids.
        """
        specials = len(segments) + 1
        longest = tf.reduce_max(tf.add_n([tf.cast(segment.row_lengths(), tf.int32) for segment in segments]))
        length = tf.clip_by_value(longest, 0, self.max_length - specials) + specials
        if self._lengths is not None:
            length = next_of(self._lengths, length)
        return list(pack(segments, length, self._specials, truncator).values())


class Head:
    """What a SavedModel takes and answers; its fields are the options of `export_text_model` for one kind of model.

    Attributes:
        labels: names of the classes, None where there are none.
        shortest: the least `max_length`.
        texts: `tf.TensorSpec` of each argument of `answer`.
        ids: shape of the arguments of `encode`.
        explains: whether a row of texts is a row of the encoder's input, or begins with one, as `explain` needs it.
        truncator: how texts that are too long together are cut, see `graph_packing`.
    """

    labels = None
    shortest = 4
    ids = (None, None)
    explains = True
    truncator = "round_robin"

    def read(self, reader, *texts):
        """The pieces of each text that the encoder's first input is cut from: (ids, starts, limits) as of
        `GraphTokenizer.tokenize_with_offsets`, ragged [batch, (pieces)]."""
        return [[flatten(part) for part in reader.tokenizer.tokenize_with_offsets(text)] for text in texts]

    def encode(self, outputs, mask):
        """What to answer to token ids: a dict of tensors.

        Args:
            outputs: what the model returned for them.
            mask: int32 [batch, seq], 1 for real tokens.
        """
        raise NotImplementedError

    def answer(self, reader, *texts):
        """What to answer to texts: a dict of dense tensors.

        Args:
            reader: a `Reader`.
            texts: string tensors.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WholeTexts(Head):
    """Reads each text, cut to `max_length`.

    Args:
        pairs: whether it takes pairs of texts.
    """

    pairs: bool = False

    @property
    def texts(self):
        return strings("text", "text_pair") if self.pairs else strings("text")

    def answer(self, reader, *texts):
        if self.pairs:
            check_equally_many(text=texts[0], text_pair=texts[1])
        inputs = reader.pack(*(flatten(reader.tokenizer.tokenize(part)) for part in texts))
        return self.encode(reader.run(*inputs), inputs[1])


class Embedder(_WholeTexts):
    """Of a `BertLayer`."""

    def encode(self, outputs, mask):
        pooled, sequence = (tf.cast(output, tf.float32) for output in outputs)
        is_real = tf.cast(mask, tf.float32)[:, :, None]
        count = tf.maximum(tf.reduce_sum(is_real, axis=1), 1.0)
        return {"pooled_output": pooled, "mean_output": tf.reduce_sum(sequence * is_real, axis=1) / count}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier(_WholeTexts):
    """Of a `BertClassifier`.

    Args:
        labels: names of the classes.
        threshold: a lower score is out of scope; or None.
    """

    labels: list
    threshold: float | None = None

    def encode(self, outputs, mask):
        probabilities = tf.nn.softmax(outputs)
        score = tf.reduce_max(probabilities, axis=1)
        answers = {"label": tf.gather(tf.constant(self.labels), tf.argmax(probabilities, axis=1)), "score": score,
                   "probabilities": probabilities}
        return answers if self.threshold is None else answers | {"in_scope": score >= self.threshold}


class Regressor(_WholeTexts):
    """Of a `BertRegressor`."""

    def encode(self, outputs, mask):
        return {"value": outputs[:, 0]}


class Chooser(Head):
    """Of a `BertMultipleChoice`."""

    texts = [tf.TensorSpec([None], tf.string, "prompt"), tf.TensorSpec([None, None], tf.string, "choices")]
    ids = (None, None, None)
    explains = False  # a row is several inputs

    def encode(self, outputs, mask):
        return {"choice": tf.argmax(outputs, axis=1, output_type=tf.int32), "probabilities": tf.nn.softmax(outputs)}

    def answer(self, reader, prompts, choices):
        check_equally_many(prompt=prompts, choices=choices)
        batch, count = tf.unstack(tf.shape(choices))
        prompts = tf.gather(flatten(reader.tokenizer.tokenize(prompts)), tf.repeat(tf.range(batch), count))
        choices = flatten(reader.tokenizer.tokenize(tf.reshape(choices, [batch * count])))
        inputs = [tf.reshape(part, [batch, count, tf.shape(part)[1]]) for part in reader.pack(prompts, choices)]
        return self.encode(reader.run(*inputs), inputs[1])


def next_of(sizes, size):
    """The first of some sizes that is not less than an int32 scalar; an int32 scalar.

    Args:
        sizes: list of int, increasing.
        size: at most the last.
    """
    return tf.gather(sizes, tf.searchsorted(sizes, [size])[0])


def strings(*names):
    """The `tf.TensorSpec` of string [batch] arguments."""
    return [tf.TensorSpec([None], tf.string, name) for name in names]


def check_equally_many(**texts):
    """Adds an operation that fails if two arguments are not of one batch."""
    tf.debugging.assert_equal(*(tf.shape(part)[0] for part in texts.values()), f"{' and '.join(texts)} must be as many")


def characters(texts, row, byte):
    """Places in bytes to places in characters (code points): the bytes before it that begin a character of UTF-8.

    Args:
        texts: string [batch].
        row: int [places], the text of each place.
        byte: int64 [places].

    Returns:
        int32 [places].
    """
    begins = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8) & 0xC0 != 0x80
    before = tf.concat([[0], tf.cumsum(tf.cast(begins, tf.int32))], 0)
    start = tf.gather(tf.cumsum(tf.strings.length(texts), exclusive=True), row)
    return tf.gather(before, start + tf.cast(byte, tf.int32)) - tf.gather(before, start)
