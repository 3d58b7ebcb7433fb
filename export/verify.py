"""Checks a SavedModel of any exporter against the contract of a Hub-style encoder, preprocessor or text embedding
(docs/hub_contract.md)."""

import glob
import importlib.util
import os
import sys

import tensorflow as tf

from keras_bert.arguments import Path
from keras_bert.errors import InputError, first_line

from . import embedding_checks, encoder_checks, preprocessor_checks
from .checking import Check, Loaded, Result, run_check


def verify(path: Path) -> list[Result]:
    """Runs every check of the contract on a SavedModel: the contract of a preprocessor if it has `tokenize`, that of a
    text embedding if `serving_default` returns `embedding`, else that of an encoder.

    Args:
        path: folder of the SavedModel.

    Returns:
        the results, in the contract's order.

    Raises:
        InputError: there is no SavedModel at `path`, it is another raw-text model, or it needs a library that is
            missing.
    """
    if not tf.saved_model.contains_saved_model(path):
        versions = sorted(glob.glob(os.path.join(glob.escape(os.fspath(path)), "*", "saved_model.pb")))
        cure = f"pass one of the folders in it, {os.path.dirname(versions[-1])}" if versions else (
            "to write one: keras-bert export, or for a text embedding keras-bert export text-model --pooling=mean")
        raise InputError(f"{path}: must be a SavedModel, a folder with the file saved_model.pb; it is missing; {cure}")
    loaded = _load(path)
    return [run_check(line, check, loaded, path) for line, check in _checks(loaded, path)]


def _checks(loaded: Loaded, path: Path) -> tuple[tuple[int, Check], ...]:
    """Returns the checks of the contract that a SavedModel is for."""
    if hasattr(loaded, "tokenize"):
        return preprocessor_checks.CHECKS
    signatures = loaded.signatures
    if "serving_default" in signatures and "embedding" in signatures["serving_default"].structured_outputs:
        return embedding_checks.CHECKS
    if {"serving_default", "encode"} <= signatures.keys():
        raise InputError(f"{path}: must be an encoder, a preprocessor or a text embedding; this is another raw-text "
                         "model; to export its encoder as a text embedding, pass --pooling=mean to keras-bert export "
                         "text-model")
    return encoder_checks.CHECKS


def _load(path: Path) -> Loaded:
    try:
        return tf.saved_model.load(path)
    except (ValueError, KeyError, OSError, RuntimeError, tf.errors.OpError) as error:
        needs_text = "Op type not registered" in str(error) and "tensorflow_text" not in sys.modules
        if needs_text and importlib.util.find_spec("tensorflow_text"):
            importlib.import_module("tensorflow_text")  # registers its operations
            return _load(path)
        cure = "; it may need tensorflow-text: pip install tensorflow-text" if needs_text else ""
        raise InputError(f"{path}: cannot be loaded: {first_line(error)}{cure}") from None
