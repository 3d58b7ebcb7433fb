"""Names of the same weights here and elsewhere: reversible tables."""

import dataclasses
import re

import numpy as np

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
