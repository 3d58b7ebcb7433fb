"""`Format`, one library's reader, writer and restrictions, and `Table`, its names and forms of the weights."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.text import BertTokenizer
from keras_bert.types import Tensor
from keras_bert.weights.kinds import KINDS, NAMES

if TYPE_CHECKING:
    from keras_bert.weights.source import Source, Weights

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


def has_file(name: str) -> Callable[[str], bool]:
    """Returns a function that returns True for a folder with a file of that name; for `Format.recognise`."""
    return lambda path: os.path.isfile(os.path.join(path, name))


Allowed = Mapping[str, Iterable[Any]]  # of each field


@dataclasses.dataclass(frozen=True)
class Format:
    """One library's format."""

    name: str
    recognise: Callable[[str], bool]
    read: "Callable[..., Source]"  # takes the path, and the path of a config or None
    write: "Callable[[Weights, str], None]"
    kinds: tuple[str, ...] = tuple(KINDS)
    # The values of fields of `BertConfig` that the format can express, or the name of another field with the same
    # value; other fields may have any value. `head` is for the masked LM head; None if it has the encoder's values.
    fixed: Allowed = dataclasses.field(default_factory=dict)
    head: Allowed | None = None
    rules: Callable[[BertTokenizer], list[str]] = lambda tokenizer: []  # why it cannot store a tokenizer's rules
    stores_segments: bool = True  # False if it cannot say that both texts of a pair have the segment id 0
    settings_file: str | None = None  # with the settings of the task; None if the format stores no task
    applied: tuple[str, ...] | None = None  # the settings that the library itself applies; None if it applies all
    # Returns the form in which the format stores certain weights, if it has several.
    variant: "Callable[[Weights], Format] | None" = None
    # Runs the model in a folder with the library's own code. If None, this package reads and runs what was written.
    compute_outputs: Callable[[str, dict[str, np.ndarray]], Mapping[str, Tensor]] | None = None

    def losses(self, weights: "Weights") -> list[str]:
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

    def fit(self, weights: "Weights") -> "Weights":
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


def google_rules(tokenizer: BertTokenizer) -> list[str]:
    """`Format.rules` of google-research/bert and of the Model Garden."""
    rules = tokenizer.rules
    return _differences(" of the tokenizer", vars(rules) | {"truncation_side": tokenizer.truncation_side}, {
        "strip_accents": (rules.lower_case,), "split_cjk": (True,), "normalization": ("none",),
        "truncation_side": ("right",)})
