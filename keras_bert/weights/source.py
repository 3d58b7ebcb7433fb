"""`Weights`, the weights of a model in this package's own form, and `Source`, a model as it was read from files."""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable

import numpy as np
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import naming_damage
from keras_bert.layers import BertLayer
from keras_bert.layers.base import check_not_quantized, zero_weights
from keras_bert.text import BertTokenizer
from keras_bert.text.tokenizer_files import TokenizerFiles
from keras_bert.weights.format import Table
from keras_bert.weights.kinds import ENCODER, KINDS, initial, model_kind, shapes, variable


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
        settings: the task and its settings, as `settings.json` has them, or None for a model without a task.
    """

    config: BertConfig
    kind: str
    read: dict
    options: dict = dataclasses.field(default_factory=dict)
    tokenizer: BertTokenizer | None = None
    labels: list[str] | None = None
    settings: dict | None = None

    @classmethod
    def of(cls, model, tokenizer=None, labels=None, settings=None):
        """Returns the weights of a `BertLayer` or of a model on one.

        Raises:
            InputError: the model is another one, or quantized.
        """
        kind = model_kind(model)
        check_not_quantized(model, "convert")
        config = model.config if kind == ENCODER else model.bert.config
        options = {} if kind == ENCODER else {
            name: value for name, value in model.get_config().items() if name in OPTIONS}
        read = {name: functools.partial(_value, variable(model, name))
                for name in shapes(config, kind, options.get("num_classes"))}
        return cls(config, kind, read, options, tokenizer, labels, settings)

    @property
    def shapes(self):
        """Dict of this package's names to shapes."""
        return shapes(self.config, self.kind, self.options.get("num_classes"))

    def arrays(self, table):
        """Yields (`Entry`, array in the form of the table's format) for every weight that the format has."""
        for name, read in self.read.items():
            if name in table:
                yield table[name], np.ascontiguousarray(table[name].to_stored(read(), self.config))

    def as_kind(self, kind):
        """Returns only the weights of a model of `kind`; all of them must be among these."""
        read = {name: self.read[name] for name in shapes(self.config, kind)}
        options = self.options if kind == "masked_lm" else {}
        return dataclasses.replace(self, kind=kind, read=read, options=options, labels=None, settings=None)

    def build(self, model=None, options=None, *, lora_rank=None, **kwargs):
        """Returns a `BertLayer`, or a model with a `BertLayer` as its encoder, with these weights. Variables without a
        stored weight keep their initial values.

        Args:
            model: class to build. If None, the class for `self.kind`, see `KINDS`.
            options: dict of arguments of the model's class, e.g. `dropout`; they override `self.options`.
            lora_rank: if not None, enables LoRA of this rank in the encoder after loading.
            **kwargs: arguments of `BertLayer`, e.g. `dtype`.
        """
        kind = KINDS[self.kind]
        model, options = model or kind.model, kind.options | self.options | (options or {})
        with zero_weights():  # the encoder's weights are all stored; those of a head may not be
            bert = BertLayer(self.config, **kwargs)
        built = bert if model is BertLayer else model(bert, **options)
        for name, read in self.read.items():
            variable(built, name).assign(read())
        if lora_rank:
            encoder = built if model is BertLayer else built.bert  # some models hold a frozen copy of bert
            encoder.enable_lora(lora_rank)  # afterwards a kernel is a sum, which cannot be assigned to
        return built


# Arguments of models with heads that are kept together with the weights.
OPTIONS = ("num_classes", "dropout", "mlm_activation", "mlm_layer_norm_eps", "pooling", "normalize")


def _value(variable):
    return np.asarray(ops.convert_to_numpy(variable), np.float32)


@dataclasses.dataclass(frozen=True)
class Source:
    """The weights at a path, under the names of their format. The arrays are read later, by the result of `load`.

    Args:
        path: path of the file or folder, for messages.
        format: name of the format.
        config: the encoder's `BertConfig`.
        kind: one of `KINDS`.
        table: `Table` of the format's names.
        shapes: dict of the format's names to shapes.
        get: function of one of the format's names that returns the array.
        skipped: dict of the names that are not weights of this package's models to the reason why they are skipped.
        options: see `Weights`.
        files: what the files next to the weights say about the tokenizer; None if there is no vocabulary.
        labels: names of the classes, None for one without a name; or None.
        settings: what the format says about the task; `open_source` completes it, see `task_settings`.
        notes: the rules by which something ambiguous was read, for the report of `convert`.
        losses: what the format stores and `Weights` cannot represent.
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
    files: TokenizerFiles | None = None
    labels: list[str] | None = None
    settings: dict | None = None
    notes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()

    @functools.cached_property
    def tokenizer(self) -> BertTokenizer | None:
        """The tokenizer, or None if there is no vocabulary next to the weights."""
        return None if self.files is None else BertTokenizer.from_files(self.files)

    def describe_head(self):
        """Describes the head for messages: `these have no head`."""
        return f"these have {'no head' if self.kind == ENCODER else f'a head for {self.kind}'.replace('_', ' ')}"

    def needed_tokenizer(self) -> BertTokenizer:
        """Returns the tokenizer, with a warning of what about it was guessed.

        Raises:
            InputError: there is no vocabulary next to the weights.
        """
        if self.files is None or self.tokenizer is None:
            raise InputError(f"{self.path}: vocab.txt or tokenizer.json is missing next to the weights; copy the "
                             "model's there")
        self.files.warn(self.path)
        return self.tokenizer

    def load(self, kind=None, allow_missing=(), ignore=()):
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
        if self.config.num_hidden_layers > len(self.shapes):  # before the names of that many blocks are listed
            raise InputError(f"{self.path}: the weights do not match the config: {self.config.num_hidden_layers} "
                             f"blocks must have more than {len(self.shapes)} weights")
        wanted = shapes(self.config, kind, self.options.get("num_classes"))
        if not KINDS[self.kind].is_pooled:
            pooler = "bert.pooler.kernel", "bert.pooler.bias"
            allow_missing = [*allow_missing, *(self.table[name].stored_name for name in pooler)]
        skipped = self._skipped(wanted, ignore)
        read, missing, problems = {}, [], []
        for name, shape in wanted.items():
            entry = self.table[name]
            stored_name, expected = entry.stored_name, entry.stored_shape(shape, self.config)
            read[name] = functools.partial(self._read, entry, shape)
            if stored_name not in self.shapes:
                read[name] = functools.partial(initial, name, shape, self.config)
                missing.append(stored_name)
                if not _matches(stored_name, allow_missing):
                    problems.append(f"missing {stored_name}")
            elif self.shapes[stored_name] != expected:
                problems.append(f"{stored_name} has shape {self.shapes[stored_name]}, but the config gives {expected}")
        unexpected = self.shapes.keys() - skipped.keys() - {self.table[name].stored_name for name in wanted}
        problems += [f"unexpected {name}" for name in sorted(unexpected)]
        if problems:
            raise InputError(f"{self.path}: the weights do not match the config: {'; '.join(problems)}")
        weights = Weights(self.config, self.kind, read, self.options, self.tokenizer, self.labels, self.settings)
        return weights if kind == self.kind else weights.as_kind(kind), skipped, missing

    def _skipped(self, wanted, ignore):
        """Returns a dict of the format's names to skip to the reason."""
        other = KINDS[self.kind].head.keys() - wanted
        head = {self.table[name].stored_name: "not part of this model" for name in other}
        ignored = {name: "ignored" for name in self.shapes if _matches(name, ignore)}
        return {name: reason for name, reason in (head | ignored | self.skipped).items() if name in self.shapes}

    def _read(self, entry, shape):
        with naming_damage(f"{self.path}: {entry.stored_name}"):
            return entry.from_stored(self.get(entry.stored_name), shape)


def detect(table, names, kinds):
    """Returns the first of `kinds` with a complete head, or `encoder` if there is none.

    A head is complete if at least one weight of each of its parts is among `names`, the names in a source.
    """
    for kind in kinds:
        head = KINDS[kind].head
        found = [name for name in head if name in table and table[name].stored_name in names]
        if {name.split(".")[0] for name in found} == {name.split(".")[0] for name in head}:
            return kind
    return ENCODER


def _matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
