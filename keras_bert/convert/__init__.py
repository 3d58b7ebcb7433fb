"""Weights from elsewhere."""

import os

from keras_bert.convert.huggingface import load_huggingface
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import load_model

__all__ = ["load_fine_tuned", "load_huggingface", "load_pretrained"]


def load_pretrained(folder, **kwargs):
    """A `BertLayer` with the weights of `folder`: a Hugging Face folder, or one that `finetune` wrote.

    Args:
        folder: path.
        **kwargs: arguments of `BertLayer`, e.g. `dtype`.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: pretrained weights come from a folder; there is none")
    if os.path.exists(os.path.join(folder, "model.keras")):
        return load_fine_tuned(folder, **kwargs)
    return load_huggingface(folder, **kwargs)


def load_fine_tuned(folder, **kwargs):
    """A `BertLayer` with the encoder's weights of a folder that `finetune` wrote."""
    trained = load_model(folder).bert
    bert = BertLayer(trained.config, **kwargs)
    bert.set_weights(trained.get_weights())
    return bert
