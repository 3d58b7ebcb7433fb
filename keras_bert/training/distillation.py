"""Distillation, `finetune(teacher=…)`: a model with fewer blocks learns the answers of a fine-tuned one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_bert.data.rows import iterate_lines
from keras_bert.errors import InputError, Option
from keras_bert.files.paths import check_model_folder
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.tasks import TASKS, Classify, Encoded, MultiLabel, Task, read_settings, tasks_with
from keras_bert.tasks.score_names import SCORES
from keras_bert.tasks.windows import WindowTask
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
        labels: list[str] = getattr(task, "labels", [])
        if type(task).loss_arguments not in (Classify.loss_arguments, MultiLabel.loss_arguments):
            raise InputError(Option("teacher"), " is for tasks with the loss of classify or multilabel; "
                             f"{task.name} has another one")
        columns = list(map(teacher.task.labels.index, labels))

        def logits(encoded: Encoded) -> np.ndarray:
            return np.array(teacher.outputs(encoded), np.float32)[:, columns]

        texts = [] if options.unlabelled is None else _read_unlabelled(options, task)
        more = task.encode(texts, tokenizer)
        known = len(train.rows)
        targets = np.full((known + len(more.rows), 2 * len(labels)), _UNKNOWN, np.float32)
        targets[:known, :len(labels)] = logits(train)
        targets[:known, len(labels):] = (
            train.targets if train.targets.ndim == 2 else train.targets[:, None] == np.arange(len(labels)))
        if texts:
            targets[known:, :len(labels)] = logits(more)
        super().__init__(options, source, tokenizer, task, dataclasses.replace(
            train, rows=[*train.rows, *more.rows], targets=targets), valid)
        outputs = logits(valid)
        main, scores = task.main_score(valid.examples), task.calibrated(valid, outputs).score(valid, outputs)
        remarks = [f"teacher: {SCORES[main]} {scores[main]:.4f} on the validation texts"]
        if texts:
            remarks.append(f"{len(texts):,} unlabelled texts")
            same = task.same_texts(tokenizer)
            if repeated := {*task.groups(valid.examples, same)}.intersection(task.groups(texts, same)):
                remarks.append(f"warning: unlabelled texts that are also validation texts: {len(repeated):,}: scores "
                               "on these are too high; remove them from one of the two")
        of_labels = {label: row["f1"] for label, row in (scores.get("classes") or scores["labels"]).items()}
        self.description = {"teacher": {main: scores[main], "f1": of_labels}, "remarks": remarks} | (
            {"unlabelled_examples": len(texts)} if texts else {})
        self.digests = {"teacher": weights_digest(tokenizer, teacher.model.variables)}

    def loss_arguments(self) -> dict[str, Any]:
        return {"loss": distillation_loss(self.task.activation)}

    def remarks(self, labels: dict[str, int], steps: int, epochs: int) -> list[str]:
        return self.description["remarks"]


def fields_of_teacher(options: Options) -> dict[str, Any]:
    """Returns the fields of the task that a student has from its teacher. Raises an InputError if that is no folder of
    `finetune`, or for another task."""
    check_model_folder(options.pretrained)
    taught, _ = read_settings(options.pretrained)
    if "teacher" not in taught.options:
        raise InputError(Option("teacher"), f" must be a model for {', '.join(tasks_with('teacher'))}; "
                         f"{options.teacher} is for {taught.name}")
    if type(taught) is not TASKS[options.task]:
        raise InputError(Option("task"), f" must be that of the teacher, {taught.name}; got {options.task}")
    return {name: getattr(taught, name) for name in ("max_length", *WindowTask.fields)}


def check_labels_of_teacher(options: Options, task: Task) -> None:
    """Raises an InputError unless the teacher has the labels of a task, in any order, and its inputs."""
    taught, _ = read_settings(options.pretrained)
    old, new = ({*getattr(each, "labels", [])} for each in (taught, task))
    if old != new:
        lacks = [f"{who} lacks {shorten(', '.join(sorted(labels)))}" for who, labels in (
            ("it", old - new), ("the teacher", new - old)) if labels]
        raise InputError(Option("train"), f" must have the labels of the teacher, {options.teacher}: "
                         f"{', and '.join(lacks)}")
    if taught.inputs != task.inputs:
        raise InputError(Option("train"), f" must have {taught.describe_input()}, as the teacher, {options.teacher}; "
                         f"got {task.describe_input()}")


def _read_unlabelled(options: Options, task: Task) -> list:
    """Returns the texts of `unlabelled` that are not blank, as inputs of the task."""
    path = str(options.unlabelled)
    if path.lower().endswith((".txt", ".txt.gz")):
        found: Any = (task.example(line) for line in iterate_lines(path))
    else:
        columns = options.given(("data_format", "text_column", "text_pair_column"))
        found = task.iterate(path, **columns, label_column=None)
    if not (examples := [example for example in found if "".join(task.all_texts(example)).strip()]):
        raise InputError(f"{path}: holds no texts")
    task.check_inputs(path, examples)
    return examples


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
