"""`Weights`, the weights of a model in this package's own form, and `Source`, a model as it was read from files."""

import dataclasses
import fnmatch
import functools
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files.failures import naming_damage
from keras_bert.layers import BertLayer
from keras_bert.layers.base import check_not_quantized, zero_weights
from keras_bert.text import BertTokenizer
from keras_bert.text.tokenizer_files import TokenizerFiles, other_vocabulary
from keras_bert.weights.format import Entry, Table
from keras_bert.weights.kinds import ENCODER, KINDS, POOLER, initial, model_kind, shapes, variable


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a model under this package's names. The arrays are read on demand, one at a time."""

    config: BertConfig
    kind: str  # one of `KINDS`
    read: Mapping[str, Callable[[], np.ndarray]]  # the arrays, float32, by the names in `kinds.shapes`
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the model with the head, e.g. `num_classes`
    tokenizer: BertTokenizer | None = None
    labels: list[str] | None = None  # names of the classes
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the task, as `settings.json` has them

    @classmethod
    def of(cls, model: Any, tokenizer: BertTokenizer | None = None, labels: list[str] | None = None,
           settings: dict[str, Any] | None = None) -> Self:
        """Returns the weights of a `BertLayer` or of a model on one; raises an InputError if it is quantized."""
        kind = model_kind(model)
        check_not_quantized(model, "convert")
        config = getattr(model, "bert", model).config
        options = {name: value for name, value in model.get_config().items() if name in OPTIONS}
        read = {name: functools.partial(_value, variable(model, name))
                for name in shapes(config, kind, options.get("num_classes"))}
        return cls(config, kind, read, options, tokenizer, labels, settings or {})

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes(self.config, self.kind, self.options.get("num_classes"))

    def arrays(self, table: Table) -> Iterator[tuple[Entry, np.ndarray]]:
        """Yields every weight that the table's format has, in the form of this format."""
        for name, read in self.read.items():
            if name in table:
                yield table[name], np.ascontiguousarray(table[name].to_stored(read(), self.config))

    def has_initial_pooler(self) -> bool:
        """Returns True if the pooler has the values that it gets where a source lacks it: it is not trained."""
        return all(np.array_equal(self.read[name](), initial(name, self.shapes[name], self.config)) for name in POOLER)

    def with_config(self, **changes: Any) -> Self:
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **changes))

    def as_kind(self, kind: str) -> Self:
        """Returns only the weights of a model of `kind`; all of them must be among these."""
        read = {name: self.read[name] for name in shapes(self.config, kind)}
        options = self.options if kind == "masked_lm" else {}
        return dataclasses.replace(self, kind=kind, read=read, options=options, labels=None, settings={})

    def build(self, model: Callable | None = None, options: dict[str, Any] | None = None, *,
              lora_rank: int | None = None, **kwargs: Any) -> Any:
        """Returns a `BertLayer`, or a model on one, with these weights; `model` is another class than the kind's, and
        `options` override the stored ones. Variables without a stored weight keep their initial values."""
        kind = KINDS[self.kind]
        model, options = model or kind.model, kind.options | self.options | (options or {})
        with zero_weights():  # all of the encoder's weights are stored; a head's may not be
            bert = BertLayer(self.config, **kwargs)
        built: Any = bert if model is BertLayer else model(bert, **options)
        for name, read in self.read.items():
            variable(built, name).assign(read())
        if lora_rank:
            # Afterwards a kernel is a sum, which cannot be assigned to. Some models hold a frozen copy of bert.
            getattr(built, "bert", built).enable_lora(lora_rank)
        return built


# Arguments of models with heads that are kept together with the weights.
OPTIONS = ("num_classes", "dropout", "mlm_activation", "mlm_layer_norm_eps", "pooling", "normalize")


def _value(variable: keras.Variable) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(variable), np.float32)


@dataclasses.dataclass(frozen=True)
class Source:
    """The weights at a path, under the names of their format. The arrays are read later, by the result of `load`.
    Fields without a comment are those of `Weights`."""

    path: str  # for messages
    format: str
    config: BertConfig
    kind: str
    table: Table
    shapes: dict[str, tuple[int, ...]]  # by the format's names
    get: Callable[[str], np.ndarray]  # returns an array from the format's name for it
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # why names are skipped that are not weights
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: TokenizerFiles | None = None  # None if no vocabulary of WordPiece is next to the weights
    labels: list[str] | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # `open_source` completes them
    notes: tuple[str, ...] = ()  # the rules by which something ambiguous was read, for the report of `convert`
    losses: tuple[str, ...] = ()  # what the format stores and `Weights` cannot represent
    may_lack_pooler: bool = False  # also if the model uses the pooled output
    model: Any = None  # the model itself, if the format stores it as a whole

    @functools.cached_property
    def tokenizer(self) -> BertTokenizer | None:
        """The tokenizer, or None if no vocabulary of WordPiece is next to the weights."""
        return None if self.files is None else BertTokenizer.from_files(self.files)

    def check_masked_lm(self, user: str) -> None:
        """Raises an InputError, which says what the `user` needs, if there is no masked LM head."""
        if self.kind not in ("masked_lm", "pretraining"):
            head = "no head" if self.kind == ENCODER else f"a head for {self.kind}".replace("_", " ")
            raise InputError(f"{self.path}: {user} needs weights with a masked LM head, as pretrain writes; "
                             f"these have {head}")

    def needed_tokenizer(self) -> BertTokenizer:
        """Returns the tokenizer, with a warning of what about it was guessed; an InputError says that it is missing."""
        if self.files is None or self.tokenizer is None:
            folder = self.path if os.path.isdir(self.path) else os.path.dirname(self.path)
            raise InputError(other_vocabulary(folder) or f"{self.path}: vocab.txt or tokenizer.json is missing next to "
                             "the weights; copy the model's there")
        self.files.warn(self.path)
        return self.tokenizer

    def load(self, kind: str | None = None, allow_missing: Sequence[str] = (), ignore: Sequence[str] = (),
             ) -> tuple[Weights, dict[str, str], list[str]]:
        """Returns the weights, the reasons why names were skipped, and the missing names, both in the format's names.

        Args:
            kind: the kind of the model, a part of the source's kind, which is the default.
            allow_missing: patterns of the format's names that may be missing. Such weights are initialised, always
                with the same values.
            ignore: patterns of the format's names to skip.

        Raises:
            InputError: weights are missing, unexpected or have another shape. The message lists all of them.
        """
        kind = kind or self.kind
        if self.config.num_hidden_layers > len(self.shapes):  # before the names of that many blocks are listed
            raise InputError(f"{self.path}: the weights do not match the config: {self.config.num_hidden_layers} "
                             f"blocks must have more than {len(self.shapes)} weights")
        wanted = shapes(self.config, kind, self.options.get("num_classes"))
        if self.may_lack_pooler or not KINDS[self.kind].is_pooled:
            allow_missing = [*allow_missing, *(self.table[name].stored_name for name in POOLER)]
        skipped = self._skipped(wanted, ignore)
        read: dict[str, Callable[[], np.ndarray]] = {}
        missing, problems = [], []
        for name, shape in wanted.items():
            if name not in self.table:  # only the projection of embeddings is not in each of them
                raise InputError(f"{self.path}: embedding_size must be hidden_size ({self.config.hidden_size}), as "
                                 f"these {self.format} weights have no projection of embeddings; got "
                                 f"{self.config.embedding_size}")
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

    def _skipped(self, wanted: Iterable[str], ignore: Sequence[str]) -> dict[str, str]:
        """Returns the format's names to skip, with the reasons."""
        other = KINDS[self.kind].head.keys() - wanted
        head = {self.table[name].stored_name: "not part of this model" for name in other}
        ignored = {name: "ignored" for name in self.shapes if _matches(name, ignore)}
        return {name: reason for name, reason in (head | ignored | self.skipped).items() if name in self.shapes}

    def _read(self, entry: Entry, shape: tuple[int, ...]) -> np.ndarray:
        with naming_damage(f"{self.path}: {entry.stored_name}"):
            return entry.from_stored(self.get(entry.stored_name), shape)


def detect(table: Table, names: Container[str], kinds: Iterable[str]) -> str:
    """Returns the first of `kinds` with a complete head, or `encoder` if there is none. A head is complete if at least
    one weight of each of its parts is among `names`, the names in a source."""
    for kind in kinds:
        head = KINDS[kind].head
        found = [name for name in head if name in table and table[name].stored_name in names]
        if {name.split(".")[0] for name in found} == {name.split(".")[0] for name in head}:
            return kind
    return ENCODER


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
