"""Sentence embeddings: a vector for each text, so that similar texts have a high cosine similarity."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from keras_bert.arguments import Path, Pooling, check_rules, not_none
from keras_bert.data.batches import ChoiceBatches, LabelPairBatches, SameLabelBatches, TextBatches
from keras_bert.data.examples import FORMATS, choose, iterate_examples, label_of, number
from keras_bert.data.tables import Rows, check_columns, look, printed_list, read_table
from keras_bert.errors import InputError, MissingColumn, Option
from keras_bert.files.json_files import Record
from keras_bert.tasks import embedding_scores
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, Windows, require
from keras_bert.tasks.windows import WindowTask, aggregated
from keras_bert.text import Tokenizer
from keras_bert.types import Encoder, Head, Tensor

PAIRS, TRIPLETS, SCORED, LABELLED = "pairs", "triplets", "scored pairs", "labelled texts"
# The losses of each kind of data; the first one is the default.
LOSSES_OF = {PAIRS: ("multiple_negatives_ranking",), TRIPLETS: ("multiple_negatives_ranking",),
             SCORED: ("cosent", "cosine_similarity"),
             LABELLED: ("cosent", "cosine_similarity", "multiple_negatives_ranking")}
_LABELS = "label", "labels", "score", "scores"  # columns of labels; the last two are of pairs alone
_MEANINGFUL = re.compile(  # of columns
    "label|score|similar|relevan|negativ|duplicate|target|rating|gold|grade|correlat|distract|^(hard_)?neg(_?[0-9]+)?$|^(y|class|sim)$",
    re.IGNORECASE)
# The highest scores of published data sets; the lowest are 0.
_HIGHEST = {"stsb": 5.0, "korsts": 5.0, "klue-sts": 5.0}


@dataclasses.dataclass(frozen=True)
class EmbedExample:
    """A text, or several to compare: an anchor and its positive, perhaps with negatives; two texts whose similarity is
    `label`, a float; or a single text, whose `label` is a str or None. `row` is the number of the line or record in the
    file, from 1, the header included."""

    texts: tuple[str, ...]
    label: float | str | None
    row: int | None

    @property
    def text(self) -> str:
        return self.texts[0]


def data_kind(examples: Sequence[EmbedExample]) -> str:
    """Returns the kind of labelled examples: `PAIRS`, `TRIPLETS`, `SCORED` or `LABELLED`."""
    first = examples[0]
    if first.label is None:
        return PAIRS if len(first.texts) == 2 else TRIPLETS
    return SCORED if len(first.texts) == 2 else LABELLED


# The names of the prompts that queries and documents get, in order of precedence, as in sentence-transformers.
QUERY, DOCUMENT = "query", "document"
_CANDIDATES = {QUERY: (QUERY,), DOCUMENT: (DOCUMENT, "passage", "corpus")}


def prompts_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `Embed` with prompts that the settings of a task, or a file of sentence-transformers, have;
    none if all prompts are empty."""
    prompts = settings.get("prompts")
    if isinstance(prompts, dict) and not any(prompts.values()):
        return {}
    return {name: settings[name] for name in ("prompts", "default_prompt_name") if settings.get(name) is not None}


def fields_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `Embed` without `max_length` that the settings of a model have, and that decide how it
    embeds texts: its prompts, and if its task is embed, its windows."""
    names = WindowTask.fields if settings.get("task") == Embed.name else ()
    return prompts_of(settings) | {name: settings[name] for name in names if name in settings}


@dataclasses.dataclass(frozen=True)
class Embed(WindowTask):
    """Sentence embeddings (Sentence-BERT: Reimers and Gurevych, 2019, https://arxiv.org/abs/1908.10084).

    Args:
        loss_name: a name in `LOSSES_OF`, for training.
        pooling, normalize: see `BertEmbedder`, for training; a model has its own.
        prompts: texts by name that are put before the texts to embed, such as `{"query": "query: "}`, as in
            sentence-transformers.
        default_prompt_name: name of the prompt of texts that are neither queries nor documents; None for no prompt.
    """

    loss_name: str | None = None
    pooling: Pooling = "mean"
    normalize: bool = True
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    default_prompt_name: str | None = None

    name, output = "embed", "embedding"
    options = *WindowTask.options, "loss", "pooling", "normalize", "query_prompt", "document_prompt"
    fields = options
    card = Card("sentence-similarity", "sentence embeddings", "Computes a vector of a text. The cosine of the vectors "
                "of two texts is their similarity.")
    tuples = ("text", "text_pair"), ("text", "text_pair", "label")
    dropout, unused, compares_batch = None, ("pooler",), True
    heads, weights, lite_outputs, root = ("BertEmbedder",), "embedding", {"embedding": "BH"}, "embedding"
    exported_outputs = {"embedding": (np.float32, "BH"), "tokens": (np.int32, "B")}

    def __post_init__(self) -> None:
        super().__post_init__()
        names = list(self.named_prompts)
        check_rules(("prompts", self.prompts, "texts by name",
                     all(isinstance(text, str) for text in (*names, *self.prompts.values()))),
                    ("default_prompt_name", self.default_prompt_name,
                     f"one of {', '.join(names)}" if names else "left out without prompts",
                     self.default_prompt_name in (None, *names)))

    @classmethod
    def iterate(cls, path: Path | Rows, text_column: str = "text", text_pair_column: str | None = None,
                label_column: str | None = "label", data_format: str | None = None, **_: Any) -> Iterator[EmbedExample]:
        """Reads a table, see `iterate_examples`. Its columns say what the examples are: `text` with `text_pair`, with
        `text_pair` and negatives, with `text_pair` and a label, or with a label, see `meanings`. If `label_column` is
        None, only the column `text` is read."""
        if data_format:
            is_paired = label_column is not None and choose(path, data_format, FORMATS).text_pair is not None
            read_label = score_reader(data_format) if is_paired else label_of
            for example in iterate_examples(path, "text", None, label_column, data_format, read_label):
                texts = (example.text, str(example.text_pair)) if is_paired else (example.text,)
                yield EmbedExample(texts, example.label, example.row)
            return
        names, rows = read_table(path)
        columns, label = [text_column], None
        negatives: list[str] = []
        if label_column is not None:
            pair, negatives, label = meanings(path, names, text_column, text_pair_column, label_column)
            if not (pair or label) or negatives and (label or not pair):
                raise MissingColumn(f"{path}: the columns must be text and text_pair, and perhaps negative or label; "
                                    f"or text and label; they are {', '.join(names)}; pass ", Option("text_column=…"),
                                    ", ", Option("text_pair_column=…"), " or ", Option("label_column=…"))
            columns += [name for name in (pair, *negatives) if name]
        check_columns(path, names, (*columns, label))
        for row in rows:
            for column in negatives:
                if isinstance(value := row.values.get(column), str) and isinstance(printed_list(value), list):
                    raise row.error(column, "a text, and no list", "; make a column of each negative")
            several = tuple(row.text(column, label_column is not None) for column in columns)
            yield EmbedExample(several, label and (number if len(several) > 1 else label_of)(row, label), row.place)

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence[EmbedExample], loss: str | None = None,
                      query_prompt: str | None = None, document_prompt: str | None = None, **settings: Any) -> Self:
        kind = data_kind(examples)
        check_rules(("loss", loss, f"{' or '.join(LOSSES_OF[kind])} for {kind}, as {path} has",
                     (loss or LOSSES_OF[kind][0]) in LOSSES_OF[kind]))
        if kind == SCORED and loss != "cosine_similarity" and len({example.label for example in examples}) == 1:
            raise InputError(f"{path}: ", Option("loss=cosent"), " needs pairs with different labels; every label is "
                             f"{examples[0].label:g}; leave the labels out to train on pairs, or pass ",
                             Option("loss=cosine_similarity"))
        outside = [example for example in examples if loss == "cosine_similarity"
                   and isinstance(example.label, float) and not -1 <= example.label <= 1]
        if outside:
            raise InputError(f"{path}: row {outside[0].row}: 'label' must be from -1 to 1, as cosines are, for ",
                             Option("loss=cosine_similarity"), f"; got {outside[0].label}; divide the labels by the "
                             "highest one, or pass ", Option("loss=cosent"), ", to which only their order matters")
        if kind == LABELLED and len({example.label for example in examples}) == 1:
            raise InputError(f"{path}: labelled texts must have at least two labels; every text has the label "
                             f"{examples[0].label!r}")
        settings["prompts"] = settings.get("prompts", {}) | not_none(query=query_prompt, document=document_prompt)
        return cls(loss_name=loss or LOSSES_OF[kind][0], **settings)

    def check(self, path: Path | Rows, examples: Sequence[EmbedExample], out_of_scope: str | None = None) -> None:
        kind, labels = data_kind(examples), [example.label for example in examples]
        if kind == SCORED:
            require("scipy.stats")  # fails here, before any work is done
            if len(set(labels)) == 1:
                raise InputError(f"{path}: scores need pairs with different labels; every label is {labels[0]}")
        elif kind == LABELLED and not 1 < len(set(labels)) < len(labels):
            raise InputError(f"{path}: scores need two labels, and a label with two texts")

    def check_encoded(self, path: Path | Rows, encoded: Encoded) -> None:
        if data_kind(encoded.examples) in (PAIRS, TRIPLETS) and len(np.unique(encoded.targets[:, 1:])) == 1:
            raise InputError(f"{path}: scores need at least two different texts to find; got 1")

    def example(self, text: str) -> EmbedExample:
        return EmbedExample((text,), None, None)

    def describe_input(self) -> str:
        return "single texts"

    @property
    def named_prompts(self) -> dict[str, str]:
        """The prompt of each name that can be asked for: if there are prompts, those, `query` and `document`."""
        found = {name: next((self.prompts[one] for one in names if one in self.prompts), "")
                 for name, names in _CANDIDATES.items()}
        return found | self.prompts if self.prompts else {}

    @property
    def default_prompt(self) -> str:
        return self.named_prompts.get(self.default_prompt_name or "", "")

    def with_prompt(self, prompt_name: str) -> Self:
        prompts = self.named_prompts
        check_rules(("prompt_name", prompt_name, f"one of {', '.join(prompts)}" if prompts else
                     "left out for this model, which has no prompts", prompt_name in prompts))
        return dataclasses.replace(self, prompts=prompts, default_prompt_name=prompt_name)

    def _with_prompts(self, examples: Sequence[EmbedExample]) -> list[list[tuple[str, str]]]:
        """Returns the texts of each example with their prompts, (prompt, text): those of queries and documents for a
        text with positives and negatives, otherwise the default one."""
        first = others = self.default_prompt
        if examples and examples[0].label is None and len(examples[0].texts) > 1:
            first, others = (self.named_prompts.get(name, "") for name in (QUERY, DOCUMENT))
        return [[(first, example.text), *((others, text) for text in example.texts[1:])] for example in examples]

    def texts(self, example: EmbedExample) -> tuple:
        return (list(example.texts),)

    def group(self, example: EmbedExample) -> tuple:
        """Returns the texts of an example in one order; of an anchor with a positive, the anchor alone, which may have
        other positives too. A positive may be on both sides: a search knows its documents, and not the questions."""
        return tuple(sorted(example.texts)) if example.label is not None else example.texts[:1]

    def classes(self, example: EmbedExample) -> Sequence[str]:
        return [example.label] if isinstance(example.label, str) else []

    def encode(self, examples: Sequence[EmbedExample], tokenizer: Tokenizer) -> Encoded:
        groups = self._with_prompts(examples)
        texts = list(dict.fromkeys(itertools.chain.from_iterable(groups)))
        packed, cut = self.split_texts(tokenizer, [text for _, text in texts], prompts=[prompt for prompt, _ in texts])
        of_text, longer = dict(zip(texts, packed)), {texts[index] for index in cut}
        windows = [[of_text[text] for text in group] for group in groups]
        rows, firsts = [[parts[0] for parts in of_texts] for of_texts in windows], None
        if self.windows:  # each window is a row
            each = [parts for of_texts in windows for parts in of_texts]
            counts = np.array(list(map(len, each)), np.int64)
            rows, firsts = [[row] for parts in each for row in parts], np.cumsum(counts) - counts
        return Encoded(
            examples, rows, *self._targets(examples, tokenizer), firsts=firsts,
            cut=sum(not longer.isdisjoint(group) for group in groups),
            split=sum(any(len(parts) > 1 for parts in of_texts) for of_texts in windows))

    def _targets(self, examples: Sequence[EmbedExample],
                 tokenizer: Tokenizer) -> tuple[np.ndarray | None, type[TextBatches]]:
        """Returns the targets of examples, None for single texts without labels, and the class of their batches."""
        if not examples or examples[0].label is None and len(examples[0].texts) == 1:
            return None, ChoiceBatches
        kind = data_kind(examples)
        labels: list[Any] = [example.label for example in examples]
        if kind == SCORED:
            return np.array(labels, np.float32), ChoiceBatches
        if kind == LABELLED:
            different, numbers = np.unique(labels, return_inverse=True)
            if self.loss_name != "multiple_negatives_ranking":
                return numbers, LabelPairBatches
            if len(different) == len(labels):
                raise InputError("the loss multiple_negatives_ranking needs a label with at least two texts for "
                                 "training; every label has one")
            return numbers, SameLabelBatches
        keys = self.same_texts(tokenizer).keys(example.texts for example in examples)
        number_of = {key: number for number, key in enumerate(dict.fromkeys(itertools.chain.from_iterable(keys)))}
        return np.array([[number_of[key] for key in of_example] for of_example in keys]), ChoiceBatches

    def for_training(self, encoded: Encoded) -> Encoded:
        """Returns the rows of each example, or if texts are split, as many examples as its longest text has windows: of
        the first window of each text, of the second ones, and so on; shorter texts begin again."""
        if encoded.firsts is None:
            return encoded
        texts = [encoded.rows[begin:end] for begin, end in itertools.pairwise([*encoded.firsts, len(encoded.rows)])]
        count = len(encoded.examples[0].texts)
        groups = [texts[begin:begin + count] for begin in range(0, len(texts), count)]
        counts = [max(map(len, group)) for group in groups]
        rows = [[windows[number % len(windows)][0] for windows in group]
                for group, count in zip(groups, counts) for number in range(count)]
        return dataclasses.replace(encoded, rows=rows, targets=np.repeat(encoded.targets, counts, axis=0), firsts=None)

    def new_head(self, bert: Encoder, dropout: float) -> Head:
        from keras_bert.models import BertEmbedder

        return BertEmbedder(bert, self.pooling, self.normalize)

    def loss_arguments(self) -> dict[str, Any]:
        from keras_bert.models.embedding_losses import LOSSES

        check_rules(("task", self, ["an object with a loss_name: ", " or ".join(LOSSES)], self.loss_name is not None))
        return {"loss": LOSSES[str(self.loss_name)]}

    def encode_in_graph(self, outputs: Tensor, mask: Tensor) -> Answers:
        import tensorflow as tf

        return {"embedding": outputs, "tokens": tf.reduce_sum(mask, axis=1)}

    def combine_in_graph(self, outputs: Tensor, mask: Tensor, parts: Windows) -> Answers:
        import tensorflow as tf

        vectors = parts.aggregated(outputs, self.aggregate)
        length = tf.math.segment_mean(tf.norm(outputs, axis=1), parts.row)
        scale = tf.math.divide_no_nan(length, tf.norm(vectors, axis=1))
        return {"embedding": vectors * scale[:, None],
                "tokens": tf.math.segment_sum(tf.reduce_sum(mask, axis=1), parts.row)}

    def answers(self, encoded: Encoded, outputs: Outputs) -> np.ndarray:
        """Returns the embedding of the first text of each example: float32 [examples, hidden]."""
        return np.array([vectors[0] for vectors in self._vectors(encoded, outputs)], np.float32)

    def _vectors(self, encoded: Encoded, outputs: Outputs) -> np.ndarray:
        """Returns the embeddings of the texts of each example, float32 [examples, texts, hidden]. That of a text with
        windows has their aggregated direction, and their mean length, so that vectors of length 1 stay so."""
        vectors = np.array(outputs, np.float32)
        if encoded.firsts is None or not len(outputs):
            return vectors
        vectors = vectors[:, 0]
        lengths = aggregated(np.linalg.norm(vectors, axis=1, keepdims=True), encoded.firsts, "mean")
        vectors = aggregated(vectors, encoded.firsts, self.aggregate)
        vectors = vectors * (lengths / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
        return vectors.astype(np.float32).reshape(len(encoded.examples), -1, vectors.shape[1])

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> np.ndarray:
        return np.array(row["embedding"])

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        tokens = np.array([len(ids) for (ids, _), *_ in encoded.rows], np.int32)
        if encoded.firsts is not None:
            tokens = np.add.reduceat(tokens, encoded.firsts)
        return [{"embedding": answer, "tokens": count} for answer, count in zip(self.answers(encoded, outputs), tokens)]

    def kind(self, examples: Sequence[EmbedExample]) -> str:
        count = len(examples[0].texts) - 2
        negatives = "a negative" if count == 1 else f"{count} negatives"
        kind = data_kind(examples)
        return {TRIPLETS: f"anchors with a positive and {negatives}", SCORED: "pairs with scores"}.get(kind, kind)

    def main_score(self, examples: Sequence[EmbedExample]) -> str:
        if data_kind(examples) != SCORED:
            return "ndcg_at_10"
        return "average_precision" if _is_binary(examples) else "spearman"

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns the scores of `embedding_scores`: of scored pairs those of `similarity`, or if each label is 0 or 1,
        of `pair_classification`; otherwise of `retrieval`, of positives among all positives and negatives, or of the
        texts of the same label among all others."""
        vectors, targets = embedding_scores.unit_vectors(self._vectors(encoded, outputs)), encoded.targets
        kind = data_kind(encoded.examples)
        if kind == LABELLED:
            return _retrieval_of_labels(vectors[:, 0], targets)
        if kind != SCORED:
            return _retrieval_of_positives(vectors, targets)
        cosines = (vectors[:, 0] * vectors[:, 1]).sum(1)
        if _is_binary(encoded.examples):
            return embedding_scores.pair_classification(cosines, targets == 1)
        return embedding_scores.similarity(cosines, targets)

    def record(self, example: EmbedExample, answer: np.ndarray) -> dict[str, Any]:
        return {"text": example.text, "embedding": answer.tolist()}

    def cells(self, example: EmbedExample, answer: np.ndarray) -> list[str]:
        return [" ".join(f"{value:.6g}" for value in answer), example.text]

    def settings(self) -> dict[str, Any]:
        left_out = "loss_name", "pooling", "normalize", "prompts", "default_prompt_name"  # those of the training, empty
        settings = {name: value for name, value in super().settings().items() if name not in left_out}
        return settings | prompts_of(vars(self))

    def training_settings(self) -> dict[str, Any]:
        return self.settings() | {"loss": self.loss_name, "pooling": self.pooling, "normalize": self.normalize}


def meanings(path: Path | Rows, names: Sequence[str], text_column: str, text_pair_column: str | None,
             label_column: str) -> tuple[str | None, list[str], str | None]:
    """Returns which of a table's columns have second texts, if any, negatives, and labels, if any: the names with which
    sentence-transformers reads and writes tables. Raises an InputError if others would change what the rows mean."""
    pair = text_pair_column or ("text_pair" if "text_pair" in map(look, names) else None)
    others = [name for name in names if name not in (text_column, pair, label_column)]
    negatives = sorted((name for name in others if re.fullmatch(r"negatives?(_[0-9]+)?", name)),
                       key=lambda name: int(re.sub("[^0-9]", "", name) or 0))
    if label_column != "label":
        return pair, negatives, label_column
    labels = [name for name in _LABELS[:None if pair else 2] if name in {*names} - {text_column, pair}]
    unclear = [name for name in others if name not in {*negatives, *labels[:1]} and (
        name in _LABELS if labels else _MEANINGFUL.search(name))]
    if unclear:
        cure = ["name it negative_1"] if "neg" in unclear[0].lower() else [
            "pass ", Option(f"label_column={unclear[0]!r}")]
        raise InputError(f"{path}: the column {unclear[0]!r} would change what the rows mean; ", *cure,
                         f", or leave it out{f'; the labels are those of {labels[0]!r}' if labels else ''}")
    return pair, negatives, labels[0] if labels else None


def score_reader(data_format: str | None) -> Callable[[Record, str], float]:
    """Returns a reader of labels, see `iterate_examples`, which divides the scores of a data set by the highest one."""
    highest = _HIGHEST.get(data_format or "", 1.0)
    return lambda row, column: number(row, column) / highest


def _is_binary(examples: Sequence[EmbedExample]) -> bool:
    return {example.label for example in examples} == {0.0, 1.0}


def _retrieval_of_labels(vectors: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Returns the scores of finding the texts of the same label among all other texts, from their vectors, float
    [texts, hidden], and the numbers of their labels, int [texts]."""
    numbers = np.arange(len(vectors))
    queries = numbers[np.bincount(targets)[targets] > 1]
    return embedding_scores.retrieval(vectors[queries], vectors, lambda some: targets[queries[some], None] == targets,
                                      lambda some: queries[some, None] == numbers)


def _retrieval_of_positives(vectors: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Returns the scores of finding the positives of each anchor among all different positives and negatives, from the
    vectors of the texts, float [examples, texts, hidden], and their numbers, int [examples, texts]."""
    of_query, of_document = np.zeros((2, targets.max() + 1, vectors.shape[2]), np.float32)
    of_query[targets[:, 0]], of_document[targets[:, 1:]] = vectors[:, 0], vectors[:, 1:]  # which prompts make different
    queries, query = np.unique(targets[:, 0], return_inverse=True)
    documents = np.unique(targets[:, 1:])
    positive = np.searchsorted(documents, targets[:, 1])

    def relevant(some: np.ndarray) -> np.ndarray:
        found = np.zeros((len(some), len(documents)), bool)
        is_some = (query >= some[0]) & (query <= some[-1])
        found[query[is_some] - some[0], positive[is_some]] = True
        return found

    return embedding_scores.retrieval(of_query[queries], of_document[documents], relevant,
                                      lambda some: (queries[some, None] == documents) & ~relevant(some))
