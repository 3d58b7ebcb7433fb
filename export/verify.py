"""Checks a SavedModel of any exporter against the contract of a Hub-style encoder or preprocessor
(docs/hub_contract.md)."""

import importlib.util
import os

import tensorflow as tf

from keras_bert.errors import InputError

from . import encoder_checks, preprocessor_checks
from .checking import one_line, run_check


def verify(path):
    """Runs every check of the contract on a SavedModel: the contract of a preprocessor if it has `tokenize`, else that
    of an encoder.

    Args:
        path: folder of the SavedModel.

    Returns:
        a list of `Result`s, in the contract's order.

    Raises:
        InputError: there is no SavedModel at `path`, it is a raw-text model, or it needs a library that is missing.
    """
    path = os.fspath(path)
    if not tf.saved_model.contains_saved_model(path):
        raise InputError(f"{path}: a SavedModel is a folder that holds saved_model.pb; there is none")
    try:
        loaded = _load(path)
    except (ValueError, KeyError, tf.errors.OpError) as error:
        raise InputError(f"{path}: not a whole SavedModel: {one_line(error)}") from None
    if {"serving_default", "encode"} <= loaded.signatures.keys():
        raise InputError(f"{path}: a raw-text model, as export text-model writes them; verify checks encoders and "
                         "preprocessors")
    checks = preprocessor_checks if hasattr(loaded, "tokenize") else encoder_checks
    return [run_check(line, rule, check, loaded, path) for line, rule, check in checks.CHECKS]


def _load(path):
    try:
        return tf.saved_model.load(path)
    except (tf.errors.NotFoundError, FileNotFoundError) as error:
        if "Op type not registered" not in str(error):
            raise
        if importlib.util.find_spec("tensorflow_text") is None:
            raise InputError(f"{path}: {one_line(error)}; it may need tensorflow-text: "
                             "pip install keras-bert-hub[text]") from None
        importlib.import_module("tensorflow_text")  # its import registers its operations
        return tf.saved_model.load(path)
