"""Tagging of named entities and slots: one tag per word."""

import dataclasses
import itertools
import os
import re

import numpy as np
from keras import ops

from keras_bert.data import UNLABELLED, TokenBatches
from keras_bert.data.examples import choose
from keras_bert.data.tables import Rows, choose_reader, lines, read_table, texts_of
from keras_bert.errors import InputError
from keras_bert.models import BertFeatureTagger, BertTokenClassifier
from keras_bert.tasks.base import Encoded, Task, log_softmax, require
from keras_bert.tasks.offsets import tokens_with_offsets

_TAG = re.compile(r"O|([BIELSU])-(.+)")
_RULE = "must be O, or B-, I-, E-, L-, S- or U- and a type"


@dataclasses.dataclass(frozen=True)
class TaggedExample:
    """The words of a sentence and their BIO tags, or None if the file has no tags. `row` is the line of the first word,
    or the record, counted from 1."""

    words: list[str]
    tags: list[str] | None
    row: int


def read_tagged(path, data_format=None):
    """Reads sentences and converts their tags to BIO, see `to_bio`.

    Args:
        path: the file, UTF-8, or the folder; or `Rows`, with the columns of `.jsonl`.
        data_format: `conll`: one word per line, with its tag in the last column. Blank lines end sentences; lines of
            -DOCSTART- and comments (`# …` that do not end in a tag) are skipped; a file with one column has no tags.
            `klue-ner` (Park et al., 2021): one character per line; words are separated by spaces, and a word has the
            tag of its first character. `snips` (Goo et al., 2018): a folder of `seq.in`, words, and `seq.out`, tags,
            with one sentence per line. If None, the suffix decides: `.jsonl` and `.parquet` have rows with the lists
            `words` or `tokens`, and `tags`; `.conll`, `.bio`, `.iob`, `.tsv` and `.txt` are `conll`; a folder is
            `snips`.

    Yields:
        `TaggedExample`s.

    Raises:
        InputError: names the file, the row and the tag.
    """
    if data_format:
        reader = choose(path, data_format, FORMATS)
    elif not isinstance(path, Rows) and os.path.isdir(path):
        reader = _read_snips
    else:
        reader = choose_reader(path, _READERS, "a file of tagged words",
                               other=f", or have a data_format of {', '.join(FORMATS)}")
    example = None
    for example in reader(path):
        yield example
    if example is None:
        raise InputError(f"{path}: holds no sentences")


def to_bio(tags, places=None):
    """Converts the tags of a sentence from one of the schemes BIO, IOB1, IOE1, IOE2, BIOES and BILOU to BIO.

    An entity begins at B, S and U, and at I, E and L unless the previous tag is B or I of the same type. This is the
    rule of `conlleval` (Tjong Kim Sang and De Meulder, 2003), and it is correct for each of these schemes.

    Args:
        tags: list of str, "O" or a letter, a hyphen and a type.
        places: iterable of str, the name of each tag in error messages; if None, "a tag".

    Returns:
        list of str.

    Raises:
        InputError: names a tag that has another form.
    """
    converted, before = [], None
    for tag, place in zip(tags, places or itertools.repeat("a tag")):
        match = _TAG.fullmatch(tag)
        if not match:
            raise InputError(f"{place} {_RULE}; got {tag!r}")
        letter, kind = match.groups()
        inside = letter in ("I", "E", "L") and before in (("B", kind), ("I", kind))
        converted.append(tag if tag == "O" else f"{'I' if inside else 'B'}-{kind}")
        before = letter, kind
    return converted


def _read_conll(path):
    for rows, words, tags in _sentences(path):
        for row, word in zip(rows, words):
            if not word.strip():
                raise InputError(f"{path}: row {row}: must have a word in the first column; got {word!r}")
        yield TaggedExample(words, tags, rows[0])


def _read_klue_ner(path):
    for rows, characters, tags in _sentences(path):
        if tags is None:
            raise InputError(f"{path}: row {rows[0]}: must have a character and a tag; got {characters[0]!r}")
        spaces = [True, *map(str.isspace, characters)]
        firsts = [before and not space for before, space in itertools.pairwise(spaces)]
        yield _example(path, rows[0], "".join(characters).split(), list(itertools.compress(tags, firsts)))


def _read_snips(folder):
    words_path, tags_path = (os.path.join(folder, name) for name in ("seq.in", "seq.out"))
    pairs = itertools.zip_longest(lines(words_path), lines(tags_path), fillvalue=(0, 1.0, ""))
    for row, ((_, _, words), (_, _, tags)) in enumerate(pairs, 1):
        if words.strip() or tags.strip():
            yield _example(tags_path, row, words.split(), tags.split())


def _read_rows(path):
    columns, rows = read_table(path)
    name = "tokens" if "tokens" in columns else "words"
    for row, values in rows:
        words = texts_of(path, row, values, name)
        if "tags" in columns:
            yield _example(path, row, words, texts_of(path, row, values, "tags"))
        else:
            yield TaggedExample(words, None, row)


def _example(path, row, words, tags):
    if len(words) != len(tags):
        raise InputError(f"{path}: row {row}: must have as many tags as words, {len(words)}; got {len(tags)}")
    return TaggedExample(words, to_bio(tags, itertools.repeat(f"{path}: row {row}: a tag")), row)


def _sentences(path):
    """Yields (rows, words, tags) for each sentence: rows is a list of int; words is the first column; tags is the last
    column as BIO, or None if there is only one column."""
    count, sentence = None, []
    for row, _, line in itertools.chain(lines(path), [(0, 1.0, "")]):
        line = line.rstrip("\r\n")
        columns = line.split("\t") if "\t" in line else re.split(" +", line.strip())
        if not line.strip() or columns[0] == "-DOCSTART-":
            if sentence:
                rows, words, tags = map(list, zip(*sentence))
                if rows[0] == 1 and count > 1 and not _TAG.fullmatch(tags[0]):
                    raise InputError(f"{path}: row 1: a tag {_RULE}; got {tags[0]!r}; if this is a header, delete it")
                yield rows, words, to_bio(tags, (f"{path}: row {row}: a tag" for row in rows)) if count > 1 else None
            sentence = []
        elif not re.match("#+ ", line) or _TAG.fullmatch(columns[-1]):
            count = count or len(columns)
            if len(columns) != count:
                raise InputError(
                    f"{path}: row {row}: must have {count} columns, like the rows before; got {len(columns)}")
            sentence.append((row, columns[0], columns[-1]))


_READERS: dict = {**dict.fromkeys([".conll", ".bio", ".iob", ".tsv", ".txt"], _read_conll),
                   **dict.fromkeys([None, ".jsonl", ".parquet"], _read_rows)}
FORMATS = {"conll": _read_conll, "klue-ner": _read_klue_ner, "snips": _read_snips}


OUTSIDE = "O"


@dataclasses.dataclass(frozen=True)
class Entity:
    """A part of a text, `text[start:end]` in characters (code points), with its type as `label` and the mean
    probability of the labels of its words as `score`."""

    label: str
    text: str
    start: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True)
class Tag(Task):
    """Tagging of named entities and slots (Devlin et al., 2018, section 5.3), with a BIO label at the first token of
    each word.

    As in BERT, words are split at white space and punctuation. If this splits a word of the file, the parts after the
    first continue its entity: their label is I- instead of B-.

    A text longer than `max_length` is split into consecutive parts.

    Args:
        labels: names of the labels, in the order of the logits.
        features: the features of a frozen encoder that a BiLSTM reads, see `BertFeatures`. If None, the encoder is
            trained.
    """

    labels: list
    features: str | None = None

    name, main, unused = "tag", "f1", ("pooler",)
    tuples = (("words", "tags"),)

    @classmethod
    def iterate(cls, path, data_format=None, label_column="label", **_):
        for example in read_tagged(path, data_format):
            if label_column is not None and example.tags is None:
                raise InputError(f"{path}: there are no tags")
            yield example

    @classmethod
    def from_examples(cls, path, examples, **settings):
        types = {tag[2:] for example in examples for tag in example.tags if tag != OUTSIDE}
        if not types:
            raise InputError(f"{path}: a tagger needs at least one entity; every tag is {OUTSIDE}")
        return cls(labels=[OUTSIDE, *(f"{at}-{type}" for type in sorted(types) for at in "BI")], **settings)

    def check(self, path, examples, out_of_scope=None):
        require("seqeval.metrics")  # fails here, before any work is done
        for example in examples:
            for tag in example.tags:
                if tag not in self.labels:
                    raise InputError(f"{path}: row {example.row}: tag {tag!r} does not occur in the training file; "
                                     "correct it, or add sentences with it there")

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
        tokens = tokens_with_offsets(list(map(self.text, examples)), tokenizer)
        size, rows, parts, targets = self.max_length - 2, [], [], None
        for number, text in enumerate(tokens):
            for begin in range(0, max(len(text.ids), 1), size):
                ids = text.ids[begin:begin + size].tolist()
                rows.append(([tokenizer.cls_id, *ids, tokenizer.sep_id], len(ids) + 2))
                parts.append((number, begin))
        if examples and examples[0].tags is not None:
            of_texts = list(map(self._token_targets, examples, tokens))
            targets = [np.pad(of_texts[number][begin:begin + size], 1, constant_values=UNLABELLED)
                       for number, begin in parts]
        return Encoded(examples, rows, targets, TokenBatches, (tokens, [number for number, _ in parts]))

    def _token_targets(self, example, tokens):
        """Returns the index of the label of each token, `UNLABELLED` for all but the first token of a word: int32
        [tokens]."""
        targets = np.full(len(tokens.ids), UNLABELLED, np.int32)
        targets[tokens.firsts] = self._word_targets(example, tokens)
        return targets

    def _word_targets(self, example, tokens):
        """Returns the index of the label of each word as BERT splits them: a list of ints."""
        tags = [(example.tags[word], continues) for word, continues in zip(*_file_words(example, tokens))]
        return [self.labels.index("I" + tag[1:] if continues and tag != OUTSIDE else tag) for tag, continues in tags]

    def _logits(self, encoded, outputs):
        """Returns the logits of the words of each text: a list of arrays [words, labels]."""
        tokens, numbers = encoded.decoding
        of_texts = [[] for _ in tokens]
        for number, (ids, _), output in zip(numbers, encoded.rows, outputs):
            of_texts[number].append(output[1:len(ids) - 1])
        return [np.concatenate(logits)[text.firsts] for text, logits in zip(tokens, of_texts)]

    def answers(self, encoded, outputs):
        """Returns a list of `Entity`s for each text."""
        return [self._entities(self.text(example), tokens, np.exp(log_softmax(logits))) for example, tokens, logits
                in zip(encoded.examples, encoded.decoding[0], self._logits(encoded, outputs))]

    def _entities(self, text, tokens, probabilities):
        labels = [self.labels[i] for i in probabilities.argmax(axis=1)]
        lasts = np.append(tokens.firsts[1:], len(tokens.ids)) - 1
        found = []
        for first, end in spans_of(labels):
            start, stop = int(tokens.starts[tokens.firsts[first]]), int(tokens.ends[lasts[end - 1]])
            found.append(Entity(labels[first][2:], text[start:stop], start, stop,
                                float(probabilities[first:end].max(axis=1).mean())))
        return found

    def score(self, encoded, outputs):
        """Returns `f1`, `precision` and `recall` of whole entities (seqeval, like conlleval); `entities`, which maps
        each type to the same scores and `texts`, its number of entities; `loss`, the mean cross-entropy of the
        words."""
        metrics = require("seqeval.metrics")
        tags, answers, losses = [], [], []
        for example, tokens, logits in zip(encoded.examples, encoded.decoding[0], self._logits(encoded, outputs)):
            answered, logits = [OUTSIDE] * len(example.tags), log_softmax(logits)
            losses += [-row[target] for row, target in zip(logits, self._word_targets(example, tokens))]
            for word, continues, row in zip(*_file_words(example, tokens), logits):
                if not continues:
                    answered[word] = self.labels[row.argmax()]
            tags.append(example.tags)
            answers.append(answered)
        report = metrics.classification_report(tags, answers, output_dict=True, zero_division=0)
        total = report.pop("micro avg")
        return _row(total) | {"loss": float(np.mean(losses)), "entities": {
            label: _row(row) | {"texts": int(row["support"])}
            for label, row in report.items() if not label.endswith(" avg")}}

    def export_options(self):
        return {"max_length": self.max_length, "labels": self.labels}

    def record(self, example, answer):
        return {"text": self.text(example), "entities": [dataclasses.asdict(entity) for entity in answer]}

    def cells(self, example, answer):
        return [self.text(example), *(f"{entity.label}:{entity.text}" for entity in answer)]


def spans_of(labels):
    """Finds the entities in BIO labels. An I- that does not follow a label of the same type begins an entity.

    `Tagger` in export/text_heads.py has the same rule as TensorFlow operations on a batch, because a SavedModel cannot
    run Python; tests/test_decoding.py compares the two.

    Returns:
        a list of (first word, last word + 1).
    """
    spans = []
    for index, (before, label) in enumerate(itertools.pairwise([OUTSIDE, *labels])):
        if label[0] == "I" and before != OUTSIDE and before[2:] == label[2:]:
            spans[-1] = (spans[-1][0], index + 1)
        elif label != OUTSIDE:
            spans.append((index, index + 1))
    return spans


def _file_words(example, tokens):
    """Returns for each word as BERT splits them the index of the word of the file that contains it, and True if it is
    not the first in that word: int64 and bool [words]."""
    begins = np.cumsum([0, *(len(word) + 1 for word in example.words[:-1])])
    words = np.searchsorted(begins, tokens.starts[tokens.firsts], side="right") - 1
    return words, np.diff(words, prepend=-1) == 0


def _row(row):
    return {"precision": float(row["precision"]), "recall": float(row["recall"]), "f1": float(row["f1-score"])}


def _cross_entropy(targets, logits):
    """Computes the mean cross-entropy over the labelled tokens of a batch."""
    labelled = ops.cast(targets != UNLABELLED, logits.dtype)
    losses = ops.sparse_categorical_crossentropy(ops.maximum(targets, 0), logits, from_logits=True)
    return ops.sum(losses * labelled) / ops.maximum(ops.sum(labelled), 1.0)
