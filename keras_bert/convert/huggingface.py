"""Reads a Hugging Face folder: `config.json`, `model.safetensors`."""

import os
import re

import numpy as np
import safetensors

from keras_bert.config import BertConfig
from keras_bert.convert.assign import assign
from keras_bert.convert.names import huggingface_names
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer

# Not weights of the encoder: a buffer of old versions, and the heads of BertForPreTraining and of the task models.
_NOT_ENCODER = re.compile(r"embeddings\.position_ids$|cls\.|classifier\.|qa_outputs\.")


def read_safetensors(path):
    """The tensors of a file as a dict of names to float32 arrays."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return {key: np.asarray(file.get_tensor(key), np.float32) for key in file.keys()}
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file: {error}") from None


def find_weights(folder):
    """The path of the folder's `model.safetensors`; a pickle is refused."""
    path = os.path.join(folder, "model.safetensors")
    if os.path.exists(path):
        return path
    pickle = os.path.join(folder, "pytorch_model.bin")
    if os.path.exists(pickle):
        raise InputError(f"{pickle}: a pickle can run any code when it is read, so it is refused; save the model again "
                         "with transformers: BertModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)")
    raise InputError(f"{folder}: a Hugging Face folder needs model.safetensors; there is none")


def load_huggingface(folder, **kwargs):
    """A `BertLayer` with the weights of a folder that `BertModel` or a model with heads was saved to.

    Args:
        folder: holds `config.json` and `model.safetensors`.
        **kwargs: arguments of `BertLayer`, e.g. `dtype`.

    Raises:
        InputError: a file or weight is missing, left over or does not fit; see `assign`.
    """
    config = BertConfig.from_json(os.path.join(folder, "config.json"))
    path = find_weights(folder)
    tensors = {_plain_name(key): array for key, array in read_safetensors(path).items()}
    tensors = {key: array for key, array in tensors.items() if not _NOT_ENCODER.match(key)}
    bert = BertLayer(config, **kwargs)
    assign(bert, huggingface_names(config), tensors, path)
    return bert


def _plain_name(key):
    """Without the prefix of models with heads, and with today's names for old ones."""
    key = key.removeprefix("bert.")
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda match: f"LayerNorm.{_OLD_NAMES[match[1]]}", key)


_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
