"""The scores of sentence embeddings, as in the evaluators of sentence-transformers. Similarity is the cosine."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from keras_bert.tasks.base import threshold_between
from keras_bert.tasks.multilabel import average_precision
from keras_bert.tasks.regress import correlations
from keras_bert.types import COSINE_SCALE

_CHUNK = 256  # queries whose similarities to all documents are in memory at once
_RANKS = 10
_GAINS = np.cumsum([0, *1 / np.log2(np.arange(_RANKS) + 2)])  # of the first ranks together, from none of them on
_DECIMALS = 6  # of cosines: float32's rounding changes later ones
_RECALLS = 1, 5, 10


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Divides vectors [..., hidden] by their L2 norms."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def similarity(cosines: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Computes the scores of semantic textual similarity (EmbeddingSimilarityEvaluator) of `cosines` and `scores`, both
    float [pairs]: `spearman` and `pearson`, the correlations, and `loss`, that of CoSENT over all pairs."""
    pearson, spearman = correlations(cosines, scores)
    return {"spearman": spearman, "pearson": pearson, "loss": _cosent(cosines, scores)}


def pair_classification(cosines: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Computes the scores of telling pairs of equal texts, `right`, bool [pairs], of both values, from others by their
    `cosines`, float [pairs] (BinaryClassificationEvaluator): `average_precision`; `f1`, `precision` and `recall` of the
    threshold with the best F1, `f1_threshold`; `accuracy` of the threshold with the best accuracy,
    `accuracy_threshold`; `loss`, that of CoSENT over all pairs."""
    order = np.argsort(-cosines, kind="stable")
    ranked = np.concatenate([[np.inf], cosines[order], [-1.0]])
    ends = np.flatnonzero(np.diff(ranked[1:-1], append=-np.inf))  # no threshold can separate equal cosines
    hits, accepted, total = np.cumsum(right[order])[ends], ends + 1, right.sum()
    f1 = 2 * hits / (accepted + total)
    # The highest threshold accepts no pair.
    correct = np.append(0, 2 * hits - accepted) + len(right) - total
    best, most = int(f1.argmax()), int(correct.argmax())

    def between(rank: int) -> float:
        """Returns the threshold that accepts `rank` pairs."""
        return threshold_between(ranked[rank + 1], ranked[rank])

    return {"average_precision": average_precision(cosines, right), "f1": float(f1[best]),
            "precision": float(hits[best] / accepted[best]), "recall": float(hits[best] / total),
            "f1_threshold": between(ends[best] + 1), "accuracy": float(correct[most] / len(right)),
            "accuracy_threshold": between(ends[most - 1] + 1 if most else 0), "loss": _cosent(cosines, right)}


def ranking(scores: np.ndarray, relevant: np.ndarray, recalls: Sequence[int] = ()) -> tuple[float, ...]:
    """Computes (nDCG@10, MRR@10) of ranking the documents of one query by `scores`, float [documents], of which those
    that are `relevant`, bool [documents], should be first (CrossEncoderRerankingEvaluator of sentence-transformers);
    then the recall at each number of ranks in `recalls`. All are 0 if no document is relevant. Documents with equal
    scores share their gains and hits, as gains in scikit-learn, and the first relevant document ranks after the others
    with its score. NaN is the lowest score."""
    if not relevant.any():
        return (0.0,) * (2 + len(recalls))
    scores = np.where(np.isnan(scores), -np.inf, scores)
    ranked = np.sort(-scores)
    # Before and after all documents with the score of each relevant one: int [2, relevant].
    ranks = np.stack([np.searchsorted(ranked, -scores[relevant], side) for side in ("left", "right")])
    gain, *hits = (float(np.sum(np.diff(sums, axis=0) / np.diff(ranks, axis=0))) for sums in (
        _GAINS[np.minimum(ranks, _RANKS)], *(np.minimum(ranks, k) for k in recalls)))
    rank = 1 + np.sum((scores >= scores[relevant].max()) & ~relevant)
    count = relevant.sum()
    return (gain / _GAINS[min(count, _RANKS)], float(1 / rank if rank <= _RANKS else 0), *(hit / count for hit in hits))


def retrieval(queries: np.ndarray, documents: np.ndarray, relevant: Callable[[np.ndarray], np.ndarray],
              excluded: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
    """Computes the scores of ranking documents by their similarity to queries (InformationRetrievalEvaluator).

    `queries` and `documents` are unit vectors, float [queries or documents, hidden]. `relevant` takes consecutive
    numbers of queries, and returns bool [these queries, documents], True for the documents to find, at least one per
    query; `excluded` does so for documents that are not ranked. Returns means over the queries, `ndcg_at_10`,
    `mrr_at_10`, `recall_at_1`, `recall_at_5` and `recall_at_10`, see `ranking`; and over the relevant documents,
    `loss`, the cross entropy of such a document among those that are not relevant. Cosines are ranked by 6 decimals."""
    rows: list[tuple[float, ...]] = []
    losses = []
    documents = documents.T.astype(np.float64)  # a product in float32 depends on the places of the vectors
    for numbers in np.split(np.arange(len(queries)), range(_CHUNK, len(queries), _CHUNK)):
        cosines = np.where(excluded(numbers), -np.inf, queries[numbers] @ documents)
        wanted = relevant(numbers) & np.isfinite(cosines)
        rows += map(ranking, cosines.round(_DECIMALS), wanted, itertools.repeat(_RECALLS))
        logits = COSINE_SCALE * cosines
        others = np.logaddexp.reduce(np.where(wanted, -np.inf, logits), 1)
        losses.append(np.logaddexp(np.repeat(others, wanted.sum(1)), logits[wanted]) - logits[wanted])
    names = "ndcg_at_10", "mrr_at_10", *(f"recall_at_{k}" for k in _RECALLS)
    return dict(zip(names, map(float, np.mean(rows, 0)))) | {"loss": float(np.concatenate(losses).mean())}


def _cosent(cosines: np.ndarray, scores: np.ndarray) -> float:
    """Computes the loss `cosent` of all pairs, without comparing each pair with each other one."""
    order = np.argsort(scores, kind="stable")
    logits = COSINE_SCALE * cosines[order].astype(np.float64)
    begins = np.flatnonzero(np.diff(scores[order].astype(np.float64), prepend=-np.inf))  # of each score
    lower, own = np.logaddexp.accumulate(logits)[begins[1:] - 1], np.logaddexp.reduceat(-logits, begins)[1:]
    return float(np.logaddexp.reduce([0.0, *(lower + own)]))
