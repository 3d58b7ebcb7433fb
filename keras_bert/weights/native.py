"""This package's folders: `model.keras`, `bert_config.json`, `vocab.txt`, `tokenizer_config.json` and `sha256.json`;
for a model with a task also `labels.json` and `settings.json`, as `finetune` writes them. Most other formats keep the
files other than `model.keras`, `sha256.json` and `settings.json`, too."""

import dataclasses
import os
from typing import Any

import keras

from keras_bert.arguments import Path
from keras_bert.config import BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.files.digests import write_digests
from keras_bert.files.json_files import declared, read_object
from keras_bert.models import BertEmbedder, BertEmbeddingClassifier, load_model
from keras_bert.models.base import BertTask
from keras_bert.tasks import SETTINGS, read_labels, write_settings
from keras_bert.text import Tokenizer
from keras_bert.text.tokenizer_files import read_tokenizer_files
from keras_bert.weights.format import Format, Source, Table, Weights, has_file
from keras_bert.weights.kinds import NAMES, has_kind

TABLE = Table({name: name for name in NAMES})
_MODEL = "model.keras"
# What formats of other libraries have no field for; the libraries ignore this file.
SETTINGS_FILE = "keras_bert_settings.json"


def read(path: str, config: str | None = None) -> Source:
    """Reads a folder; ignores `config`, because `model.keras` contains the config."""
    stored = model = load_model(path)
    labels, losses, settings = read_labels(path).get("labels"), [], read_object(os.path.join(path, SETTINGS))
    if isinstance(model, BertEmbeddingClassifier):
        model, labels = BertEmbedder(model.bert, model.pooling, normalize=True), None
        losses = ["convert reads the encoder of a classifier on embeddings, not the logistic regression"]
        settings = {name: settings[name] for name in ("max_length", "columns") if name in settings} | {"task": "embed"}
    elif isinstance(model, BertTask) and not has_kind(model):
        model, labels, losses = model.bert, None, [f"no other format stores the head of a {type(model).__name__}"]
    weights = Weights.of(model)
    return Source(path, FORMAT.name, weights.config, weights.kind, TABLE, weights.shapes,
                  lambda name: weights.read[name](), {}, weights.options, read_tokenizer_files(path), labels, settings,
                  losses=tuple(losses), model=stored)


def has_settings(folder: Path) -> bool:
    """Returns True if a folder has a model with a task."""
    return os.path.exists(os.path.join(folder, SETTINGS))


def write(weights: Weights, folder: str) -> None:
    """Writes a folder that `from_pretrained` reads; if the model has a task, `FineTuned.load` reads it too."""
    write_model(weights.build(), weights.tokenizer, folder)
    write_settings(weights.settings | {"labels": weights.labels}, folder)


def write_model(model: Any, tokenizer: Tokenizer | None, folder: Path) -> None:
    """Writes a `BertLayer`, or a model on one, and its tokenizer."""
    keras.saving.save_model(model, os.path.join(folder, _MODEL))
    getattr(model, "bert", model).config.to_json(os.path.join(folder, "bert_config.json"))
    if tokenizer:
        tokenizer.save(folder)
        write_digests(folder, names=tokenizer.files[:1])  # a lost line would change the id of every later token


def read_assets(folder: str, config: str | None = None) -> dict[str, Any]:
    """Returns the fields of a `Source` that the files of `write_assets` give; `config` is the path of the config if it
    is elsewhere."""
    file = find_config(folder, "bert_config.json", config)
    read = BertConfig.from_json(file)
    return {"config": read, "files": read_tokenizer_files(folder, dataclasses.asdict(read)),
            "labels": read_labels(folder).get("labels"),
            "differences": tuple(declared()["config.json"].unknown(read_object(file)))}


def find_config(folder: str, name: str, config: str | None) -> str:
    """Returns the path of the config: `config`, or, if that is None, the file `name` in the folder."""
    file = config or os.path.join(folder, name)
    if not os.path.lexists(file):
        raise InputError(f"{file}: not found; copy the model's there, because the weights do not "
                         "contain it; convert, export and fill-mask also take its path as ", Option("config=…"))
    return file


def read_settings(folder: str) -> dict[str, Any]:
    """Returns the object in `keras_bert_settings.json`; empty if there is no such file."""
    return read_object(os.path.join(folder, SETTINGS_FILE))


def write_assets(weights: Weights, folder: str) -> None:
    """Writes config, vocabulary and labels; the first two have the names that Google uses."""
    weights.config.to_json(os.path.join(folder, "bert_config.json"))
    if weights.tokenizer:
        weights.tokenizer.save(folder)
    write_settings({"labels": weights.labels}, folder)


FORMAT = Format("keras_bert", has_file(_MODEL), read, write, head={}, settings_file=SETTINGS)
