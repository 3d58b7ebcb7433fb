"""Reads and writes the files that most formats keep in the folder of the weights: config, vocabulary, labels and the
settings of the task."""

import dataclasses
import os

from keras_bert.arguments import Path
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json, read_object, write_json
from keras_bert.text import save_vocabulary
from keras_bert.text.tokenizer_files import TokenizerFiles, read_tokenizer_files

_LABELS = "labels.json"
# What formats of other libraries have no field for; the libraries ignore this file.
SETTINGS_FILE = "keras_bert_settings.json"


def read_assets(folder: Path, config: Path | None = None) -> tuple[BertConfig, TokenizerFiles | None, list | None]:
    """Reads the files that `write_assets` writes.

    Args:
        config: path of the config. If None, `bert_config.json` in the folder.

    Returns:
        `BertConfig`, `TokenizerFiles` or None, list of labels or None.

    Raises:
        InputError: there is no config, or it is invalid.
    """
    config = config or os.path.join(folder, "bert_config.json")
    if not os.path.exists(config):
        raise InputError(f"{config}: not found; copy the model's there, because the weights do not contain it")
    read = BertConfig.from_json(config)
    return read, read_tokenizer_files(folder, dataclasses.asdict(read)), read_labels(folder)


def read_labels(folder):
    """Returns the list in `labels.json`, or None if there is no such file."""
    path = os.path.join(folder, _LABELS)
    return read_json(path) if os.path.exists(path) else None


def read_settings(folder: Path) -> dict:
    """Returns the dict in `keras_bert_settings.json`; empty if there is no such file."""
    return read_object(os.path.join(folder, SETTINGS_FILE))


def write_assets(weights, folder):
    """Writes config, vocabulary and labels; the first two have the names that Google uses."""
    weights.config.to_json(os.path.join(folder, "bert_config.json"))
    write_tokenizer(weights.tokenizer, folder)
    write_labels(weights.labels, folder)


def write_settings(settings, folder, file=SETTINGS_FILE):
    """Writes `keras_bert_settings.json`, or another file of settings, unless the settings are empty or None."""
    if settings:
        write_json(os.path.join(folder, file), settings)


def write_tokenizer(tokenizer, folder):
    """Writes `vocab.txt` and `tokenizer_config.json`, unless the tokenizer is None."""
    if tokenizer is not None:
        save_vocabulary(tokenizer.vocabulary, os.path.join(folder, "vocab.txt"))
        tokenizer.save_settings(folder)


def write_labels(labels, folder):
    """Writes `labels.json`, unless the labels are None."""
    if labels is not None:
        write_json(os.path.join(folder, _LABELS), labels)
