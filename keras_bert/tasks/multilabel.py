"""Multi-label classification: any number of labels per text or pair of texts."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.examples import Example, in_order
from keras_bert.data.label_sets import FLAGS_CURE, are_flags, iterate_label_sets
from keras_bert.data.tables import Rows, escaped
from keras_bert.errors import InputError, Option
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, Windows, best_threshold
from keras_bert.tasks.classify import LabelTask, ranked_cells, scores_of_labels, top_record
from keras_bert.tasks.windows import aggregated
from keras_bert.types import Tensor

_HALF = 0.5
_SAME = 1e-4  # thresholds that differ less are the same
# Logits of windows beyond are counted as this one. The outputs of LiteRT are probabilities, and beyond it, float32 does
# not tell those near 1 apart.
LARGEST_LOGIT = 15.0


def score(labels: Sequence[str], probabilities: np.ndarray, targets: np.ndarray,
          thresholds: np.ndarray) -> dict[str, Any]:
    """Computes the scores of multi-label classification, with the definitions of scikit-learn, from `probabilities`,
    float [texts, labels], `targets`, [texts, labels], 1 where the label is right, and `thresholds`, float [labels]: a
    label is predicted if its probability is at least its threshold.

    Returns `mean_average_precision`, the mean over the labels that occur; `micro_f1`, of all pairs of a text and a
    label; `macro_f1`, the mean over the labels that occur or were predicted; `micro_f1_at_half` and `macro_f1_at_half`,
    the same with the threshold 0.5 for each label; `labels`, which maps each label to its `precision`, `recall`, `f1`,
    `average_precision` (None if it does not occur), `threshold` and number of `texts`."""
    right = np.asarray(targets) > 0
    of_labels, micro_f1, macro_f1 = _scores(labels, probabilities >= thresholds, right)
    _, micro_f1_at_half, macro_f1_at_half = _scores(labels, probabilities >= _HALF, right)
    average_precisions = [average_precision(*column) if column[1].any() else None
                          for column in zip(np.transpose(probabilities), right.T)]
    for of_label, mean, threshold in zip(of_labels.values(), average_precisions, thresholds):
        of_label |= {"average_precision": mean, "threshold": float(threshold)}
    return {"mean_average_precision": float(np.mean([value for value in average_precisions if value is not None])),
            "micro_f1": micro_f1, "macro_f1": macro_f1, "micro_f1_at_half": micro_f1_at_half,
            "macro_f1_at_half": macro_f1_at_half, "labels": of_labels}


def _scores(labels: Sequence[str], predicted: np.ndarray, right: np.ndarray) -> tuple[dict[str, dict], float, float]:
    """Returns the scores of each label, see `scores_of_labels`, the micro F1 and the macro F1."""
    hits, answered, texts = (predicted & right).sum(0), predicted.sum(0), right.sum(0)
    of_labels, macro_f1 = scores_of_labels(labels, hits, answered, texts)
    return of_labels, float(2 * hits.sum() / max(answered.sum() + texts.sum(), 1)), macro_f1


def average_precision(scores: np.ndarray, right: np.ndarray) -> float:
    """Computes the sum of (R[n] - R[n-1]) P[n] over the different scores n, from the highest, where R[n] and P[n] are
    the recall and the precision of predicting the texts with at least this score. `scores` are float [texts]; `right`
    is bool [texts], at least one True."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.inf))  # the last text of each score
    hits = np.cumsum(right[order])[ends]
    return float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / right.sum())


@dataclasses.dataclass(frozen=True)
class LabelSet:
    """The labels of one text: `labels` are those whose score (sigmoid probability) reaches their threshold, and
    `scores` their scores, best first; there may be none. `top` are the labels with the highest scores, whether these
    reach the threshold or not, a list of (label, score)."""

    labels: list[str]
    scores: list[float]
    top: list[tuple[str, float]]


@dataclasses.dataclass(frozen=True)
class MultiLabel(LabelTask):
    """Multi-label classification: a sigmoid and a threshold for each label. The loss is the binary cross-entropy, the
    mean over labels and texts.

    Args:
        labels, pairs: see `LabelTask`.
        thresholds: a threshold for each label. If None, 0.5.
    """

    thresholds: list[float] | None = None

    name, main, has_threshold, output, activation = "multilabel", "mean_average_precision", True, "holds", "sigmoid"
    display = "labels"
    options = *LabelTask.options, "label_columns", "label_delimiter", "pack"
    fields = *LabelTask.fields, "label_columns"
    card = Card("text-classification", "labels of text", "Answers a text with any number of {}labels.")
    exported_outputs = {"labels": (str, "BL"), "probabilities": (np.float32, "BL"), "holds": (bool, "BL")}

    def __post_init__(self) -> None:
        super().__post_init__()
        thresholds = [_HALF] * len(self.labels) if self.thresholds is None else self.thresholds
        if not (isinstance(thresholds, list | tuple) and len(thresholds) == len(self.labels) and all(
                isinstance(value, int | float) and 0 <= value <= 1 for value in thresholds)):
            raise InputError(f"thresholds must be {len(self.labels)} numbers from 0 to 1, one for each label; got "
                             f"{thresholds!r:.80}")
        object.__setattr__(self, "thresholds", thresholds)

    @classmethod
    def iterate(cls, path: Path | Rows, **columns: Any) -> Iterator[Example]:
        return iterate_label_sets(path, **columns)

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence[Example], label_columns: list[str] | None = None,
                      **settings: Any) -> Self:
        found = {label for example in examples for label in example.label}
        if not found:
            raise InputError(f"{path}: must have texts with labels; no row has one")
        if not label_columns and are_flags(found) and all(len(example.label) == 2 for example in examples):
            raise InputError(f"{path}: must not have both labels, {' and '.join(sorted(found))}, in every row",
                             *FLAGS_CURE)
        for label in label_columns or ():
            if label not in found:
                raise InputError(f"{path}: ", Option("label_columns"), " must have a row with 1 each; "
                                 f"{label!r} is always 0: leave it out")
        return cls(labels=label_columns or in_order(path, found), pairs=examples[0].text_pair is not None, **settings)

    def check(self, path: Path | Rows, examples: Sequence[Example], out_of_scope: str | None = None) -> None:
        super().check(path, examples)
        for example in examples:
            for label in example.label:
                if label not in self.labels:
                    raise InputError(f"{path}: row {example.row}: label {escaped(label)} is not among the learned "
                                     "labels; correct it, or train on texts with it")
        if not any(example.label for example in examples):
            raise InputError(f"{path}: scores need texts with labels; no row has one")

    def classes(self, example: Example) -> tuple[str, ...]:
        return example.label

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns 1 for each label of each example, otherwise 0: float32 [examples, labels]."""
        return np.array([[label in example.label for label in self.labels] for example in examples], np.float32)

    def loss_arguments(self) -> dict[str, Any]:
        import keras

        return {"loss": keras.losses.BinaryCrossentropy(from_logits=True)}

    def encode_in_graph(self, outputs: Tensor, mask: Tensor) -> Answers:
        import tensorflow as tf

        probabilities = tf.sigmoid(outputs)
        holds = probabilities >= tf.constant(self.thresholds, tf.float32)
        order = tf.argsort(tf.where(holds, probabilities, -1.0), direction="DESCENDING", stable=True)
        labels = tf.where(tf.gather(holds, order, batch_dims=1), tf.gather(tf.constant(self.labels), order), "")
        return {"labels": labels, "probabilities": probabilities, "holds": holds}

    def combine_in_graph(self, outputs: Tensor, mask: Tensor, parts: Windows) -> Answers:
        import tensorflow as tf

        return super().combine_in_graph(tf.clip_by_value(outputs, -LARGEST_LOGIT, LARGEST_LOGIT), mask, parts)

    def probabilities(self, encoded: Encoded, outputs: Outputs) -> np.ndarray:
        """Computes the sigmoid of the logits of each text: float32 [texts, labels]."""
        return np.exp(-np.logaddexp(0, -self._logits(encoded, outputs))).astype(np.float32)

    def _logits(self, encoded: Encoded, outputs: Outputs) -> np.ndarray:
        logits = np.reshape(outputs, (-1, len(self.labels))).astype(np.float64)
        if self.windows:
            logits = np.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT)
        return aggregated(logits, encoded.firsts, self.aggregate)

    def answers(self, encoded: Encoded, outputs: Outputs, top_k: int = 1) -> list[LabelSet]:
        return [self.label_set(row, row >= self.thresholds, top_k) for row in self.probabilities(encoded, outputs)]

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> LabelSet:
        return self.label_set(np.array(row["probabilities"]), row["holds"], top_k)

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        rows = []
        for row in self.probabilities(encoded, outputs):
            holds = row >= self.thresholds
            held = self.label_set(row, holds, 1).labels
            rows.append({"labels": [*held, *[""] * (len(self.labels) - len(held))], "probabilities": row,
                         "holds": holds})
        return rows

    def label_set(self, scores: np.ndarray, holds: Iterable[bool], top_k: int) -> LabelSet:
        """Returns the answer with `top_k` labels as `top`. `scores` and `holds` are [labels]."""
        holding = {label for label, is_held in zip(self.labels, holds) if is_held}
        ranked = self.ranked(scores, len(scores))
        held = [(label, score) for label, score in ranked if label in holding]
        return LabelSet([label for label, _ in held], [score for _, score in held], ranked[:top_k])

    def calibrated(self, encoded: Encoded, outputs: Outputs) -> Self:
        """Returns the task with the threshold of each label that has the best F1 for these examples; a label of none of
        them keeps its threshold."""
        columns = zip(self.probabilities(encoded, outputs).T, encoded.text_targets.T > 0, self.thresholds or [])
        return dataclasses.replace(self, thresholds=[
            best_threshold(scores, right, 0.0) if right.any() else before for scores, right, before in columns])

    def describe_thresholds(self) -> list[str]:
        return ["thresholds: in settings.json, those with the best F1 of each label on the texts that chose them"]

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns the scores of the function `score` in this module; `loss`; and `thresholds_chosen_here`: True if the
        thresholds are those with the best F1 for these very examples, so that F1 is higher than for new texts."""
        logits, targets = self._logits(encoded, outputs), encoded.text_targets
        thresholds, chosen = (np.array(task.thresholds) for task in (self, self.calibrated(encoded, outputs)))
        return score(self.labels, self.probabilities(encoded, outputs), targets, thresholds) | {
            "loss": float((np.logaddexp(0, logits) - logits * targets).mean()),
            "thresholds_chosen_here": bool(np.allclose(chosen, thresholds, rtol=0, atol=_SAME))}

    def record(self, example: Example, answer: LabelSet) -> dict[str, Any]:
        return {name: getattr(example, name) for name in self.inputs} | {
            "labels": answer.labels, "scores": answer.scores} | top_record(answer.top)

    def cells(self, example: Example, answer: LabelSet) -> list[str]:
        held = [_joined(answer.labels), _joined(f"{score:.4f}" for score in answer.scores)]
        return [*(ranked_cells(answer.top) if len(answer.top) > 1 else held), *self.texts(example)]


def _joined(labels: Iterable[str]) -> str:
    """Returns labels as `iterate_label_sets` reads them: those with a comma, a quote or a line break in quotes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(labels)
    return line.getvalue()
