"""Classification with a few texts per label: an encoder that learns to give texts of the same label similar embeddings,
then a logistic regression on the embeddings (SetFit: Tunstall et al., 2022, https://arxiv.org/abs/2209.11055).

SetFit's loss is `cosine_similarity` of single pairs. `multiple_negatives_ranking` compares each pair with all others of
its batch, and needs far fewer steps.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from keras_bert.arguments import plural
from keras_bert.data.batches import ChoiceBatches, SameLabelBatches, TextBatches
from keras_bert.data.examples import Example
from keras_bert.errors import InputError, Option
from keras_bert.models import BertEmbedder, BertEmbeddingClassifier
from keras_bert.models.base import BertTask
from keras_bert.tasks import Embed, Encoded, Task, run_model
from keras_bert.tasks.base import require
from keras_bert.text import BertTokenizer
from keras_bert.text.coverage import shorten
from keras_bert.training.options import Options
from keras_bert.training.way import Way, weights_of_classes
from keras_bert.weights.source import Source

# Of the regression: the inverse of the weight decay, more than scikit-learn's 1, with which the probabilities of many
# classes are all low; and the most steps of its optimizer, which needs fewer.
_C, _STEPS = 10.0, 1000
_MIN_STEPS = 10  # with 1 step per epoch, ten epochs were better than three


class FewShot(Way):
    """The way to train a classifier that `finetune(few_shot=True)` chooses: its encoder is trained for the task embed.
    The arguments are the classifier's task, and the texts as that task encodes them."""

    def __init__(self, options: Options, source: Source, tokenizer: BertTokenizer, task: Task, train: Encoded,
                 valid: Encoded) -> None:
        pooling = source.options.get("pooling", "mean")
        super().__init__(options, source, tokenizer,
                         Embed(task.max_length, "multiple_negatives_ranking", pooling, normalize=True),
                         dataclasses.replace(_one_text_each(train), batches=SameLabelBatches), _one_text_each(valid))
        self._class_weight = weights_of_classes(options, task, train.targets)  # of the regression, not of the pairs

    @staticmethod
    def check(path: str, examples: Sequence[Example]) -> None:
        """Raises an InputError if scikit-learn is missing, or the examples have pairs of texts, or fewer than two
        labels have two texts."""
        _linear_model()
        if examples[0].text_pair is not None:
            raise InputError(f"{path}: ", Option("few_shot"), " needs one text per row; got two")
        counts = collections.Counter(example.label for example in examples).values()
        if (several := sum(count > 1 for count in counts)) < 2:
            raise InputError(f"{path}: ", Option("few_shot"), " needs two labels with at least two texts each; "
                             f"got {several}")

    def outputs(self, model: BertTask, batch_size: int, after_batch: Callable[[Any], None]) -> np.ndarray:
        """Returns the logits of the validation texts, by a regression on the embeddings of the training texts."""
        kernel, bias = self._regression(_embed(model, self.train_batches, batch_size, after_batch))
        return _embed(model, self.valid_batches, batch_size, after_batch) @ kernel + bias

    def finished(self, model: BertTask, batch_size: int) -> BertEmbeddingClassifier:
        """Returns the classifier: the trained encoder with the regression as its dense layer."""
        assert isinstance(model, BertEmbedder)  # the model of `task`
        kernel, bias = self._regression(_embed(model, self.train_batches, batch_size))
        classifier = BertEmbeddingClassifier(model.bert, len(bias), model.pooling)
        classifier.classifier.kernel.assign(kernel)
        classifier.classifier.bias.assign(bias)
        return classifier

    @staticmethod
    def remarks(labels: dict[str, int], steps: int, epochs: int) -> list[str]:
        """Returns the lines that say what `few_shot` cannot learn from these texts."""
        lines = []
        if single := [label for label, count in labels.items() if count == 1]:
            lines.append(f"{len(single):,} {plural('label', len(single))} with one text, such as {shorten(single[0])}: "
                         "the encoder learns from the others only")
        if steps * epochs < _MIN_STEPS:
            lines.append(f"{steps * epochs} steps are few for the encoder: try epochs={math.ceil(_MIN_STEPS / steps)}")
        return lines

    def _regression(self, embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fits a logistic regression; returns its kernel [hidden, classes] and its bias [classes]."""
        fitted = _linear_model().LogisticRegression(C=_C, max_iter=_STEPS, class_weight=self._class_weight).fit(
            embeddings, self._targets)
        kernel, bias = fitted.coef_.T, fitted.intercept_
        if kernel.shape[1] == 1:  # of two classes, the logit of the first one is 0
            kernel, bias = np.pad(kernel, [(0, 0), (1, 0)]), np.pad(bias, (1, 0))
        return kernel, bias


def _one_text_each(encoded: Encoded) -> Encoded:
    """Returns the texts of a classifier in the form that a `BertEmbedder` reads."""
    return dataclasses.replace(encoded, rows=[[row] for row in encoded.rows], batches=ChoiceBatches)


def _embed(model: BertTask, batches: TextBatches, batch_size: int,
           after_batch: Callable[[Any], None] | None = None) -> np.ndarray:
    """Returns the embeddings of texts, float32 [texts, hidden]; see `keras_bert.tasks.run_model`."""
    return np.array(run_model(model, batches, batch_size, after_batch), np.float32)[:, 0]


def _linear_model() -> ModuleType:
    return require("sklearn.linear_model", Option("few_shot"), " needs")
