"""Regression: one number per text or pair of texts."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.examples import Example, iterate_examples, number
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, require
from keras_bert.tasks.classify import TextTask
from keras_bert.tasks.windows import aggregated
from keras_bert.types import Encoder, Head, Tensor


def correlations(values: np.ndarray, targets: np.ndarray) -> list[float]:
    """Computes the correlation coefficients of Pearson and Spearman, which are 0 if all values are equal."""
    stats = require("scipy.stats")
    return [float(np.nan_to_num(correlate(values, targets).statistic))
            for correlate in (stats.pearsonr, stats.spearmanr)]


class NumberTask(TextTask):
    """A task with a number for each text or pair of texts, the first of `exported_outputs`."""

    heads, weights = ("BertRegressor",), "regression"

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns the label of each example: float32 [examples]."""
        return np.array([example.label for example in examples], np.float32)

    def new_head(self, bert: Encoder, dropout: float) -> Head:
        from keras_bert.models import BertRegressor

        return BertRegressor(bert, dropout)

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> float:
        return row[next(iter(self.exported_outputs))]

    def record(self, example: Example, answer: float) -> dict[str, Any]:
        return {name: getattr(example, name) for name in self.inputs} | {next(iter(self.exported_outputs)): answer}

    def cells(self, example: Example, answer: float) -> list[str]:
        return [f"{answer:.4f}", *self.texts(example)]


@dataclasses.dataclass(frozen=True)
class Regress(NumberTask):
    """Regression, as in STS-B (Devlin et al., 2018, section 4.1; GLUE: Wang et al., 2018).

    Args:
        pairs: if True, the inputs are pairs of texts.
    """

    pairs: bool = False

    name, main, options, output = "regress", "pearson", (*TextTask.options, "pack"), "value"
    lite_outputs, display, weighed = {"value": "B1"}, "value", "value"
    exported_outputs = {"value": (np.float32, "B")}
    card = Card("text-classification", "a score of texts", "Answers a text, or a pair of texts, with a number.")

    @classmethod
    def iterate(cls, path: Path | Rows, **columns: Any) -> Iterator[Example]:
        """Reads a data file whose labels are floats."""
        return iterate_examples(path, **columns, read_label=number)

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence[Example], **settings: Any) -> Self:
        return cls(pairs=examples[0].text_pair is not None, **settings)

    def check(self, path: Path | Rows, examples: Sequence[Example], out_of_scope: str | None = None) -> None:
        require("scipy.stats")  # fails here, before any work is done
        super().check(path, examples)
        if len(examples) < 2:
            raise InputError(f"{path}: a correlation needs at least two scored texts; got 1")

    def kind(self, examples: Sequence[Example]) -> str:
        return f"{super().kind(examples)} with scores"

    def loss_arguments(self) -> dict[str, Any]:
        import keras

        return {"loss": keras.losses.MeanSquaredError()}

    def encode_in_graph(self, outputs: Tensor, mask: Tensor) -> Answers:
        return {"value": outputs[:, 0]}

    def answers(self, encoded: Encoded, outputs: Outputs) -> list[float]:
        return [float(value) for value, in aggregated(np.reshape(outputs, (-1, 1)), encoded.firsts, self.aggregate)]

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns `pearson` and `spearman`, the correlations of predictions and targets, which are 0 if all predictions
        or all targets are equal, and `loss`, the mean squared error."""
        answers = np.array(self.answers(encoded, outputs), np.float64)
        targets = encoded.text_targets
        pearson, spearman = correlations(answers, targets)
        return {"pearson": pearson, "spearman": spearman, "loss": float(np.mean((answers - targets) ** 2))}

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        return [{"value": answer} for answer in self.answers(encoded, outputs)]
