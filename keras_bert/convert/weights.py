"""`Weights`, a model that is independent of formats, and `Source`, a model in the format of its files."""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable

import numpy as np
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.convert.format import Table
from keras_bert.convert.kinds import ENCODER, KINDS, initial, kind_of, shapes, variable
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.text import BertTokenizer


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a model under this package's names. The arrays are read on demand, one at a time.

    Args:
        config: the encoder's `BertConfig`.
        kind: one of `KINDS`.
        read: dict of each of this package's names (`kinds.shapes`) to a function that returns the array, float32.
        options: arguments of the model with the head, e.g. `num_classes`.
        tokenizer: the model's `BertTokenizer`, or None.
        labels: names of the classes, or None.
    """

    config: BertConfig
    kind: str
    read: dict
    options: dict = dataclasses.field(default_factory=dict)
    tokenizer: BertTokenizer | None = None
    labels: list[str] | None = None

    @classmethod
    def of(cls, model, tokenizer=None, labels=None):
        """Returns the weights of a `BertLayer` or of a model on one."""
        kind = kind_of(model)
        config = model.config if kind == ENCODER else model.bert.config
        options = {} if kind == ENCODER else {
            name: value for name, value in model.get_config().items() if name in OPTIONS}
        read = {name: functools.partial(_value, variable(model, name))
                for name in shapes(config, kind, options.get("num_classes"))}
        return cls(config, kind, read, options, tokenizer, labels)

    @property
    def shapes(self):
        """Dict of this package's names to shapes."""
        return shapes(self.config, self.kind, self.options.get("num_classes"))

    def arrays(self, table):
        """Yields (`Name`, array in the form of the table's format) for every weight that the format has."""
        for ours, read in self.read.items():
            if ours in table:
                name = table[ours]
                yield name, np.ascontiguousarray(name.to_theirs(read(), self.config))

    def as_kind(self, kind):
        """Returns only the weights of a model of `kind`; all of them must be among these."""
        names = shapes(self.config, kind)
        options = self.options | {"next_sentence": False} if kind == "masked_lm" else {}
        return dataclasses.replace(self, kind=kind, read={name: self.read[name] for name in names}, options=options,
                                   labels=None)

    def build(self, lora_rank=None, **kwargs):
        """Returns the model, a `BertLayer` or a model on one, with these weights.

        Args:
            lora_rank, **kwargs: arguments of `BertLayer`, e.g. `dtype`.
        """
        bert = BertLayer(self.config, **kwargs)
        model = bert if self.kind == ENCODER else KINDS[self.kind].model(bert, **self.options)
        self.assign(model)
        if lora_rank:
            bert.enable_lora(lora_rank)  # afterwards a kernel is a sum, which cannot be assigned to
        return model

    def assign(self, model):
        """Assigns the weights to the variables of a model; its other variables do not change."""
        for name, read in self.read.items():
            variable(model, name).assign(read())


# Arguments of models with heads that are kept together with the weights.
OPTIONS = ("num_classes", "dropout", "next_sentence", "mlm_activation", "mlm_layer_norm_eps")


def _value(source):
    return np.asarray(ops.convert_to_numpy(source), np.float32)


@dataclasses.dataclass(frozen=True)
class Source:
    """The weights at a path, under the names of their format. The arrays are read later, by the result of `take`.

    Args:
        path: path of the file or folder, for messages.
        format: name of the format.
        config: the encoder's `BertConfig`.
        kind: one of `KINDS`.
        table: `Table` of the format's names.
        shapes: dict of the format's names to shapes.
        get: function of one of the format's names that returns the array.
        aside: dict of the names that are not weights of this package's models to the reason why they are skipped.
        options, tokenizer, labels: see `Weights`.
    """

    path: str
    format: str
    config: BertConfig
    kind: str
    table: Table
    shapes: dict[str, tuple]
    get: Callable[[str], np.ndarray]
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    options: dict = dataclasses.field(default_factory=dict)
    tokenizer: BertTokenizer | None = None
    labels: list[str] | None = None

    def needed_tokenizer(self):
        """Returns the tokenizer.

        Raises:
            InputError: there is no vocabulary next to the weights.
        """
        if self.tokenizer is None:
            raise InputError(f"{self.path}: there must be a vocabulary, vocab.txt, beside the weights; there is none")
        return self.tokenizer

    def take(self, kind=None, allow_missing=(), ignore=()):
        """Returns the weights under this package's names, after checking that they are complete.

        Args:
            kind: kind of the model, `encoder` or another kind that is a part of the source's kind. If None, the
                source's kind.
            allow_missing: patterns of the format's names that may be missing. Such weights are initialised, always
                with the same values.
            ignore: patterns of the format's names to skip.

        Returns:
            (`Weights`, dict of the skipped names to the reason, list of the missing names); all in the format's names.

        Raises:
            InputError: weights are missing, unexpected or have another shape. The message lists all of them.
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
        """Returns a dict of the format's names to skip to the reason."""
        head = {self.table[ours].theirs: "the head, not asked for" for ours in KINDS[self.kind].head.keys() - wanted}
        ignored = {name: "ignored" for name in self.shapes if _matches(name, ignore)}
        return {name: reason for name, reason in (head | ignored | self.skipped).items() if name in self.shapes}

    def _read(self, name, shape):
        return name.to_ours(self.get(name.theirs), shape)


def detect(table, names, kinds):
    """Returns the first of `kinds` with a complete head, or `encoder` if there is none.

    A head is complete if at least one weight of each of its parts is among `names`, the names in a source.
    """
    for kind in kinds:
        parts = {ours.split(".")[0] for ours in KINDS[kind].head}
        found = {ours.split(".")[0] for ours in KINDS[kind].head if ours in table and table[ours].theirs in names}
        if parts == found:
            return kind
    return ENCODER


def _matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
