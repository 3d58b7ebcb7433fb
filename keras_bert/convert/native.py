"""This package's folders: `model.keras`, `bert_config.json`, `vocab.txt`, `tokenizer_config.json`, `labels.json`; for a
classifier also `settings.json`, as `finetune` writes it."""

import os

import keras
import numpy as np
from keras import ops

from keras_bert.convert.assets import read_labels, read_tokenizer, write_beside
from keras_bert.convert.format import Format, Name, Table
from keras_bert.convert.kinds import NAMES, variable
from keras_bert.convert.weights import Source, Weights
from keras_bert.files import write_json
from keras_bert.models import BertFeatureTagger, load_model

TABLE = Table(*(Name(name, name) for name in NAMES))
_MODEL = "model.keras"


def recognise(path):
    return os.path.exists(os.path.join(path, _MODEL))


def read(path, config=None):
    """Returns the `Source` of a folder. `config` is ignored, because `model.keras` contains the config."""
    model = load_model(path)
    if isinstance(model, BertFeatureTagger):
        model = model.bert  # no other format has the LSTMs
    weights = Weights.of(model)

    def get(name):
        return np.asarray(ops.convert_to_numpy(variable(model, name)))

    return Source(path, FORMAT.name, weights.config, weights.kind, TABLE, weights.shapes, get, {}, weights.options,
                  read_tokenizer(path), read_labels(path))


def write(weights, folder):
    """Writes a folder that `from_pretrained` reads; if the model is a classifier, `predict` reads it too."""
    write_beside(weights, folder)
    if weights.kind == "classification":
        length = min(128, weights.config.max_position_embeddings)
        settings = {"task": "classify", "max_length": length, "pairs": False, "threshold": None}
        write_json(os.path.join(folder, "settings.json"), settings)
    keras.saving.save_model(weights.build(), os.path.join(folder, _MODEL))


FORMAT = Format("keras_bert", recognise, read, write, head={})
