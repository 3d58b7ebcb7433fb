"""The TensorFlow Model Garden's checkpoints (https://github.com/tensorflow/models, official/nlp): `BertEncoder` V1 and
V2 and `BertPretrainerV2`, saved by `tf.train.Checkpoint`, with `bert_config.json` and `vocab.txt` in the same folder.

Weights are identified by the full names of their variables, which do not depend on the object that was saved.
"""

import dataclasses
import os
import re

import numpy as np

from keras_bert.config import BertConfig
from keras_bert.convert.assets import find_config, read_labels, read_tokenizer, write_beside
from keras_bert.convert.bundle import Bundle, find_checkpoint, write_objects
from keras_bert.convert.format import SPLIT_FIRST, SPLIT_LAST, Format, Name, Table, dense, norm
from keras_bert.convert.weights import Source, detect
from keras_bert.errors import InputError

_LAYER = "transformer/layer_{i}"
TABLE = Table(
    Name("bert.embeddings.word_embeddings.embeddings", "word_embeddings/embeddings"),
    Name("bert.embeddings.position_embeddings.embeddings", "position_embedding/embeddings"),
    Name("bert.embeddings.segment_embeddings.embeddings", "type_embeddings/embeddings"),
    *norm("bert.embeddings.norm", "embeddings/layer_norm"),
    *dense("bert.blocks.{i}.attention.query", f"{_LAYER}/self_attention/query", SPLIT_LAST),
    *dense("bert.blocks.{i}.attention.key", f"{_LAYER}/self_attention/key", SPLIT_LAST),
    *dense("bert.blocks.{i}.attention.value", f"{_LAYER}/self_attention/value", SPLIT_LAST),
    *dense("bert.blocks.{i}.attention.output_dense", f"{_LAYER}/self_attention/attention_output", SPLIT_FIRST),
    *norm("bert.blocks.{i}.attention_norm", f"{_LAYER}/self_attention_layer_norm"),
    *dense("bert.blocks.{i}.intermediate", f"{_LAYER}/intermediate"),
    *dense("bert.blocks.{i}.output_dense", f"{_LAYER}/output"),
    *norm("bert.blocks.{i}.output_norm", f"{_LAYER}/output_layer_norm"),
    *dense("bert.pooler", "pooler_transform"),
    *dense("mlm.dense", "cls/predictions/transform/dense"),
    *norm("mlm.norm", "cls/predictions/transform/LayerNorm"),
    Name("mlm.bias", "cls/predictions/output_bias/bias"),
    *dense("next_sentence", "next_sentence/logits"),
)
# The paths of attributes at which `BertPretrainerV2.checkpoint_items`, and `tf.train.Checkpoint(model=…)` of an encoder
# or a pretrainer, expect the variables with these names.
_PATHS = (
    (r"word_embeddings/", r"encoder/_embedding_layer/"),
    (r"position_embedding/", r"encoder/_position_embedding_layer/"),
    (r"type_embeddings/", r"encoder/_type_embedding_layer/"),
    (r"embeddings/layer_norm/", r"encoder/_embedding_norm_layer/"),
    (r"pooler_transform/", r"encoder/_pooler_layer/"),
    (r"transformer/layer_(\d+)/self_attention/(query|key|value)/",
     r"encoder/_transformer_layers/\1/_attention_layer/_\2_dense/"),
    (r"transformer/layer_(\d+)/self_attention/attention_output/",
     r"encoder/_transformer_layers/\1/_attention_layer/_output_dense/"),
    (r"transformer/layer_(\d+)/self_attention_layer_norm/", r"encoder/_transformer_layers/\1/_attention_layer_norm/"),
    (r"transformer/layer_(\d+)/intermediate/", r"encoder/_transformer_layers/\1/_intermediate_dense/"),
    (r"transformer/layer_(\d+)/output/", r"encoder/_transformer_layers/\1/_output_dense/"),
    (r"transformer/layer_(\d+)/output_layer_norm/", r"encoder/_transformer_layers/\1/_output_layer_norm/"),
    (r"cls/predictions/transform/dense/", r"masked_lm/dense/"),
    (r"cls/predictions/transform/LayerNorm/", r"masked_lm/layer_norm/"),
    (r"cls/predictions/output_bias/bias", r"masked_lm/bias"),
    (r"next_sentence/pooler_dense/", r"next_sentence/dense/"),
    (r"next_sentence/logits/", r"next_sentence/out_proj/"),
)
_KNOWN = re.compile(r"(?:.*/)?((?:word_embeddings|position_embedding|type_embeddings|embeddings/layer_norm|"
                    r"pooler_transform|transformer/layer_\d+|cls/predictions|next_sentence)/.*)")
_NEXT_SENTENCE_POOLER = tuple(f"next_sentence/pooler_dense/{part}" for part in ("kernel", "bias"))
_POOLER = tuple(f"pooler_transform/{part}" for part in ("kernel", "bias"))


def recognise(path):
    return (prefix := find_checkpoint(path)) is not None and Bundle(prefix).is_of_objects()


def read(path, config=None, next_sentence_pooler=False):
    """Returns the `Source` of a checkpoint.

    Args:
        next_sentence_pooler: if True, uses the dense layer of the next-sentence head as the encoder's pooler, because
            the Model Garden trains that layer and not the pooler.
    """
    bundle = Bundle(find_checkpoint(path))
    config = BertConfig.from_json(find_config(bundle.prefix, config))
    folder = os.path.dirname(bundle.prefix)
    return read_bundle(bundle, bundle.prefix, FORMAT.name, config, next_sentence_pooler, read_tokenizer(folder),
                       read_labels(folder))


def read_bundle(bundle, path, form, config, next_sentence_pooler=False, tokenizer=None, labels=None):
    """Returns the `Source` of variables with the Garden's full names, which SavedModels of its exporter have too."""
    if config.hidden_act == "gelu":  # official/modeling/activations/gelu.py
        config = dataclasses.replace(config, hidden_act="gelu_tanh")
    variables, skipped = bundle.variables()
    keys = {}
    for name, key in variables.items():
        name = match[1] if (match := _KNOWN.fullmatch(name)) else name
        if name in keys:
            raise InputError(f"{path}: two variables are called {name}, of two encoders: {keys[name]} and {key}")
        keys[name] = key

    def get(name):
        return bundle.get(keys.get(name, name))

    shapes = {name: bundle.shapes[key] for name, key in keys.items()} | {key: bundle.shapes[key] for key in skipped}
    kind = detect(TABLE, shapes, ("pretraining", "masked_lm"))
    if next_sentence_pooler and _NEXT_SENTENCE_POOLER[0] not in shapes:
        raise InputError(f"{path}: next_sentence_pooler needs a next-sentence head with a pooler; there is none")
    if _NEXT_SENTENCE_POOLER[0] in shapes:
        if next_sentence_pooler or _same(get, shapes):
            for theirs, pooler in zip(_NEXT_SENTENCE_POOLER, _POOLER):
                keys[pooler] = keys[theirs]
            skipped |= dict.fromkeys(_NEXT_SENTENCE_POOLER, "taken as the pooler")
        else:
            kind = "masked_lm" if kind == "pretraining" else kind
            reason = "the next-sentence head has a pooler of its own: --next_sentence_pooler takes it as the encoder's"
            skipped |= {name: reason for name in shapes if name.startswith("next_sentence/")}
    options = {"next_sentence": False} if kind == "masked_lm" else {}
    return Source(path, form, config, kind, TABLE, shapes, get, skipped, options, tokenizer, labels)


def _same(get, shapes):
    return all(pooler in shapes and np.array_equal(get(own), get(pooler))
               for own, pooler in zip(_NEXT_SENTENCE_POOLER, _POOLER))


def write(weights, folder):
    """Writes a checkpoint that `tf.train.Checkpoint` restores into `BertEncoder` V1 and V2 (as `encoder` or `model`)
    and `BertPretrainerV2` (by its `checkpoint_items`, or as `model`)."""
    arrays = {name.theirs: array for name, array in weights.arrays(TABLE)}
    if weights.kind == "pretraining":
        arrays |= {own: arrays[pooler] for own, pooler in zip(_NEXT_SENTENCE_POOLER, _POOLER)}
    paths = {theirs: _path(theirs) for theirs in arrays}
    aliases = {"model": "encoder"}
    if "cls/predictions/output_bias/bias" in arrays:
        aliases = {"masked_lm/embedding_table": "encoder/_embedding_layer/embeddings", "model/masked_lm": "masked_lm",
                   "model/encoder_network": "encoder"}
    if weights.kind == "pretraining":
        aliases |= {"next_sentence.pooler_dense": "next_sentence/dense",
                    "model/classification_heads/0": "next_sentence"}
    write_objects(os.path.join(folder, "bert_model.ckpt"), arrays, paths, aliases)
    config = weights.config
    if config.hidden_act in ("gelu_new", "gelu_tanh"):
        config = dataclasses.replace(config, hidden_act="gelu")
    write_beside(dataclasses.replace(weights, config=config), folder)


def _path(theirs):
    return next(re.sub(pattern, path, theirs) for pattern, path in _PATHS if re.match(pattern, theirs))


FORMAT = Format("garden", recognise, read, write, ("encoder", "pretraining", "masked_lm"),
                fixed={"hidden_act": ("gelu_tanh", "gelu_new", "relu"), "layer_norm_eps": (1e-12,),
                       "directionality": ("bidi",)})
