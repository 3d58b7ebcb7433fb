"""`Source`: the weights that somebody's files hold, and how ours are taken from them."""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable

import numpy as np

from keras_bert.config import BertConfig
from keras_bert.convert.kinds import ENCODER, KINDS, initial, shapes
from keras_bert.convert.names import Table
from keras_bert.convert.weights import Weights
from keras_bert.errors import InputError
from keras_bert.text import BertTokenizer


@dataclasses.dataclass(frozen=True)
class Source:
    """What a reader finds at a path; nothing but names and shapes has been read.

    Args:
        path: of the file or folder that messages name.
        format: its name.
        config: the encoder's `BertConfig`.
        kind: one of `KINDS`.
        table: the format's names.
        shapes: dict of their names to shapes.
        get: function of a name of theirs that returns the array.
        aside: dict of their names that are no weights of ours to the reason.
        options, tokenizer, labels: see `Weights`.
    """

    path: str
    format: str
    config: BertConfig
    kind: str
    table: Table
    shapes: dict[str, tuple]
    get: Callable[[str], np.ndarray]
    aside: dict[str, str] = dataclasses.field(default_factory=dict)
    options: dict = dataclasses.field(default_factory=dict)
    tokenizer: BertTokenizer | None = None
    labels: list[str] | None = None

    def needed_tokenizer(self):
        """The tokenizer.

        Raises:
            InputError: there is no vocabulary beside the weights.
        """
        if self.tokenizer is None:
            raise InputError(f"{self.path}: there must be a vocabulary, vocab.txt, beside the weights; there is none")
        return self.tokenizer

    def take(self, kind=None, allow_missing=(), ignore=()):
        """The weights, all of them or none.

        Args:
            kind: the kind of model wanted, `encoder` or another part of the source's own; None for its own.
            allow_missing: patterns of their names that may be missing; such weights are initialised, from one seed.
            ignore: patterns of their names to leave.

        Returns:
            (`Weights`, dict of their names that were left to the reason, list of names that were missing).

        Raises:
            InputError: weights are missing, left over or of another shape; all of them are listed at once.
        """
        kind = kind or self.kind
        wanted = shapes(self.config, kind, self.options.get("num_classes"))
        if not KINDS[self.kind].is_pooled:
            allow_missing = (*allow_missing, *(self.table[f"bert.pooler.{part}"].theirs for part in ("kernel", "bias")))
        left = self._leave(wanted, ignore)
        read, missing, problems = {}, [], []
        for ours, shape in wanted.items():
            name = self.table[ours]
            expected = name.their_shape(shape, self.config)
            read[ours] = functools.partial(self._read, name, shape)
            if name.theirs not in self.shapes:
                read[ours] = functools.partial(initial, ours, shape, self.config)
                missing.append(name.theirs)
                if not _matches(name.theirs, allow_missing):
                    problems.append(f"missing {name.theirs}")
            elif self.shapes[name.theirs] != expected:
                problems.append(f"{name.theirs} has shape {self.shapes[name.theirs]} where the config gives {expected}")
        unexpected = self.shapes.keys() - left.keys() - {self.table[ours].theirs for ours in wanted}
        problems += [f"unexpected {name}" for name in sorted(unexpected)]
        if problems:
            raise InputError(f"{self.path}: the weights do not fit the config: {'; '.join(problems)}")
        weights = Weights(self.config, self.kind, read, self.options, self.tokenizer, self.labels)
        return weights if kind == self.kind else weights.as_kind(kind), left, missing

    def _leave(self, wanted, ignore):
        """Dict of their names that are not to be taken to the reason."""
        head = {self.table[ours].theirs: "the head, not asked for" for ours in KINDS[self.kind].head.keys() - wanted}
        ignored = {name: "ignored" for name in self.shapes if _matches(name, ignore)}
        return {name: reason for name, reason in (head | ignored | self.aside).items() if name in self.shapes}

    def _read(self, name, shape):
        return name.to_ours(self.get(name.theirs), shape)


def detect(table, names, kinds):
    """The first of `kinds` that has a weight of every part of its head among the names of a source, else `encoder`."""
    for kind in kinds:
        parts = {ours.split(".")[0] for ours in KINDS[kind].head}
        found = {ours.split(".")[0] for ours in KINDS[kind].head if ours in table and table[ours].theirs in names}
        if parts == found:
            return kind
    return ENCODER


def _matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
