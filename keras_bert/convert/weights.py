"""`Weights`: a model on its way from one format to another."""

import dataclasses
import functools

import numpy as np
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.convert.kinds import ENCODER, KINDS, kind_of, shapes, variable
from keras_bert.layers import BertLayer
from keras_bert.text import BertTokenizer


@dataclasses.dataclass(frozen=True)
class Weights:
    """A model in no library's hands. Its arrays are read when they are asked for, one at a time.

    Args:
        config: the encoder's `BertConfig`.
        kind: one of `KINDS`.
        read: dict of each of our names (`kinds.shapes`) to a function that returns the array, float32.
        options: arguments of the head's model, `num_classes` for one.
        tokenizer: its `BertTokenizer`, or None.
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
        """Those of a `BertLayer` or of a model on one."""
        kind = kind_of(model)
        config = model.config if kind == ENCODER else model.bert.config
        options = {} if kind == ENCODER else {
            name: value for name, value in model.get_config().items() if name in OPTIONS}
        read = {name: functools.partial(_value, variable(model, name))
                for name in shapes(config, kind, options.get("num_classes"))}
        return cls(config, kind, read, options, tokenizer, labels)

    @property
    def shapes(self):
        """Dict of our names to shapes."""
        return shapes(self.config, self.kind, self.options.get("num_classes"))

    def arrays(self, table):
        """Yields (`Name`, array as the table's format stores it) for every weight that the format has."""
        for ours, read in self.read.items():
            if ours in table:
                name = table[ours]
                yield name, np.ascontiguousarray(name.to_theirs(read(), self.config))

    def as_kind(self, kind):
        """A part of them: those of a kind whose weights are all among these."""
        names = shapes(self.config, kind)
        options = self.options | {"next_sentence": False} if kind == "masked_lm" else {}
        return dataclasses.replace(self, kind=kind, read={name: self.read[name] for name in names}, options=options,
                                   labels=None)

    def build(self, lora_rank=None, **kwargs):
        """The model: a `BertLayer` or a head on one.

        Args:
            lora_rank, **kwargs: arguments of `BertLayer`, e.g. `dtype`.
        """
        bert = BertLayer(self.config, **kwargs)
        model = bert if self.kind == ENCODER else KINDS[self.kind].model(bert, **self.options)
        self.assign(model)
        if lora_rank:
            bert.enable_lora(lora_rank)  # after which a kernel is a sum, to which nothing can be assigned
        return model

    def assign(self, model):
        """Gives each variable of a model that has a weight here its value."""
        for name, read in self.read.items():
            variable(model, name).assign(read())


# Arguments of the heads' models that travel.
OPTIONS = ("num_classes", "dropout", "next_sentence", "mlm_activation", "mlm_layer_norm_eps")


def _value(source):
    return np.asarray(ops.convert_to_numpy(source), np.float32)
