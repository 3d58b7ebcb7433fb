"""This package's folders: `model.keras`, `bert_config.json`, `vocab.txt`, `tokenizer_config.json`, `labels.json`; for a
classifier also `settings.json`, as `finetune` writes it."""

import os

import keras

from keras_bert.convert.assets import read_labels, read_tokenizer, write_assets
from keras_bert.convert.format import Format, Table, has_file
from keras_bert.convert.kinds import NAMES
from keras_bert.convert.weights import Source, Weights
from keras_bert.files import write_json
from keras_bert.models import BertFeatureTagger, load_model

TABLE = Table({name: name for name in NAMES})
_MODEL = "model.keras"


def read(path, config=None):
    """Returns the `Source` of a folder. `config` is ignored, because `model.keras` contains the config."""
    model = load_model(path)
    if isinstance(model, BertFeatureTagger):
        model = model.bert  # no other format has the LSTMs
    weights = Weights.of(model)
    return Source(path, FORMAT.name, weights.config, weights.kind, TABLE, weights.shapes,
                  lambda name: weights.read[name](), {}, weights.options, read_tokenizer(path), read_labels(path))


def write(weights, folder):
    """Writes a folder that `from_pretrained` reads; if the model is a classifier, `predict` reads it too."""
    write_assets(weights, folder)
    if weights.kind == "classification":
        length = min(128, weights.config.max_position_embeddings)
        settings = {"task": "classify", "max_length": length, "pairs": False, "threshold": None}
        write_json(os.path.join(folder, "settings.json"), settings)
    keras.saving.save_model(weights.build(), os.path.join(folder, _MODEL))


FORMAT = Format("keras_bert", has_file(_MODEL), read, write, head={})
