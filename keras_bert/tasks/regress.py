"""Regression: one number per text or pair of texts."""

import dataclasses

import numpy as np

from keras_bert.data import iterate_examples, number
from keras_bert.errors import InputError
from keras_bert.tasks.base import Card, require
from keras_bert.tasks.classify import TextTask


def correlations(values, targets):
    """Computes the correlation coefficients of Pearson and Spearman: two floats, 0 if all values are equal."""
    stats = require("scipy.stats")
    return [float(np.nan_to_num(correlate(values, targets).statistic))
            for correlate in (stats.pearsonr, stats.spearmanr)]


@dataclasses.dataclass(frozen=True)
class Regress(TextTask):
    """Regression, as in STS-B (Devlin et al., 2018, section 4.1; GLUE: Wang et al., 2018).

    Args:
        pairs: if True, the inputs are pairs of texts.
    """

    pairs: bool = False

    name, main, options, output = "regress", "pearson", ("pack",), "value"
    card = Card("text-classification", "a score of texts", "Answers a text, or a pair of texts, with a number.")

    @classmethod
    def iterate(cls, path, **columns):
        """Reads a data file whose labels are floats."""
        for example in iterate_examples(path, **columns):
            yield example if example.label is None else dataclasses.replace(example, label=number(path, example))

    @classmethod
    def from_examples(cls, path, examples, **settings):
        return cls(pairs=examples[0].text_pair is not None, **settings)

    def check(self, path, examples, out_of_scope=None):
        require("scipy.stats")  # fails here, before any work is done
        super().check(path, examples)
        if len(examples) < 2:
            raise InputError(f"{path}: a correlation needs at least two scored texts; got 1")

    def targets(self, examples):
        """Returns the label of each example: float32 [examples]."""
        return np.array([example.label for example in examples], np.float32)

    def answers(self, encoded, outputs):
        return [float(output[0]) for output in outputs]

    def score(self, encoded, outputs):
        """Returns `pearson` and `spearman`, the correlations of predictions and targets, which are 0 if all predictions
        or all targets are equal, and `loss`, the mean squared error."""
        answers = np.array(self.answers(encoded, outputs), np.float64)
        pearson, spearman = correlations(answers, encoded.targets)
        return {"pearson": pearson, "spearman": spearman, "loss": float(np.mean((answers - encoded.targets) ** 2))}

    def answer_of(self, row, top_k=1):
        return row["value"]

    def record(self, example, answer):
        return {name: getattr(example, name) for name in self.columns} | {"value": answer}

    def cells(self, example, answer):
        return [f"{answer:.4f}", *(getattr(example, name) for name in self.columns)]
