"""Hub-style SavedModels of this package and of the Model Garden's exporter, which are read without running them."""

import dataclasses
import os

from keras_bert.errors import InputError
from keras_bert.types import Tensor
from keras_bert.weights import garden
from keras_bert.weights.bundle import Bundle
from keras_bert.weights.format import Format, Source, Table, Weights, detect, google_rules, has_file
from keras_bert.weights.kinds import NAMES
from keras_bert.weights.native import read_assets

# This package's SavedModels have the names of `export.writing.copy_variable`: bert/block_0/attention/query/kernel.
TABLE = Table({name: name.replace("blocks.", "block_").replace(".", "/") for name in NAMES})
_LOWER_CASE = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"


def read(path: str, config: str | None = None) -> Source:
    """Reads a SavedModel. This package's SavedModels contain the config, others need `config`."""
    bundle = Bundle(os.path.join(path, "variables", "variables"))
    assets = read_assets(os.path.join(path, "assets"), config)
    if (files := assets["files"]) and _LOWER_CASE in bundle.shapes:
        rules = {"lower_case": bool(bundle.get(_LOWER_CASE)), "strip_accents": None, "normalization": None}
        arguments = files.arguments | {"split_cjk": True} | rules
        assets["files"] = dataclasses.replace(files, arguments=arguments, guesses=())
    keys, skipped = bundle.variables()
    if not any(name.startswith("bert/embeddings/") for name in keys):
        return garden.read_bundle(bundle, path, FORMAT.name, assets)
    if any(name.startswith(("bert/classifier/", "bert/regressor/", "bert/span/")) for name in keys):
        raise InputError(f"{path}: must be an exported encoder; this is a SavedModel of export text-model: pass the "
                         "folder that it was exported from")
    shapes = {name: bundle.shapes[key] for name, key in keys.items()} | dict.fromkeys(skipped, ())
    return Source(path, FORMAT.name, kind=detect(TABLE, shapes, ("masked_lm",)), table=TABLE, shapes=shapes,
                  get=lambda name: bundle.get(keys[name]), skipped=skipped, **assets)


def write(weights: Weights, folder: str) -> None:
    """Writes the SavedModel of `export_encoder`."""
    from keras_bert.export import export_encoder  # only this format needs TensorFlow as Keras's backend

    if weights.tokenizer is None:
        raise InputError("a Hub-style SavedModel contains its vocabulary; vocab.txt is missing next to the weights")
    export_encoder(weights.build(), folder, weights.tokenizer)


def compute_outputs(path: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Runs the SavedModel on inputs of `BertLayer` or `BertPretrainer`."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    return loaded.mlm(tensors) if "masked_lm_positions" in inputs else loaded(tensors)


FORMAT = Format("hub", has_file("saved_model.pb"), read, write, ("encoder", "masked_lm"), rules=google_rules,
                stores_segments=False, compute_outputs=compute_outputs)
