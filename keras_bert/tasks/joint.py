"""Intents and slots together: a class of a text, and the entities in it, from one call of the encoder."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.batches import MixedBatches
from keras_bert.data.tables import Rows, escaped
from keras_bert.data.tagged import Tagged, Unit, read_tagged
from keras_bert.errors import InputError
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, Reader, Task
from keras_bert.tasks.classify import Classify, names_of_classes
from keras_bert.tasks.tag import Entity, Tag
from keras_bert.text import Tokenizer
from keras_bert.types import Encoder, Head, Tensor

_LABEL, _TAGS = "label_logits", "tag_logits"  # the outputs of the model


@dataclasses.dataclass(frozen=True)
class Frame:
    """What a text says: its `label`, with the probability `score`; the `entities` in it; and `frame_score`, the product
    of the probabilities of the label and of the words' tags."""

    label: str
    score: float
    entities: list[Entity]
    frame_score: float


@dataclasses.dataclass(frozen=True)
class Joint(Task):
    """A class of a text and the entities in it (JointBERT: Chen et al., 2019). The loss is the sum of both tasks'
    cross-entropies. Texts are cut at `max_length`: words after it have no tag, and count as O in the scores.

    Args:
        labels: names of the classes, in the order of the logits.
        tags: names of the tags, in the order of the logits, see `Tag`.
        unit: what the training file's tags belong to.
    """

    labels: list
    tags: list
    unit: Unit = "word"

    name, main, names_classes, output = "joint", "frame_accuracy", True, "frame_score"
    score_names = {"frame_accuracy": "frame accuracy", "accuracy": "label accuracy", "macro_f1": "macro F1 of labels",
                   "f1": "entity F1", "precision": "entity precision", "recall": "entity recall"}
    heads, lite_outputs, display = ("BertJointClassifier",), {_LABEL: "BL", _TAGS: "BST"}, "frame"
    weighed, named = "probabilities", {"labels": "num_classes", "tags": "num_tags"}
    files = "words with tags and a label", ()
    card = Card("token-classification", "classes and entities of texts",
                "Answers a text with one of {}classes, and marks the entities in it.")
    tuples = (("words", "tags", "label"),)
    exported_outputs = {"label": (str, "B"), "score": (np.float32, "B"), "probabilities": (np.float32, "BL"),
                        "frame_score": (np.float32, "B"), **Tag.exported_outputs}

    def __post_init__(self) -> None:
        for name in ("labels", "tags"):
            if not all(isinstance(value, str) and value for value in getattr(self, name)):
                raise InputError(f"{name} must be texts that are not empty; got {getattr(self, name)!r:.200}")

    @functools.cached_property
    def _classify(self) -> Classify:
        return Classify(self.max_length, self.labels)

    @functools.cached_property
    def _tag(self) -> Tag:
        return Tag(self.max_length, self.tags, unit=self.unit, max_windows=1)

    @classmethod
    def iterate(cls, path: Path | Rows, data_format: str | None = None, label_column: str | None = "label",
                **_: Any) -> Iterator[Tagged]:
        for example in read_tagged(path, data_format, label_column):
            if label_column is None:
                example = dataclasses.replace(example, tags=None)
            elif example.tags is None:
                raise InputError(f"{path}: row {example.row}: must have tags or entities")
            elif not example.label:
                raise InputError(f"{path}: row {example.row}: must have one label: in CoNLL's format, one line "
                                 "`# intent: LABEL` before the words")
            yield example

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence[Tagged], **settings: Any) -> Self:
        labels = names_of_classes(path, examples)
        tag = Tag.from_examples(path, examples, **settings)
        return cls(labels=labels, tags=tag.labels, unit=tag.unit, **settings)

    def check(self, path: Path | Rows, examples: Sequence[Tagged], out_of_scope: str | None = None) -> None:
        self._tag.check(path, examples)
        for example in examples:
            if example.label not in self.labels:
                raise InputError(f"{path}: row {example.row}: label {escaped(example.label or '')} is not among the "
                                 "learned labels; correct it, or train on texts with it")

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        self._tag.check_tokenizer(tokenizer)

    def label(self, example: Tagged) -> Any:
        return example.label, self._tag.label(example)

    def classes(self, example: Tagged) -> list[str]:
        return [example.label or ""]

    def strata(self, example: Tagged) -> list[str]:
        return [example.label or "", *(f"{kind} (entity)" for kind in self._tag.classes(example))]

    def example(self, text: str) -> Tagged:
        return self._tag.example(text)

    def encode(self, examples: Sequence[Tagged], tokenizer: Tokenizer) -> Encoded:
        encoded = self._tag.encode(examples, tokenizer)
        targets = None if encoded.targets is None else {
            _LABEL: np.array([self.labels.index(example.label) for example in examples], np.int32),
            _TAGS: encoded.targets}
        return dataclasses.replace(encoded, targets=targets, batches=MixedBatches, decoding=encoded)

    def new_head(self, bert: Encoder, dropout: float) -> Head:
        from keras_bert.models import BertJointClassifier

        return BertJointClassifier(bert, len(self.labels), len(self.tags), dropout)

    def loss_arguments(self) -> dict[str, Any]:
        return {"loss": {_LABEL: self._classify.loss_arguments()["loss"], _TAGS: self._tag.loss_arguments()["loss"]}}

    def encode_in_graph(self, outputs: Any, mask: Tensor) -> Answers:
        return self._classify.encode_in_graph(outputs[_LABEL], mask) | {
            "tag_probabilities": self._tag.encode_in_graph(outputs[_TAGS], mask)["probabilities"]}

    def answer_in_graph(self, reader: Reader, *inputs: Tensor) -> Answers:
        import tensorflow as tf

        from keras_bert.tasks import tag_graph

        rows, _, decode = tag_graph.encode(self._tag, reader, inputs[0])  # a row for each text
        outputs = reader.run(*rows)
        answers, entities = self._classify.encode_in_graph(outputs[_LABEL], rows[1]), decode(outputs[_TAGS])
        of_words = tf.where(entities["word_start"] < 0, 1.0, entities["word_score"])  # padding has no factor
        return answers | entities | {"frame_score": answers["score"] * tf.reduce_prod(of_words, axis=1)}

    def _parts(self, encoded: Encoded, outputs: Outputs) -> tuple[tuple[Encoded, list], tuple[Encoded, list]]:
        """Returns the examples and the outputs of the two tasks."""
        labels = None if encoded.targets is None else encoded.targets[_LABEL]
        of_labels = Encoded(encoded.examples, encoded.rows, labels)
        return ((of_labels, [row[_LABEL] for row in outputs]), (encoded.decoding, [row[_TAGS] for row in outputs]))

    def answers(self, encoded: Encoded, outputs: Outputs) -> list[Frame]:
        of_labels, of_tags = self._parts(encoded, outputs)
        return [Frame(answer.label, answer.score, entities, answer.score * float(words.scores.prod())) for answer, (
            words, entities) in zip(self._classify.answers(*of_labels), self._tag.decoded(*of_tags))]

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> Frame:
        return Frame(row["label"], float(row["score"]), self._tag.answer_of(row), float(row["frame_score"]))

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        of_labels, of_tags = self._parts(encoded, outputs)
        return [label | tags | {"frame_score": label["score"] * np.prod(tags["word_score"])} for label, tags in zip(
            self._classify.exported_rows(*of_labels), self._tag.exported_rows(*of_tags))]

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns `frame_accuracy`, the share of the texts whose label and tags are all right, as in JointBERT's code,
        for which I- at the beginning of an entity is wrong; `accuracy` and the other scores of `Classify`, of the
        labels; those of `Tag`, of the entities; and `loss`, the sum of both."""
        of_labels, of_tags = self._parts(encoded, outputs)
        tags, answers, losses = self._tag.tags_of(*of_tags)
        classes, entities = self._classify.score(*of_labels), self._tag.score_tags(tags, answers, losses)
        right = self._classify.probabilities(*of_labels).argmax(1) == encoded.targets[_LABEL]
        frames = [is_right and one == other for is_right, one, other in zip(right, tags, answers)]
        return {"frame_accuracy": float(np.mean(frames))} | classes | entities | {
            "loss": classes["loss"] + entities["loss"]}

    def record(self, example: Tagged, answer: Frame) -> dict[str, Any]:
        return {"text": example.text} | dataclasses.asdict(answer)

    def cells(self, example: Tagged, answer: Frame) -> list[str]:
        _, *entities = self._tag.cells(example, answer.entities)
        return [answer.label, f"{answer.score:.4f}", example.text, *entities]
