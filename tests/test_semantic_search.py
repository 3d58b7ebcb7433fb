"""The functions of examples/semantic_search.py, against their definitions."""

import numpy as np
import pytest

import semantic_search


@pytest.fixture(scope="module")
def vectors():
    """200 vectors of length 1; numbers 7 and 150, and 20 and 21, are nearly the same."""
    made = np.random.default_rng(0).normal(size=(200, 24)).astype(np.float32)
    made[150], made[21] = made[7], made[20] + 0.01
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def test_nearest_are_the_highest_cosines_in_order(vectors):
    cosines, numbers = semantic_search.nearest(vectors, vectors[:5], 7)
    wanted = np.argsort(-(vectors[:5] @ vectors.T), axis=1)[:, :7]
    np.testing.assert_array_equal(numbers, wanted)
    np.testing.assert_allclose(cosines[:, 0], 1, rtol=1e-6)


def test_near_duplicates_are_named_once(vectors):
    class Exact:
        def search(self, queries, count):
            return semantic_search.nearest(vectors, queries, count)

    pairs = semantic_search.near_duplicates(Exact(), vectors, 0.95)
    assert [pair[1:] for pair in pairs] == [(7, 150), (20, 21)]


def test_the_index_finds_what_the_products_find(vectors):
    pytest.importorskip("faiss", reason="needs faiss: pip install faiss-cpu")
    found = semantic_search.make_index(vectors).search(vectors, 5)[1]
    exact = semantic_search.nearest(vectors, vectors, 5)[1]
    assert np.mean(found == exact) > 0.99
