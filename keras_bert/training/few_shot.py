"""Classification with a few texts per label: an encoder that learns to give texts of the same label similar embeddings,
then a logistic regression on the embeddings (SetFit: Tunstall et al., 2022, https://arxiv.org/abs/2209.11055).

SetFit's loss is `cosine_similarity` of single pairs. `multiple_negatives_ranking` compares each pair with all others of
its batch, and needs far fewer steps.
"""

import collections
import dataclasses
import math
import statistics

import numpy as np

from keras_bert.data import ChoiceBatches, SameLabelBatches
from keras_bert.errors import InputError
from keras_bert.models import BertEmbeddingClassifier
from keras_bert.tasks import Embed, run
from keras_bert.tasks.base import require
from keras_bert.text.coverage import shorten

# Of the regression: the inverse of the weight decay, more than scikit-learn's 1, with which the probabilities of many
# classes are all low; and the most steps of its optimizer, which needs fewer.
_C, _STEPS = 10.0, 1000
# Texts per label for which `few_shot` is recommended. It was more accurate than plain fine-tuning with 8 of each of 176
# intents (`benchmarks/few_shot.py`), and with 30 of each of 22 (docs/tasks/intent.md).
_FEW = 16
_MIN_STEPS = 10  # with 1 step per epoch, ten epochs were better than three


def check(path, examples):
    """Raises an InputError if scikit-learn is missing, or the examples of a classifier have pairs of texts, or fewer
    than two labels have two texts. `path` names the examples."""
    _linear_model()
    if examples[0].text_pair is not None:
        raise InputError(f"{path}: few_shot needs one text per row; got two")
    counts = collections.Counter(example.label for example in examples).values()
    if (several := sum(count > 1 for count in counts)) < 2:
        raise InputError(f"{path}: few_shot needs two labels with at least two texts each; got {several}")


def recommendation(task, labels):
    """Returns the lines of the report on the data that recommend `few_shot`: one for a classifier of single texts with
    few texts per label, otherwise none.

    Args:
        task: the `Task`.
        labels: dict of the labels to their numbers of texts.
    """
    if task.name not in ("intent", "classify") or task.pairs:
        return []
    median = statistics.median(labels.values())
    line = f"{median:g} texts per label at the median: with so few, few_shot is usually more accurate"
    return [line] if 2 <= median <= _FEW else []


def remarks(labels, steps, epochs):
    """Returns the lines of the report on the data that say what `few_shot` cannot learn from these texts.

    Args:
        labels: dict of the labels to their numbers of texts.
        steps: steps per epoch.
        epochs: number of epochs.
    """
    lines = []
    if single := [label for label, count in labels.items() if count == 1]:
        lines.append(f"{len(single):,} label{'s' * (len(single) != 1)} with one text, such as {shorten(single[0])}: "
                     "the encoder learns from the others only")
    if steps * epochs < _MIN_STEPS:
        lines.append(f"{steps * epochs} steps are few for the encoder: try epochs={math.ceil(_MIN_STEPS / steps)}")
    return lines


def embedding_task(max_length, pooling="mean"):
    """Returns the task that trains the encoder."""
    return Embed(max_length, "multiple_negatives_ranking", pooling, normalize=True)


def for_training(encoded):
    """Returns the `Encoded` texts of a classifier in the form that trains a `BertEmbedder`."""
    return dataclasses.replace(for_scoring(encoded), batches=SameLabelBatches)


def for_scoring(encoded):
    """Returns the `Encoded` texts of a classifier in the form that a `BertEmbedder` reads, one text per example."""
    return dataclasses.replace(encoded, rows=[[row] for row in encoded.rows], batches=ChoiceBatches)


def embed(embedder, batches, batch_size, after_batch=None):
    """Returns the embeddings of texts, float32 [texts, hidden]; see `keras_bert.tasks.run`."""
    return np.array(run(embedder, batches, batch_size, after_batch), np.float32)[:, 0]


def regression(embeddings, targets, class_weights=None):
    """Fits a logistic regression.

    Args:
        embeddings: float32 [texts, hidden].
        targets: int [texts], the classes.
        class_weights: see `finetune`.

    Returns:
        the kernel, float [hidden, classes], and the bias, float [classes].
    """
    fitted = _linear_model().LogisticRegression(C=_C, max_iter=_STEPS, class_weight=class_weights).fit(
        embeddings, targets)
    kernel, bias = fitted.coef_.T, fitted.intercept_
    if kernel.shape[1] == 1:  # of two classes, the logit of the first one is 0
        kernel, bias = np.pad(kernel, [(0, 0), (1, 0)]), np.pad(bias, (1, 0))
    return kernel, bias


def classifier(embedder, kernel, bias):
    """Returns the `BertEmbeddingClassifier` of an embedder's encoder and a regression on its embeddings."""
    model = BertEmbeddingClassifier(embedder.bert, len(bias), embedder.pooling)
    model.classifier.kernel.assign(kernel)
    model.classifier.bias.assign(bias)
    return model


def _linear_model():
    return require("sklearn.linear_model", "few_shot needs")
