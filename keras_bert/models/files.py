"""Reads the `.keras` files of the heads."""

import json
import os
import zipfile

import keras

from keras_bert.errors import InputError


def load_model(folder, **changes):
    """The model in `folder`/model.keras, its encoder made with other arguments of `BertLayer`, e.g. `layout`.

    Raises:
        InputError: there is none, or it is not whole.
    """
    path = os.path.join(folder, "model.keras")
    if not os.path.exists(path):
        raise InputError(f"{folder}: a folder that finetune wrote holds model.keras; there is none")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not a whole .keras file")
    with zipfile.ZipFile(path) as file:
        if "config.json" not in file.namelist():
            raise InputError(f"{path}: not a whole .keras file: config.json is missing")
        config = json.loads(file.read("config.json"))
    config.pop("compile_config", None)
    encoder = config["config"].get("bert", config)  # without a head, the file is of the encoder itself
    encoder["config"] |= changes
    model = keras.saving.deserialize_keras_object(config)
    keras.saving.load_weights(model, path)
    return model
