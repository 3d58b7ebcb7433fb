"""Negatives for re-ranking: documents that are near to a query in the space of an embedder, and not relevant to it."""

import collections
import os
from collections.abc import Sequence

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.examples import Example
from keras_bert.errors import InputError, Option
from keras_bert.inference.fine_tuned import FineTuned, load_tuned
from keras_bert.tasks import Embed
from keras_bert.tasks.embed import DOCUMENT, QUERY
from keras_bert.tasks.embedding_scores import unit_vectors

_COUNT = 5  # negatives of a query
_CHUNK = 256  # queries whose similarities to all documents are in memory at once


class NegativeMiner:
    """Adds the nearest documents that are not relevant as negatives (Karpukhin et al., 2020, section 3.2,
    https://arxiv.org/abs/2004.04906).

    Args:
        model: a model for embeddings, a folder or a name; its prompts are applied.

    Raises:
        InputError: the model is not one for embeddings.
    """

    def __init__(self, model: Path) -> None:
        self._embedder: FineTuned = load_tuned(os.fspath(model), {})
        if not isinstance(self._embedder.task, Embed):
            raise InputError(Option("mine_negatives"), f" must be a model for embeddings; {os.fspath(model)} is one "
                             f"for the task {self._embedder.task.name}")

    def add(self, examples: Sequence[Example]) -> list[Example]:
        """Returns labelled pairs, followed by up to five negatives for each query that has none, from the documents of
        all pairs. A document is no negative of a query if the query, or a document that is labelled for it, is the same
        text, apart from case and white space."""
        of_query: dict[str, list[Example]] = {}
        documents: dict[str, str] = {}  # by what is the same
        known: dict[str, set[str]] = collections.defaultdict(set)
        for example in examples:
            of_query.setdefault(example.text, []).append(example)
            query, document = _plain(example.text), _plain(str(example.text_pair))
            documents.setdefault(document, str(example.text_pair))
            known[query] |= {query, document}
        queries = [query for query, pairs in of_query.items() if all(pair.label == 1 for pair in pairs)]
        numbers = {document: number for number, document in enumerate(documents)}
        texts, negatives = list(documents.values()), []
        vectors = self._embed(texts, DOCUMENT)
        for begin in range(0, len(queries), _CHUNK):
            some = queries[begin:begin + _CHUNK]
            cosines = self._embed(some, QUERY) @ vectors.T
            for query, row in zip(some, cosines):
                row[[numbers[document] for document in known[_plain(query)] & numbers.keys()]] = -np.inf
                nearest = np.argsort(-row, kind="stable")[:_COUNT]
                negatives += [Example(query, texts[number], 0.0, of_query[query][0].row)
                              for number in nearest if np.isfinite(row[number])]
        return [*examples, *negatives]

    def _embed(self, texts: list[str], prompt_name: str) -> np.ndarray:
        """Returns unit vectors, float32 [texts, hidden]."""
        prompts = isinstance(self._embedder.task, Embed) and self._embedder.task.named_prompts
        model = self._embedder.with_prompt(prompt_name if prompts else None)
        return unit_vectors(np.asarray(model.answer(model.task.arguments(texts))))


def _plain(text: str) -> str:
    """Returns a text in lower case, with single spaces."""
    return " ".join(text.split()).casefold()
