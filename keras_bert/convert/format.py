"""`Format`, the description of one library's files: the names of the weights, reader, writer and restrictions."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from keras_bert.convert.kinds import KINDS

# How another library stores a weight: in the same form; a dense kernel as [out, in]; or with the last or first axis, of
# size heads x width, split into two axes.
SAME, TRANSPOSED, SPLIT_LAST, SPLIT_FIRST = "same", "transposed", "split last", "split first"


@dataclasses.dataclass(frozen=True)
class Name:
    """The names of one weight: `ours` is the name in `kinds`, `theirs` is the name in the other library, and `form` is
    how that library stores it. `{i}` in both names is the number of the block; `{_i}` in `theirs` is empty for block 0,
    `_1` for block 1, and so on."""

    ours: str
    theirs: str
    form: str = SAME

    def for_block(self, index):
        return Name(self.ours.format(i=index), self.theirs.format(i=index, _i=f"_{index}" if index else ""), self.form)

    def to_theirs(self, array, config):
        """Converts this package's array to the other library's form."""
        if self.form == TRANSPOSED:
            return np.transpose(array)
        heads = (config.num_attention_heads, config.head_size)
        if self.form == SPLIT_LAST:
            return np.reshape(array, (*array.shape[:-1], *heads))
        return np.reshape(array, (*heads, *array.shape[1:])) if self.form == SPLIT_FIRST else array

    def their_shape(self, shape, config):
        """Returns the other library's shape of a weight that has `shape` in this package."""
        return self.to_theirs(np.broadcast_to(np.float32(0), shape), config).shape

    def to_ours(self, array, shape):
        """Converts the other library's array to this package's form, float32."""
        array = np.transpose(array) if self.form == TRANSPOSED else np.reshape(array, shape)
        return np.asarray(array, np.float32)


class Table:
    """The names of all weights in one format.

    Args:
        *names: `Name`s. Those of the blocks' weights contain `{i}`.
    """

    def __init__(self, *names):
        self._names = {name.ours: name for name in names}

    def __contains__(self, ours):
        return _template(ours) in self._names

    def __getitem__(self, ours):
        """Returns the `Name` of a weight from this package's name for it."""
        block = re.search(r"blocks\.(\d+)\.", ours)
        name = self._names[_template(ours)]
        return name.for_block(int(block[1])) if block else name


def _template(ours):
    return re.sub(r"blocks\.\d+\.", "blocks.{i}.", ours)


def dense(ours, theirs, form=SAME):
    """Returns the `Name`s of a dense layer with Keras's names. If the kernel's output axis is split, so is the bias."""
    bias = SPLIT_LAST if form == SPLIT_LAST else SAME
    return Name(f"{ours}.kernel", f"{theirs}/kernel", form), Name(f"{ours}.bias", f"{theirs}/bias", bias)


def norm(ours, theirs):
    """Returns the `Name`s of scale and shift of a layer normalisation with Keras's names."""
    return Name(f"{ours}.gamma", f"{theirs}/gamma"), Name(f"{ours}.beta", f"{theirs}/beta")


_HEAD = ("masked_lm", "pretraining")


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
    run: Callable | None = None

    def losses(self, weights):
        """Returns the list of reasons why this format cannot store the weights exactly."""
        config, options = weights.config, weights.options
        reasons = [] if weights.kind in self.kinds else [f"it holds {', '.join(self.kinds)}, not {weights.kind}"]
        reasons += _differences("", vars(config), self._allowed(config))
        if weights.kind in _HEAD:
            head = {"hidden_act": options.get("mlm_activation") or config.hidden_act,
                    "layer_norm_eps": options.get("mlm_layer_norm_eps") or config.layer_norm_eps}
            fixed = {name: (getattr(config, name),) for name in head} if self.head is None else self.head
            reasons += _differences("of the masked LM head ", head, fixed)
        return reasons

    def fit(self, weights):
        """Returns the weights with a config that this format can express: each field with another value gets the first
        one that is allowed for it."""
        changes = {name: allowed[0] for name, allowed in self._allowed(weights.config).items()
                   if getattr(weights.config, name) not in allowed}
        return dataclasses.replace(weights, config=dataclasses.replace(weights.config, **changes))

    def _allowed(self, config):
        """Returns `fixed` with the values of `config` in place of the names of fields."""
        return {name: [vars(config).get(value, value) for value in allowed] for name, allowed in self.fixed.items()}


def _differences(whose, values, fixed):
    return [f"{name} {whose}is {' or '.join(map(str, allowed))} there, not {values[name]}"
            for name, allowed in fixed.items() if values[name] not in allowed]
