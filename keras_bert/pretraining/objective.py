"""The loss of pretraining with its scores, and the base class of the trainers that minimise it."""

import collections
import dataclasses
import itertools

import keras
from keras import ops

from keras_bert import kernels


@dataclasses.dataclass(frozen=True)
class Objective:
    """The masked-token and next-sentence losses (Devlin et al., 2018, appendix A.2), as sums over a part of a batch, so
    that the results of all devices and micro-batches add up to the result of one device for the whole batch.

    Args:
        next_sentence_weight: factor of the mean next-sentence loss, which is added to the mean masked-token loss.
    """

    next_sentence_weight: float = 1.0

    def counts(self, batch):
        """Returns the numbers that the means divide by.

        Args:
            batch: dict with `masked_lm_weights` float32 [batch, n], and perhaps `example_weights` float32 [batch].

        Returns:
            dict of float32 scalars, `mlm` (tokens) and `next_sentence` (pairs).
        """
        return {"mlm": ops.sum(batch["masked_lm_weights"]), "next_sentence": ops.sum(_weights(batch))}

    def sums(self, model, batch, training=False):
        """Runs a `BertPretrainer` on a batch and sums up its losses and its correct predictions.

        Args:
            batch: dict of the model's inputs, `masked_lm_ids` int32 and `masked_lm_weights` float32 [batch, n], and
                `next_sentence_labels` int32 [batch] if the model has the next-sentence head.

        Returns:
            dict of float32 scalars: `mlm_loss`, `mlm_correct`, and with the next-sentence head `next_sentence_loss`,
            `next_sentence_correct`.
        """
        outputs = model(batch, training=training)
        sums = _sums("mlm", outputs["mlm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"])
        if "next_sentence_logits" in outputs:
            sums |= _sums("next_sentence", outputs["next_sentence_logits"], batch["next_sentence_labels"],
                          _weights(batch))
        return sums

    @staticmethod
    def names(model):
        """Returns the keys of what `sums` returns for a `BertPretrainer`: a list of str."""
        heads = ("mlm", "next_sentence") if model.next_sentence is not None else ("mlm",)
        return [f"{head}_{of}" for head in heads for of in ("loss", "correct")]

    def loss(self, sums, counts):
        """Returns the scalar to minimise. Without a masked token, the mean masked-token loss is 0."""
        loss = sums["mlm_loss"] / ops.maximum(counts["mlm"], 1.0)
        if "next_sentence_loss" in sums:
            loss += self.next_sentence_weight * sums["next_sentence_loss"] / counts["next_sentence"]
        return loss

    def scores(self, parts):
        """Returns the means over batches.

        Args:
            parts: iterable of dicts, each with the `sums` and the `counts` of one or more batches.

        Returns:
            dict of floats `loss`, `mlm_loss`, `mlm_accuracy` and so on.
        """
        totals = collections.Counter()
        for part in parts:
            totals.update({name: float(value) for name, value in part.items()})
        means = {f"{head}_{of}": totals[f"{head}_{kind}"] / max(totals[head], 1.0)
                 for head in ("mlm", "next_sentence") if f"{head}_loss" in totals
                 for of, kind in (("loss", "loss"), ("accuracy", "correct"))}
        return {"loss": float(self.loss(totals, totals))} | means


class Trainer:
    """The base class of the trainers of `BertPretrainer`s, one for each backend. The gradient of a global batch does
    not depend on the number of devices.

    Args:
        make: function that returns the model and an optimizer from `make_pretraining_optimizer`, which clips gradients.
        objective: an `Objective`.
        accumulation_steps: number of micro-batches that each device's share of a batch is split into.

    Attributes:
        devices: number of devices that each batch is split across.
        is_chief: True in the one process that writes files.
        model, optimizer, trainable_variables: what `make` returned, and the variables that are trained.
        metrics_variables: list of `keras.Variable`s, the sums and counts of all steps since `reset`.

    Methods of the subclasses:
        train(steps): trains for `steps` steps.
        mean_over_processes(value): returns the mean of a float over all processes; each waits here for the others.
        _distributed(make_dataset, step): returns an iterable of batches from `step` on, split across the devices.
        _evaluate_step(batch): returns the `Objective`'s sums and counts for a batch.
    """

    def __init__(self, make, objective, accumulation_steps):
        self.objective = objective
        self.accumulation_steps = accumulation_steps
        self.model, self.optimizer = make()
        self.trainable_variables = self.model.trainable_variables
        self.metrics_variables = [
            keras.Variable(0.0, trainable=False, aggregation="only_first_replica", name=name)
            for name in (*objective.names(self.model), "mlm", "next_sentence")]

    def feed(self, make_dataset, step):
        """Sets the training data.

        Args:
            make_dataset: function of a step, a shard and the number of shards that returns a dataset, see
                `PretrainingInput.batches`.
            step: the first step to train.
        """
        self._batches = iter(self._distributed(make_dataset, step))

    def scores(self):
        """Returns the scores of all steps since `reset`, see `Objective.scores`."""
        return self.objective.scores([{total.name: ops.convert_to_numpy(total) for total in self.metrics_variables}])

    def reset(self):
        """Sets the sums of the scores to 0."""
        for total in self.metrics_variables:
            total.assign(0.0)

    def evaluate(self, make_dataset, steps):
        """Returns the scores of the first `steps` batches of other data. The training scores do not change."""
        batches = itertools.islice(self._distributed(make_dataset, 0), steps)
        return self.objective.scores(map(self._evaluate_step, batches))

    def _accumulated(self, parts, gradients_of):
        """Adds up the results of micro-batches, which differ in their dropout.

        Args:
            parts: dict of tensors [accumulation_steps, batch, ...].
            gradients_of: function of a part that returns its gradients and its `Objective.sums`.
        """
        def add(index, totals):
            part = {name: values[index] for name, values in parts.items()}
            seeds = part["dropout_seed"]
            part["dropout_seed"] = ops.broadcast_to(kernels.fold_in(seeds[0], index), ops.shape(seeds))
            return keras.tree.map_structure(ops.add, totals, gradients_of(part))

        zeros = [ops.zeros(variable.shape, variable.dtype) for variable in self.trainable_variables]
        sums = {name: ops.zeros(()) for name in self.objective.names(self.model)}
        return ops.fori_loop(0, self.accumulation_steps, add, (zeros, sums))


def _weights(batch):
    """Returns the weight of each example, float32 [batch]; 1 if the batch has no `example_weights`."""
    return batch.get("example_weights", ops.ones(ops.shape(batch["masked_lm_weights"])[:1]))


def _sums(name, logits, labels, weights):
    """Returns the weighted sums of the cross entropy and of the correct predictions of logits [..., classes]."""
    entropy = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    correct = ops.cast(ops.equal(ops.cast(ops.argmax(logits, axis=-1), labels.dtype), labels), "float32")
    return {f"{name}_loss": ops.sum(entropy * weights), f"{name}_correct": ops.sum(correct * weights)}
