"""The folders and addresses that the flags of `keras-bert serve` name."""

import os

from keras_bert.errors import InputError
from keras_bert.files import reading


def find_versions(path):
    """Returns a dict of numbers to folders: the versions under `path`, in TensorFlow Serving's folder structure. If
    `path` is a SavedModel itself, it is version 1.

    Raises:
        InputError: `path` cannot be read.
    """
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return {1: path}
    with reading(path):
        return {int(entry.name): entry.path for entry in os.scandir(path)
                if entry.name.isascii() and entry.name.isdecimal() and entry.is_dir()}


def check_model(path):
    """Returns the number of the version that is served first.

    Raises:
        InputError: there is no version, or this one is not a SavedModel.
    """
    versions = find_versions(path)
    if not versions:
        raise InputError(f"{path}: must be a SavedModel, or a folder of SavedModels whose names are numbers; "
                         "to make one: keras-bert export text-model --model=FOLDER --output=EXPORTED")
    number = max(versions)
    if not os.path.isfile(os.path.join(versions[number], "saved_model.pb")):
        raise InputError(f"{versions[number]}: must be a SavedModel; there is no saved_model.pb")
    return number


def format_address(host, port):
    """Returns HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
