"""A label for each word, and the entities that the labels tell."""

import dataclasses
import itertools

import numpy as np
from keras import ops

from keras_bert.data import UNLABELLED, TaggedExample, TokenBatches, read_tagged
from keras_bert.errors import InputError
from keras_bert.models import BertFeatureTagger, BertTokenClassifier
from keras_bert.tasks.base import Encoded, Task, log_softmax, needs
from keras_bert.tasks.pieces import pieces_of

OUTSIDE = "O"


@dataclasses.dataclass(frozen=True)
class Entity:
    """A part of a text, `text[start:end]` in characters (code points), the label of its type, and the mean probability
    of its words' labels."""

    label: str
    text: str
    start: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True)
class Tag(Task):
    """Named entities and slots (Devlin et al., 2018, section 5.3): a BIO label at the first piece of each word, as BERT
    cuts words, at white space and punctuation; where a file's word is cut there, the label goes on.

    A text longer than `max_length` is cut into parts, one after the other.

    Args:
        labels: names of the labels, in the order of the logits.
        features: what a frozen encoder gives to a BiLSTM, see `BertFeatures`; None to train the encoder.
    """

    labels: list
    features: str | None = None

    name, main, unused = "tag", "f1", ("pooler",)

    @classmethod
    def read(cls, path, format=None, label="label", **_):
        examples = list(read_tagged(path, format))
        if label is not None and examples[0].tags is None:
            raise InputError(f"{path}: there are no tags")
        return examples

    @classmethod
    def learn(cls, path, examples, **settings):
        types = {tag[2:] for example in examples for tag in example.tags if tag != OUTSIDE}
        if not types:
            raise InputError(f"{path}: a tagger needs at least one entity; every tag is {OUTSIDE}")
        return cls(labels=[OUTSIDE, *(f"{at}-{type}" for type in sorted(types) for at in "BI")], **settings)

    def check(self, path, examples, out_of_scope=None):
        needs("seqeval.metrics")  # before any work is done
        for example in examples:
            for tag in example.tags:
                if tag not in self.labels:
                    raise InputError(f"{path}: row {example.row}: tag {tag!r} does not occur in the training file")

    def head(self, bert, dropout):
        if self.features:
            return BertFeatureTagger(bert, len(self.labels), self.features, dropout=dropout)
        return BertTokenClassifier(bert, len(self.labels), dropout)

    def loss(self):
        return {"loss": _cross_entropy}

    def text(self, example):
        return " ".join(example.words)

    def example(self, text):
        return TaggedExample([text], None, None)

    def encode(self, examples, tokenizer):
        pieces = pieces_of(list(map(self.text, examples)), tokenizer)
        most, rows, parts = self.max_length - 2, [], []
        for number, text in enumerate(pieces):
            for begin in range(0, max(len(text.ids), 1), most):
                ids = text.ids[begin:begin + most].tolist()
                rows.append(([tokenizer.cls_id, *ids, tokenizer.sep_id], len(ids) + 2))
                parts.append((number, begin))
        labelled = bool(examples) and examples[0].tags is not None
        targets = self._targets(examples, pieces, parts) if labelled else None
        return Encoded(examples, rows, targets, TokenBatches, (pieces, parts))

    def _targets(self, examples, pieces, parts):
        """The label of each token of each part of a text: a list of int32 arrays, with [CLS] and [SEP]."""
        of_texts = []
        for example, text in zip(examples, pieces):
            targets = np.full(len(text.ids), UNLABELLED, np.int32)
            targets[text.firsts] = self._word_targets(example, text)
            of_texts.append(targets)
        most = self.max_length - 2
        return [np.pad(of_texts[number][begin:begin + most], 1, constant_values=UNLABELLED) for number, begin in parts]

    def _word_targets(self, example, pieces):
        """The number of the label of each word as BERT cuts them: a list of ints."""
        tags = [(example.tags[word], goes_on) for word, goes_on in zip(*_file_words(example, pieces))]
        return [self.labels.index("I" + tag[1:] if goes_on and tag != OUTSIDE else tag) for tag, goes_on in tags]

    def _logits(self, encoded, outputs):
        """The logits of each text's words: a list of arrays [words, labels]."""
        pieces, parts = encoded.places
        words = [[] for _ in pieces]
        for (number, begin), (ids, _), output in zip(parts, encoded.rows, outputs):
            firsts = pieces[number].firsts - begin
            words[number].append(output[firsts[(firsts >= 0) & (firsts < len(ids) - 2)] + 1])
        return [np.concatenate(logits) for logits in words]

    def answers(self, encoded, outputs):
        """A list of `Entity`s a text."""
        return [self._entities(self.text(example), pieces, np.exp(log_softmax(logits)))
                for example, pieces, logits in zip(encoded.examples, encoded.places[0], self._logits(encoded, outputs))]

    def _entities(self, text, pieces, probabilities):
        labels = [self.labels[i] for i in probabilities.argmax(axis=1)]
        lasts = np.append(pieces.firsts[1:], len(pieces.ids)) - 1
        found = []
        for first, end in spans_of(labels):
            start, stop = int(pieces.starts[pieces.firsts[first]]), int(pieces.ends[lasts[end - 1]])
            found.append(Entity(labels[first][2:], text[start:stop], start, stop,
                                float(probabilities[first:end].max(axis=1).mean())))
        return found

    def score(self, encoded, outputs):
        """`f1`, `precision` and `recall` of whole entities (seqeval, as conlleval); `entities`, for each type the same
        and `texts`, how many there are; `loss`, the mean cross-entropy of the words."""
        metrics = needs("seqeval.metrics")
        tags, answers, losses = [], [], []
        for example, pieces, logits in zip(encoded.examples, encoded.places[0], self._logits(encoded, outputs)):
            answered, logits = [OUTSIDE] * len(example.tags), log_softmax(logits)
            losses += [-row[target] for row, target in zip(logits, self._word_targets(example, pieces))]
            for word, goes_on, row in zip(*_file_words(example, pieces), logits):
                if not goes_on:
                    answered[word] = self.labels[row.argmax()]
            tags.append(example.tags)
            answers.append(answered)
        report = metrics.classification_report(tags, answers, output_dict=True, zero_division=0)
        total = report.pop("micro avg")
        return _row(total) | {"loss": float(np.mean(losses)), "entities": {
            label: _row(row) | {"texts": int(row["support"])}
            for label, row in report.items() if not label.endswith(" avg")}}

    def answering(self):
        return {"max_length": self.max_length, "labels": self.labels}

    def record(self, example, answer):
        return {"text": self.text(example), "entities": [dataclasses.asdict(entity) for entity in answer]}

    def line(self, example, answer):
        return "\t".join([self.text(example), *(f"{entity.label}:{entity.text}" for entity in answer)])


def spans_of(labels):
    """The entities of BIO labels, the first word and the one behind the last of each: a list of pairs of ints. An I-
    behind another type begins one."""
    begins = [label[0] == "B" or label[0] == "I" and (before == OUTSIDE or before[2:] != label[2:])
              for before, label in itertools.pairwise([OUTSIDE, *labels])]
    spans = []
    for place, (label, begin) in enumerate(zip(labels, begins)):
        if begin:
            spans.append((place, place + 1))
        elif label != OUTSIDE:
            spans[-1] = (spans[-1][0], place + 1)
    return spans


def _file_words(example, pieces):
    """For each word as BERT cuts them, the number of the file's word that it is in, and whether it is not the first
    there: int64 and bool [words]."""
    begins = np.cumsum([0, *(len(word) + 1 for word in example.words[:-1])])
    words = np.searchsorted(begins, pieces.starts[pieces.firsts], side="right") - 1
    return words, np.diff(words, prepend=-1) == 0


def _row(row):
    return {"precision": float(row["precision"]), "recall": float(row["recall"]), "f1": float(row["f1-score"])}


def _cross_entropy(targets, logits):
    """The mean over the labelled tokens of a batch."""
    labelled = ops.cast(targets != UNLABELLED, logits.dtype)
    losses = ops.sparse_categorical_crossentropy(ops.maximum(targets, 0), logits, from_logits=True)
    return ops.sum(losses * labelled) / ops.maximum(ops.sum(labelled), 1.0)
