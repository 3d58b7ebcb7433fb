"""Search in two steps: an embedder finds texts by their vectors, with faiss, and a re-ranker orders them.

    keras-bert convert --model=minilm --output=embedder --format=keras_bert
    keras-bert finetune --task=rerank --train=train.jsonl --mine_negatives=minilm --model=minilm --output=reranker
    python examples/rerank_search.py --data=test.jsonl --embedder=embedder --reranker=reranker

Each row of the data has a question, `text`, and the text that answers it, `text_pair`. All texts of the file are
searched for each question. It prints the best texts for the first question, and the scores of both steps. Needs faiss:
pip install faiss-cpu.
"""

import argparse
import time

from keras_bert import startup

startup.quiet_tensorflow()

import faiss
import numpy as np

import keras_bert
from keras_bert.data import read_examples


def scores(ranks):
    """Returns nDCG@10 and MRR@10 from the ranks of the right texts, counted from 1; infinite if one is not found."""
    ranks = np.where(ranks <= 10, ranks, np.inf)
    return np.mean(1 / np.log2(ranks + 1)), np.mean(1 / ranks)


def main(data, embedder, reranker, found, shown):
    rows = read_examples(data, text_pair_column="text_pair", label_column=None)
    questions, answers = [row.text for row in rows], [row.text_pair for row in rows]
    texts = list(dict.fromkeys(answers))
    embedder, reranker = map(keras_bert.FineTuned.load, (embedder, reranker))
    query, document = ("query", "document") if embedder.task.prompts else (None, None)

    vectors, queries = embedder.predict(texts, prompt_name=document), embedder.predict(questions, prompt_name=query)
    for array in (vectors, queries):
        faiss.normalize_L2(array)  # the products of unit vectors are cosines
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    _, numbers = index.search(queries, min(found, len(texts)))
    started, ranks = time.perf_counter(), []
    for question, answer, some in zip(questions, answers, numbers):
        candidates = [texts[number] for number in some]
        relevance = np.array(reranker.predict([question] * len(candidates), candidates))
        ranked = [candidates[i] for i in np.argsort(-relevance, kind="stable")]
        ranks.append([order.index(answer) + 1 if answer in order else np.inf for order in (candidates, ranked)])
        if len(ranks) == 1:
            print(question, *(f"    {text[:100]}" for text in ranked[:shown]), sep="\n")
    seconds = time.perf_counter() - started
    for name, column in zip(("embedder", "and re-ranker"), np.array(ranks).T):
        print("{:14} nDCG@10 {:.4f}, MRR@10 {:.4f}".format(name, *scores(column)))
    print(f"{len(rows)} questions, {len(texts)} texts; re-ranking {numbers.shape[1]} took "
          f"{1000 * seconds / len(rows):.0f} ms a question")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "embedder", "reranker"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--found", type=int, default=100, help="texts that the embedder finds")
    parser.add_argument("--shown", type=int, default=10, help="texts that are printed")
    main(**vars(parser.parse_args()))
