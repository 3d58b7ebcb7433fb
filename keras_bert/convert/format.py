"""`Format`: what the files of one library can hold, their names of the weights, their reader and their writer."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from keras_bert.convert.kinds import KINDS

# How another library stores a weight: as we do; a dense kernel as [out, in]; with the axis that counts heads x width,
# its last or its first, as two.
SAME, TRANSPOSED, SPLIT_LAST, SPLIT_FIRST = "same", "transposed", "split last", "split first"


@dataclasses.dataclass(frozen=True)
class Name:
    """One weight: `ours` as in `kinds`, `theirs` as the other library calls it, `form` as it stores it. In `theirs`
    `{i}` stands for the block too, and `{_i}` for nothing in block 0, `_1` in block 1."""

    ours: str
    theirs: str
    form: str = SAME

    def for_block(self, index):
        return Name(self.ours.format(i=index), self.theirs.format(i=index, _i=f"_{index}" if index else ""), self.form)

    def to_theirs(self, array, config):
        """Our array in the other library's form."""
        if self.form == TRANSPOSED:
            return np.transpose(array)
        heads = (config.num_attention_heads, config.head_size)
        if self.form == SPLIT_LAST:
            return np.reshape(array, (*array.shape[:-1], *heads))
        return np.reshape(array, (*heads, *array.shape[1:])) if self.form == SPLIT_FIRST else array

    def their_shape(self, shape, config):
        """The other library's shape of a weight that has `shape` here."""
        return self.to_theirs(np.broadcast_to(np.float32(0), shape), config).shape

    def to_ours(self, array, shape):
        """The other library's array in our form, float32."""
        array = np.transpose(array) if self.form == TRANSPOSED else np.reshape(array, shape)
        return np.asarray(array, np.float32)


class Table:
    """The names of all weights in one format.

    Args:
        *names: `Name`s, those of one block with `{i}`.
    """

    def __init__(self, *names):
        self._names = {name.ours: name for name in names}

    def __contains__(self, ours):
        return _template(ours) in self._names

    def __getitem__(self, ours):
        """The `Name` of one of our weights."""
        block = re.search(r"blocks\.(\d+)\.", ours)
        name = self._names[_template(ours)]
        return name.for_block(int(block[1])) if block else name


def _template(ours):
    return re.sub(r"blocks\.\d+\.", "blocks.{i}.", ours)


def dense(ours, theirs, form=SAME):
    """Kernel and bias under Keras's names. Where the kernel's outputs are split, the bias is too."""
    bias = SPLIT_LAST if form == SPLIT_LAST else SAME
    return Name(f"{ours}.kernel", f"{theirs}/kernel", form), Name(f"{ours}.bias", f"{theirs}/bias", bias)


def norm(ours, theirs):
    """Scale and shift of a layer normalisation under Keras's names."""
    return Name(f"{ours}.gamma", f"{theirs}/gamma"), Name(f"{ours}.beta", f"{theirs}/beta")


_HEAD = ("masked_lm", "pretraining")


@dataclasses.dataclass(frozen=True)
class Format:
    """One library's format.

    Args:
        name: for `--format`.
        recognise: function of a path that says whether it is of this format.
        read: function of a path, and of the path of a config or None, that returns a `Source`.
        write: function of `Weights` and a folder.
        kinds: the kinds of model that it holds.
        fixed: dict of a field of `BertConfig` to the values that it can express, or the name of the field whose value
            it shares; all where not named.
        head: the same for the masked LM head; where None, the head has what the encoder has.
        run: function of a folder and inputs that gives the outputs by the library's own means; None where the weights
            are read instead.
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
        """What this format cannot hold of some weights: a list of reasons."""
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
        """The weights with the first value that this format can express for every one that it cannot."""
        changes = {name: allowed[0] for name, allowed in self._allowed(weights.config).items()
                   if getattr(weights.config, name) not in allowed}
        return dataclasses.replace(weights, config=dataclasses.replace(weights.config, **changes))

    def _allowed(self, config):
        """`fixed`, with the values of the fields that it names."""
        return {name: [vars(config).get(value, value) for value in allowed] for name, allowed in self.fixed.items()}


def _differences(whose, values, fixed):
    return [f"{name} {whose}is {' or '.join(map(str, allowed))} there, not {values[name]}"
            for name, allowed in fixed.items() if values[name] not in allowed]
