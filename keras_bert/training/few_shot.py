"""Classification with a few texts per label: an encoder that learns to give texts of the same label similar embeddings,
then a logistic regression on the embeddings (SetFit: Tunstall et al., 2022, https://arxiv.org/abs/2209.11055).

SetFit's loss is `cosine_similarity` of single pairs. `multiple_negatives_ranking` compares each pair with all others of
its batch, and needs far fewer steps.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from keras_bert.arguments import Pooling, plural
from keras_bert.data.batches import ChoiceBatches, SameLabelBatches, TextBatches
from keras_bert.data.examples import Example
from keras_bert.errors import InputError
from keras_bert.models import BertEmbedder, BertEmbeddingClassifier
from keras_bert.tasks import Classify, Embed, Encoded, Task, run_model
from keras_bert.tasks.base import require
from keras_bert.text.coverage import shorten

# Of the regression: the inverse of the weight decay, more than scikit-learn's 1, with which the probabilities of many
# classes are all low; and the most steps of its optimizer, which needs fewer.
_C, _STEPS = 10.0, 1000
# Texts per label for which `few_shot` is recommended. It was more accurate than plain fine-tuning with 8 of each of 176
# intents (`benchmarks/few_shot.py`), and with 30 of each of 22 (docs/tasks/intent.md).
_FEW = 16
_MIN_STEPS = 10  # with 1 step per epoch, ten epochs were better than three


class FewShot:
    """The way to train a classifier that `finetune(few_shot=True)` chooses.

    Args:
        task: the classifier's task.
        train, valid: the texts, as that task encodes them.
        pooling: see `BertEmbedder`.
        class_weights: see `finetune`; they weight the texts of the regression.

    Attributes:
        task: the task that the encoder is trained for.
        train, valid: the texts in the form that trains and that scores a `BertEmbedder`.
    """

    def __init__(self, task: Task, train: Encoded, valid: Encoded, pooling: Pooling, class_weights: str | None) -> None:
        self.task: Task = Embed(task.max_length, "multiple_negatives_ranking", pooling, normalize=True)
        self.train = dataclasses.replace(_one_text_each(train), batches=SameLabelBatches)
        self.valid = _one_text_each(valid)
        self._targets, self._class_weights = train.targets, class_weights

    @staticmethod
    def check(path: str, examples: Sequence[Example]) -> None:
        """Raises an InputError if scikit-learn is missing, or the examples have pairs of texts, or fewer than two
        labels have two texts. `path` names the examples."""
        _linear_model()
        if examples[0].text_pair is not None:
            raise InputError(f"{path}: few_shot needs one text per row; got two")
        counts = collections.Counter(example.label for example in examples).values()
        if (several := sum(count > 1 for count in counts)) < 2:
            raise InputError(f"{path}: few_shot needs two labels with at least two texts each; got {several}")

    def outputs(self, model: BertEmbedder, train: TextBatches, valid: TextBatches, batch_size: int,
                after_batch: Callable[[Any], None]) -> np.ndarray:
        """Returns the logits of the validation texts, by a regression on the embeddings of the training texts."""
        kernel, bias = self._regression(_embed(model, train, batch_size, after_batch))
        return _embed(model, valid, batch_size, after_batch) @ kernel + bias

    def finished(self, model: BertEmbedder, train: TextBatches, batch_size: int) -> BertEmbeddingClassifier:
        """Returns the classifier: the trained encoder with the regression as its dense layer."""
        kernel, bias = self._regression(_embed(model, train, batch_size))
        classifier = BertEmbeddingClassifier(model.bert, len(bias), model.pooling)
        classifier.classifier.kernel.assign(kernel)
        classifier.classifier.bias.assign(bias)
        return classifier

    def _regression(self, embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fits a logistic regression; returns its kernel [hidden, classes] and its bias [classes]."""
        fitted = _linear_model().LogisticRegression(C=_C, max_iter=_STEPS, class_weight=self._class_weights).fit(
            embeddings, self._targets)
        kernel, bias = fitted.coef_.T, fitted.intercept_
        if kernel.shape[1] == 1:  # of two classes, the logit of the first one is 0
            kernel, bias = np.pad(kernel, [(0, 0), (1, 0)]), np.pad(bias, (1, 0))
        return kernel, bias


def recommendation(task: Task, labels: dict[str, int]) -> list[str]:
    """Returns the lines of the report on the data that recommend `few_shot`: one for a classifier of single texts with
    few texts per label, otherwise none. `labels` has the number of texts of each label."""
    if not isinstance(task, Classify) or task.pairs:
        return []
    median = statistics.median(labels.values())
    line = f"{median:g} texts per label at the median: with so few, few_shot is usually more accurate"
    return [line] if 2 <= median <= _FEW else []


def remarks(labels: dict[str, int], steps: int, epochs: int) -> list[str]:
    """Returns the lines of the report on the data that say what `few_shot` cannot learn from these texts.

    Args:
        labels: the number of texts of each label.
        steps: steps per epoch.
    """
    lines = []
    if single := [label for label, count in labels.items() if count == 1]:
        lines.append(f"{len(single):,} {plural('label', len(single))} with one text, such as {shorten(single[0])}: "
                     "the encoder learns from the others only")
    if steps * epochs < _MIN_STEPS:
        lines.append(f"{steps * epochs} steps are few for the encoder: try epochs={math.ceil(_MIN_STEPS / steps)}")
    return lines


def _one_text_each(encoded: Encoded) -> Encoded:
    """Returns the texts of a classifier in the form that a `BertEmbedder` reads."""
    return dataclasses.replace(encoded, rows=[[row] for row in encoded.rows], batches=ChoiceBatches)


def _embed(model: BertEmbedder, batches: TextBatches, batch_size: int,
           after_batch: Callable[[Any], None] | None = None) -> np.ndarray:
    """Returns the embeddings of texts, float32 [texts, hidden]; see `keras_bert.tasks.run_model`."""
    return np.array(run_model(model, batches, batch_size, after_batch), np.float32)[:, 0]


def _linear_model() -> ModuleType:
    return require("sklearn.linear_model", "few_shot needs")
