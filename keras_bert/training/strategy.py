"""The training strategies: the default one, and that of `few_shot`."""

import collections
import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from keras_bert import kernels
from keras_bert.arguments import PositiveOrZero, check_rules, check_value, did_you_mean, plural
from keras_bert.data.batches import ChoiceBatches, PackedBatches, SameLabelBatches, TextBatches
from keras_bert.data.examples import Example
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import read_object
from keras_bert.models import BertEmbedder, BertEmbeddingClassifier
from keras_bert.models.base import BertTask
from keras_bert.tasks import Classify, Embed, Encoded, Task, run_model
from keras_bert.tasks.base import Outputs, require
from keras_bert.text import Tokenizer
from keras_bert.text.coverage import shorten
from keras_bert.training.options import BALANCED, Options
from keras_bert.weights.format import Source

# Texts per label for which `few_shot` is recommended. It was more accurate than plain fine-tuning with 8 of each of 176
# intents (`benchmarks/few_shot.py`), and with 30 of each of 22 (docs/tasks/intent.md).
_FEW = 16
# Of the regression: the inverse of the weight decay, more than scikit-learn's 1, with which the probabilities of many
# classes are all low; and the most steps of its optimizer, which needs fewer.
_C, _STEPS = 10.0, 1000
_HIGHEST_WEIGHT = 1_000_000  # of a class
_MIN_STEPS = 10  # with 1 step per epoch, ten epochs were better than three


class Strategy:
    """The default training strategy: a model is trained on the task's own inputs, with its own loss.

    Args:
        source: the pretrained weights.
        task: the task that the model is trained for.
        train, valid: the texts in the form that the model reads; `train_batches` and `valid_batches` are their batches.

    Attributes:
        class_weight: the weights of the losses of the classes; None if all are the same.
        digests: what decides the result besides the data and the model, SHA-256 by name.
        description: more entries of `metrics.json`.
    """

    digests: dict[str, str] = {}
    description: dict[str, Any] = {}

    def __init__(self, options: Options, source: Source, tokenizer: Tokenizer, task: Task, train: Encoded,
                 valid: Encoded) -> None:
        self.task = task
        self._targets = train.targets
        self.class_weight = weights_of_classes(options, task, train.targets)
        self._is_embedder = source.kind == "embedding"
        if not options.pack:
            multiple = 16 if kernels.prefers_few_shapes() else 1
            self.train_batches = train.batched(tokenizer, multiple, drop_remainder=bool(options.devices))
            self.valid_batches = valid.batched(tokenizer, multiple)
        else:
            pools_last = source.config.directionality == "ltr"
            self.train_batches, self.valid_batches = (
                PackedBatches(encoded.rows, tokenizer.pad_id, encoded.targets, task.max_length, pools_last)
                for encoded in (train, valid))

    @staticmethod
    def check(path: str, examples: Sequence[Example]) -> None:
        """Raises an InputError if a model cannot be trained on these examples, which `path` names."""

    def outputs(self, model: BertTask, batch_size: int, after_batch: Callable[[Any], None]) -> Outputs:
        """Returns the outputs for the validation texts, see `run_model`."""
        return run_model(model, self.valid_batches, batch_size, after_batch)

    def finished(self, model: BertTask, batch_size: int) -> BertTask:
        """Returns what answers, made of the trained model."""
        return model

    def loss_arguments(self) -> dict[str, Any]:
        """Returns the arguments of Keras's `compile` for the targets of `train_batches`."""
        return self.task.loss_arguments()

    def remarks(self, labels: dict[str, int], steps: int, epochs: int) -> list[str]:
        """Returns the last lines of the report on data with these numbers of texts by label. `steps` are per epoch."""
        return recommendation(self.task, labels) if self._is_embedder else []


class FewShot(Strategy):
    """Classification with a few texts per label, `finetune(few_shot=True)`: an encoder learns to give texts of the same
    label similar embeddings, then a logistic regression is fitted to the embeddings (SetFit: Tunstall et al., 2022,
    https://arxiv.org/abs/2209.11055). The arguments are the classifier's task, and the texts as that task encodes them.

    SetFit's loss is `cosine_similarity` of single pairs. `multiple_negatives_ranking` compares each pair with all
    others of its batch, and needs far fewer steps.
    """

    def __init__(self, options: Options, source: Source, tokenizer: Tokenizer, task: Task, train: Encoded,
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


def weights_of_classes(options: Options, task: Task, targets: np.ndarray) -> dict[int, float] | None:
    """Returns the weight of each class; None if there is no option `class_weights`. Balanced weights give all classes
    the same total weight (King and Zeng, 2001)."""
    if options.class_weights is None or not isinstance(task, Classify):
        return None
    if options.class_weights == BALANCED:
        counts = np.bincount(targets)
        return {number: len(targets) / (len(counts) * count) for number, count in enumerate(counts)}
    weights: Any = options.class_weights
    if options.weights_file is not None:
        if not os.path.isfile(weights):
            raise InputError(Option("class_weights"),
                             f" must be {BALANCED}, or weights by label: a dict or a .json file; there is no file "
                             f"{weights}{did_you_mean(weights, [BALANCED])}")
        weights = read_object(weights)
    for label, weight in weights.items():
        check_value(f"class_weights[{label!r}]", weight, PositiveOrZero)
        check_rules((f"class_weights[{label!r}]", weight, f"at most {_HIGHEST_WEIGHT:,}, as float32 has 7 digits: a "
                     "higher weight would hide the other classes", weight <= _HIGHEST_WEIGHT))
        if label not in task.labels:
            raise InputError(Option("class_weights"), f" must have labels of the training file, "
                             f"{shorten(', '.join(task.labels))}; got {label!r}{did_you_mean(label, task.labels)}")
    check_rules(("class_weights", weights, "positive for at least two labels",
                 sum(weights.get(label, 1.0) > 0 for label in task.labels) > 1))
    return {number: float(weights.get(label, 1.0)) for number, label in enumerate(task.labels)}


def recommendation(task: Task, labels: dict[str, int]) -> list[str]:
    """Returns the lines of the report on the data that recommend `few_shot`: one for a classifier of single texts with
    few texts per label, otherwise none. `labels` has the number of texts of each label."""
    if not isinstance(task, Classify) or task.pairs:
        return []
    median = statistics.median(labels.values())
    line = f"{median:g} texts per label at the median: with so few, few_shot is usually more accurate"
    return [line] if 2 <= median <= _FEW else []


def _one_text_each(encoded: Encoded) -> Encoded:
    """Returns the texts of a classifier in the form that a `BertEmbedder` reads."""
    return dataclasses.replace(encoded, rows=[[row] for row in encoded.rows], batches=ChoiceBatches)


def _embed(model: BertTask, batches: TextBatches, batch_size: int,
           after_batch: Callable[[Any], None] | None = None) -> np.ndarray:
    """Returns the embeddings of texts, float32 [texts, hidden]; see `keras_bert.tasks.run_model`."""
    return np.array(run_model(model, batches, batch_size, after_batch), np.float32)[:, 0]


def _linear_model() -> ModuleType:
    return require("sklearn.linear_model", Option("few_shot"), " needs")
