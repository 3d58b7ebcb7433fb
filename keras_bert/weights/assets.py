"""Reads and writes the files that most formats keep in the folder of the weights: config, vocabulary, labels and the
settings of the task."""

import dataclasses
import os
from typing import Any, NamedTuple

from keras_bert.arguments import Path
from keras_bert.config import BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import declared, read_object
from keras_bert.tasks import read_labels, write_settings
from keras_bert.text import BertTokenizer, save_vocabulary
from keras_bert.text.tokenizer_files import TokenizerFiles, read_tokenizer_files
from keras_bert.weights.format import Weights

# What formats of other libraries have no field for; the libraries ignore this file.
SETTINGS_FILE = "keras_bert_settings.json"


class Assets(NamedTuple):
    config: BertConfig
    files: TokenizerFiles | None
    labels: Any  # unchecked; None if there is no file of them
    differences: tuple[str, ...]  # see `Source`


def read_assets(folder: str, config: str | None = None) -> Assets:
    """Reads the files that `write_assets` writes; `config` is the path of the config if it is elsewhere."""
    file = config or os.path.join(folder, "bert_config.json")
    if not os.path.exists(file):
        raise InputError(f"{file}: not found; copy the model's there, because the weights do not "
                         "contain it; convert, export and fill-mask also take its path as ", Option("config=…"))
    read = BertConfig.from_json(file)
    return Assets(read, read_tokenizer_files(folder, dataclasses.asdict(read)), read_labels(folder).get("labels"),
                  tuple(declared()["config.json"].unknown(read_object(file))))


def read_settings(folder: str) -> dict[str, Any]:
    """Returns the object in `keras_bert_settings.json`; empty if there is no such file."""
    return read_object(os.path.join(folder, SETTINGS_FILE))


def write_assets(weights: Weights, folder: str) -> None:
    """Writes config, vocabulary and labels; the first two have the names that Google uses."""
    weights.config.to_json(os.path.join(folder, "bert_config.json"))
    write_tokenizer(weights.tokenizer, folder)
    write_settings({"labels": weights.labels}, folder)


def write_tokenizer(tokenizer: BertTokenizer | None, folder: Path) -> None:
    """Writes `vocab.txt` and `tokenizer_config.json`."""
    if tokenizer is not None:
        save_vocabulary(tokenizer.vocabulary, os.path.join(folder, "vocab.txt"))
        tokenizer.save_settings(folder)
