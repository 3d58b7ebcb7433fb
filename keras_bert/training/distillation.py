"""Distillation, `finetune(teacher=…)`: a model with fewer blocks learns the answers of a fine-tuned one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_bert.data.examples import iterate_texts
from keras_bert.data.tables import at_least_one
from keras_bert.errors import InputError, Option
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.tasks import Encoded, Task
from keras_bert.text import Tokenizer
from keras_bert.text.coverage import shorten
from keras_bert.training.checkpoints import weights_digest
from keras_bert.training.options import Options
from keras_bert.training.strategy import Strategy
from keras_bert.types import Tensor
from keras_bert.weights.format import Source

_TEMPERATURE = 2.0  # as of DistilBERT (Sanh et al., 2019)
_SHARE = 0.5  # of the teacher's answers in the loss; that of the labels is the rest
_UNKNOWN = -1.0  # the target of each label of an unlabelled text


class Distillation(Strategy):
    """Training on the labels and on the answers of a teacher; of unlabelled texts, on these alone (Hinton et al., 2015,
    https://arxiv.org/abs/1503.02531). See `Strategy` for the arguments."""

    def __init__(self, options: Options, source: Source, tokenizer: Tokenizer, task: Task, train: Encoded,
                 valid: Encoded) -> None:
        teacher: Any = FineTuned.load(options.pretrained)
        teacher.task.check_inputs(options.train, train.examples)
        labels, learned = teacher.task.labels, getattr(task, "labels", [])
        if others := sorted({*labels} ^ {*learned}):
            raise InputError(Option("train"), f" must have the labels of the teacher, {options.teacher}; only one of "
                             f"the two has {shorten(', '.join(others))}")
        columns, encoded, self._lines = [labels.index(label) for label in learned], [train], list[str]()
        if options.unlabelled is not None:
            texts = list(at_least_one(
                iterate_texts(options.unlabelled, options.text_column, options.text_pair_column),
                f"{options.unlabelled}: holds no texts"))
            task.check_inputs(options.unlabelled, texts)
            encoded.append(task.encode(texts, tokenizer))
            same = task.same_texts(tokenizer)
            repeated = {*task.groups(valid.examples, same)}.intersection(task.groups(texts, same))
            self._lines.append(f"{len(texts):,} unlabelled texts")
            self.description = {"unlabelled_examples": len(texts)}
            if repeated:
                self._lines.append(f"warning: unlabelled texts that are also validation texts: {len(repeated):,}: "
                                   "scores on these are too high; remove them from one of the two")
        answers = [_logits(teacher, each, columns) for each in encoded]
        known = np.eye(len(labels))[train.targets] if train.targets.ndim == 1 else train.targets
        known = np.vstack([known, *(np.full_like(each, _UNKNOWN) for each in answers[1:])])
        targets = np.hstack([np.vstack(answers), known]).astype(np.float32)
        rows = [row for each in encoded for row in each.rows]
        train = dataclasses.replace(train, rows=rows, targets=targets)
        super().__init__(options, source, tokenizer, task, train, valid)
        outputs = _logits(teacher, valid, columns)
        main, scores = task.main_score(valid.examples), task.calibrated(valid, outputs).score(valid, outputs)
        of_labels = {label: row["f1"] for label, row in (scores.get("classes") or scores["labels"]).items()}
        self.description = self.description | {"teacher": {main: scores[main], "f1": of_labels}}
        self.digests = {"teacher": weights_digest(tokenizer, teacher.model.variables)}
        self._lines.append(f"teacher: {main} {scores[main]:.4f} on the validation texts")

    def loss_arguments(self) -> dict[str, Any]:
        return {"loss": distillation_loss(self.task.activation)}

    def remarks(self, labels: dict[str, int], steps: int, epochs: int) -> list[str]:
        return self._lines


def _logits(teacher: FineTuned, encoded: Encoded, columns: list[int]) -> np.ndarray:
    """Returns the teacher's logits of these labels for each row, float32 [rows, labels]."""
    return np.array(teacher.outputs(encoded), np.float32)[:, columns]


def distillation_loss(activation: str | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the loss of a student. Its targets are float32 [batch, 2 * labels]: the teacher's logits, then 1 for each
    label of the text and 0 for others, or -1 for all if the text has none. It is half the cross-entropy with the
    teacher's probabilities at temperature 2, times its square (Hinton et al., 2015, section 2), and half that with the
    labels."""
    def cross_entropy(probabilities: Tensor, logits: Tensor) -> Tensor:
        if activation == "softmax":
            return ops.categorical_crossentropy(probabilities, logits, from_logits=True)
        return ops.mean(ops.binary_crossentropy(probabilities, logits, from_logits=True), axis=-1)

    def loss(targets: Tensor, logits: Tensor) -> Tensor:
        teacher, labels = ops.split(targets, 2, axis=-1)
        turned = (ops.softmax if activation == "softmax" else ops.sigmoid)(teacher / _TEMPERATURE)
        of_teacher = cross_entropy(turned, logits / _TEMPERATURE) * _TEMPERATURE**2
        of_labels = ops.where(labels[:, 0] < 0, 0.0, cross_entropy(ops.maximum(labels, 0.0), logits))
        return _SHARE * of_teacher + (1 - _SHARE) * of_labels

    return loss
