"""Hub-style SavedModels of this package and of the Model Garden's exporter, which are read without running them."""

import os

from keras_bert.config import BertConfig
from keras_bert.convert import garden
from keras_bert.convert.assets import find_config, read_tokenizer
from keras_bert.convert.bundle import Bundle
from keras_bert.convert.format import Format, Name, Table
from keras_bert.convert.kinds import NAMES
from keras_bert.convert.weights import Source, detect
from keras_bert.errors import InputError

# This package's SavedModels have the names of `export.writing.variable_name`: bert/block_0/attention/query/kernel.
TABLE = Table(*(Name(name, name.replace("blocks.", "block_").replace(".", "/")) for name in NAMES))


def recognise(path):
    return os.path.exists(os.path.join(path, "saved_model.pb"))


def read(path, config=None):
    """Returns the `Source` of a SavedModel. This package's SavedModels contain the config, others need `config`."""
    bundle = Bundle(os.path.join(path, "variables", "variables"))
    assets = os.path.join(path, "assets")
    config = BertConfig.from_json(find_config(os.path.join(assets, "vocab.txt"), config))
    tokenizer = read_tokenizer(assets, bundle.get(_CASING) if _CASING in bundle.shapes else None)
    keys, skipped = bundle.variables()
    if not any(name.startswith("bert/embeddings/") for name in keys):
        return garden.read_bundle(bundle, path, FORMAT.name, config, tokenizer=tokenizer)
    shapes = {name: bundle.shapes[key] for name, key in keys.items()} | dict.fromkeys(skipped, ())
    kind = detect(TABLE, shapes, ("masked_lm",))
    options = {"next_sentence": False} if kind == "masked_lm" else {}
    return Source(path, FORMAT.name, config, kind, TABLE, shapes, lambda name: bundle.get(keys[name]), skipped, options,
                  tokenizer)


_CASING = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"


def write(weights, folder):
    """Writes the SavedModel of `export_encoder`."""
    from keras_bert.export import export_encoder  # only this format needs TensorFlow as Keras's backend

    if weights.tokenizer is None:
        raise InputError("a Hub-style SavedModel holds its vocabulary; there is none beside the weights")
    export_encoder(weights.build(), folder, weights.tokenizer)


def run(path, inputs):
    """Runs the SavedModel on inputs of `BertLayer` or `BertPretrainer` and returns its outputs."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    inputs = {name: tf.constant(array) for name, array in inputs.items()}
    return loaded.mlm(inputs) if "masked_lm_positions" in inputs else loaded(inputs)


FORMAT = Format("hub", recognise, read, write, ("encoder", "masked_lm"), run=run)
