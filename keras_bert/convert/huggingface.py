"""Hugging Face folders: `config.json`, `model.safetensors` as one file or as shards, and `vocab.txt`."""

import functools
import os
import re

import numpy as np
import safetensors
from safetensors.numpy import save_file

from keras_bert.config import BertConfig
from keras_bert.convert.assets import read_tokenizer, write_tokenizer
from keras_bert.convert.format import TRANSPOSED, Format, Name, Table
from keras_bert.convert.kinds import KINDS, initial
from keras_bert.convert.weights import Source, detect
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_OLD_FILES = {
    "pytorch_model.bin": ("a pickle can run any code when it is read, so it is refused",
                          "transformers: BertModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"),
    "tf_model.h5": ("transformers 5 no longer reads it, nor is it read here",
                    "transformers 4: BertModel.from_pretrained(FOLDER, from_tf=True).save_pretrained(NEW_FOLDER)"),
}


def _dense(ours, theirs):
    return Name(f"{ours}.kernel", f"{theirs}.weight", TRANSPOSED), Name(f"{ours}.bias", f"{theirs}.bias")


def _norm(ours, theirs):
    return Name(f"{ours}.gamma", f"{theirs}.weight"), Name(f"{ours}.beta", f"{theirs}.bias")


# The encoder's names are those of `BertModel`; in models with heads they have the prefix `bert.`.
TABLE = Table(
    Name("bert.embeddings.word_embeddings.embeddings", "embeddings.word_embeddings.weight"),
    Name("bert.embeddings.position_embeddings.embeddings", "embeddings.position_embeddings.weight"),
    Name("bert.embeddings.segment_embeddings.embeddings", "embeddings.token_type_embeddings.weight"),
    *_norm("bert.embeddings.norm", "embeddings.LayerNorm"),
    *_dense("bert.blocks.{i}.attention.query", "encoder.layer.{i}.attention.self.query"),
    *_dense("bert.blocks.{i}.attention.key", "encoder.layer.{i}.attention.self.key"),
    *_dense("bert.blocks.{i}.attention.value", "encoder.layer.{i}.attention.self.value"),
    *_dense("bert.blocks.{i}.attention.output_dense", "encoder.layer.{i}.attention.output.dense"),
    *_norm("bert.blocks.{i}.attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
    *_dense("bert.blocks.{i}.intermediate", "encoder.layer.{i}.intermediate.dense"),
    *_dense("bert.blocks.{i}.output_dense", "encoder.layer.{i}.output.dense"),
    *_norm("bert.blocks.{i}.output_norm", "encoder.layer.{i}.output.LayerNorm"),
    *_dense("bert.pooler", "pooler.dense"),
    *_dense("mlm.dense", "cls.predictions.transform.dense"),
    *_norm("mlm.norm", "cls.predictions.transform.LayerNorm"),
    Name("mlm.bias", "cls.predictions.bias"),
    *_dense("next_sentence", "cls.seq_relationship"),
    *_dense("classifier", "classifier"),
    *_dense("regressor", "classifier"),
    *_dense("span", "qa_outputs"),
)
_ARCHITECTURES = {
    "encoder": "BertModel",
    "pretraining": "BertForPreTraining",
    "masked_lm": "BertForMaskedLM",
    "classification": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "token_classification": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
    "multiple_choice": "BertForMultipleChoice",
}
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
# The output layer of the masked LM head, a copy of the word embeddings and of `cls.predictions.bias`.
_TIED = {"cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
         "cls.predictions.decoder.bias": "cls.predictions.bias"}


def recognise(path):
    """Returns True for every folder with a `config.json`; so this format is tried last."""
    return os.path.isfile(os.path.join(path, "config.json"))


def read(path, config=None):
    """Returns the `Source` of a folder.

    Only tied weights that are stored twice are read here, and compared; see `Source` for the others.

    Raises:
        InputError: a file is missing, is not of the type that its name says, or is a pickle.
    """
    values = read_json(config or os.path.join(path, "config.json"))
    config = BertConfig.from_json(config or os.path.join(path, "config.json"))
    stored = {_plain_name(key): place for key, place in _find_tensors(path).items()}
    names = {key: (file, theirs) for key, (file, theirs, _) in stored.items()}
    shapes = {key: shape for key, (_, _, shape) in stored.items()}
    get = functools.partial(_get, names)
    skipped = {"embeddings.position_ids": "a buffer"}
    for copy, original in _TIED.items():
        if copy in shapes and original in shapes:
            if not np.array_equal(get(copy), get(original)):
                raise InputError(f"{path}: {copy} must be {original} once more: an untied output layer is not BERT's")
            skipped[copy] = f"{original} once more"
    kind = _kind(values, shapes)
    options, labels = _head(values, kind, shapes)
    return Source(path, FORMAT.name, config, kind, TABLE, shapes, get, skipped, options, read_tokenizer(path), labels)


def write(weights, folder):
    """Writes the files that transformers' `from_pretrained` reads."""
    architecture = _ARCHITECTURES[weights.kind]
    values = weights.config.to_dict() | {"architectures": [architecture]}
    if "dropout" in weights.options:
        values["classifier_dropout"] = weights.options["dropout"]
    labels = weights.labels or [f"LABEL_{i}" for i in range(weights.options.get("num_classes", 0))]
    labels = ["LABEL_0"] if weights.kind == "regression" else labels
    if labels:
        values |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    if weights.kind == "regression":
        values["problem_type"] = "regression"
    write_json(os.path.join(folder, "config.json"), values)
    write_tokenizer(weights.tokenizer, folder)
    prefix = "" if weights.kind == "encoder" else "bert."
    tensors = {
        f"{prefix if name.ours.startswith('bert.') else ''}{name.theirs}": array
        for name, array in weights.arrays(TABLE) if not _is_untrained_pooler(name.ours, weights)}
    save_file(tensors, os.path.join(folder, _WEIGHTS), metadata={"format": "pt"})


def _is_untrained_pooler(name, weights):
    """Returns True if a weight belongs to a pooler that the model does not use, and still has its initial value.

    It is not written, because the models of transformers have no pooler then.
    """
    if KINDS[weights.kind].is_pooled or not name.startswith("bert.pooler."):
        return False
    return np.array_equal(weights.read[name](), initial(name, weights.shapes[name], weights.config))


def _find_tensors(folder):
    """Returns a dict of each tensor's name to (path of its file, name, shape)."""
    index = os.path.join(folder, _INDEX)
    if os.path.lexists(os.path.join(folder, _WEIGHTS)):
        return _list(os.path.join(folder, _WEIGHTS))
    if os.path.exists(index):
        places = read_json(index)["weight_map"]
        tensors = {}
        for file in sorted(set(places.values())):
            tensors |= _list(os.path.join(folder, file))
        if lost := sorted(places.keys() - tensors.keys()):
            raise InputError(f"{index}: names tensors that its shards do not hold: {', '.join(lost)}")
        return tensors
    for file, (reason, remedy) in _OLD_FILES.items():
        if os.path.exists(os.path.join(folder, file)):
            raise InputError(f"{os.path.join(folder, file)}: {reason}; save the model again with {remedy}")
    raise InputError(f"{folder}: a Hugging Face folder needs model.safetensors; there is none")


def _list(path):
    with _opened(path) as file:
        return {key: (path, key, tuple(file.get_slice(key).get_shape())) for key in file.keys()}


def _get(names, key):
    path, theirs = names[key]
    with _opened(path) as file:
        return file.get_tensor(theirs)


def _opened(path):
    try:
        return safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file: {error}") from None


def _plain_name(key):
    """Removes the prefix that models with heads add, and replaces old names by the current ones."""
    key = key.removeprefix("bert.")
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda match: f"LayerNorm.{_OLD_NAMES[match[1]]}", key)


def _kind(values, shapes):
    """Returns the kind of model by `architectures`, or by the weights if no architecture is known. A classifier with
    one label is a regression model, as in transformers."""
    for architecture in values.get("architectures") or ():
        for kind, name in _ARCHITECTURES.items():
            if name == architecture:
                if kind == "masked_lm" and "cls.seq_relationship.bias" in shapes:  # as in bert-base-uncased
                    return "pretraining"
                return "regression" if kind == "classification" and shapes.get("classifier.bias") == (1,) else kind
    return detect(TABLE, shapes, ("pretraining", "masked_lm", "classification", "span"))


def _head(values, kind, shapes):
    """Returns (arguments of the model with the head, labels)."""
    if kind == "masked_lm":
        return {"next_sentence": False}, None
    if kind not in ("classification", "regression", "token_classification", "multiple_choice"):
        return {}, None
    dropout = values.get("classifier_dropout")
    options = {"dropout": values.get("hidden_dropout_prob", 0.1) if dropout is None else dropout}
    if kind in ("regression", "multiple_choice"):
        return options, None
    options["num_classes"] = shapes.get("classifier.bias", (0,))[0]
    labels = values.get("id2label") or {}
    labels = [labels.get(str(i), f"LABEL_{i}") for i in range(options["num_classes"])]
    return options, labels


FORMAT = Format("huggingface", recognise, read, write, fixed={"directionality": ("bidi",)})
