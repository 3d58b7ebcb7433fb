"""Tagging of named entities and slots: one tag per word, or per WordPiece token."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from keras_bert.arguments import AggregationStrategy, Path, not_none
from keras_bert.data.batches import UNLABELLED, TokenBatches
from keras_bert.data.examples import in_order
from keras_bert.data.tables import Rows, escaped
from keras_bert.data.tagged import OUTSIDE, TaggedExample, TaggedText, Unit, read_tagged, spans_of, to_bio, type_of
from keras_bert.errors import InputError
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, Reader, log_softmax, require
from keras_bert.tasks.windows import SplittingTask, default_stride, needed_tokens, own_tokens, windows
from keras_bert.text import Tokenizer
from keras_bert.text.offsets import TokenOffsets, tokens_with_offsets
from keras_bert.types import Encoder, Head, Tensor

# How the probabilities of a word's tokens become those of the word, as in the TokenClassificationPipeline of
# transformers. Other strategies label each token.
_OF_WORDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "first": lambda tokens: tokens[0], "average": lambda tokens: tokens.mean(axis=0),
    "max": lambda tokens: tokens[tokens.max(axis=1).argmax()]}


@dataclasses.dataclass(frozen=True)
class Entity:
    """A part of a text, `text[start:end]` in characters (code points), with its type as `label` and the mean
    probability of its words' labels, or of its tokens' labels, as `score`."""

    label: str
    text: str
    start: int
    end: int
    score: float


class Words(NamedTuple):
    """The words of a text, or its tokens: their labels, the probabilities of these, and their ranges of characters."""

    labels: list[str]
    scores: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def _loss(targets: Tensor, logits: Tensor) -> Tensor:
    """Computes the cross-entropy of each token, which counts with the weight that `TokenBatches` gives it."""
    from keras import ops

    return ops.sparse_categorical_crossentropy(ops.maximum(targets, 0), logits, from_logits=True)


@dataclasses.dataclass(frozen=True)
class Tag(SplittingTask):
    """Tagging of named entities and slots (Devlin et al., 2018, section 5.3).

    Words have a BIO label at their first token. As in BERT, words are split at white space and punctuation. If this
    splits a word of the file, the parts after the first continue its entity: their label is I- instead of B-.

    If the tags are those of characters, each token has a BIO label: the tag of its first character (Park et al., 2021).
    Of several tokens that begin with the same character, the first one stands for all.

    A text longer than `max_length` is split into windows. Each token is labelled, in training too, in the window in
    which it has the most context.

    Args:
        labels: names of the labels, in the order of the logits.
        features: the features of a frozen encoder that a BiLSTM reads, see `BertFeatures`. If None, the encoder is
            trained.
        unit: what the training file's tags belong to: "word", or "character".
        doc_stride, max_windows: see `SplittingTask`. If `doc_stride` is None, windows are consecutive, as in version
            0.2. The words that begin after the last window have no answers; in the scores, they count as O.
    """

    labels: list
    features: str | None = None
    unit: Unit = "word"

    name, main, windows, unused, names_classes = "tag", "f1", True, ("pooler",), True
    output, activation, named = "entity_label", "softmax", {"labels": "num_classes"}
    options = fields = ("features", *SplittingTask.fields)
    weights, lite_outputs, display = "token_classification", {"probabilities": "BSL"}, "entities"
    heads = "BertTokenClassifier", "BertFeatureTagger"
    files = "tagged words", (".conll", ".bio", ".iob")
    card = Card("token-classification", "entities in texts", "Marks the entities in a text.")
    tuples = (("words", "tags"),)
    exported_outputs = {
        "word_start": (np.int32, "BW"), "word_end": (np.int32, "BW"), "word_label": (str, "BW"),
        "word_score": (np.float32, "BW"), "entity_start": (np.int32, "BE"), "entity_end": (np.int32, "BE"),
        "entity_label": (str, "BE"), "entity_score": (np.float32, "BE"), "entity_text": (str, "BE")}

    def __post_init__(self) -> None:
        if not all(self.labels):
            raise InputError(f"labels must not be empty; got {self.labels!r:.200}")

    @classmethod
    def iterate(cls, path: Path | Rows, data_format: str | None = None, label_column: str | None = "label",
                **_: Any) -> Iterator[TaggedExample | TaggedText]:
        for example in read_tagged(path, data_format):
            if label_column is None:
                example = dataclasses.replace(example, tags=None)
            elif example.tags is None:
                raise InputError(f"{path}: there are no tags or entities; pass words and tags, or text and entities")
            yield example

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence[TaggedExample | TaggedText], **settings: Any) -> Self:
        types = {tag[2:] for example in examples for tag in example.tags or () if tag != OUTSIDE}
        if not types:
            raise InputError(f"{path}: a tagger needs at least one entity; every tag is {OUTSIDE}")
        labels = [OUTSIDE, *(f"{at}-{type}" for type in in_order(path, types) for at in "BI")]
        if isinstance(path, Rows) and any(set(labels) <= set(names) for names in path.classes):
            labels = in_order(path, labels)
        settings = {"doc_stride": default_stride(settings["max_length"])} | settings
        return cls(labels=labels, unit=examples[0].unit, **settings)

    def check(self, path: Path | Rows, examples: Sequence[TaggedExample | TaggedText],
              out_of_scope: str | None = None) -> None:
        require("seqeval.metrics")  # fails here, before any work is done
        if examples[0].unit != self.unit:
            form = "words and tags" if self.unit == "word" else "a text and entities"
            raise InputError(f"{path}: must have the tags of {self.unit}s, as the training file; got those of "
                             f"{examples[0].unit}s; write each row as {form}")
        for example in examples:
            for tag in example.tags or ():
                if tag not in self.labels:
                    raise InputError(f"{path}: row {example.row}: tag {escaped(tag)} is not among the learned tags; "
                                     "correct it, or train on sentences with it")

    def label(self, example: TaggedExample | TaggedText) -> list[str] | None:
        """Returns the tags of a text without those of white space, which does not distinguish texts."""
        if self.unit == "word":
            return example.tags
        return [tag for character, tag in zip(example.text, example.tags or ()) if not character.isspace()]

    def classes(self, example: TaggedExample | TaggedText) -> list[str]:
        return [tag[2:] for tag in example.tags or () if tag[0] == "B"]

    def example(self, text: str) -> TaggedText:
        return TaggedText(text, None, None)

    def encode(self, examples: Sequence[TaggedExample | TaggedText], tokenizer: Tokenizer) -> Encoded:
        size = self.max_length - 2
        stride = self.doc_stride or size
        has_tags = bool(examples) and examples[0].tags is not None
        tokens = tokens_with_offsets(map(self.text, examples), tokenizer, *(
            () if has_tags else [needed_tokens(size, stride, self.max_windows)]))  # tags are those of whole texts
        parts = [windows(len(text.ids), size, stride, self.max_windows) for text in tokens]
        own = [own_tokens(of_text) for of_text in parts]
        rows = [tokenizer.pack_ids(text.ids[begin:end].tolist(), None, self.max_length)
                for text, of_text in zip(tokens, parts) for begin, end in of_text]
        targets = None
        if has_tags:
            targets = [np.pad(target[first:last], (1 + first - begin, 1 + end - last), constant_values=UNLABELLED)
                       for target, *of_text in zip(map(self._targets, examples, tokens), parts, own)
                       for (begin, end), (first, last) in zip(*of_text)]
        return Encoded(examples, rows, targets, TokenBatches, (tokens, parts, own),
                       cut=sum(end < len(text.ids) for text, (*_, (_, end)) in zip(tokens, parts)),
                       split=sum(len(of_text) > 1 for of_text in parts))

    def _labelled(self, tokens: TokenOffsets) -> np.ndarray:
        """Returns the tokens that have a label: int64 [labelled tokens]."""
        return tokens.firsts if self.unit == "word" else tokens.heads

    def _targets(self, example: TaggedExample | TaggedText, tokens: TokenOffsets) -> np.ndarray:
        """Returns the index of the label of each token, `UNLABELLED` for those without one: int32 [tokens]."""
        targets, labelled = np.full(len(tokens.ids), UNLABELLED, np.int32), self._labelled(tokens)
        sources, continues = _sources(example, tokens, labelled)
        tags = [(example.tags or [])[source] for source in sources]
        tags = ["I" + tag[1:] if inside and tag != OUTSIDE else tag for tag, inside in zip(tags, continues)]
        targets[labelled] = [self.labels.index(tag) for tag in to_bio(tags)]
        return targets

    def _logits(self, encoded: Encoded, outputs: Outputs) -> list[np.ndarray]:
        """Returns the logits of the tokens of each text that its windows contain: [tokens, labels]."""
        _, parts, own = encoded.decoding
        rows = iter(outputs)
        return [np.concatenate([next(rows)[1 + first - begin:1 + last - begin]
                                for (begin, _), (first, last) in zip(of_text, own_of_text)])
                for of_text, own_of_text in zip(parts, own)]

    def new_head(self, bert: Encoder, dropout: float) -> Head:
        from keras_bert import models

        if self.features:
            return models.BertFeatureTagger(bert, len(self.labels), self.features, dropout=dropout)
        return models.BertTokenClassifier(bert, len(self.labels), dropout)

    def loss_arguments(self) -> dict[str, Any]:
        return {"loss": _loss}

    def encode_in_graph(self, outputs: Tensor, mask: Tensor) -> Answers:
        import tensorflow as tf

        return {"probabilities": tf.nn.softmax(outputs)}

    def answer_in_graph(self, reader: Reader, *inputs: Tensor) -> Answers:
        from keras_bert.tasks import tag_graph

        return tag_graph.answer(self, reader, *inputs)

    def answers(self, encoded: Encoded, outputs: Outputs,
                aggregation_strategy: AggregationStrategy | None = None) -> list[list[Entity]]:
        """Returns a list of `Entity`s for each text. If `aggregation_strategy` is "none", these are the tokens with
        another label than O."""
        strategy = aggregation_strategy or self._strategy
        return [_entities(text, words, strategy == "none") for text, words in self._words(encoded, outputs, strategy)]

    @property
    def _strategy(self) -> str:
        return "first" if self.unit == "word" else "simple"

    def _words(self, encoded: Encoded, outputs: Outputs, strategy: str) -> Iterator[tuple[str, Words]]:
        """Yields each text, and its words or tokens with their most probable labels."""
        for example, tokens, logits in zip(encoded.examples, encoded.decoding[0], self._logits(encoded, outputs)):
            probabilities = np.exp(log_softmax(logits))
            firsts = tokens.firsts if strategy in _OF_WORDS else tokens.heads
            ends = tokens.ends_of(firsts)
            firsts = firsts[firsts < len(logits)]  # of what the windows contain
            if strategy in _OF_WORDS and len(firsts):
                probabilities = np.stack(list(map(_OF_WORDS[strategy], np.split(probabilities, firsts[1:]))))
            else:
                probabilities = probabilities[firsts]
            yield example.text, Words([self.labels[i] for i in probabilities.argmax(axis=1)],
                                       probabilities.max(axis=1), tokens.starts[firsts], ends[:len(firsts)])

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns the scores of `score_tags`."""
        return self.score_tags(*self.tags_of(encoded, outputs))

    def score_tags(self, tags: list[list[str]], answers: list[list[str]], losses: list[float]) -> dict[str, Any]:
        """Returns, of the results of `tags_of`, `f1`, `precision` and `recall` of whole entities (seqeval, like
        conlleval); `entity_macro_f1`, the mean over the types, for which an entity must begin with B- (seqeval, strict
        IOB2); for tags of characters `character_macro_f1`, the mean over all labels that occur, O included, without
        white space (these two are the scores of KLUE's code; Park et al., 2021); `entities`, which maps each type to
        its scores and `texts`, its number of entities; `loss`, the mean cross-entropy of the labelled words or tokens.
        """
        metrics, strict = require("seqeval.metrics"), require("seqeval.metrics.v1")
        is_empty = {OUTSIDE}.issuperset(itertools.chain.from_iterable((*tags, *answers)))
        report = {"micro avg": dict.fromkeys(("precision", "recall", "f1-score"), 0.0)} if is_empty else (
            metrics.classification_report(tags, answers, output_dict=True, zero_division=0))
        _, _, of_types, _ = strict.precision_recall_fscore_support(
            tags, answers, average=None, scheme=require("seqeval.scheme").IOB2, zero_division=0)
        macro = {"entity_macro_f1": float(np.mean(of_types)) if len(of_types) else 0.0}
        if self.unit == "character":
            macro["character_macro_f1"] = float(require("sklearn.metrics").f1_score(
                *(list(itertools.chain.from_iterable(texts)) for texts in (tags, answers)), average="macro"))
        return _row(report.pop("micro avg")) | macro | {"loss": float(np.mean(losses or 0)), "entities": {
            label: _row(row) | {"texts": int(row["support"])}
            for label, row in report.items() if not label.endswith(" avg")}}

    def tags_of(self, encoded: Encoded, outputs: Outputs) -> tuple[list[list[str]], list[list[str]], list[float]]:
        """Returns the right tags of each text's words or characters, those that are answered, and the cross-entropy of
        each labelled word or token."""
        tags, answers, losses = [], [], []
        tags_of = _word_tags if self.unit == "word" else _character_tags
        for example, tokens, logits in zip(encoded.examples, encoded.decoding[0], self._logits(encoded, outputs)):
            labelled = self._labelled(tokens)
            read = labelled[labelled < len(logits)]
            logits, targets = log_softmax(logits[read]), self._targets(example, tokens)[read]
            losses += (-logits[range(len(read)), targets]).tolist()
            unread = [OUTSIDE] * (len(labelled) - len(read))
            answered = tags_of(example, tokens, [*(self.labels[i] for i in logits.argmax(axis=1)), *unread])
            tags.append(to_bio([tag for tag, answer in zip(example.tags or (), answered) if answer]))
            answers.append([*filter(None, answered)])
        return tags, answers, losses

    def answer_options(self, top_k: int = 1, aggregation_strategy: AggregationStrategy | None = None) -> dict[str, Any]:
        return super().answer_options(top_k) | not_none(aggregation_strategy=aggregation_strategy)

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> list[Entity]:
        columns = [row[f"entity_{field.name}"] for field in dataclasses.fields(Entity)]
        # -1 pads the shorter lists of a batch.
        return [entity for entity in itertools.starmap(Entity, zip(*columns)) if entity.start >= 0]

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        return [{"word_start": words.starts, "word_end": words.ends, "word_label": words.labels,
                 "word_score": words.scores} | {
                     f"entity_{field.name}": [getattr(entity, field.name) for entity in entities]
                     for field in dataclasses.fields(Entity)}
                for words, entities in self.decoded(encoded, outputs)]

    def decoded(self, encoded: Encoded, outputs: Outputs) -> Iterator[tuple[Words, list[Entity]]]:
        """Yields the words of each text, or its tokens, and its entities."""
        return ((words, _entities(text, words)) for text, words in self._words(encoded, outputs, self._strategy))

    def record(self, example: TaggedExample | TaggedText, answer: list[Entity]) -> dict[str, Any]:
        return {"text": example.text, "entities": [dataclasses.asdict(entity) for entity in answer]}

    def cells(self, example: TaggedExample | TaggedText, answer: list[Entity]) -> list[str]:
        return [example.text, *([f"{entity.label}:{entity.text}" for entity in answer] or ["(no entities)"])]


def _entities(text: str, words: Words, each: bool = False) -> list[Entity]:
    """Returns the entities in the words of a text or, with `each`, its words that are not O, with their labels."""
    spans = [(index, index + 1) for index, label in enumerate(words.labels) if label != OUTSIDE] if each else (
        spans_of(words.labels))
    found = []
    for first, end in spans:
        start, stop = int(words.starts[first]), int(words.ends[end - 1])
        label = words.labels[first] if each else type_of(words.labels[first])
        found.append(Entity(label, text[start:stop], start, stop, float(words.scores[first:end].mean())))
    return found


def _sources(example: TaggedExample | TaggedText, tokens: TokenOffsets,
             labelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each labelled token the index of the word or character of the file that it begins in, and True if the
    labelled token before begins in the same one: int64 and bool [labelled tokens]."""
    sources = np.searchsorted(example.starts, tokens.starts[labelled], side="right") - 1
    return sources, np.diff(sources, prepend=-1) == 0


def _word_tags(example: TaggedExample, tokens: TokenOffsets, labels: Sequence[str]) -> list[str]:
    """Returns the tags of the words of the file: the label of the first token of each, O for a word without tokens."""
    tags = [OUTSIDE] * len(example.words)
    for word, continues, label in zip(*_sources(example, tokens, tokens.firsts), labels):
        if not continues:
            tags[word] = label
    return tags


def _character_tags(example: TaggedText, tokens: TokenOffsets, labels: Sequence[str]) -> list[str | None]:
    """Returns the tags of the characters of the text: the label of the character's token; after the first character of
    a token, B- becomes I-. Characters without a token, white space above all, have None."""
    tags: list[str | None] = [None] * len(example.text)
    heads = tokens.heads
    for start, end, label in reversed([*zip(tokens.starts[heads], tokens.ends_of(heads), labels)]):  # the first counts
        tags[start:end] = [label] + ["I" + label[1:] if label != OUTSIDE else label] * (end - start - 1)
    return tags


def _row(row: dict[str, Any]) -> dict[str, float]:
    return {"precision": float(row["precision"]), "recall": float(row["recall"]), "f1": float(row["f1-score"])}
