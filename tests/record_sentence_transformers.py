"""Records what sentence-transformers computes: losses with their gradients, and the scores of its evaluators.

Run in an environment with the library (pip install sentence-transformers==6.2.0):

    python tests/record_sentence_transformers.py MINILM [STSB]

MINILM is the folder of the encoder, STSB a folder with a sample of STS-B. It replaces
tests/data/sentence_transformers.json, which tests/test_embed.py compares with our results.
"""

import json
import pathlib
import sys

import numpy as np

FILE = pathlib.Path(__file__).parent / "data/sentence_transformers.json"
KORSTS = pathlib.Path(__file__).parent / "data/real/ko/kornlu/KorSTS/sts-dev.tsv"
SCORES = [0.25, 0.75, 0.25, 0.5, 1.0]


def sts(path):
    """The rows of a file of STS-B or KorSTS as three lists: texts, texts, scores."""
    header, *rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    first, second, score = map(header.index, ("sentence1", "sentence2", "score"))
    return ([row[first] for row in rows], [row[second] for row in rows], [float(row[score]) / 5 for row in rows])


def losses():
    """The losses of random embeddings, with their gradients."""
    import torch
    from sentence_transformers.sentence_transformer import losses

    class Given(torch.nn.Module):
        def forward(self, embeddings):
            return {"sentence_embedding": embeddings}

    embeddings = np.random.default_rng(0).normal(size=(5, 3, 8)).round(3).astype(np.float32)
    found = {"embeddings": embeddings.tolist(), "scores": SCORES}
    for name, loss, texts in (("multiple_negatives_ranking", losses.MultipleNegativesRankingLoss, 2),
                              ("multiple_negatives_ranking", losses.MultipleNegativesRankingLoss, 3),
                              ("cosent", losses.CoSENTLoss, 2),
                              ("cosine_similarity", losses.CosineSimilarityLoss, 2)):
        leaf = torch.tensor(embeddings[:, :texts], requires_grad=True)
        value = loss(Given())([leaf[:, i] for i in range(texts)], torch.tensor(SCORES))
        value.backward()
        found[f"{name} {texts}"] = {"loss": value.item(), "gradient": leaf.grad.tolist()}
    return found


def given_vectors(model):
    """The scores of evaluators for random vectors: of pairs of which two each have the same cosine, and of queries with
    several documents to find."""
    import torch

    rng = np.random.default_rng(1)
    vectors, labels = np.repeat(rng.normal(size=(12, 3)).round(3), 2, axis=0), rng.integers(0, 2, 12)
    hidden, corpus = rng.normal(size=(8, 3)).round(3), rng.normal(size=(30, 3)).round(3)
    relevant = rng.random((8, 30)) < 0.1
    relevant[range(8), range(8)] = True
    table = {f"{name}{i:02}": row for name, rows in (("v", vectors), ("q", hidden), ("d", corpus))
             for i, row in enumerate(rows)}

    def encode(inputs, convert_to_tensor=False, **_):
        vectors = np.array([table[text] for text in inputs], np.float32)
        return torch.tensor(vectors) if convert_to_tensor else vectors

    model.encode = encode
    queries, documents = ({name: name for name in table if name[0] == letter} for letter in "qd")
    return {
        "vectors": vectors.tolist(), "labels": labels.tolist(), "queries": hidden.tolist(),
        "documents": corpus.tolist(), "relevant": [np.flatnonzero(row).tolist() for row in relevant],
        "pair_classification": evaluate("BinaryClassificationEvaluator", model, [f"v{i:02}" for i in range(12)],
                                        [f"v{i:02}" for i in range(12, 24)], labels.tolist()),
        "retrieval": evaluate("InformationRetrievalEvaluator", model, queries, documents, {
            f"q{i:02}": {f"d{j:02}" for j in np.flatnonzero(row)} for i, row in enumerate(relevant)})}


def evaluate(name, model, *data, **options):
    from sentence_transformers.sentence_transformer import evaluation

    return {key: float(value) for key, value in getattr(evaluation, name)(*data, **options)(model).items()}


def rankings():
    """The scores of rankings, [documents] each, some with equal scores: (nDCG@10, MRR@10)."""
    from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator

    evaluator, rng, found = CrossEncoderRerankingEvaluator([]), np.random.default_rng(2), []
    for count in (2, 5, 11, 30, 30):
        for decimals in (1, 6):
            scores, relevant = rng.normal(size=count).round(decimals), rng.random(count) < 0.2
            relevant[rng.integers(count)] = True
            if decimals == 1:  # their order of equal scores depends on the sort
                scores[np.flatnonzero(relevant)] += 0.05
            mrr, ndcg, _ = evaluator.compute_metrics(relevant.astype(int).tolist(), scores)
            found.append({"scores": scores.tolist(), "relevant": relevant.tolist(), "ndcg": float(ndcg),
                          "mrr": float(mrr)})
    return found


def main(minilm, stsb=None):
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(minilm, device="cpu")
    found = {"version": sentence_transformers.__version__, "losses": losses()}
    files = {"KorSTS": KORSTS}
    files |= {path.name: path for path in sorted(pathlib.Path(stsb).glob("*.tsv"))} if stsb else {}
    for name, path in files.items():
        first, second, scores = sts(path)
        queries, documents = ({text: text for text in dict.fromkeys(texts)} for texts in (first, second))
        positives = {query: {text for other, text in zip(first, second) if other == query} for query in queries}
        found[name] = {
            "similarity": evaluate("EmbeddingSimilarityEvaluator", model, first, second, scores),
            "pair_classification": evaluate("BinaryClassificationEvaluator", model, first, second,
                                            [int(score >= 0.6) for score in scores]),
            "retrieval": evaluate("InformationRetrievalEvaluator", model, queries, documents, positives)}
    found |= {"rankings": rankings()} | given_vectors(model)
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
