"""Classification tasks: one label per text or pair of texts."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from keras_bert.arguments import Path, check, not_none
from keras_bert.data.examples import Example, in_order, iterate_examples
from keras_bert.data.tables import Rows, escaped
from keras_bert.errors import InputError, Option
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, Windows, best_threshold, log_softmax
from keras_bert.tasks.calibration import (
    Calibration,
    Temperature,
    Threshold,
    calibration_bins,
    calibration_error,
    tempered,
)
from keras_bert.tasks.windows import WindowTask, aggregated
from keras_bert.text import Tokenizer
from keras_bert.types import Encoder, Head, Tensor


def score(labels: Sequence[str], probabilities: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """Computes the scores of `probabilities`, float [texts, classes], for the right classes `targets`, int [texts].

    Returns `accuracy`; `macro_f1`, over the classes that occur or were predicted; `matthews`, the correlation
    coefficient (Gorodkin, 2004), the score of CoLA; for two classes also `f1` of the second one, the score of MRPC and
    QQP; `loss`, the mean cross-entropy; `calibration_error`, the expected one over 15 bins (Guo et al., 2017), and
    `calibration`, (mean score, accuracy, number of texts) of each bin that is not empty; `classes`, which maps each
    label to its `precision`, `recall`, `f1` and number of `texts`; `confusions`, a list of (right label, predicted
    label, number of texts), most frequent first."""
    targets = np.asarray(targets)
    answers = probabilities.argmax(1)
    matrix = np.zeros((len(labels), len(labels)), int)  # [right, answered]
    np.add.at(matrix, (targets, answers), 1)
    right, texts, answered = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    classes, macro_f1 = scores_of_labels(labels, right, answered, texts)
    calibration = calibration_bins(probabilities.max(1), answers == targets)
    wrong = matrix - np.diag(right)
    pairs = sorted(zip(*np.nonzero(wrong)), key=lambda pair: -wrong[pair])
    count = len(targets)
    # In float64: the product of the two, for a million texts, is beyond int64.
    spread = float(count ** 2 - answered @ answered) * float(count ** 2 - texts @ texts)
    return {
        "accuracy": float(right.sum() / count),
        "macro_f1": macro_f1,
        "matthews": float((count * right.sum() - texts @ answered) / np.sqrt(spread)) if spread else 0.0,
        **({"f1": classes[labels[1]]["f1"]} if len(labels) == 2 else {}),
        "loss": float(-np.log(np.maximum(probabilities[range(len(targets)), targets], 1e-12)).mean()),
        "calibration_error": calibration_error(calibration),
        "calibration": calibration,
        "classes": classes,
        "confusions": [[labels[i], labels[j], int(wrong[i, j])] for i, j in pairs]}


def scores_of_labels(labels: Sequence[str], right: np.ndarray, answered: np.ndarray,
                     texts: np.ndarray) -> tuple[dict[str, dict[str, Any]], float]:
    """Returns the `precision`, `recall`, `f1` and number of `texts` of each label, and the mean F1 of the labels that
    occur or were answered. For each label, int [labels], `texts` have it, and `right` of the `answered` ones."""
    f1, occurs = 2 * right / np.maximum(texts + answered, 1), texts + answered > 0
    columns = {"precision": right / np.maximum(answered, 1), "recall": right / np.maximum(texts, 1), "f1": f1,
               "texts": texts}
    rows = zip(*(column.tolist() for column in columns.values()))
    return ({label: dict(zip(columns, row)) for label, row in zip(labels, rows)},
            float(f1[occurs].mean()) if occurs.any() else 0.0)


def score_threshold(threshold: float, scores: np.ndarray, reject: np.ndarray, is_wrong: np.ndarray) -> dict:
    """Returns a threshold as `threshold`; the `precision` and `recall` of rejecting the texts with lower `scores`,
    float [texts]; the number of `texts` that it should `reject`, bool [texts]; `rejected_in_scope`, the share of the
    others, at least one, that are rejected; `answered`, the number of texts that are not, and how many of these are
    `wrong`, those that should be rejected among them."""
    rejected = scores < threshold
    right = (rejected & reject).sum()
    return {"threshold": threshold, "precision": float(right / max(rejected.sum(), 1)),
            "recall": float(right / max(reject.sum(), 1)), "texts": int(reject.sum()),
            "rejected_in_scope": float(rejected[~reject].mean()),
            "answered": int((~rejected).sum()), "wrong": int((is_wrong & ~rejected).sum())}


def risk_coverage(scores: np.ndarray, is_wrong: np.ndarray) -> list[list[float]]:
    """Returns pairs of the share of the texts that are answered, and the share of these that are answered wrong, if
    those with the highest scores are answered: of each hundredth of the texts, or of each text if there are fewer."""
    order = np.argsort(-scores, kind="stable")
    counts = np.unique(np.ceil(np.arange(1, 101) / 100 * len(scores)).astype(int))
    wrong = np.cumsum(is_wrong[order])[counts - 1]
    return [[float(count / len(scores)), float(share)] for count, share in zip(counts, wrong / counts)]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The labels of one text with the highest scores (softmax probabilities), best first. `in_scope` says whether the
    best score reaches the model's threshold; None if it has none."""

    labels: list[str]
    scores: list[float]
    in_scope: bool | None = None

    @property
    def label(self) -> str:
        return self.labels[0]

    @property
    def score(self) -> float:
        return self.scores[0]


class TextTask(WindowTask):
    """A task whose inputs are single texts or pairs of texts."""

    pairs: bool
    tuples = ("text", "label"), ("text", "text_pair", "label")

    @classmethod
    def iterate(cls, path: Path | Rows, **columns: Any) -> Iterator[Example]:
        return iterate_examples(path, **columns)

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("text", "text_pair")[:1 + self.pairs]

    def describe_input(self) -> str:
        return "pairs of texts" if self.pairs else "single texts"

    def example(self, text: str, text_pair: str | None = None) -> Example:
        return Example(text, text_pair, None, None)

    def kind(self, examples: Sequence[Example]) -> str:
        return "pairs" if self.pairs else "texts"

    def group(self, example: Example) -> tuple:
        return tuple(sorted(self.texts(example)))  # a pair is not new in the other order

    def check_inputs(self, path: Path | Rows, examples: Sequence[Example]) -> None:
        if (examples[0].text_pair is not None) != self.pairs:
            raise InputError(f"{path}: must have {'two texts' if self.pairs else 'one text'} per row for this model; "
                             f"got {'one' if self.pairs else 'two'}")

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns the targets of labelled examples: [examples, ...]."""
        raise NotImplementedError

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer) -> Encoded:
        pairs: Any = [example.text_pair for example in examples] if self.pairs else None
        rows, cut = self.split_texts(tokenizer, [example.text for example in examples], pairs)
        counts = np.array([len(windows) for windows in rows], np.int64)
        labelled = bool(examples) and examples[0].label is not None
        targets = np.repeat(self.targets(examples), counts, axis=0) if labelled else None
        return Encoded(examples, list(itertools.chain.from_iterable(rows)), targets, firsts=np.cumsum(counts) - counts,
                       cut=len(cut), split=int((counts > 1).sum()))


@dataclasses.dataclass(frozen=True)
class LabelTask(TextTask):
    """A task with a score for each label (Devlin et al., 2018, section 4.1).

    Args:
        labels: names of the labels, in the order of the logits.
        pairs: if True, the inputs are pairs of texts.
    """

    labels: list
    pairs: bool = False

    dropout, supports_top_k, stratified, names_classes = 0.2, True, True, True
    options = *TextTask.options, "teacher", "layers", "unlabelled"
    heads: ClassVar[tuple[str, ...]] = ("BertClassifier",)
    weights, lite_outputs, weighed = "classification", {"probabilities": "BL"}, "probabilities"
    named = {"labels": "num_classes"}

    def new_head(self, bert: Encoder, dropout: float) -> Head:
        from keras_bert.models import BertClassifier

        return BertClassifier(bert, len(self.labels), dropout)

    def ranked(self, scores: np.ndarray, top_k: int) -> list[tuple[str, float]]:
        """Returns the `top_k` labels with the highest scores, best first, with their scores."""
        return [(self.labels[i], float(scores[i])) for i in np.argsort(-scores, kind="stable")[:top_k]]


def names_of_classes(path: Path | Rows, examples: Sequence[Any]) -> list[str]:
    """Returns the labels of training examples, in the order of the logits. Raises an InputError if all have one."""
    labels = in_order(path, (example.label for example in examples))
    if len(labels) < 2:
        raise InputError(f"{path}: a classifier needs at least two labels; every text has the label {labels[0]!r}")
    return labels


def top_record(pairs: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Returns several labels and their scores as an entry of `Task.record`; one alone needs no entry."""
    return {"top": [{"label": label, "score": score} for label, score in pairs]} if len(pairs) > 1 else {}


def ranked_cells(pairs: Iterable[tuple[str, float]]) -> list[str]:
    return [cell for label, score in pairs for cell in (label, f"{score:.4f}")]


@dataclasses.dataclass(frozen=True)
class Classify(LabelTask):
    """Single-label classification.

    Args:
        labels, pairs: see `LabelTask`.
        threshold: an answer with a lower score is not to be used: it is not `in_scope`. If None, answers have no
            `in_scope`.
        temperature: what the logits are divided by. Of a text with windows, it is the logarithms of its aggregated
            probabilities.
        calibration: `Calibration`, what `calibrate` set; None if the threshold is the best one for texts out of scope.
    """

    threshold: Threshold | None = None
    temperature: Temperature = 1.0
    calibration: Calibration | dict | None = None

    name, main, output, activation, display = "classify", "accuracy", "label", "softmax", "label"
    heads = "BertClassifier", "BertEmbeddingClassifier"
    options = *LabelTask.options, "out_of_scope_label", "class_weights", "pack", "few_shot"
    card = Card("text-classification", "classes of text", "Answers a text with one of {}classes.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.calibration, dict):  # of a file
            check(Calibration, self.calibration)
            object.__setattr__(self, "calibration", Calibration(**self.calibration))

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence[Example], **settings: Any) -> Self:
        return cls(labels=names_of_classes(path, examples), pairs=examples[0].text_pair is not None, **settings)

    def check(self, path: Path | Rows, examples: Sequence[Example], out_of_scope: str | None = None) -> None:
        super().check(path, examples)
        if out_of_scope in self.labels:
            raise InputError(Option("out_of_scope_label"),
                             f" must not be a label of the training file; got {out_of_scope!r}")
        known = {*self.labels, out_of_scope}
        for example in examples:
            if example.label not in known:
                raise InputError(f"{path}: row {example.row}: label {escaped(example.label)} is not among the learned "
                                 "labels; correct it, or if it marks texts that are out of scope, pass ",
                                 Option(f"out_of_scope_label={example.label!r}"))
        if all(example.label == out_of_scope for example in examples):
            raise InputError(f"{path}: scores need texts in scope; every row has the label {out_of_scope!r}")
        if out_of_scope is not None and all(example.label != out_of_scope for example in examples):
            raise InputError(f"{path}: no text has the ", Option("out_of_scope_label"), f" {out_of_scope!r}")

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns the class of each example, -1 for examples out of scope: int32 [examples]."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        return np.array([numbers.get(example.label, -1) for example in examples], np.int32)

    def loss_arguments(self) -> dict[str, Any]:
        import keras

        return {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "metrics": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]}

    def encode_in_graph(self, outputs: Tensor, mask: Tensor) -> Answers:
        import tensorflow as tf

        return self._answers_in_graph(tf.nn.softmax(outputs))

    def combine_in_graph(self, outputs: Tensor, mask: Tensor, parts: Windows) -> Answers:
        import tensorflow as tf

        probabilities = parts.aggregated(tf.nn.softmax(outputs), self.aggregate)
        return self._answers_in_graph(probabilities / tf.reduce_sum(probabilities, axis=1, keepdims=True))

    def _answers_in_graph(self, probabilities: Tensor) -> Answers:
        import tensorflow as tf

        best = tf.argmax(probabilities, axis=1)
        if self.temperature != 1:
            powers = (probabilities / tf.reduce_max(probabilities, axis=1, keepdims=True)) ** (1 / self.temperature)
            probabilities = powers / tf.reduce_sum(powers, axis=1, keepdims=True)
        score = tf.reduce_max(probabilities, axis=1)
        answers = {"label": tf.gather(tf.constant(self.labels), best), "score": score, "probabilities": probabilities}
        return answers if self.threshold is None else answers | {"in_scope": score >= self.threshold}

    def probabilities(self, encoded: Encoded, outputs: Outputs) -> np.ndarray:
        """Computes the probabilities of the labels: float32 [texts, labels]. Those of a text with windows are the
        windows' mean, or their maximum for each label, divided by the sum, before the temperature is applied."""
        probabilities = np.exp(log_softmax(np.reshape(outputs, (-1, len(self.labels)))))
        probabilities = aggregated(probabilities, encoded.firsts, self.aggregate)
        probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
        return tempered(probabilities, self.temperature).astype(np.float32)

    def answers(self, encoded: Encoded, outputs: Outputs, top_k: int = 1) -> list[Prediction]:
        return [self._prediction(row, top_k) for row in self.probabilities(encoded, outputs)]

    def _prediction(self, probabilities: np.ndarray, top_k: int = 1) -> Prediction:
        in_scope = None if self.threshold is None else bool(probabilities.max() >= self.threshold)
        labels, scores = map(list, zip(*self.ranked(probabilities, top_k)))
        return Prediction(labels, scores, in_scope)

    def describe_thresholds(self) -> list[str]:
        found, lines = cast(Calibration, self.calibration or Calibration()), list[str]()
        if found.error_after is not None:
            lines.append(f"temperature: {self.temperature:g}; expected calibration error {found.error_after:.4f}, "
                         f"without the temperature {found.error_before:.4f}")
        elif self.temperature != 1:
            lines.append(f"temperature: {self.temperature:g}")
        if self.threshold is not None:
            lines.append(f"threshold: {self.threshold:.7g}, {found.describe()}")
        return lines

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns the scores of the function `score` in this module; `out_of_scope`, the scores of `score_threshold`,
        or None if there is no threshold; and `risk_coverage`, see there."""
        targets, probabilities = encoded.text_targets, self.probabilities(encoded, outputs)
        in_scope, scores, is_wrong = targets >= 0, probabilities.max(1), probabilities.argmax(1) != targets
        rejection = None if self.threshold is None else score_threshold(self.threshold, scores, ~in_scope, is_wrong)
        return score(self.labels, probabilities[in_scope], targets[in_scope]) | {
            "out_of_scope": rejection, "risk_coverage": risk_coverage(scores, is_wrong)}

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        settings["calibration"] = not_none(**(settings["calibration"] or {}))
        for name, default in (("temperature", 1.0), ("calibration", {})):  # which version 0.3 does not know
            if settings[name] == default:
                del settings[name]
        return settings

    def with_threshold(self, threshold: float, by: Literal["max_error", "hand"] | None = None, **found: Any) -> Self:
        """Returns the task with another threshold and what is known of it, see `Calibration`. What is known of the
        temperature stays."""
        before = cast(Calibration, self.calibration or Calibration())
        calibration = Calibration(by, **found, error_before=before.error_before, error_after=before.error_after)
        return dataclasses.replace(self, threshold=threshold,
                                   calibration=None if calibration == Calibration() else calibration)

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> Prediction:
        answer = self._prediction(np.array(row["probabilities"]), top_k)
        return dataclasses.replace(answer, in_scope=row.get("in_scope"))  # files of version 0.3 lack the threshold

    @property
    def exported_outputs(self) -> dict[str, tuple[type, str]]:
        outputs = {"label": (str, "B"), "score": (np.float32, "B"), "probabilities": (np.float32, "BL")}
        return outputs if self.threshold is None else outputs | {"in_scope": (bool, "B")}

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        probabilities = self.probabilities(encoded, outputs)
        return [{"label": answer.label, "score": answer.score, "probabilities": row, "in_scope": answer.in_scope}
                for answer, row in zip(map(self._prediction, probabilities), probabilities)]

    def record(self, example: Example, answer: Prediction) -> dict[str, Any]:
        best = not_none(label=answer.label, score=answer.score, in_scope=answer.in_scope)
        texts = {name: getattr(example, name) for name in self.inputs}
        return texts | best | top_record(list(zip(answer.labels, answer.scores)))

    def cells(self, example: Example, answer: Prediction) -> list[str]:
        scope = [] if answer.in_scope is None else ["in scope" if answer.in_scope else "out of scope"]
        return [*ranked_cells(zip(answer.labels, answer.scores)), *scope, *self.texts(example)]


@dataclasses.dataclass(frozen=True)
class Intent(Classify):
    """Intent classification: single-label classification with a threshold below which a text counts as out of scope."""

    name, has_threshold = "intent", True

    def calibrated(self, encoded: Encoded, outputs: Outputs) -> Self:
        """Returns the task with the threshold that is best for these examples, or the task itself if none of them is
        out of scope."""
        out_of_scope = encoded.text_targets < 0
        if not out_of_scope.any():
            return self
        scores = self.probabilities(encoded, outputs).max(1)
        return self.with_threshold(best_threshold(scores, out_of_scope, np.inf))
