"""What a raw-text model looks at: the pieces of its texts, where they stand, and the attention between them."""

import types

import tensorflow as tf

from keras_bert.text.graph_packing import pack

from .text_heads import characters, check_equally_many

_NO_PIECE = types.SimpleNamespace(cls_id=0, sep_id=0, pad_id=0)


class Explainer:
    """The signature `explain`.

    Args:
        head: a `Head` that `explains`.
        reader: its `Reader`.
        attend: a function of int32 word ids, mask and segment ids [batch, seq]; returns the attention probabilities, a
            list of one [batch, heads, seq, seq] a block.
        vocabulary: list of the pieces.

    Attributes:
        arguments: `tf.TensorSpec` of each argument of a call.
    """

    def __init__(self, head, reader, attend, vocabulary):
        self._head, self._reader, self._attend = head, reader, attend
        self._vocabulary = tf.constant(vocabulary)
        self.arguments = [*head.texts, tf.TensorSpec([None], tf.int32, "layers")]

    def __call__(self, *arguments):
        *texts, layers = arguments
        if len(texts) > 1:
            check_equally_many(**{spec.name: part for spec, part in zip(self._head.texts, texts)})
        pieces = self._head.read(self._reader, *texts)
        inputs = self._reader.pack(*(ids for ids, _, _ in pieces), truncator=self._head.truncator)
        ids, mask, segments = inputs
        starts, ends = self._places(texts, pieces, tf.shape(ids)[1])
        # To load a model, TensorFlow reads every function through again and again, but for the branches in it.
        attention = tf.cond(tf.size(ids) > 0, lambda: self._attention(inputs, layers), lambda: tf.zeros(5 * [0]))
        return {"tokens": tf.where(mask > 0, tf.gather(self._vocabulary, ids), ""), "starts": starts, "ends": ends,
                "segment": segments, "attention": attention}

    def _attention(self, inputs, layers):
        """Of some blocks: float32 [batch, n, heads, seq, seq]."""
        attention = tf.stack(self._attend(*inputs), axis=1)
        layers = tf.cond(tf.size(layers) > 0, lambda: layers, lambda: tf.range(tf.shape(attention)[1]))
        return tf.cast(tf.gather(attention, layers, axis=1), tf.float32)

    def _places(self, texts, pieces, length):
        """The first character of each packed piece and the one behind its last, -1 where there is none: int32
        [batch, seq]."""
        count, numbers, starts, ends = 1, [], [[-1]], [[-1]]  # 0 is the number of no piece
        for text, (ids, start, limit) in zip(texts, pieces):
            numbers.append(ids.with_values(tf.range(tf.size(ids.values)) + count))
            count += tf.size(ids.values)
            starts.append(characters(text, ids.value_rowids(), start.values))
            ends.append(characters(text, ids.value_rowids(), limit.values))
        packed = pack(numbers, length, _NO_PIECE, self._head.truncator)["input_word_ids"]
        return tf.gather(tf.concat(starts, 0), packed), tf.gather(tf.concat(ends, 0), packed)
