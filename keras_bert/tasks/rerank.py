"""Re-ranking: how relevant a document is to a query, from both texts together (a cross-encoder)."""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from keras_bert.arguments import Activation, Aggregate, Path, is_missing
from keras_bert.data.examples import Example, iterate_examples, number
from keras_bert.data.tables import Rows, check_columns, printed_list, read_table
from keras_bert.errors import InputError, MissingColumn, Option
from keras_bert.files.json_files import Record
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, require
from keras_bert.tasks.embed import meanings, score_reader
from keras_bert.tasks.embedding_scores import ranking
from keras_bert.tasks.regress import NumberTask, correlations
from keras_bert.tasks.windows import aggregated
from keras_bert.text import Tokenizer
from keras_bert.types import Tensor


@dataclasses.dataclass(frozen=True)
class Rerank(NumberTask):
    """Re-ranking of the documents that a search has found, by a cross-encoder (Nogueira and Cho, 2019,
    https://arxiv.org/abs/1901.04085). A document that is split into windows has by default the logit of the best one
    (MaxP: Dai and Callan, 2019, https://arxiv.org/abs/1905.09217).

    Args:
        activation_fn: what turns the logit into the score: the sigmoid, or nothing.
    """

    activation_fn: Activation = "sigmoid"
    aggregate: Aggregate = dataclasses.field(default="max", kw_only=True)

    name, output, pairs = "rerank", "logit", True
    lite_outputs, display, weighed = {"logit": "B1"}, "score", "score"
    exported_outputs = {"score": (np.float32, "B"), "logit": (np.float32, "B")}
    tuples = ("text", "text_pair"), ("text", "text_pair", "label")
    options, held_out = (*NumberTask.options, "mine_negatives", "pack"), "queries"
    card = Card("text-ranking", "re-ranking", "Answers a query and a document with a score, higher for documents that "
                "are more relevant.")

    @classmethod
    def iterate(cls, path: Path | Rows, text_column: str = "text", text_pair_column: str | None = None,
                label_column: str | None = "label", data_format: str | None = None, **_: Any) -> Iterator[Example]:
        """Reads a table, see `iterate_examples`. With a column of labels, each row is a pair with a score from 0 to 1.
        Without, `text_pair` is a relevant document, and negatives, see `meanings`, are documents that are not; all may
        be lists. Each document is an `Example`, with the label 1.0 or 0.0."""
        if data_format or label_column is None:
            yield from iterate_examples(path, text_column, text_pair_column, label_column, data_format,
                                        score_reader(data_format))
            return
        names, rows = read_table(path)
        given, negatives, label_of_pair = meanings(path, names, text_column, text_pair_column, label_column)
        pair = given or "text_pair"
        if label_of_pair and negatives:
            raise MissingColumn(f"{path}: the columns must be text, text_pair and perhaps negative; or text, text_pair "
                                f"and label; they are {', '.join(names)}")
        check_columns(path, names, (text_column, pair, label_of_pair))
        for row in rows:
            query = row.text(text_column, labelled=True)
            if label_of_pair:
                yield Example(query, row.text(pair, labelled=True), number(row, label_of_pair), row.place)
                continue
            for column, label in ((pair, 1.0), *((negative, 0.0) for negative in negatives)):
                for document in _texts(row, column, label == 0):
                    yield Example(query, document, label, row.place)

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence[Example], **settings: Any) -> Self:
        for example in examples:
            if not 0 <= example.label <= 1:
                raise InputError(f"{path}: row {example.row}: 'label' must be from 0 to 1; got {example.label:g}; "
                                 "divide the labels by the highest one")
        if len({example.label for example in examples}) == 1:
            raise InputError(f"{path}: re-ranking needs documents that are not relevant: a column negative, or labels, "
                             "or ", Option("mine_negatives=…"), f"; every label is {examples[0].label:g}")
        return cls(**settings)

    def check(self, path: Path | Rows, examples: Sequence[Example], out_of_scope: str | None = None) -> None:
        super().check(path, examples)
        labels = {example.label for example in examples}
        if not _is_binary(examples):
            require("scipy.stats")  # fails here, before any work is done
        if len(labels) == 1:
            raise InputError(f"{path}: scores need pairs with different labels; every label is {labels.pop():g}")

    def check_encoded(self, path: Path | Rows, encoded: Encoded) -> None:
        labels = encoded.text_targets
        if _is_binary(encoded.examples) and not any(len(np.unique(labels[some])) > 1 for some in encoded.decoding):
            raise InputError(f"{path}: scores need a query with a relevant document and one that is not: a column "
                             "negative, or labels")

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer) -> Encoded:
        """Also returns, as `decoding`, the indices of the examples of each query, if they are labelled."""
        encoded = super().encode(examples, tokenizer)
        if encoded.targets is None:
            return encoded
        of_query = collections.defaultdict(list)
        for index, query in enumerate(self.same_texts(tokenizer).keys((example.text,) for example in examples)):
            of_query[query].append(index)
        return dataclasses.replace(encoded, decoding=list(of_query.values()))

    def group(self, example: Example) -> tuple:
        """Returns the query. A document may be on both sides: a search knows its documents, and not the queries."""
        return (example.text,)

    def loss_arguments(self) -> dict[str, Any]:
        import keras

        return {"loss": keras.losses.BinaryCrossentropy(from_logits=True)}

    def encode_in_graph(self, outputs: Tensor, mask: Tensor) -> Answers:
        import tensorflow as tf

        logit = outputs[:, 0]
        return {"score": tf.sigmoid(logit) if self.activation_fn == "sigmoid" else logit, "logit": logit}

    def _logits(self, encoded: Encoded, outputs: Outputs) -> np.ndarray:
        """Returns the logit of each pair: float64 [pairs]."""
        logits = np.reshape(np.array(outputs, np.float64), (-1, 1))
        return aggregated(logits, encoded.firsts, self.aggregate)[:, 0]

    def answers(self, encoded: Encoded, outputs: Outputs) -> list[float]:
        logits = self._logits(encoded, outputs)
        return (np.exp(-np.logaddexp(0, -logits)) if self.activation_fn == "sigmoid" else logits).tolist()

    def kind(self, examples: Sequence[Example]) -> str:
        if not _is_binary(examples):
            return super().kind(examples) + " with scores"
        return f"pairs of a query and a document ({sum(example.label for example in examples):,.0f} relevant)"

    def main_score(self, examples: Sequence[Example]) -> str:
        return "ndcg_at_10" if _is_binary(examples) else "spearman"

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns `loss`, the mean binary cross-entropy, and the scores of `ranking` as means over the queries,
        `ndcg_at_10` and `mrr_at_10`; or, if a label is neither 0 nor 1, `spearman` and `pearson`, the correlations of
        logits and labels."""
        logits, targets = self._logits(encoded, outputs), encoded.text_targets
        loss = float(np.mean(np.logaddexp(0, logits) - targets * logits))
        if not _is_binary(encoded.examples):
            pearson, spearman = correlations(logits, targets)
            return {"spearman": spearman, "pearson": pearson, "loss": loss}
        scores = [ranking(logits[some], targets[some] == 1) for some in encoded.decoding]
        ndcg, mrr = np.mean(scores, axis=0)
        return {"ndcg_at_10": float(ndcg), "mrr_at_10": float(mrr), "loss": loss}

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        return [{"score": score, "logit": logit}
                for score, logit in zip(self.answers(encoded, outputs), self._logits(encoded, outputs))]


def _texts(row: Record, column: str, may_be_missing: bool) -> list[str]:
    """Returns the text in a column of a row, or the texts of a list; none if there is no such value."""
    value = row.values.get(column)
    if is_missing(value) and may_be_missing:
        return []
    documents = printed_list(value) if isinstance(value, str) else value
    if isinstance(documents, list):
        return Record(row.file, row.place, {column: documents}).texts(column, labelled=True)
    return [row.text(column, labelled=True)]


def _is_binary(examples: Sequence[Example]) -> bool:
    return all(example.label in (0.0, 1.0) for example in examples)
