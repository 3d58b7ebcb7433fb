"""Negatives for re-ranking: documents that are near to a query in the space of an embedder, and not relevant to it."""

import collections
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.examples import Example
from keras_bert.errors import InputError, Option
from keras_bert.inference.fine_tuned import FineTuned, load_tuned
from keras_bert.tasks import Embed
from keras_bert.tasks.embed import DOCUMENT, QUERY
from keras_bert.tasks.embedding_scores import unit_vectors
from keras_bert.text.same import SameTexts

_COUNT = 5  # negatives of a query
_CHUNK = 256  # queries whose similarities to all documents are in memory at once


class NegativeMiner:
    """Adds the nearest documents that are not relevant as negatives (Karpukhin et al., 2020, section 3.2,
    https://arxiv.org/abs/2004.04906). `model` is one for embeddings, a folder or a name, whose prompts are applied; any
    other raises an InputError."""

    def __init__(self, model: Path) -> None:
        self._embedder: FineTuned = load_tuned(os.fspath(model), {})
        if not isinstance(self._embedder.task, Embed):
            raise InputError(Option("mine_negatives"), f" must be a model for embeddings; {os.fspath(model)} is one "
                             f"for the task {self._embedder.task.name}")

    def add(self, files: Sequence[Sequence[Example]], *same: SameTexts) -> list[list[Example]]:
        """Returns the labelled pairs of each file, followed by up to five negatives for each of its queries that has
        none, from the documents of all its pairs. A document is no negative of a query if the query, or a document that
        is labelled for it in one of the files, is the same text, for the model that is trained or for this one."""
        notions = *same, self._embedder.task.same_texts(self._embedder.tokenizer)

        def keys(texts: Iterable[Any]) -> list[set[tuple]]:
            """Returns for each text its keys for each model."""
            lists = [[text] for text in texts]
            return [set(enumerate(of_text)) for of_text in zip(*(notion.keys(lists) for notion in notions))]

        known: dict[tuple, set[tuple]] = collections.defaultdict(set)  # the keys of what is no negative
        keys_of = [[*zip(keys(example.text for example in examples), keys(example.text_pair for example in examples))]
                   for examples in files]
        for query, document in itertools.chain.from_iterable(keys_of):
            for key in query:
                known[key] |= query | document
        added = []
        for examples, of_examples in zip(files, keys_of):
            of_query: dict[tuple, list[Example]] = collections.defaultdict(list)
            documents: dict[tuple, str] = {}
            for example, (query, document) in zip(examples, of_examples):
                of_query[min(query)].append(example)  # for the model that is trained
                documents.setdefault(min(document), str(example.text_pair))
            queries = [pairs[0] for pairs in of_query.values() if all(pair.label == 1 for pair in pairs)]
            excluded = [set().union(*(known[key] for key in query)) for query in keys(query.text for query in queries)]
            texts = list(documents.values())
            added.append([*examples, *self._nearest(queries, texts, keys(texts), excluded)])
        return added

    def _nearest(self, queries: list[Example], documents: list[str], keys: list[set[tuple]],
                 excluded: list[set[tuple]]) -> Iterator[Example]:
        """Yields the nearest documents of each query that have no excluded key, as negatives."""
        vectors = self._embed(documents, DOCUMENT)
        for begin in range(0, len(queries), _CHUNK):
            some = queries[begin:begin + _CHUNK]
            cosines = self._embed([query.text for query in some], QUERY) @ vectors.T
            for query, row, of_query in zip(some, cosines, excluded[begin:]):
                others = (number for number in np.argsort(-row, kind="stable") if keys[number].isdisjoint(of_query))
                for number in itertools.islice(others, _COUNT):
                    yield Example(query.text, documents[number], 0.0, query.row)

    def _embed(self, texts: list[str], prompt_name: str) -> np.ndarray:
        """Returns unit vectors, float32 [texts, hidden]."""
        model = self._embedder.with_prompt(prompt_name if self._embedder.task.named_prompts else None)
        return unit_vectors(np.asarray(model.answer(model.task.arguments(texts))))
