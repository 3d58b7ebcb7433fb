"""`Format`: what one library's files can hold, and its reader and writer."""

import dataclasses
from collections.abc import Callable

from keras_bert.convert.kinds import KINDS

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
