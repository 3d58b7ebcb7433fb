"""Hugging Face folders: `config.json`, the weights (see `tensor_files`) and `vocab.txt`."""

import os
import shutil
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_bert.config import BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import read_json, read_object, write_json
from keras_bert.text.tokenizer_files import read_tokenizer_files
from keras_bert.weights.format import TRANSPOSED, Format, Table
from keras_bert.weights.huggingface_tokenizer import write_tokenizer
from keras_bert.weights.kinds import ENCODER, KINDS, initial
from keras_bert.weights.source import Source, Weights, detect
from keras_bert.weights.tensor_files import NAMES, open_tensors

# The encoder has the names of `BertModel`; in models with heads they have the prefix `bert.`.
TABLE = Table({
    "bert.embeddings.word_embeddings": "embeddings.word_embeddings",
    "bert.embeddings.position_embeddings": "embeddings.position_embeddings",
    "bert.embeddings.segment_embeddings": "embeddings.token_type_embeddings",
    "bert.embeddings.norm": "embeddings.LayerNorm",
    "bert.blocks.{i}.attention.query": "encoder.layer.{i}.attention.self.query",
    "bert.blocks.{i}.attention.key": "encoder.layer.{i}.attention.self.key",
    "bert.blocks.{i}.attention.value": "encoder.layer.{i}.attention.self.value",
    "bert.blocks.{i}.attention.output_dense": "encoder.layer.{i}.attention.output.dense",
    "bert.blocks.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "bert.blocks.{i}.intermediate": "encoder.layer.{i}.intermediate.dense",
    "bert.blocks.{i}.output_dense": "encoder.layer.{i}.output.dense",
    "bert.blocks.{i}.output_norm": "encoder.layer.{i}.output.LayerNorm",
    "bert.pooler": "pooler.dense",
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.bias": "cls.predictions.bias",
    "next_sentence": "cls.seq_relationship",
    "classifier": "classifier",
    "regressor": "classifier",
    "span": "qa_outputs",
}, {"embeddings": ".weight", "kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"},
    {"kernel": TRANSPOSED})
ARCHITECTURES = {
    "encoder": "BertModel",
    "pretraining": "BertForPreTraining",
    "masked_lm": "BertForMaskedLM",
    "classification": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "token_classification": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
    "multiple_choice": "BertForMultipleChoice",
}
_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}  # names that are others there
# `problem_type` of BertForSequenceClassification, and what is None there.
_PROBLEMS = {"multi_label_classification": "multilabel", "regression": "regress",
             "single_label_classification": None, None: None}
# The activation of a CrossEncoder of sentence-transformers: the classes of torch, and the keys of config.json, the
# second one up to version 3. Version 6 also writes config_sentence_transformers.json.
_ACTIVATION_FNS = {"sigmoid": "torch.nn.modules.activation.Sigmoid", "identity": "torch.nn.modules.linear.Identity"}
_CROSS_ENCODER, _OLD_CROSS_ENCODER = "sentence_transformers", "sbert_ce_default_activation_function"
_SETTINGS = "keras_bert"  # the dict in config.json with what transformers has no field for; it keeps this dict
# The output layer of the masked LM head, a copy of the word embeddings and of `cls.predictions.bias`.
_TIED = {"cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
         "cls.predictions.decoder.bias": "cls.predictions.bias"}


def recognise(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in ("config.json", *NAMES))


def read(path: str, config: str | None = None) -> Source:
    """Reads a folder. Of the weights, only tied ones that are stored twice are read here, and compared."""
    file = config or os.path.join(path, "config.json")
    if not os.path.lexists(file):
        raise InputError(f"{file}: not found; copy the model's there, because the weights do not "
                         "contain it; convert, export and fill-mask also take its path as ", Option("config=…"))
    values, bert_config = read_json(file), BertConfig.from_json(file)
    tensors = open_tensors(path)
    names: dict[str, str] = {}
    for name in tensors.shapes:
        if (other := names.setdefault(_plain_name(name), name)) != name:
            raise InputError(f"{path}: each weight must have one name; got {other} and {name}")
    shapes = {name: tensors.shapes[stored_name] for name, stored_name in names.items()}

    def get(name: str) -> np.ndarray:
        return tensors.get(names[name])

    skipped = {"embeddings.position_ids": "buffer"}
    for copy, original in _TIED.items():
        if copy in shapes and original in shapes:
            if not np.array_equal(get(copy), get(original)):
                raise InputError(f"{path}: {copy} must equal {original}; BERT's output layer is tied to its embeddings")
            skipped[copy] = f"copy of {original}"
    kind, losses = _kind(values, shapes), []
    if kind == "regression" and shapes.get("classifier.bias") != (1,):
        kind, losses = ENCODER, ["problem_type regression must have one value here, not several"]
        skipped |= dict.fromkeys(("classifier.weight", "classifier.bias"), losses[0])
    options, labels = _head(values, kind, shapes)
    settings, files = _settings(path, values), read_tokenizer_files(path, values)
    library = read_object(os.path.join(path, "config_sentence_transformers.json"))
    if kind == "regression" and (reranker := _cross_encoder(path, values, library)):
        settings = reranker | settings
        if prompts := [name for name, text in (library.get("prompts") or {}).items() if text]:
            losses.append(f"the prompts {', '.join(prompts)} of a CrossEncoder must be part of the texts here")
    if files:
        settings = {"max_length": files.max_length} | settings
    return Source(path, FORMAT.name, bert_config, kind, TABLE, shapes, get, skipped, options, files, labels, settings,
                  losses=tuple(losses))


def write(weights: Weights, folder: str, max_length: int | None = None) -> None:
    """Writes the files that transformers' `from_pretrained` reads. The settings of the task are in `config.json`, as
    `keras_bert`. transformers truncates to `max_length`; if it is None, to the task's or the tokenizer's."""
    values, settings = weights.config.to_dict() | {"architectures": [ARCHITECTURES[weights.kind]]}, weights.settings
    values["hidden_act"] = _ACTIVATIONS.get(values["hidden_act"], values["hidden_act"])
    if "dropout" in weights.options:
        values["classifier_dropout"] = weights.options["dropout"]
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
    write_tokenizer(weights.tokenizer, folder, max_length or settings.get("max_length"),
                    weights.config.max_position_embeddings)
    prefix = "" if weights.kind == "encoder" else "bert."
    tensors = {
        f"{prefix if entry.name.startswith('bert.') else ''}{entry.stored_name}": array
        for entry, array in weights.arrays(TABLE) if not _is_untrained_pooler(entry.name, weights)}
    try:
        save_file(tensors, path := os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    shutil.copymode(config, path)  # safetensors lets only the owner read a file


def _is_untrained_pooler(name: str, weights: Weights) -> bool:
    """Returns True for a weight of a pooler that the model does not use, if it still has its initial value: the models
    of transformers have no pooler then."""
    if KINDS[weights.kind].is_pooled or not name.startswith("bert.pooler."):
        return False
    return np.array_equal(weights.read[name](), initial(name, weights.shapes[name], weights.config))


def _plain_name(key: str) -> str:
    """Removes the prefix that models with heads add, and replaces old names by the current ones."""
    key = key.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
    return key.replace("LayerNorm.beta", "LayerNorm.bias")


def _kind(values: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> str:
    """Returns the kind of model by `architectures`, or by the weights if no architecture is known. A classifier with
    one label is a regression model, as in transformers."""
    kinds = {architecture: kind for kind, architecture in ARCHITECTURES.items() if kind != "regression"}
    names = values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"architectures in config.json must be a list of names; got {names!r:.100}")
    kind = next((kinds[name] for name in names if name in kinds), None) or detect(
        TABLE, shapes, ("pretraining", "masked_lm", "classification", "span"))
    if kind == "masked_lm" and "cls.seq_relationship.bias" in shapes:  # as in bert-base-uncased
        return "pretraining"
    if kind != "classification":
        return kind
    problem = values.get("problem_type")
    is_regression = problem == "regression" or problem is None and shapes.get("classifier.bias") == (1,)
    return "regression" if is_regression else kind


def _settings(path: str, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the task. Those in `keras_bert` count unless `problem_type` says something else."""
    problem = values.get("problem_type")
    if problem not in list(_PROBLEMS):
        raise InputError(f"{path}: problem_type must be one of {', '.join(filter(None, _PROBLEMS))}; got {problem!r}")
    settings, task = values.get(_SETTINGS) or {}, _PROBLEMS[problem]
    if not isinstance(settings, dict):
        raise InputError(f"{path}: {_SETTINGS} in config.json must be an object; got {settings!r:.100}")
    if task:
        return settings if settings.get("task") == task else {"task": task}
    return {} if settings.get("task") == "multilabel" else settings


def _cross_encoder(path: str, values: dict[str, Any], library: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the task rerank if the files are those of a CrossEncoder; otherwise none. `library` is
    the content of `config_sentence_transformers.json`."""
    stored = values.get(_CROSS_ENCODER)
    found = (library.get("activation_fn") or isinstance(stored, dict) and stored.get("activation_fn")
             or values.get(_OLD_CROSS_ENCODER))
    if not found or values.get("problem_type") == "regression":
        return {}
    names = {class_name.rpartition(".")[2]: name for name, class_name in _ACTIVATION_FNS.items()}
    if (class_name := str(found).rpartition(".")[2]) not in names:
        raise InputError(f"{path}: activation_fn must be one of {', '.join(_ACTIVATION_FNS.values())}; "
                         f"got {found!r:.100}")
    return {"task": "rerank", "activation_fn": names[class_name]}


def _head(values: dict[str, Any], kind: str, shapes: dict[str, tuple[int, ...]],
          ) -> tuple[dict[str, Any], list[Any] | None]:
    """Returns the arguments of the model with the head, and the labels, None for one without a name."""
    if kind not in ("classification", "regression", "token_classification", "multiple_choice"):
        return {}, None
    dropout = values.get("classifier_dropout")
    options = {"dropout": values.get("hidden_dropout_prob", 0.1) if dropout is None else dropout}
    if kind in ("regression", "multiple_choice"):
        return options, None
    options["num_classes"] = (shapes.get("classifier.bias") or shapes.get("classifier.weight") or [0])[0]
    labels = values.get("id2label") or {}
    if not isinstance(labels, dict):
        raise InputError(f"id2label in config.json must be an object; got {labels!r:.100}")
    return options, [labels.get(str(i)) for i in range(options["num_classes"])]


FORMAT = Format("huggingface", recognise, read, write, tuple(ARCHITECTURES),
                fixed={"directionality": ("bidi",)}, settings_file="config.json",
                applied=("task", "max_length", "pairs", "features"))
