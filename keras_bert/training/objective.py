"""What pretraining minimises, and the scores that it reports."""

import collections
import dataclasses

from keras import ops

from keras_bert import kernels


@dataclasses.dataclass(frozen=True)
class Objective:
    """The losses of masked tokens and next sentences (Devlin et al., 2018, appendix A.2), as sums over a part of a
    batch, so that what devices and micro-batches compute adds up to what one device computes of the whole.

    Args:
        next_sentence_weight: factor of the mean loss of next sentences, which is added to that of masked tokens.
    """

    next_sentence_weight: float = 1.0

    def counts(self, batch):
        """What the means divide by.

        Args:
            batch: dict with `masked_lm_weights` float32 [batch, n].

        Returns:
            dict of float32 scalars, `mlm` (tokens) and `next_sentence` (pairs).
        """
        weights = batch["masked_lm_weights"]
        return {"mlm": ops.sum(weights), "next_sentence": ops.cast(ops.shape(weights)[0], "float32")}

    def sums(self, model, batch, training=False):
        """Runs a `BertPretrainer` on a batch.

        Args:
            batch: dict of its inputs and of `masked_lm_ids` int32, `masked_lm_weights` float32 [batch, n], and
                of `next_sentence_labels` int32 [batch] for that head.

        Returns:
            dict of float32 scalars: `mlm_loss`, `mlm_correct`, and with that head `next_sentence_loss`,
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
        """What `sums` returns for a `BertPretrainer`: a list of str."""
        heads = ("mlm", "next_sentence") if model.next_sentence is not None else ("mlm",)
        return [f"{head}_{of}" for head in heads for of in ("loss", "correct")]

    def loss(self, sums, counts):
        """The scalar to minimise; without a masked token its mean is 0."""
        loss = sums["mlm_loss"] / ops.maximum(counts["mlm"], 1.0)
        if "next_sentence_loss" in sums:
            loss += self.next_sentence_weight * sums["next_sentence_loss"] / counts["next_sentence"]
        return loss

    def scores(self, parts):
        """The means over some batches.

        Args:
            parts: iterable of dicts, each the `sums` and the `counts` of one batch or of several.

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
    """A part of a batch, with other dropout than the others have.

    Args:
        part: dict with `dropout_seed` int32 [n, 2].
        index: int32 scalar, the number of the part.
    """
    seeds = part["dropout_seed"]
    return part | {"dropout_seed": ops.broadcast_to(kernels.fold_in(seeds[0], index), ops.shape(seeds))}


def _sums(name, logits, labels, weights):
    """Cross entropy and right answers of logits [..., classes], weighted."""
    entropy = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    correct = ops.cast(ops.equal(ops.cast(ops.argmax(logits, axis=-1), labels.dtype), labels), "float32")
    return {f"{name}_loss": ops.sum(entropy * weights), f"{name}_correct": ops.sum(correct * weights)}
