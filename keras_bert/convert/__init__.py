"""Loading and conversion of pretrained weights in all supported formats."""

import inspect
import warnings

from keras_bert.convert.conversion import FORMATS, convert, open_source
from keras_bert.convert.kinds import ENCODER, KINDS
from keras_bert.convert.weights import Source
from keras_bert.errors import InputError, InputWarning
from keras_bert.layers import BertLayer

# Arguments that `load_pretrained` passes to `BertLayer`. `trainable` goes to the model with the head.
ENCODER_ARGUMENTS = ("dtype", "layout", "frozen", "lora_rank", "gradient_checkpointing")
# Arguments of models that have no default, and what is wrong if neither the weights nor the caller give them.
_NEEDED = {"num_classes": "these weights have no classification head; pass num_classes=…, the number of "
                          "classes, for {} to add one",
           "pooling": "these weights do not say how to pool the vectors of tokens; pass pooling=…, mean, cls or max"}

__all__ = ["FORMATS", "convert", "load_pretrained", "open_source"]


def load_pretrained(name, model=BertLayer, config=None, **kwargs):
    """Returns a model with pretrained weights of any format.

    `load_pretrained("path/to/folder", BertClassifier, num_classes=3, dtype="mixed_bfloat16")`

    Args:
        name, config: see `open_source`. `name` may also be a `Source`, the result of `open_source`.
        model: `BertLayer`, or the class of a model with a head. If the source has no such head, or one for another
            number of classes, the head is randomly initialised, with a warning.
        **kwargs: arguments of `BertLayer`, e.g. `dtype` and `layout`, and of the model's class.

    Raises:
        InputError: see `open_source` and `Source.load`; or the model needs `num_classes`, and neither the source nor
            the arguments have it.
    """
    source = name if isinstance(name, Source) else open_source(name, config)
    if model is BertLayer:
        return source.load(ENCODER)[0].build(**kwargs)
    encoder = {name: kwargs.pop(name) for name in ENCODER_ARGUMENTS if name in kwargs}
    kind = source.kind if KINDS[source.kind].model is model else ENCODER
    if kind == "pretraining" and kwargs.get("next_sentence") is False:
        kind = "masked_lm"
    if kwargs.get("num_classes", source.options.get("num_classes")) != source.options.get("num_classes"):
        kind = ENCODER
    weights = source.load(kind)[0]
    parameters = inspect.signature(model).parameters
    for name, problem in _NEEDED.items():
        if name in parameters and name not in weights.options | kwargs:
            raise InputError(f"{source.path}: {problem.format(model.__name__)}")
    head = weights.build(model, kwargs, **encoder)
    read = [name for name in weights.read if not name.startswith("bert.")]
    if len(read) < len(head.weights) - len(head.bert.weights):
        warnings.warn(f"{source.path}: no {model.__name__} head in these weights; it is randomly initialised",
                      InputWarning, stacklevel=2)
    return head
