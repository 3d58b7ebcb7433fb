"""Weights from elsewhere."""

import os

from keras_bert.convert.huggingface import load_huggingface
from keras_bert.layers import BertLayer
from keras_bert.models import load_model
from keras_bert.presets import find_pretrained

__all__ = ["load_fine_tuned", "load_huggingface", "load_pretrained"]


def load_pretrained(name, **kwargs):
    """A `BertLayer` with pretrained weights.

    Args:
        name: path of a Hugging Face folder or of one that `finetune` wrote, a name that `keras-bert presets` lists, or
            a Hugging Face id `org/name`.
        **kwargs: arguments of `BertLayer`, e.g. `dtype`.

    Raises:
        InputError: see `find_pretrained` and `load_huggingface`.
    """
    folder = find_pretrained(name)
    if os.path.exists(os.path.join(folder, "model.keras")):
        return load_fine_tuned(folder, **kwargs)
    return load_huggingface(folder, **kwargs)


def load_fine_tuned(folder, **kwargs):
    """A `BertLayer` with the encoder's weights of a folder that `finetune` wrote."""
    trained = load_model(folder).bert
    bert = BertLayer(trained.config, **kwargs)
    bert.set_weights(trained.get_weights())
    return bert
