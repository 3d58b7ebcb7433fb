"""Weights from elsewhere and to elsewhere."""

import inspect
import warnings

from keras_bert.convert.conversion import FORMATS, convert, open_source
from keras_bert.convert.kinds import ENCODER, KINDS
from keras_bert.convert.source import Source
from keras_bert.errors import InputError, InputWarning
from keras_bert.layers import BertLayer

__all__ = ["FORMATS", "convert", "load_pretrained", "open_source"]


def load_pretrained(name, model=BertLayer, config=None, **kwargs):
    """A model with pretrained weights, from whatever format.

    Args:
        name, config: see `open_source`; or what that returned.
        model: `BertLayer`, or the class of a head on one. A head that the source does not hold, or holds for another
            number of classes, starts from random values, with a warning.
        **kwargs: `dtype`, for the `BertLayer`, and arguments of the head's class.

    Raises:
        InputError: see `open_source` and `Source.take`; or the head needs `num_classes`, which nothing says.
    """
    source = name if isinstance(name, Source) else open_source(name, config)
    if model is BertLayer:
        return source.take(ENCODER)[0].build(**kwargs)
    dtype = {"dtype": kwargs.pop("dtype")} if "dtype" in kwargs else {}
    kind = source.kind if KINDS[source.kind].model is model else ENCODER
    if kind == "pretraining" and kwargs.get("next_sentence") is False:
        kind = "masked_lm"
    if kwargs.get("num_classes", source.options.get("num_classes")) != source.options.get("num_classes"):
        kind = ENCODER
    weights = source.take(kind)[0]
    options = weights.options | kwargs
    if "num_classes" in inspect.signature(model).parameters and "num_classes" not in options:
        raise InputError(f"{source.path}: these weights have no classification head; pass num_classes=…, the number of "
                         f"classes, for {model.__name__} to add one")
    head = model(BertLayer(weights.config, **dtype), **options)
    weights.assign(head)
    if len(weights.read) < len(head.weights):
        warnings.warn(f"{source.path}: holds no such head as {model.__name__}'s: it starts from random values",
                      InputWarning, stacklevel=2)
    return head
