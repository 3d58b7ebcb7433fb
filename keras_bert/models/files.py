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
        try:
            config = json.loads(file.read("config.json"))
            encoder = config["config"].get("bert", config)  # without a head, the file is of the encoder itself
            encoder["config"] |= changes
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: config.json is not that of a model: {error!r}") from None
    config.pop("compile_config", None)
    model = keras.saving.deserialize_keras_object(config)
    try:
        keras.saving.load_weights(model, path)
    except (ValueError, KeyError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: its weights cannot be read: {reason}") from None
    return model
