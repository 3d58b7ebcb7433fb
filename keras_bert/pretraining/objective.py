"""The loss of pretraining with its scores, and the base class of the trainers that minimise it."""

import abc
import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.input import MakeDataset
from keras_bert.types import Tensor

Batch = dict[str, Tensor]  # see `PretrainingRecords.dataset`
Sums = dict[str, Tensor]  # float32 scalars
MakeModel = Callable[[], tuple[BertPretrainer, keras.optimizers.Optimizer]]


@dataclasses.dataclass(frozen=True)
class Objective:
    """The masked-token and next-sentence losses (Devlin et al., 2018, appendix A.2), as sums over a part of a batch, so
    that the results of all devices and micro-batches add up to the result of one device for the whole batch."""

    next_sentence_weight: float = 1.0  # of the mean next-sentence loss, which is added to the mean masked-token loss

    def counts(self, batch: Batch) -> Sums:
        """Returns the numbers that the means divide by: `mlm` (tokens) and `next_sentence` (pairs)."""
        return {"mlm": ops.sum(batch["masked_lm_weights"]), "next_sentence": ops.sum(_weights(batch))}

    def sums(self, model: BertPretrainer, batch: Batch, training: bool = False) -> Sums:
        """Runs a model on a batch; returns the sums of its losses and of its correct predictions: `mlm_loss`,
        `mlm_correct`, and with the next-sentence head `next_sentence_loss`, `next_sentence_correct`."""
        outputs = model(batch, training=training)
        sums = _sums("mlm", outputs["mlm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"])
        if "next_sentence_logits" in outputs:
            sums |= _sums("next_sentence", outputs["next_sentence_logits"], batch["next_sentence_labels"],
                          _weights(batch))
        return sums

    @staticmethod
    def names(model: BertPretrainer) -> list[str]:
        """Returns the keys of what `sums` returns for a model."""
        heads = ("mlm", "next_sentence") if model.next_sentence is not None else ("mlm",)
        return [f"{head}_{of}" for head in heads for of in ("loss", "correct")]

    def loss(self, sums: Sums, counts: Sums) -> Tensor:
        """Returns the scalar to minimise. Without a masked token, the mean masked-token loss is 0."""
        loss = sums["mlm_loss"] / ops.maximum(counts["mlm"], 1.0)
        if "next_sentence_loss" in sums:
            loss += self.next_sentence_weight * sums["next_sentence_loss"] / counts["next_sentence"]
        return loss

    def scores(self, parts: Iterable[Sums]) -> dict[str, float]:
        """Returns the means over batches, `loss`, `mlm_loss`, `mlm_accuracy` and so on, from parts with the `sums` and
        the `counts` of one or more batches."""
        totals = collections.Counter[str]()
        for part in parts:
            totals.update({name: float(value) for name, value in part.items()})
        means = {f"{head}_{of}": totals[f"{head}_{kind}"] / max(totals[head], 1.0)
                 for head in ("mlm", "next_sentence") if f"{head}_loss" in totals
                 for of, kind in (("loss", "loss"), ("accuracy", "correct"))}
        return {"loss": float(self.loss(totals, totals))} | means


class Trainer(abc.ABC):
    """The base class of the trainers of `BertPretrainer`s, one for each backend. The gradient of a global batch does
    not depend on the number of devices.

    Args:
        make: makes the model, and an optimizer by `make_pretraining_optimizer`, which clips gradients.
        accumulation_steps: number of micro-batches that each device's share of a batch is split into.

    Attributes:
        devices: number of devices that each batch is split across.
        is_chief: True in the one process that writes files.
        metrics_variables: the sums and counts of all steps since `reset`.
    """

    devices: int
    is_chief: bool

    def __init__(self, make: MakeModel, objective: Objective, accumulation_steps: int) -> None:
        self.objective = objective
        self.accumulation_steps = accumulation_steps
        self.model, self.optimizer = make()
        self.trainable_variables = self.model.trainable_variables
        self.metrics_variables = [
            keras.Variable(0.0, trainable=False, aggregation="only_first_replica", name=name)
            for name in (*objective.names(self.model), "mlm", "next_sentence")]

    @abc.abstractmethod
    def train(self, steps: int) -> None:
        """Trains for that many steps."""

    @abc.abstractmethod
    def mean_over_processes(self, value: float) -> float:
        """Returns the mean of a value over all processes; each waits here for the others."""

    @abc.abstractmethod
    def _distributed(self, make_dataset: MakeDataset, step: int) -> Iterable[Batch]:
        """Returns the batches from `step` on, split across the devices."""

    @abc.abstractmethod
    def _evaluate_step(self, batch: Batch) -> Sums:
        """Returns the `Objective`'s sums and counts for a batch."""

    def feed(self, make_dataset: MakeDataset, step: int) -> None:
        """Sets the training data, and the first step to train."""
        self._batches = iter(self._distributed(make_dataset, step))

    def scores(self) -> dict[str, float]:
        """Returns the scores of all steps since `reset`, see `Objective.scores`."""
        return self.objective.scores([{total.name: ops.convert_to_numpy(total) for total in self.metrics_variables}])

    def reset(self) -> None:
        """Sets the sums of the scores to 0."""
        for total in self.metrics_variables:
            total.assign(0.0)

    def evaluate(self, make_dataset: MakeDataset, steps: int) -> dict[str, float]:
        """Returns the scores of the first `steps` batches of other data. The training scores do not change."""
        batches = itertools.islice(self._distributed(make_dataset, 0), steps)
        return self.objective.scores(map(self._evaluate_step, batches))

    def _accumulated(self, parts: Batch, gradients_of: Callable[[Batch], tuple[list[Tensor], Sums]]
                     ) -> tuple[list[Tensor], Sums]:
        """Adds up the gradients and the `Objective.sums` of micro-batches, tensors [accumulation_steps, batch, ...],
        which differ in their dropout."""
        def add(index: Tensor, totals: tuple[list[Tensor], Sums]) -> tuple[list[Tensor], Sums]:
            part = {name: values[index] for name, values in parts.items()}
            seeds = part["dropout_seed"]
            part["dropout_seed"] = ops.broadcast_to(kernels.fold_in(seeds[0], index), ops.shape(seeds))
            return keras.tree.map_structure(ops.add, totals, gradients_of(part))

        zeros = [ops.zeros(variable.shape, variable.dtype) for variable in self.trainable_variables]
        sums = {name: ops.zeros(()) for name in self.objective.names(self.model)}
        return ops.fori_loop(0, self.accumulation_steps, add, (zeros, sums))


def _weights(batch: Batch) -> Tensor:
    """Returns the weight of each example, float32 [batch]; 1 if the batch has no `example_weights`."""
    return batch.get("example_weights", ops.ones(ops.shape(batch["masked_lm_weights"])[:1]))


def _sums(name: str, logits: Tensor, labels: Tensor, weights: Tensor) -> Sums:
    """Returns the weighted sums of the cross entropy and of the correct predictions of logits [..., classes]."""
    entropy = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    correct = ops.cast(ops.equal(ops.cast(ops.argmax(logits, axis=-1), labels.dtype), labels), "float32")
    return {f"{name}_loss": ops.sum(entropy * weights), f"{name}_correct": ops.sum(correct * weights)}
