"""Reads the `.keras` files of the heads."""

import os
import zipfile

import keras

from keras_bert.errors import InputError


def load_model(folder):
    """The model in `folder`/model.keras.

    Raises:
        InputError: there is none, or it is not whole.
    """
    path = os.path.join(folder, "model.keras")
    if not os.path.exists(path):
        raise InputError(f"{folder}: a folder that finetune wrote holds model.keras; there is none")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not a whole .keras file")
    return keras.saving.load_model(path, compile=False)
