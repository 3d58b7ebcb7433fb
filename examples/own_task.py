"""A task of one's own, see docs/own_task.md: grades, whose order is learned by cumulative logits (McCullagh, 1980)."""

import dataclasses

import keras
import numpy as np
from keras import ops

import keras_bert
from keras_bert.data.examples import in_order
from keras_bert.models.base import DropoutTask
from keras_bert.tasks import Card, TextTask
from keras_bert.tasks.windows import aggregated


@keras.saving.register_keras_serializable("own_task")
class BertGrader(DropoutTask):
    """Returns cumulative logits, float32 [batch, grades - 1]: of a grade above the first, above the second, and so on.
    They are one score of the text minus limits between the grades, which rise."""

    def __init__(self, bert, num_classes, dropout=0.1, **kwargs):
        super().__init__(bert, dropout, num_classes, **kwargs)
        self.classifier = self.make_dense("classifier", 1)
        self.steps = self.add_weight(shape=(num_classes - 1,), initializer="zeros", name="steps")
        self.build()

    def call(self, inputs, training=False, seed=None):
        limits = ops.cumsum(ops.softplus(self.steps))
        return super().call(inputs, training, seed) - limits + ops.mean(limits)


def loss(grades, logits):
    """The sum of the binary cross-entropies of "above the first grade", "above the second", and so on."""
    above = ops.cast(ops.expand_dims(grades, 1) > ops.arange(logits.shape[1], dtype=grades.dtype), logits.dtype)
    return ops.sum(ops.binary_crossentropy(above, logits, from_logits=True), axis=1)


@keras_bert.register_task
@dataclasses.dataclass(frozen=True)
class Grades(TextTask):
    """One of the `labels`, which go from the lowest grade to the highest, for each text or pair of texts."""

    labels: list
    pairs: bool = False

    name, main, stratified = "grades", "kappa", True
    score_names = {"kappa": "quadratic kappa", "mean_error": "mean error in grades"}
    heads = ("BertGrader",)
    lite_outputs = {"logits": "BG"}  # float32 [batch, grades - 1]
    output, display = "grade", "label"  # the display shows label, score and probabilities
    weighed = "probabilities"
    exported_outputs = {"label": (str, "B"), "score": (np.float32, "B"), "probabilities": (np.float32, "BL"),
                        "grade": (np.int32, "B")}
    card = Card("text-classification", "grades of texts", "Answers a text with one of {}grades.")

    @classmethod
    def from_examples(cls, path, examples, **settings):
        labels = in_order(path, [example.label for example in examples])  # of numbers, "2" comes before "10"
        return cls(labels=labels, pairs=examples[0].text_pair is not None, **settings)

    def check(self, path, examples, out_of_scope=None):
        super().check(path, examples)
        for example in examples:
            if example.label not in self.labels:
                raise keras_bert.InputError(f"{path}: row {example.row}: the grade {example.label!r} is not among the "
                                            "learned grades")

    def targets(self, examples):
        return np.array([self.labels.index(example.label) for example in examples], np.int32)

    def new_head(self, bert, dropout):
        return BertGrader(bert, len(self.labels), dropout)

    def loss_arguments(self):
        return {"loss": loss}

    def probabilities(self, encoded, outputs):
        above = 1 / (1 + np.exp(-np.reshape(outputs, (-1, len(self.labels) - 1)).astype(np.float64)))
        above = aggregated(above, encoded.firsts, self.aggregate)
        return -np.diff(above, prepend=1, append=0).astype(np.float32)

    def answers(self, encoded, outputs):
        return [self.answer_of(row) for row in self.exported_rows(encoded, outputs)]

    def exported_rows(self, encoded, outputs):
        return [{"label": self.labels[row.argmax()], "score": row.max(), "probabilities": row, "grade": row.argmax()}
                for row in self.probabilities(encoded, outputs)]

    def answer_of(self, row, top_k=1):
        return {"label": row["label"], "score": float(row["score"])}

    def encode_in_graph(self, outputs, mask):
        return self._rows_in_graph(ops.sigmoid(outputs))

    def combine_in_graph(self, outputs, mask, parts):
        return self._rows_in_graph(parts.aggregated(ops.sigmoid(outputs), self.aggregate))

    def _rows_in_graph(self, above):
        import tensorflow as tf

        ends = tf.pad(tf.pad(above, [[0, 0], [1, 0]], constant_values=1.0), [[0, 0], [0, 1]])
        probabilities = ends[:, :-1] - ends[:, 1:]
        grade = tf.argmax(probabilities, axis=1, output_type=tf.int32)
        return {"label": tf.gather(tf.constant(self.labels), grade), "score": tf.reduce_max(probabilities, axis=1),
                "probabilities": probabilities, "grade": grade}

    def score(self, encoded, outputs):
        probabilities, right = self.probabilities(encoded, outputs), encoded.text_targets
        found, count = probabilities.argmax(1), len(self.labels)
        chance = np.outer(np.bincount(found, minlength=count), np.bincount(right, minlength=count)) / len(right)
        distance = np.subtract.outer(np.arange(count), np.arange(count)) ** 2
        expected = (chance * distance).sum()
        return {"kappa": float(1 - ((found - right) ** 2).sum() / expected) if expected else 0.0,
                "mean_error": float(np.abs(found - right).mean()),
                "loss": float(-np.log(np.maximum(probabilities[range(len(right)), right], 1e-12)).mean())}

    def record(self, example, answer):
        return {name: getattr(example, name) for name in self.inputs} | answer

    def cells(self, example, answer):
        return [answer["label"], f"{answer['score']:.4f}", *self.texts(example)]
