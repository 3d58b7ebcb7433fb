"""The TensorFlow Model Garden's checkpoints (https://github.com/tensorflow/models, official/nlp): `BertEncoder` V1 and
V2 and `BertPretrainerV2`, saved by `tf.train.Checkpoint`, with `bert_config.json` and `vocab.txt` in the same folder.
Weights are identified by the full names of their variables, which do not depend on the object that was saved."""

import dataclasses
import os
import re
from typing import Any

import numpy as np

from keras_bert.errors import InputError, Option
from keras_bert.weights.bundle import Bundle, find_checkpoint, has_checkpoint, write_objects
from keras_bert.weights.format import SPLIT_HEADS, Format, Source, Table, Weights, detect, google_rules
from keras_bert.weights.native import read_assets, write_assets

# The full names of the variables, and the paths of attributes at which `BertPretrainerV2.checkpoint_items`, and
# `tf.train.Checkpoint(model=…)` of an encoder or a pretrainer, expect them.
_LAYER, _OBJECT = "transformer/layer_{i}", "encoder/_transformer_layers/{i}"
_ATTENTION, _ATTENTION_OBJECT = f"{_LAYER}/self_attention", f"{_OBJECT}/_attention_layer"
_NAMES = {
    "bert.embeddings.word_embeddings": ("word_embeddings", "encoder/_embedding_layer"),
    "bert.embeddings.position_embeddings": ("position_embedding", "encoder/_position_embedding_layer"),
    "bert.embeddings.segment_embeddings": ("type_embeddings", "encoder/_type_embedding_layer"),
    "bert.embeddings.norm": ("embeddings/layer_norm", "encoder/_embedding_norm_layer"),
    "bert.embeddings.projection": ("embedding_projection", "encoder/_embedding_projection"),
    "bert.blocks.{i}.attention.query": (f"{_ATTENTION}/query", f"{_ATTENTION_OBJECT}/_query_dense"),
    "bert.blocks.{i}.attention.key": (f"{_ATTENTION}/key", f"{_ATTENTION_OBJECT}/_key_dense"),
    "bert.blocks.{i}.attention.value": (f"{_ATTENTION}/value", f"{_ATTENTION_OBJECT}/_value_dense"),
    "bert.blocks.{i}.attention.output_dense": (
        f"{_ATTENTION}/attention_output", f"{_ATTENTION_OBJECT}/_output_dense"),
    "bert.blocks.{i}.attention_norm": (f"{_ATTENTION}_layer_norm", f"{_ATTENTION_OBJECT}_norm"),
    "bert.blocks.{i}.intermediate": (f"{_LAYER}/intermediate", f"{_OBJECT}/_intermediate_dense"),
    "bert.blocks.{i}.output_dense": (f"{_LAYER}/output", f"{_OBJECT}/_output_dense"),
    "bert.blocks.{i}.output_norm": (f"{_LAYER}/output_layer_norm", f"{_OBJECT}/_output_layer_norm"),
    "bert.pooler": ("pooler_transform", "encoder/_pooler_layer"),
    "mlm.dense": ("cls/predictions/transform/dense", "masked_lm/dense"),
    "mlm.norm": ("cls/predictions/transform/LayerNorm", "masked_lm/layer_norm"),
    "mlm.bias": ("cls/predictions/output_bias/bias", "masked_lm/bias"),
    "next_sentence": ("next_sentence/logits", "next_sentence/out_proj"),
}
TABLE = Table({name: full_name for name, (full_name, _) in _NAMES.items()}, forms=SPLIT_HEADS)
_PATHS = Table({name: path for name, (_, path) in _NAMES.items()})
_KNOWN = re.compile(r"(?:.*/)?((?:word_embeddings|position_embedding|type_embeddings|embeddings/layer_norm|"
                    r"embedding_projection|pooler_transform|transformer/layer_\d+|cls/predictions|next_sentence)/.*)")
# The dense layer of the next-sentence head, which the Model Garden trains instead of the pooler.
_HEAD_POOLER = ("next_sentence/pooler_dense/kernel", "next_sentence/pooler_dense/bias")
_POOLER = ("pooler_transform/kernel", "pooler_transform/bias")


def read(path: str, config: str | None = None, next_sentence_pooler: bool = False) -> Source:
    """Reads a checkpoint; with `next_sentence_pooler`, `_HEAD_POOLER` as the pooler."""
    bundle = Bundle(find_checkpoint(path) or path)
    assets = read_assets(os.path.dirname(bundle.prefix), config)
    return read_bundle(bundle, bundle.prefix, FORMAT.name, assets, next_sentence_pooler)


def read_bundle(bundle: Bundle, path: str, format: str, assets: dict[str, Any], next_sentence_pooler: bool = False,
                ) -> Source:
    """Reads variables with the Garden's full names, which SavedModels of its exporter have too."""
    if assets["config"].hidden_act == "gelu":  # official/modeling/activations/gelu.py
        assets = assets | {"config": dataclasses.replace(assets["config"], hidden_act="gelu_tanh")}
    variables, skipped = bundle.variables()
    keys: dict[str, str] = {}
    for name, key in variables.items():
        name = match[1] if (match := _KNOWN.fullmatch(name)) else name
        if (other := keys.setdefault(name, key)) != key:
            raise InputError(f"{path}: two variables have the name {name}, in two encoders: {other} and {key}")

    def get(name: str) -> np.ndarray:
        return bundle.get(keys.get(name, name))

    shapes = {name: bundle.shapes[key] for name, key in keys.items()} | {key: bundle.shapes[key] for key in skipped}
    kind = detect(TABLE, shapes, ("pretraining", "masked_lm"))
    if _HEAD_POOLER[0] in shapes:
        if next_sentence_pooler or all(pooler in shapes and np.array_equal(get(own), get(pooler))
                                       for own, pooler in zip(_HEAD_POOLER, _POOLER)):
            keys |= {pooler: keys[own] for own, pooler in zip(_HEAD_POOLER, _POOLER)}
            skipped |= dict.fromkeys(_HEAD_POOLER, "used as the pooler")
        else:
            kind = "masked_lm" if kind == "pretraining" else kind
            reason = "the next-sentence head has its own pooler; pass --next_sentence_pooler to use it as the encoder's"
            skipped |= {name: reason for name in shapes if name.startswith("next_sentence/")}
    elif next_sentence_pooler:
        raise InputError(f"{path}: has no next-sentence head with a pooler, which ", Option("next_sentence_pooler"),
                         " needs")
    return Source(path, format, kind=kind, table=TABLE, shapes=shapes, get=get, skipped=skipped, **assets)


def write(weights: Weights, folder: str) -> None:
    """Writes a checkpoint that `tf.train.Checkpoint` restores into `BertEncoder` V1 and V2 and `BertPretrainerV2`."""
    copies: dict[str, str] = {}
    paths = {TABLE[name].stored_name: _PATHS[name].stored_name for name in weights.read if name in TABLE}
    aliases = {"model": "encoder"}
    if weights.kind in ("pretraining", "masked_lm"):
        aliases = {"masked_lm/embedding_table": "encoder/_embedding_layer/embeddings", "model/masked_lm": "masked_lm",
                   "model/encoder_network": "encoder"}
    if weights.kind == "pretraining":
        copies = dict(zip(_POOLER, _HEAD_POOLER))
        paths |= {own: own.replace("pooler_dense", "dense") for own in _HEAD_POOLER}
        aliases |= {"next_sentence.pooler_dense": "next_sentence/dense",
                    "model/classification_heads/0": "next_sentence"}
    arrays = ((name, array) for entry, array in weights.arrays(TABLE)
              for name in (entry.stored_name, copies.get(entry.stored_name)) if name)
    write_objects(os.path.join(folder, "bert_model.ckpt"), arrays, paths, aliases)
    if weights.config.hidden_act in ("gelu_new", "gelu_tanh"):
        weights = weights.with_config(hidden_act="gelu")
    write_assets(weights, folder)


FORMAT = Format("garden", lambda path: has_checkpoint(path, of_objects=True), read, write,
                ("encoder", "pretraining", "masked_lm"), rules=google_rules,
                fixed={"hidden_act": ("gelu_tanh", "gelu_new", "relu"), "layer_norm_eps": (1e-12,),
                       "directionality": ("bidi",), "pooler_activation": ("tanh",)})
