"""Semantic search: finds the texts that are nearest in meaning to each question, by all products of vectors and with an
approximate index, compares the two, and finds texts that say nearly the same.

    keras-bert features --model=minilm --input=texts.txt --output=vectors.npz --features=last --pooling=mean --normalize
    python examples/semantic_search.py --texts=texts.txt --vectors=vectors.npz "is it going to rain"

The file has one text per line. The index is a hierarchical navigable small world graph (Malkov and Yashunin, 2016,
https://arxiv.org/abs/1603.09320) of faiss: pip install faiss-cpu.
"""

import argparse
import time

from keras_bert import startup

startup.quiet_tensorflow()

import numpy as np

import keras_bert
from keras_bert.data import iterate_lines

NEAREST = 10
LINKS, WIDTH = 32, 64  # of the graph: links per text, and candidates of a search; more are slower and more exact


def nearest(vectors, queries, count):
    """Returns the cosines and the numbers of the nearest vectors, the nearest first: two arrays [queries, count]."""
    cosines = queries @ vectors.T
    numbers = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    numbers = np.take_along_axis(numbers, np.argsort(-np.take_along_axis(cosines, numbers, 1), axis=1), 1)
    return np.take_along_axis(cosines, numbers, 1), numbers


def make_index(vectors):
    """Returns an index whose `search` is an approximate `nearest`."""
    try:
        import faiss
    except ImportError:
        raise keras_bert.InputError("the index needs faiss: pip install faiss-cpu") from None
    index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = WIDTH
    index.add(vectors)
    return index


def near_duplicates(index, vectors, cosine):
    """Returns pairs of texts whose vectors have at least this cosine, the most similar first: (cosine, two numbers)."""
    cosines, numbers = index.search(vectors, NEAREST)
    pairs = {tuple(sorted((i, int(numbers[i, k])))): float(cosines[i, k])
             for i, k in np.argwhere(cosines >= cosine) if numbers[i, k] != i}
    return sorted(((value, *pair) for pair, value in pairs.items()), reverse=True)


def timed(function, *arguments):
    started = time.perf_counter()
    return function(*arguments), time.perf_counter() - started


def main(texts, vectors, questions, encoder, cosine):
    try:
        texts, vectors = list(iterate_lines(texts)), np.load(vectors)["vectors"]
    except OSError as error:
        raise keras_bert.InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
    if len(texts) != len(vectors) or len(texts) < NEAREST:
        raise keras_bert.InputError(f"there must be at least {NEAREST} texts, with a vector for each; got {len(texts)} "
                                    f"texts and {len(vectors)} vectors")
    folder = keras_bert.find_pretrained(encoder)
    embedder = keras_bert.BertEmbedder.from_pretrained(folder, pooling="mean", normalize=True)
    queries = np.asarray(embedder(keras_bert.BertTokenizer.from_folder(folder)(questions)))
    for question, cosines, numbers in zip(questions, *nearest(vectors, queries, 3)):
        print(question)
        for value, number in zip(cosines, numbers):
            print(f"    {value:.2f}  {texts[number]}")

    index, making = timed(make_index, vectors)
    sample = vectors[np.random.default_rng(0).permutation(len(vectors))[:1000]]
    (_, exact), exact_seconds = timed(nearest, vectors, sample, NEAREST)
    (_, found), index_seconds = timed(index.search, sample, NEAREST)
    recall = np.mean([len(np.intersect1d(*rows)) / NEAREST for rows in zip(exact, found)])
    print(f"the {NEAREST} nearest of {len(texts)} texts: exact {1000 * exact_seconds / len(sample):.2f} ms, index "
          f"{1000 * index_seconds / len(sample):.2f} ms with recall {recall:.3f}, made in {making:.0f} s")

    pairs, seconds = timed(near_duplicates, index, vectors, cosine)
    print(f"{len(pairs)} pairs of texts with a cosine of at least {cosine}, found in {seconds:.0f} s")
    for value, first, second in pairs[:10]:
        print(f"    {value:.3f}  {texts[first]} | {texts[second]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--vectors", required=True)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--cosine", type=float, default=0.9)
    parser.add_argument("questions", nargs="+")
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
