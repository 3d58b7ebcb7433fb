"""The losses of sentence embeddings, under the names of the literature and of sentence-transformers.

Each is a function for `compile`: of the targets, and of the embeddings of the texts of each example, float32
[batch, texts, hidden]. Similarity is the cosine."""

from collections.abc import Callable

from keras import ops

from keras_bert.types import COSINE_SCALE, Tensor


def multiple_negatives_ranking(numbers: Tensor, embeddings: Tensor) -> Tensor:
    """Computes the cross entropy of finding the positive of an anchor among the positives and negatives of the whole
    batch, float32 [batch] (Henderson et al., 2017, section 4.4, https://arxiv.org/abs/1705.00652).

    The texts of an example are the anchor, its positive, and perhaps negatives of its own. The numbers, [batch, texts],
    are equal for equal texts, or for texts of the same label. A text that equals the anchor or its positive, and the
    positive of an equal anchor, is not a negative."""
    vectors = ops.normalize(embeddings, epsilon=1e-12)
    batch, anchors = ops.shape(numbers)[0], numbers[:, 0]
    # All positives in the order of the anchors, then all negatives.
    candidates = ops.reshape(ops.transpose(vectors[:, 1:], (1, 0, 2)), (-1, ops.shape(vectors)[2]))
    texts = ops.reshape(ops.transpose(numbers[:, 1:]), (-1,))
    anchor_of_positive = ops.concatenate([anchors, -ops.ones_like(texts[batch:])], axis=0)
    is_equal = ops.any(ops.stack([texts == anchors[:, None], texts == numbers[:, 1, None],
                                  anchor_of_positive == anchors[:, None]]), axis=0)
    positives = ops.arange(batch)
    is_own = ops.arange(ops.shape(texts)[0]) == positives[:, None]
    logits = COSINE_SCALE * ops.matmul(vectors[:, 0], ops.transpose(candidates))
    logits = ops.where(ops.logical_and(is_equal, ops.logical_not(is_own)), -1e9, logits)
    return ops.sparse_categorical_crossentropy(positives, logits, from_logits=True)


def cosent(scores: Tensor, embeddings: Tensor) -> Tensor:
    """Computes log(1 + the sum of exp(20 (cosine of i - cosine of j)) over all pairs of pairs of texts of which i has
    the lower score than j (CoSENT: Su, 2022, https://kexue.fm/archives/8847). Only the order of the scores, float32
    [batch], counts. The loss is a scalar."""
    cosines = COSINE_SCALE * _cosines(embeddings)
    is_lower = scores[:, None] < scores[None]
    differences = ops.where(is_lower, cosines[:, None] - cosines[None], -1e9)
    return ops.logsumexp(ops.concatenate([ops.zeros((1,)), ops.reshape(differences, (-1,))], axis=0))


def cosine_similarity(scores: Tensor, embeddings: Tensor) -> Tensor:
    """Computes the squared error of the cosine (Reimers and Gurevych, 2019, section 3), float32 [batch]. The scores are
    float32 [batch], from -1 to 1."""
    return ops.square(_cosines(embeddings) - scores)


def _cosines(embeddings: Tensor) -> Tensor:
    vectors = ops.normalize(embeddings, epsilon=1e-12)
    return ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    loss.__name__: loss for loss in (multiple_negatives_ranking, cosent, cosine_similarity)}
