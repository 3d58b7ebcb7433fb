"""`Format`, one library's reader, writer and restrictions, and `Table`, its names and forms of the weights."""

import dataclasses
import os
import re
from collections.abc import Callable

import numpy as np

from keras_bert.weights.kinds import KINDS, NAMES

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
    """The names of one weight: `name` is the one in `kinds`, `stored_name` the one in the other library, and `form` is
    how that library stores the weight."""

    name: str
    stored_name: str
    form: str

    def to_stored(self, array, config):
        """Converts this package's array to the other library's form."""
        if self.form == TRANSPOSED:
            return np.transpose(array)
        heads = (config.num_attention_heads, config.head_size)
        if self.form == SPLIT_LAST:
            return np.reshape(array, (*array.shape[:-1], *heads))
        return np.reshape(array, (*heads, *array.shape[1:])) if self.form == SPLIT_FIRST else array

    def stored_shape(self, shape, config):
        """Returns the other library's shape of a weight that has `shape` in this package."""
        return self.to_stored(np.broadcast_to(False, shape), config).shape

    def from_stored(self, array, shape):
        """Transposes or reshapes the other library's array to this package's `shape`, and casts it to float32.

        Raises:
            TypeError: the array does not hold real numbers.
        """
        if array.dtype.kind not in "biufV":  # V is bfloat16, which NumPy does not know
            raise TypeError(f"its numbers must be real; got {array.dtype}")
        array = np.transpose(array) if self.form == TRANSPOSED else np.reshape(array, shape)
        return np.asarray(array, np.float32)


class Table:
    """The names and forms of this package's weights in another format. The name of a weight consists of a layer and a
    part: `bert.pooler.kernel` is the `kernel` of `bert.pooler`.

    Args:
        names: dict of this package's names of layers, or of single weights, to the format's names. `{i}` in both is the
            number of the block; `{_i}` in the format's name is empty for block 0, `_1` for block 1, and so on. Weights
            that the format does not store are left out.
        suffixes: dict of parts to the suffixes that the format appends to the name of a layer, e.g. `kernel` to
            `/kernel`. Single weights have none.
        forms: dict of the ends of this package's names, e.g. `query.kernel`, to `TRANSPOSED`, `SPLIT_LAST` or
            `SPLIT_FIRST`. All other weights have the form `SAME`.
    """

    def __init__(self, names, suffixes=KERAS_SUFFIXES, forms=None):
        self._entries, forms = {}, forms or {}
        for name in NAMES:
            layer, _, part = name.rpartition(".")
            stored_name = names.get(name) or layer in names and names[layer] + suffixes[part]
            if stored_name:
                form = next((form for end, form in forms.items() if f".{name}".endswith(f".{end}")), SAME)
                self._entries[name] = stored_name, form

    def __contains__(self, name):
        return _BLOCK.sub("{i}", name) in self._entries

    def __getitem__(self, name):
        """Returns the `Entry` of a weight from this package's name for it."""
        stored_name, form = self._entries[_BLOCK.sub("{i}", name)]
        block = _BLOCK.search(name)
        index = int(block[0]) if block else 0
        return Entry(name, stored_name.format(i=index, _i=f"_{index}" if index else ""), form)


def has_file(name):
    """Returns a function of a path that returns True if this is a folder that contains a file of that name."""
    return lambda path: os.path.isfile(os.path.join(path, name))


@dataclasses.dataclass(frozen=True)
class Format:
    """One library's format.

    Args:
        name: name for `--format`.
        recognise: function of a path that returns True if the path has this format.
        read: function of a path, and of the path of a config or None, that returns a `Source`.
        write: function of `Weights` and a folder.
        kinds: the kinds of models that the format can store.
        fixed: dict of fields of `BertConfig` to the values that the format can express, or to the name of another field
            with the same value. Fields that are not in it may have any value.
        head: the same for the fields of the masked LM head. If None, they have the encoder's values.
        rules: function of a `BertTokenizer` that returns the list of reasons why the format cannot store its rules.
        settings_file: name of the file with the settings of the task; None if the format stores no task.
        applied: names of the settings that the library itself applies; None if it applies all.
        run: function of a folder and inputs that computes the outputs with the library's own code. If None, the written
            weights are read and run in this package instead.
    """

    name: str
    recognise: Callable
    read: Callable
    write: Callable
    kinds: tuple[str, ...] = tuple(KINDS)
    fixed: dict = dataclasses.field(default_factory=dict)
    head: dict | None = None
    rules: Callable = lambda tokenizer: []
    settings_file: str | None = None
    applied: tuple[str, ...] | None = None
    run: Callable | None = None

    def losses(self, weights):
        """Returns the list of reasons why this format cannot store the weights exactly."""
        config, options = weights.config, weights.options
        reasons = []
        if weights.kind not in self.kinds:
            reasons.append(f"it stores {', '.join(self.kinds)}, not {weights.kind}")
            if weights.kind == "embedding":
                reasons[-1] += ": the encoder is written, without its pooling and max_length"
        reasons += _differences("", vars(config), _allowed(self.fixed, config))
        if weights.tokenizer is not None:
            reasons += self.rules(weights.tokenizer)
        if "mlm.bias" in weights.read:
            head = {"hidden_act": options.get("mlm_activation") or config.hidden_act,
                    "layer_norm_eps": options.get("mlm_layer_norm_eps") or config.layer_norm_eps}
            fixed = {name: (getattr(config, name),) for name in head} if self.head is None else self.head
            reasons += _differences(" of the masked LM head", head, fixed)
        return reasons

    def fit(self, weights):
        """Returns the weights with a config that this format can express: each field with another value gets the first
        one that is allowed for it."""
        changes = {name: allowed[0] for name, allowed in _allowed(self.fixed, weights.config).items()
                   if getattr(weights.config, name) not in allowed}
        return dataclasses.replace(weights, config=dataclasses.replace(weights.config, **changes))

    def not_applied(self, settings):
        """Returns the settings that the format stores and the library itself ignores, without those that are None."""
        return {} if self.applied is None else {
            name: value for name, value in settings.items() if value is not None and name not in self.applied}


def _allowed(fixed, values):
    """Returns the dict `fixed` with the values of the dataclass `values` in place of the names of fields."""
    return {name: [vars(values).get(value, value) for value in allowed] for name, allowed in fixed.items()}


def _differences(owner, values, fixed):
    return [f"{name}{owner} must be {' or '.join(map(str, allowed))}, not {values[name]}"
            for name, allowed in fixed.items() if values[name] not in allowed]


def google_rules(tokenizer):
    """Returns the reasons why the tokenizer of google-research/bert and of the Model Garden is another one; for
    `Format.rules`."""
    rules = tokenizer.rules
    return _differences(" of the tokenizer", vars(rules), {
        "strip_accents": (rules.lower_case,), "split_cjk": (True,), "normalization": ("none",)})
