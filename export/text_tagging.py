"""The raw-text head of a `BertTokenClassifier`: words and entities of texts of any length."""

import dataclasses
import re

import tensorflow as tf

from keras_bert.errors import InputError

from .text_heads import Head, characters, strings

_PADDING = {"start": -1, "end": -1, "label": "", "text": "", "score": 0.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagger(Head):
    """A word's label is predicted at its first piece (Devlin et al., 2018, section 5.3). A longer text is cut into
    consecutive inputs.

    Args:
        labels: names of the classes: O, and B-X and I-X for each type of entity X (BIO).
    """

    labels: list

    texts = strings("text")

    def __post_init__(self):
        for label in self.labels:
            if not re.fullmatch("O|[BI]-.+", label):
                raise InputError(f"labels must be O, B-… or I-…; got {label!r}")

    def encode(self, outputs, mask):
        return {"probabilities": tf.nn.softmax(outputs)}

    def answer(self, reader, texts):
        ids, starts, limits = reader.tokenizer.tokenize_with_offsets(texts)
        words, text = ids.values, ids.value_rowids()  # ragged [words, (pieces)]; [words], the text of each
        probabilities = tf.gather(_probabilities(reader, ids.merge_dims(1, 2)), words.row_starts())
        label, score = tf.argmax(probabilities, axis=1), tf.reduce_max(probabilities, axis=1)
        begin = tf.gather(starts.flat_values, words.row_starts())
        limit = tf.gather(limits.flat_values, words.row_limits() - 1)
        start, end = characters(texts, text, begin), characters(texts, text, limit)
        kind, first, last = self._entities(label, text)
        entity_text, entity_begin = tf.gather(text, first), tf.gather(begin, first)
        scores = tf.gather(score, tf.ragged.range(first, last + 1))  # of the words of each entity

        words = {"start": start, "end": end, "label": tf.gather(tf.constant(self.labels), label), "score": score}
        entities = {"start": tf.gather(start, first), "end": tf.gather(end, last), "label": kind,
                    "score": tf.reduce_mean(scores, axis=1),
                    "text": tf.strings.substr(
                        tf.gather(texts, entity_text), entity_begin, tf.gather(limit, last) - entity_begin)}
        return _padded("word", words, text, ids.nrows()) | _padded("entity", entities, entity_text, ids.nrows())

    def _entities(self, label, text):
        """The entities of labelled words; an I-X behind no X begins one.

        Args:
            label: int64 [words].
            text: int64 [words], the text that each stands in.

        Returns:
            the type of each entity, string [entities]; its first and last word, int64 [entities].
        """
        kind = tf.gather(tf.constant([label[2:] for label in self.labels]), label)  # "" of O
        is_i = tf.gather(tf.constant([label[0] == "I" for label in self.labels]), label)
        is_alike = (kind == tf.concat([[""], kind], 0)[:-1]) & (text == tf.concat([[-1], text], 0)[:-1])
        goes_on = is_i & is_alike
        first = tf.where((kind != "") & ~goes_on)[:, 0]
        last = tf.where((kind != "") & ~tf.concat([goes_on, [False]], 0)[1:])[:, 0]
        return tf.gather(kind, first), first, last


def _probabilities(reader, pieces):
    """The probabilities of the labels of all pieces of ragged int32 [batch, (pieces)]: float32 [pieces, labels]."""
    starts = tf.ragged.range(pieces.row_starts(), pieces.row_limits(), reader.max_length - 2).flat_values
    inputs = reader.pack(tf.RaggedTensor.from_row_starts(pieces.values, starts))
    logits = reader.run(*inputs)
    return tf.nn.softmax(tf.boolean_mask(logits[:, 1:-1], inputs[1][:, 2:] > 0))  # without [CLS] and the last, [SEP]


def _padded(part, columns, text, batch):
    """Columns of words or entities, with the text that each stands in, as a row a text: dict of [batch, most]."""
    return {f"{part}_{name}": tf.RaggedTensor.from_value_rowids(values, text, batch).to_tensor(_PADDING[name])
            for name, values in columns.items()}
