"""Hugging Face folders: `config.json`, the weights (see `tensor_files`) and `vocab.txt`."""

import dataclasses
import os
import shutil
from collections.abc import Iterable
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_bert.config import BertConfig, as_bert
from keras_bert.errors import InputError
from keras_bert.files.json_files import Record, all_differences, declared, read_object, write_json
from keras_bert.text.tokenizer_files import read_tokenizer_files
from keras_bert.weights import native
from keras_bert.weights.format import Format, Source, Weights, detect
from keras_bert.weights.huggingface_models import TYPES, ModelType
from keras_bert.weights.kinds import ENCODER, KINDS, POOLER
from keras_bert.weights.tensor_files import FILES, Tensors, open_tensors

_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}  # names that are others there
# `problem_type` of a model for sequence classification, and what is None there.
_PROBLEMS = {"multi_label_classification": "multilabel", "regression": "regress",
             "single_label_classification": None, None: None}
# The activation of a CrossEncoder of sentence-transformers: the classes of torch, and the keys of config.json, the
# second one up to version 3. Version 6 also writes config_sentence_transformers.json.
_ACTIVATION_FNS = {"sigmoid": "torch.nn.modules.activation.Sigmoid", "identity": "torch.nn.modules.linear.Identity"}
_OF_CLASSES = "Softmax", "Identity", "Sigmoid"  # of one with several labels; with a sigmoid, a text has any number
_CROSS_ENCODER, _OLD_CROSS_ENCODER = "sentence_transformers", "sbert_ce_default_activation_function"
LIBRARY = "config_sentence_transformers.json"
# Files that change the model, and are not read.
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "pytorch_adapter.bin")
_HEADS = {"model_head.pkl": "SetFit's classifier on the embeddings", "pytorch_model_head.bin": "a head of adapters"}
_SETTINGS = "keras_bert"  # the dict in config.json with what transformers has no field for; it keeps this dict
_POSITIONS, _SEGMENTS = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"


def recognise(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in ("config.json", *FILES, *_ADAPTERS))


def read(path: str, config: str | None = None) -> Source:
    """Reads a folder. Of the weights, only tied ones that are stored twice are read here, and compared."""
    for name in _ADAPTERS:
        if os.path.exists(adapter := os.path.join(path, name)):
            raise InputError(f"{adapter}: an adapter (LoRA) changes the model and is not read; load the model with "
                             "peft, call merge_and_unload(), and save_pretrained() into another folder")
    file = native.find_config(path, "config.json", config)
    bert_config, stored = BertConfig.from_json(file), Record(file, "", values := read_object(file))
    model = TYPES[stored.one_of("model_type", TYPES, "bert", ", which is for this package's formats; pass the "
                                "config.json of the model")]
    settings, files = _settings(stored), read_tokenizer_files(path, values)
    library = read_object(os.path.join(path, LIBRARY))
    differences = [*declared()["config.json"].unknown(values), *all_differences(
        {LIBRARY: library, f"config.json: {_CROSS_ENCODER}": values.get(_CROSS_ENCODER) or {}})]
    differences += [f"{name}: {head} is not read" for name, head in _HEADS.items()
                    if os.path.exists(os.path.join(path, name))]
    try:
        shapes, get = _open(path, model, bert_config)
    except InputError as error:
        return Source(path, FORMAT.name, bert_config, ENCODER, model.table(ENCODER), {}, lambda name: np.empty(0),
                      files=files, differences=tuple(differences), unopened=error)
    skipped = {"embeddings.position_ids": "buffer"}
    tied = {f"{model.tied}.weight": "embeddings.word_embeddings.weight",
            f"{model.tied}.bias": model.table("masked_lm")["mlm.bias"].stored_name}
    for copy, original in tied.items():
        if copy in shapes and original in shapes and copy != original:
            if not np.array_equal(get(copy), get(original)):
                raise InputError(f"{path}: {copy} must equal {original}; BERT's output layer is tied to its embeddings")
            skipped[copy] = f"copy of {original}"
    kind, losses = _kind(model, stored, shapes), []
    head = model.table(kind)
    if kind == "regression" and shapes.get(head["regressor.bias"].stored_name) != (1,):
        kind, losses = ENCODER, ["problem_type regression must have one value here, not several"]
        skipped |= dict.fromkeys((name for name in shapes if name.startswith("classifier.")), losses[0])
    if model.skipped_head:
        skipped |= dict.fromkeys((name for name in shapes if name.startswith(f"{model.skipped_head}.")),
                                 "the head of the pretraining, which tells replaced tokens from others")
    options, labels = _head(model, stored, kind, shapes)
    if labels and (others := sorted({*(values.get("id2label") or {})} - {str(i) for i in range(len(labels))})):
        differences.append(f"config.json: id2label must have the classes of the head, 0 to {len(labels) - 1}; "
                           f"got {', '.join(map(repr, others[:5]))}")
    if (activation := _activation_of_pairs(values, library, kind)) and kind == "classification":
        if activation not in _OF_CLASSES:
            differences.append(f"activation_fn must be one of {', '.join(_OF_CLASSES)} for several labels; "
                               f"got {activation}")
        settings = settings | {"pairs": True} | ({"task": "multilabel"} if activation == "Sigmoid" else {})
    elif activation and kind == "regression" and values.get("problem_type") != "regression":
        settings = (settings if settings.get("task") == "rerank" else {}) | {
            "task": "rerank", "activation_fn": _activation_fn(path, activation)}
        if prompts := [name for name, text in (library.get("prompts") or {}).items() if text]:
            differences.append(f"{LIBRARY}: the prompts {', '.join(prompts)} of a CrossEncoder must be part of the "
                               "texts here")
    if files:
        settings = {"max_length": files.arguments["max_length"]} | settings
    return Source(path, FORMAT.name, bert_config, kind, model.table(kind), shapes, get, skipped, options, files, labels,
                  settings, losses=tuple(losses), differences=tuple(differences),
                  may_lack_pooler=kind == ENCODER and not model.has_pooler)


def _open(path: str, model: ModelType, config: BertConfig) -> Tensors:
    """Returns the shapes of the weights, by their names in the encoder without a head, and a function that reads one.
    What other types than BERT have in another form has BERT's."""
    tensors = open_tensors(path, model.name)
    _check_type(path, model, tensors.shapes)
    names: dict[str, str] = {}
    for name in tensors.shapes:
        if (other := names.setdefault(_plain_name(name, model), name)) != name:
            raise InputError(f"{path}: each weight must have one name; got {other} and {name}")
    shapes = {name: tensors.shapes[stored_name] for name, stored_name in names.items()}
    unused = config.pad_token_id + 1 if model.begins_after_padding else 0  # rows of the table of positions
    if unused and shapes.get(_POSITIONS):
        rows, *width = shapes[_POSITIONS]
        shapes[_POSITIONS] = (rows - unused, *width)
    if not model.has_segments:
        shapes[_SEGMENTS] = (config.type_vocab_size, config.hidden_size)

    def get(name: str) -> np.ndarray:
        if name not in names:
            return np.zeros(shapes[name], np.float32)
        array = tensors.get(names[name])
        return array[unused:] if name == _POSITIONS else array

    return Tensors(shapes, get)


def _check_type(path: str, model: ModelType, names: Iterable[str]) -> None:
    """Raises an InputError if the names are those of another type than the config's."""
    def is_of(one: ModelType) -> bool:
        query = one.table(ENCODER)["bert.blocks.0.attention.query.kernel"].stored_name
        return any(_plain_name(name, one) == query for name in names)

    if not is_of(model) and (others := [other.name for other in TYPES.values() if is_of(other)]):
        raise InputError(f"{path}: model_type in the config must be that of the weights, {' or '.join(others)}; "
                         f"got {model.name!r}")


def write(weights: Weights, folder: str, max_length: int | None = None) -> None:
    """Writes the files that transformers' `from_pretrained` reads. The settings of the task are in `config.json`, as
    `keras_bert`. transformers truncates to `max_length`; if it is None, to the task's or the tokenizer's."""
    model, settings = _type_of(weights), weights.settings
    values = {name: _ACTIVATIONS.get(value, value) for name, value in weights.config.to_dict(model.name).items()}
    values["architectures"] = [model.architectures[weights.kind]]
    if "dropout" in weights.options:
        values[model.dropout_field(weights.kind)] = weights.options["dropout"]
    labels = weights.labels or [f"LABEL_{i}" for i in range(weights.options.get("num_classes", 0))]
    if weights.kind == "regression":
        labels = ["LABEL_0"]
        if settings.get("task") == "rerank":
            values[_CROSS_ENCODER] = {"activation_fn": _ACTIVATION_FNS[settings.get("activation_fn", "sigmoid")]}
        else:
            values["problem_type"] = "regression"
    if weights.kind == "classification":
        is_multilabel = settings.get("task") == "multilabel"
        values["problem_type"] = f"{'multi' if is_multilabel else 'single'}_label_classification"
    if settings:
        values[_SETTINGS] = settings
    if labels:
        values |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    write_json(config := os.path.join(folder, "config.json"), values)
    if weights.tokenizer:
        limit = weights.config.max_position_embeddings
        weights.tokenizer.save_for_transformers(folder, max_length or settings.get("max_length") or min(
            weights.tokenizer.max_length or limit, limit))
    try:
        save_file(_tensors(weights, model), path := os.path.join(folder, "model.safetensors"),
                  metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    shutil.copymode(config, path)  # safetensors lets only the owner read a file


def _tensors(weights: Weights, model: ModelType) -> dict[str, np.ndarray]:
    """Returns the weights by their names in transformers. Without token types, the row of the only one is part of each
    position's. A pooler that the model does not have in transformers is left out if it is not trained."""
    left_out = POOLER if not model.writes_pooler(weights.kind) and weights.has_initial_pooler() else {}
    tensors = {entry.name: (entry.stored_name, array) for entry, array in weights.arrays(model.table(weights.kind))
               if entry.name not in left_out}
    if not model.has_segments:
        _, row = tensors.pop("bert.embeddings.segment_embeddings.embeddings")
        name, positions = tensors[key := "bert.embeddings.position_embeddings.embeddings"]
        tensors[key] = name, positions + row[:1]
    prefix = "" if weights.kind == ENCODER else f"{model.prefix}."
    head = {} if model.has_pooler else POOLER
    return {f"{prefix if name.startswith('bert.') and name not in head else ''}{stored_name}": array
            for name, (stored_name, array) in tensors.items()}


def _type_of(weights: Weights) -> ModelType:
    """Returns the type that stores the weights: BERT where it computes the same outputs, otherwise another."""
    config = weights.config
    is_tanh = config.pooler_activation == "tanh" or not KINDS[weights.kind].is_pooled
    if config.embedding_size is None and is_tanh:
        return TYPES["bert"]
    return TYPES["distilbert" if config.embedding_size is None and config.pooler_activation == "relu" else "electra"]


def variant(weights: Weights) -> Format:
    """Returns the format with the restrictions of the type that stores the weights."""
    model = _type_of(weights)
    if model is TYPES["bert"]:
        return FORMAT
    fixed = {**FORMAT.fixed, **model.fixed}
    if model.writes_pooler(weights.kind):
        fixed["pooler_activation"] = (as_bert({"model_type": model.name})["pooler_activation"],)
    head = None
    if model.mlm_activation:
        head = {"hidden_act": (model.mlm_activation,), "layer_norm_eps": (weights.config.layer_norm_eps,)}
    return dataclasses.replace(FORMAT, name=f"{FORMAT.name} ({model.name})", kinds=tuple(model.architectures),
                               fixed=fixed, head=head)


def _plain_name(key: str, model: ModelType) -> str:
    """Removes the prefix that models with heads add, and replaces old names by the current ones."""
    key = key.removeprefix(f"{model.prefix}.").replace("LayerNorm.gamma", "LayerNorm.weight")
    return key.replace("LayerNorm.beta", "LayerNorm.bias")


def _kind(model: ModelType, config: Record, shapes: dict[str, tuple[int, ...]]) -> str:
    """Returns the kind of model by `architectures`, or by the weights if no architecture is known. A classifier with
    one label is a regression model, as in transformers."""
    kinds = {architecture: kind for kind, architecture in model.architectures.items() if kind != "regression"}
    names = config.texts("architectures") if config.values.get("architectures") else []
    kind = next((kinds[name] for name in names if name in kinds), None) or next(
        (kind for kind in ("pretraining", "masked_lm", "classification", "span")
         if detect(model.table(kind), shapes, (kind,)) == kind), ENCODER)
    if kind == "masked_lm" and "cls.seq_relationship.bias" in shapes:  # as in bert-base-uncased
        return "pretraining"
    if kind == "multiple_choice":
        for name, expected in model.summary.items():
            config.one_of(name, [expected], expected)
    if kind != "classification":
        return kind
    problem = config.values.get("problem_type")
    is_one = shapes.get(model.table(kind)["classifier.bias"].stored_name) == (1,)
    return "regression" if problem == "regression" or problem is None and is_one else kind


def _settings(config: Record) -> dict[str, Any]:
    """Returns the settings of the task. Those in `keras_bert` count unless `problem_type` says something else."""
    task, settings = _PROBLEMS[config.one_of("problem_type", _PROBLEMS)], config.get(_SETTINGS, dict | None) or {}
    if task:
        return settings if settings.get("task") == task else {"task": task}
    return {} if settings.get("task") == "multilabel" else settings


def _activation_of_pairs(values: dict[str, Any], library: dict[str, Any], kind: str) -> str | None:
    """Returns the name of the class that a CrossEncoder applies to its logits, None if the files are not those of one.
    `library` is the content of `config_sentence_transformers.json`."""
    stored = values.get(_CROSS_ENCODER)
    found = (library.get("activation_fn") or isinstance(stored, dict) and stored.get("activation_fn")
             or values.get(_OLD_CROSS_ENCODER))
    if not found and library.get("model_type") == "CrossEncoder":  # the library's default
        return "Sigmoid" if kind == "regression" else "Identity"
    return str(found).rpartition(".")[2] if found else None


def _activation_fn(path: str, activation: str) -> str:
    """Returns the setting of a re-ranker whose activation is a class of this name."""
    names = {class_name.rpartition(".")[2]: name for name, class_name in _ACTIVATION_FNS.items()}
    if activation not in names:
        raise InputError(f"{path}: activation_fn must be one of {', '.join(_ACTIVATION_FNS.values())}; "
                         f"got {activation!r:.100}")
    return names[activation]


def _head(model: ModelType, config: Record, kind: str, shapes: dict[str, tuple[int, ...]],
          ) -> tuple[dict[str, Any], list[Any] | None]:
    """Returns the arguments of the model with the head, and the labels, None for one without a name."""
    if kind == "masked_lm" and model.mlm_activation not in (None, as_bert(config.values).get("hidden_act", "gelu")):
        return {"mlm_activation": model.mlm_activation}, None
    if kind not in ("classification", "regression", "token_classification", "multiple_choice"):
        return {}, None
    dropout = config.values.get(model.dropout_field(kind))
    options = {"dropout": as_bert(config.values).get("hidden_dropout_prob", 0.1) if dropout is None else dropout}
    if kind in ("regression", "multiple_choice"):
        return options, None
    bias, kernel = (shapes.get(model.table(kind)[f"classifier.{part}"].stored_name) for part in ("bias", "kernel"))
    options["num_classes"] = (bias or kernel or [0])[0]
    labels = config.get("id2label", dict | None) or {}
    return options, [labels.get(str(i)) for i in range(options["num_classes"])]


FORMAT = Format("huggingface", recognise, read, write, tuple(TYPES["bert"].architectures),
                fixed={"directionality": ("bidi",)}, settings_file="config.json",
                applied=("task", "max_length", "pairs", "features"), variant=variant)
