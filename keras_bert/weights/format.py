"""`Table`, the names and forms of the weights in another library's files; `Weights`, the weights of a model in this
package's own form; `Source`, a model as it was read from files; and `Format`, one library's reader, writer and
restrictions."""

import dataclasses
import fnmatch
import functools
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files.paths import naming_damage
from keras_bert.layers import BertLayer
from keras_bert.layers.base import check_not_quantized, zero_weights
from keras_bert.text import Tokenizer
from keras_bert.text.tokenizer_files import TokenizerFiles, other_vocabulary
from keras_bert.text.wordpiece import wordpiece
from keras_bert.types import Tensor
from keras_bert.weights.kinds import ENCODER, KINDS, NAMES, POOLER, initial, model_kind, shapes, variable

# How another library stores a weight: in the same form; a dense kernel as [out, in]; or with the last or first axis, of
# size heads x width, split into two axes.
SAME, TRANSPOSED, SPLIT_LAST, SPLIT_FIRST = "same", "transposed", "split last", "split first"
# The forms of Keras's `MultiHeadAttention` and the suffixes of Keras's variables, for `Table`.
SPLIT_HEADS = {"attention.output_dense.kernel": SPLIT_FIRST} | dict.fromkeys(
    ("query.kernel", "query.bias", "key.kernel", "key.bias", "value.kernel", "value.bias"), SPLIT_LAST)
KERAS_SUFFIXES = {part: f"/{part}" for part in ("embeddings", "kernel", "bias", "gamma", "beta")}
_BLOCK = re.compile(r"(?<=blocks\.)\d+")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One weight: its name in `kinds`, and its name and form in the other library."""

    name: str
    stored_name: str
    form: str

    def to_stored(self, array: np.ndarray, config: BertConfig) -> np.ndarray:
        """Converts this package's array to the other library's form."""
        if self.form == TRANSPOSED:
            return np.transpose(array)
        heads = (config.num_attention_heads, config.head_size)
        if self.form == SPLIT_LAST:
            return np.reshape(array, (*array.shape[:-1], *heads))
        return np.reshape(array, (*heads, *array.shape[1:])) if self.form == SPLIT_FIRST else array

    def stored_shape(self, shape: tuple[int, ...], config: BertConfig) -> tuple[int, ...]:
        return self.to_stored(np.broadcast_to(False, shape), config).shape

    def from_stored(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Converts the other library's array to this package's `shape` and float32; raises a TypeError if it does not
        hold real numbers."""
        if array.dtype.kind not in "biufV":  # V is bfloat16, which NumPy does not know
            raise TypeError(f"its numbers must be real; got {array.dtype}")
        array = np.transpose(array) if self.form == TRANSPOSED else np.reshape(array, shape)
        return np.asarray(array, np.float32)


class Table:
    """The names and forms of this package's weights in another format. The name of a weight consists of a layer and a
    part: `bert.pooler.kernel` is the `kernel` of `bert.pooler`.

    Args:
        names: the format's names of this package's layers, or of single weights. `{i}` in both is the number of the
            block; `{_i}` in the format's name is empty for block 0, `_1` for block 1, and so on. Weights that the
            format does not store are left out.
        suffixes: what the format appends to the name of a layer for each part. Single weights have none.
        forms: form of the weights whose names in this package have these ends, e.g. `query.kernel`; others are `SAME`.
    """

    def __init__(self, names: Mapping[str, str], suffixes: Mapping[str, str] = KERAS_SUFFIXES,
                 forms: Mapping[str, str] | None = None) -> None:
        self._entries: dict[str, tuple[str, str]] = {}
        for name in NAMES:
            layer, _, part = name.rpartition(".")
            stored_name = names.get(name) or layer in names and names[layer] + suffixes[part]
            if stored_name:
                form = next((form for end, form in (forms or {}).items() if f".{name}".endswith(f".{end}")), SAME)
                self._entries[name] = stored_name, form

    def __contains__(self, name: str) -> bool:
        return _BLOCK.sub("{i}", name) in self._entries

    def __getitem__(self, name: str) -> Entry:
        stored_name, form = self._entries[_BLOCK.sub("{i}", name)]
        block = _BLOCK.search(name)
        index = int(block[0]) if block else 0
        return Entry(name, stored_name.format(i=index, _i=f"_{index}" if index else ""), form)


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a model under this package's names. The arrays are read on demand, one at a time."""

    config: BertConfig
    kind: str  # one of `KINDS`
    read: Mapping[str, Callable[[], np.ndarray]]  # the arrays, float32, by the names in `kinds.shapes`
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the model with the head, e.g. `num_classes`
    tokenizer: Tokenizer | None = None
    labels: list[str] | None = None  # names of the classes
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the task, as `settings.json` has them

    @classmethod
    def of(cls, model: Any, tokenizer: Tokenizer | None = None, labels: list[str] | None = None,
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

    def with_blocks(self, count: int) -> Self:
        """Returns the weights with `count` of the encoder's blocks: evenly spaced ones, the last among them."""
        numbers = {self.config.num_hidden_layers * (i + 1) // count - 1: str(i) for i in range(count)}
        blocks = {name: int(match[0]) for name in self.read if (match := _BLOCK.search(name))}
        read = {_BLOCK.sub(numbers[blocks[name]], name) if name in blocks else name: each
                for name, each in self.read.items() if blocks.get(name, -1) in {-1, *numbers}}
        return dataclasses.replace(self.with_config(num_hidden_layers=count), read=read)

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
    differences: tuple[str, ...] = ()  # what the files say of answers and this package does not follow
    may_lack_pooler: bool = False  # also if the model uses the pooled output
    model: Any = None  # the model itself, if the format stores it as a whole
    unopened: InputError | None = None  # why the weights cannot be opened, for after what other files are refused for

    @functools.cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None if no vocabulary of WordPiece is next to the weights."""
        return None if self.files is None else self.files.tokenizer()

    def check_masked_lm(self, user: str) -> None:
        """Raises an InputError, which says what the `user` needs, if there is no masked LM head."""
        if self.kind not in ("masked_lm", "pretraining"):
            head = "no head" if self.kind == ENCODER else f"a head for {self.kind}".replace("_", " ")
            raise InputError(f"{self.path}: {user} needs weights with a masked LM head, as pretrain writes; "
                             f"these have {head}")

    def no_vocabulary(self) -> InputError:
        """Returns the error for weights without a vocabulary of WordPiece."""
        folder = self.path if os.path.isdir(self.path) else os.path.dirname(self.path)
        return InputError(other_vocabulary(folder) or f"{self.path}: vocab.txt or tokenizer.json is missing next to "
                          "the weights; copy the model's there")

    def needed_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, with a warning of what about it was guessed; an InputError says that it is missing."""
        if self.files is None or self.tokenizer is None:
            raise self.no_vocabulary()
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


def has_file(name: str) -> Callable[[str], bool]:
    """Returns a function that returns True for a folder with a file of that name; for `Format.recognise`."""
    return lambda path: os.path.isfile(os.path.join(path, name))


Allowed = Mapping[str, Iterable[Any]]  # of each field


@dataclasses.dataclass(frozen=True)
class Format:
    """One library's format."""

    name: str
    recognise: Callable[[str], bool]
    read: Callable[..., Source]  # takes the path, and the path of a config or None
    write: Callable[[Weights, str], None]
    kinds: tuple[str, ...] = tuple(KINDS)
    # The values of fields of `BertConfig` that the format can express, or the name of another field with the same
    # value; other fields may have any value. `head` is for the masked LM head; None if it has the encoder's values.
    fixed: Allowed = dataclasses.field(default_factory=dict)
    head: Allowed | None = None
    rules: Callable[[Tokenizer], list[str]] = lambda tokenizer: []  # why it cannot store a tokenizer's rules
    stores_segments: bool = True  # False if it cannot say that both texts of a pair have the segment id 0
    settings_file: str | None = None  # with the settings of the task; None if the format stores no task
    applied: tuple[str, ...] | None = None  # the settings that the library itself applies; None if it applies all
    # Returns the form in which the format stores certain weights, if it has several.
    variant: "Callable[[Weights], Format] | None" = None
    # Runs the model in a folder with the library's own code. If None, this package reads and runs what was written.
    compute_outputs: Callable[[str, dict[str, np.ndarray]], Mapping[str, Tensor]] | None = None

    def losses(self, weights: Weights) -> list[str]:
        """Returns the reasons why this format cannot store the weights exactly."""
        config, options = weights.config, weights.options
        fixed: Allowed = _allowed(self.fixed, config)
        if not KINDS[weights.kind].is_pooled:
            fixed = {name: allowed for name, allowed in fixed.items() if name != "pooler_activation"}
        reasons = []
        if weights.kind not in self.kinds:
            reasons.append(f"it stores {', '.join(self.kinds)}, not {weights.kind}")
            if weights.kind == "embedding":
                reasons[-1] += ": the encoder is written, without its pooling and max_length"
                reasons[-1] += " and without its prompts" * ("prompts" in weights.settings)
        reasons += _differences("", vars(config), fixed)
        if weights.tokenizer is not None:
            reasons += self.rules(weights.tokenizer)
            if not self.stores_segments and not weights.tokenizer.has_segments and config.type_vocab_size > 1:
                reasons.append("it stores no segment ids, and this tokenizer gives both texts of a pair the id 0")
        if "mlm.bias" in weights.read:
            head = {"hidden_act": options.get("mlm_activation") or config.hidden_act,
                    "layer_norm_eps": options.get("mlm_layer_norm_eps") or config.layer_norm_eps}
            fixed = {name: (getattr(config, name),) for name in head} if self.head is None else self.head
            reasons += _differences(" of the masked LM head", head, fixed)
        return reasons

    def closest(self, weights: Weights) -> Weights:
        """Returns the weights with a config that this format can express: each field with another value gets the first
        one that is allowed for it. Raises an InputError if the weights have shapes that the format lacks."""
        if weights.config.embedding_size not in self.fixed.get("embedding_size", [weights.config.embedding_size]):
            raise InputError(f"{self.name} has no weights between embeddings of width {weights.config.embedding_size} "
                             f"and blocks of width {weights.config.hidden_size}")
        changes = {name: allowed[0] for name, allowed in _allowed(self.fixed, weights.config).items()
                   if getattr(weights.config, name) not in allowed}
        return weights.with_config(**changes)

    def not_applied(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Returns the settings that the format stores and the library itself ignores, without those that are None."""
        return {} if self.applied is None else {
            name: value for name, value in settings.items() if value is not None and name not in self.applied}


def _allowed(fixed: Allowed, config: BertConfig) -> dict[str, list[Any]]:
    """Returns `fixed` with the config's values in place of the names of fields."""
    return {name: [vars(config).get(value, value) for value in allowed] for name, allowed in fixed.items()}


def _differences(owner: str, values: dict[str, Any], fixed: Allowed) -> list[str]:
    return [f"{name}{owner} must be {' or '.join(map(str, allowed))}, not {values[name]}"
            for name, allowed in fixed.items() if values[name] not in allowed]


def google_rules(tokenizer: Tokenizer) -> list[str]:
    """`Format.rules` of google-research/bert and of the Model Garden."""
    rules = wordpiece(tokenizer, "Google's formats").rules
    return _differences(" of the tokenizer", vars(rules) | {"truncation_side": tokenizer.truncation_side}, {
        "strip_accents": (rules.lower_case,), "split_cjk": (True,), "normalization": ("none",),
        "truncation_side": ("right",)})
