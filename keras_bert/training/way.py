"""The usual way to train a model of a task, of which `few_shot.py` has another."""

import math
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_bert import kernels
from keras_bert.arguments import PositiveOrZero, check_rules, check_value, did_you_mean
from keras_bert.data.batches import PackedBatches, TextBatches
from keras_bert.data.examples import Example
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import read_object
from keras_bert.models.base import BertTask
from keras_bert.tasks import Classify, Encoded, Task, run_model
from keras_bert.tasks.base import Outputs
from keras_bert.text import BertTokenizer
from keras_bert.text.coverage import shorten
from keras_bert.training.options import BALANCED, Options
from keras_bert.weights.source import Source

# Texts per label for which `few_shot` is recommended. It was more accurate than plain fine-tuning with 8 of each of 176
# intents (`benchmarks/few_shot.py`), and with 30 of each of 22 (docs/tasks/intent.md).
_FEW = 16


class Way:
    """What a model is trained on and scored by: here the task's own inputs, with its own loss.

    Args:
        source: the pretrained weights.
        task: the task that the model is trained for.
        train, valid: the texts in the form that the model reads.

    Attributes:
        task: see above.
        train_batches, valid_batches: the batches of the texts.
        class_weight: the weights of the losses of the classes; None if all are the same.
    """

    train_batches: TextBatches
    valid_batches: TextBatches

    def __init__(self, options: Options, source: Source, tokenizer: BertTokenizer, task: Task, train: Encoded,
                 valid: Encoded) -> None:
        self.task = task
        self._targets = train.targets
        self.class_weight = weights_of_classes(options, task, train.targets)
        self._is_embedder = source.kind == "embedding"
        if options.pack:
            pools_last = source.config.directionality == "ltr"
            self.train_batches, self.valid_batches = (
                PackedBatches(encoded.rows, tokenizer.pad_id, encoded.targets, task.max_length, pools_last)
                for encoded in (train, valid))
        else:
            multiple = 16 if kernels.prefers_few_shapes() else 1
            self.train_batches = train.batched(tokenizer, multiple, whole=bool(options.devices))
            self.valid_batches = valid.batched(tokenizer, multiple)

    @staticmethod
    def check(path: str, examples: Sequence[Example]) -> None:
        """Raises an InputError if a model cannot be trained in this way on these examples, which `path` names."""

    def outputs(self, model: BertTask, batch_size: int, after_batch: Callable[[Any], None]) -> Outputs:
        """Returns the outputs for the validation texts, see `run_model`."""
        return run_model(model, self.valid_batches, batch_size, after_batch)

    def finished(self, model: BertTask, batch_size: int) -> BertTask:
        """Returns what answers, made of the trained model."""
        return model

    def remarks(self, labels: dict[str, int], steps: int, epochs: int) -> list[str]:
        """Returns the last lines of the report on the data.

        Args:
            labels: the number of texts of each label.
            steps: steps per epoch.
        """
        return recommendation(self.task, labels) if self._is_embedder else []


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
        check_rules((f"class_weights[{label!r}]", weight, "finite", math.isfinite(weight)))
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
