"""The loss of pretraining, and the scores that it reports."""

import collections
import dataclasses

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
            batch: dict with `masked_lm_weights` float32 [batch, n].

        Returns:
            dict of float32 scalars, `mlm` (tokens) and `next_sentence` (pairs).
        """
        weights = batch["masked_lm_weights"]
        return {"mlm": ops.sum(weights), "next_sentence": ops.cast(ops.shape(weights)[0], "float32")}

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
            labels = batch["next_sentence_labels"]
            sums |= _sums("next_sentence", outputs["next_sentence_logits"], labels, ops.ones(ops.shape(labels)))
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


def with_own_dropout(part, index):
    """Returns a part of a batch with its own dropout seed, so that the dropout differs between parts.

    Args:
        part: dict with `dropout_seed` int32 [n, 2].
        index: int32 scalar, the number of the part.
    """
    seeds = part["dropout_seed"]
    return part | {"dropout_seed": ops.broadcast_to(kernels.fold_in(seeds[0], index), ops.shape(seeds))}


def _sums(name, logits, labels, weights):
    """Returns the weighted sums of the cross entropy and of the correct predictions of logits [..., classes]."""
    entropy = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    correct = ops.cast(ops.equal(ops.cast(ops.argmax(logits, axis=-1), labels.dtype), labels), "float32")
    return {f"{name}_loss": ops.sum(entropy * weights), f"{name}_correct": ops.sum(correct * weights)}
