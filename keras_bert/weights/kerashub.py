"""KerasHub presets (https://keras.io/keras_hub): `config.json` and `model.weights.h5`; for a task `task.json` and
`task.weights.h5`; for the tokenizer `tokenizer.json` and `assets/tokenizer/vocabulary.txt`. This package adds
`labels.json` and `keras_bert_settings.json`, the settings of the task."""

import dataclasses
import io
import itertools
import os
import re
import unicodedata
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files.json_files import Record, all_differences, read_object, write_json
from keras_bert.files.paths import at
from keras_bert.tasks import read_labels, write_settings
from keras_bert.text import Tokenizer, save_vocabulary, tokenizer_files
from keras_bert.text.wordpiece import wordpiece
from keras_bert.weights.format import SPLIT_HEADS, Format, Source, Table, Weights, has_file
from keras_bert.weights.kinds import ENCODER
from keras_bert.weights.native import SETTINGS_FILE, read_settings
from keras_bert.weights.tensor_files import open_hdf5, stored_array

_MODEL, _TASK = "model.weights.h5", "task.weights.h5"
_BLOCK = f"{_MODEL}/layers/transformer_encoder{{_i}}"
TABLE = Table({
    "bert.embeddings.word_embeddings": f"{_MODEL}/layers/reversible_embedding",
    "bert.embeddings.position_embeddings": f"{_MODEL}/layers/position_embedding",
    "bert.embeddings.segment_embeddings": f"{_MODEL}/layers/embedding",
    "bert.embeddings.norm": f"{_MODEL}/layers/layer_normalization",
    "bert.blocks.{i}.attention.query": f"{_BLOCK}/_self_attention_layer/query_dense",
    "bert.blocks.{i}.attention.key": f"{_BLOCK}/_self_attention_layer/key_dense",
    "bert.blocks.{i}.attention.value": f"{_BLOCK}/_self_attention_layer/value_dense",
    "bert.blocks.{i}.attention.output_dense": f"{_BLOCK}/_self_attention_layer/output_dense",
    "bert.blocks.{i}.attention_norm": f"{_BLOCK}/_self_attention_layer_norm",
    "bert.blocks.{i}.intermediate": f"{_BLOCK}/_feedforward_intermediate_dense",
    "bert.blocks.{i}.output_dense": f"{_BLOCK}/_feedforward_output_dense",
    "bert.blocks.{i}.output_norm": f"{_BLOCK}/_feedforward_layer_norm",
    "bert.pooler": f"{_MODEL}/layers/dense",
    "mlm.dense": f"{_TASK}/layers/masked_lm_head/_intermediate_dense",
    "mlm.norm": f"{_TASK}/layers/masked_lm_head/_intermediate_layer_norm",
    "mlm.bias": f"{_TASK}/layers/masked_lm_head/vars/0",
    "classifier": f"{_TASK}/layers/dense",
}, {"embeddings": "/vars/0", "kernel": "/vars/0", "bias": "/vars/1", "gamma": "/vars/0", "beta": "/vars/1"},
    SPLIT_HEADS)
_KINDS = {"BertMaskedLM": "masked_lm", "BertTextClassifier": "classification"}
# Constants in KerasHub's classes: activations and layer norm epsilons, of the encoder and of the masked LM head.
_ACTIVATION, _EPSILON = "gelu_tanh", 1e-12
_MULTILABEL = "sigmoid"  # the activation of a classifier whose labels do not exclude one another
_HEAD = {"mlm_activation": "gelu", "mlm_layer_norm_eps": 1e-5}
_FIELDS = {"vocabulary_size": "vocab_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
           "hidden_dim": "hidden_size", "intermediate_dim": "intermediate_size", "dropout": "hidden_dropout_prob",
           "max_sequence_length": "max_position_embeddings", "num_segments": "type_vocab_size"}


def read(path: str, config: str | None = None) -> Source:
    """Reads a preset; ignores `config`, because the preset contains the config."""
    files = tokenizer_files.read_tokenizer_files(path)
    _, backbone = _read_object(path, "config.json", "BertBackbone")
    source = Source(path, FORMAT.name, _read_config(backbone, files), ENCODER, TABLE, _read_shapes(path, _MODEL),
                    lambda name: _get(path, name), files=files, labels=read_labels(path).get("labels"),
                    differences=tuple(all_differences({"config.json: config": backbone.values})))
    return _with_task(source) if os.path.exists(os.path.join(path, _TASK)) else source


def _read_object(folder: str, file: str, *names: str) -> tuple[str, Record]:
    """Returns the class, one of `names`, of the object of Keras in a JSON file, and its arguments."""
    path = os.path.join(folder, file)
    stored = Record(path, "", read_object(path, required=True))
    return stored.one_of("class_name", names), Record(path, "config", stored.get("config", dict))


def _read_config(backbone: Record, files: tokenizer_files.TokenizerFiles | None) -> BertConfig:
    known = {name: backbone.values[field] for field, name in _FIELDS.items() if field in backbone.values}
    pad_id = files and files.vocabulary.index("[PAD]")
    known |= {"hidden_act": _ACTIVATION, "layer_norm_eps": _EPSILON, "pad_token_id": pad_id}
    with at(backbone):
        return BertConfig.from_dict(known | {"attention_probs_dropout_prob": known.get("hidden_dropout_prob")})


def _with_task(source: Source) -> Source:
    """Returns the source with the weights and the description of its head."""
    path = source.path
    shapes = _read_shapes(path, _TASK)
    skipped = {name: "optimizer variable" for name in shapes if name.startswith(f"{_TASK}/optimizer/")}
    name, task = _read_object(path, "task.json", *_KINDS)
    source = dataclasses.replace(source, kind=_KINDS[name], shapes=source.shapes | shapes, skipped=skipped)
    if source.kind == "masked_lm":
        return dataclasses.replace(source, options=_HEAD)
    activation = task.one_of("activation", (None, "linear", _MULTILABEL), None,
                             ", because outputs must be logits, or probabilities of multiple labels")
    settings, read = read_settings(path), {"task.json": task.values}
    if (settings.get("task") == "multilabel") != (activation == _MULTILABEL):  # KerasHub's file is the newer one
        settings = {"task": "multilabel" if activation == _MULTILABEL else "classify"}
    if os.path.exists(os.path.join(path, "preprocessor.json")):
        _, preprocessor = _read_object(path, "preprocessor.json", "BertTextClassifierPreprocessor")
        settings["max_length"] = preprocessor.values.get("sequence_length")
        read["preprocessor.json"] = preprocessor.values
    options = {"num_classes": task.get("num_classes", int), "dropout": task.values.get("dropout", 0.1)}
    return dataclasses.replace(source, options=options, settings=settings,
                               differences=(*source.differences, *all_differences(read)))


def _read_shapes(path: str, name: str) -> dict[str, tuple[int, ...]]:
    shapes = {}

    def visit(key: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            shapes[f"{name}/{key}"] = item.shape

    with open_hdf5(os.path.join(path, name), "KerasHub preset") as file:
        file.visititems(visit)
    return shapes


def _get(path: str, name: str) -> np.ndarray:
    file, _, key = name.partition("/")
    with open_hdf5(os.path.join(path, file), "KerasHub preset") as opened:
        array = stored_array(opened, key)
        return array.view(ml_dtypes.bfloat16) if array.dtype.kind == "V" else array  # HDF5 has no bfloat16 type


def write(weights: Weights, folder: str) -> None:
    """Writes a preset that `from_preset` reads, with the backbone and, if there is one, its masked LM or classifier."""
    config = weights.config
    backbone = _object("BertBackbone", {field: getattr(config, name) for field, name in _FIELDS.items()})
    write_json(os.path.join(folder, "config.json"), backbone)
    # The versions of the libraries whose file format is written.
    write_json(os.path.join(folder, "metadata.json"), {"keras_version": "3.15.1", "keras_hub_version": "0.32.0"})
    tokenizer = _write_tokenizer(weights.tokenizer, folder)
    if task := next((task for task, kind in _KINDS.items() if kind == weights.kind), None):
        preprocessor = None
        if tokenizer:
            preprocessor = _object(f"{task}Preprocessor", {
                "tokenizer": tokenizer, "config_file": "preprocessor.json",
                "sequence_length": weights.settings.get("max_length", config.max_position_embeddings)})
            write_json(os.path.join(folder, "preprocessor.json"), preprocessor)
        values: dict[str, Any] = {"backbone": backbone, "preprocessor": preprocessor}
        values |= weights.options if weights.kind == "classification" else {}
        values |= {"activation": _MULTILABEL} if weights.settings.get("task") == "multilabel" else {}
        write_json(os.path.join(folder, "task.json"), _object(task, values))
    write_settings(weights.settings | {"labels": weights.labels}, folder, SETTINGS_FILE)
    _write_weights(weights, folder)


def _write_weights(weights: Weights, folder: str) -> None:
    """Writes the HDF5 files. Each is made in memory first, because HDF5 crashes if the disk is full."""
    for name, entries in itertools.groupby(weights.arrays(TABLE), lambda pair: pair[0].stored_name.partition("/")[0]):
        content = io.BytesIO()
        with h5py.File(content, "w") as hdf5:
            for entry, array in entries:
                hdf5[entry.stored_name.partition("/")[2]] = array
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content.getbuffer())


def _write_tokenizer(tokenizer: Tokenizer | None, folder: str) -> dict[str, Any] | None:
    """Writes a tokenizer's files and returns its JSON object."""
    if tokenizer is None:
        return None
    if tokenizer.mask_id is None or len(set(tokenizer.vocabulary)) < len(tokenizer.vocabulary):
        raise InputError("kerashub: the vocabulary must contain [MASK], and no token twice")
    rules, path = wordpiece(tokenizer, "kerashub").rules, os.path.join(folder, tokenizer_files.KERAS_HUB_VOCABULARY)
    os.makedirs(os.path.dirname(path))
    save_vocabulary(tokenizer.vocabulary, path)
    values = _object("BertTokenizer", {
        "config_file": tokenizer_files.TOKENIZER, "vocabulary": None, "lowercase": rules.lower_case,
        # Without lower-casing, KerasHub does not recompose the Hangul syllables that it decomposes.
        "strip_accents": rules.strip_accents and (rules.lower_case or rules.normalization == "none"),
        "split_on_cjk": rules.split_cjk})
    stored = {"strip_accents": rules.strip_accents, "normalization": rules.normalization}
    stored |= {name: value for name, default in tokenizer_files.KERAS_HUB_DEFAULTS.items()
               if (value := getattr(tokenizer, name)) != default}
    write_json(os.path.join(folder, tokenizer_files.TOKENIZER), values | {tokenizer_files.KERAS_HUB_RULES: stored})
    return values


def _losses(tokenizer: Tokenizer) -> list[str]:
    """Returns the reasons why KerasHub cannot follow the rules of a tokenizer. Its lower-casing composes characters,
    after its stripping of accents has decomposed them."""
    rules = wordpiece(tokenizer, "kerashub").rules
    if tokenizer.truncation_side != "right":
        return [f"truncation_side of the tokenizer must be right, not {tokenizer.truncation_side}"]
    if rules.normalization == "NFC":
        return [] if rules.lower_case else ["normalization of a tokenizer that keeps the case must be none, not NFC"]
    tokens = rules.normalize(" ".join(tokenizer.vocabulary))
    if rules.lower_case and rules.strip_accents and unicodedata.normalize("NFC", tokens) != tokens:
        return ["its lower-casing composes characters, above all Hangul syllables, which the vocabulary has as jamo"]
    return []


def _object(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON object with which Keras describes an object of KerasHub."""
    module = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return {"module": f"keras_hub.src.models.bert.{module.replace('masked_lmpre', 'masked_lm_pre')}",
            "class_name": name, "config": config, "registered_name": f"keras_hub>{name}"}


FORMAT = Format("kerashub", has_file(_MODEL), read, write, ("encoder", *_KINDS.values()),
                fixed={"hidden_act": (_ACTIVATION, "gelu_new"), "layer_norm_eps": (_EPSILON,),
                       "attention_probs_dropout_prob": ("hidden_dropout_prob",), "directionality": ("bidi",),
                       "embedding_size": (None,), "pooler_activation": ("tanh",)},
                head={"hidden_act": (_HEAD["mlm_activation"],), "layer_norm_eps": (_HEAD["mlm_layer_norm_eps"],)},
                rules=_losses, settings_file=SETTINGS_FILE, applied=("task", "max_length", "pairs"))
