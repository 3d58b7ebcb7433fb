"""The files that stand beside the weights in most folders: config, vocabulary, labels."""

import os

from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.text import BertTokenizer, save_vocabulary

_LABELS = "labels.json"


def find_config(prefix, config=None):
    """The path of the config: `config` where given, else `bert_config.json` beside the checkpoint."""
    config = config or os.path.join(os.path.dirname(prefix), "bert_config.json")
    if not os.path.exists(config):
        raise InputError(f"{config}: there is none, and the weights do not say what BERT they are of: name its config "
                         "by --config")
    return config


def read_tokenizer(folder, lower_case=None):
    """The tokenizer of a folder with `vocab.txt`, or None; `lower_case` where its files do not say it."""
    vocabulary = os.path.join(folder, "vocab.txt")
    if not os.path.exists(vocabulary):
        return None
    return BertTokenizer.from_folder(folder) if lower_case is None else BertTokenizer(vocabulary, bool(lower_case))


def read_labels(folder):
    """The list in `labels.json`, or None."""
    path = os.path.join(folder, _LABELS)
    return read_json(path) if os.path.exists(path) else None


def write_tokenizer(tokenizer, folder):
    """Writes `vocab.txt` and the casing, where there is a tokenizer."""
    if tokenizer is not None:
        save_vocabulary(tokenizer.vocabulary, os.path.join(folder, "vocab.txt"))
        tokenizer.save_settings(folder)


def write_labels(labels, folder):
    """Writes `labels.json`, where there are labels."""
    if labels is not None:
        write_json(os.path.join(folder, _LABELS), labels)


def write_beside(weights, folder):
    """Writes all of them, as Google names them."""
    weights.config.to_json(os.path.join(folder, "bert_config.json"))
    write_tokenizer(weights.tokenizer, folder)
    write_labels(weights.labels, folder)
