"""The kinds of models that formats can store, with the names and shapes of their weights."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_bert import models
from keras_bert.config import BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.layers import BertLayer

# A name is the path of attributes from a model to a variable, where `{i}` is the number of the block. A dimension is a
# number, a field of `BertConfig`, or `num_classes`.
Dimensions = dict[str, tuple[int | str, ...]]


def _dense(name: str, inputs: str, outputs: int | str) -> Dimensions:
    return {f"{name}.kernel": (inputs, outputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: str = "hidden_size") -> Dimensions:
    return {f"{name}.gamma": (width,), f"{name}.beta": (width,)}


_HIDDEN = ("hidden_size", "hidden_size")
_EMBEDDINGS = {
    "bert.embeddings.word_embeddings.embeddings": ("vocab_size", "embedding_width"),
    "bert.embeddings.position_embeddings.embeddings": ("max_position_embeddings", "embedding_width"),
    "bert.embeddings.segment_embeddings.embeddings": ("type_vocab_size", "embedding_width"),
    **_norm("bert.embeddings.norm", "embedding_width"),
}
_PROJECTION = _dense("bert.embeddings.projection", "embedding_width", "hidden_size")
_BLOCK = {
    **_dense("bert.blocks.{i}.attention.query", *_HIDDEN),
    **_dense("bert.blocks.{i}.attention.key", *_HIDDEN),
    **_dense("bert.blocks.{i}.attention.value", *_HIDDEN),
    **_dense("bert.blocks.{i}.attention.output_dense", *_HIDDEN),
    **_norm("bert.blocks.{i}.attention_norm"),
    **_dense("bert.blocks.{i}.intermediate", "hidden_size", "intermediate_size"),
    **_dense("bert.blocks.{i}.output_dense", "intermediate_size", "hidden_size"),
    **_norm("bert.blocks.{i}.output_norm"),
}
POOLER = _dense("bert.pooler", *_HIDDEN)
_MASKED_LM = {**_dense("mlm.dense", "hidden_size", "embedding_width"), **_norm("mlm.norm", "embedding_width"),
              "mlm.bias": ("vocab_size",)}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model."""

    model: type
    head: Dimensions  # the weights that are not the encoder's
    is_pooled: bool = True  # if the model uses the pooled output; other libraries omit the pooler if it does not
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # what makes `model` a model of this kind


ENCODER = "encoder"
KINDS = {
    ENCODER: Kind(BertLayer, {}),
    "pretraining": Kind(models.BertPretrainer, {**_MASKED_LM, **_dense("next_sentence", "hidden_size", 2)}),
    "masked_lm": Kind(models.BertPretrainer, _MASKED_LM, is_pooled=False, options={"next_sentence": False}),
    "classification": Kind(models.BertClassifier, _dense("classifier", "hidden_size", "num_classes")),
    "regression": Kind(models.BertRegressor, _dense("regressor", "hidden_size", 1)),
    "token_classification": Kind(models.BertTokenClassifier, _dense("classifier", "hidden_size", "num_classes"), False),
    "span": Kind(models.BertSpanLabeler, _dense("span", "hidden_size", 2), is_pooled=False),
    "multiple_choice": Kind(models.BertMultipleChoice, _dense("classifier", "hidden_size", 1)),
    "embedding": Kind(models.BertEmbedder, {}, is_pooled=False),
}

# All names; a block's have `{i}` for its number.
NAMES = tuple({**_EMBEDDINGS, **_PROJECTION, **_BLOCK, **POOLER,
               **{name: None for kind in KINDS.values() for name in kind.head}})


def has_kind(model: Any) -> bool:
    return isinstance(model, tuple(kind.model for kind in KINDS.values()))


def model_kind(model: Any) -> str:
    """Returns the kind of a `BertLayer` or of a model on one; raises an InputError for other models."""
    for name, kind in KINDS.items():
        if isinstance(model, kind.model):  # pretraining and masked_lm have the same class
            return "masked_lm" if getattr(model, "next_sentence", True) is None else name
    raise InputError(Option("model"), " must be a BertLayer or have one of this package's heads; "
                     f"got {type(model).__name__}")


# The weights with a row for each token.
OF_TOKENS = "bert.embeddings.word_embeddings.embeddings", "mlm.bias"


def shapes(config: BertConfig, kind: str = ENCODER, num_classes: int | None = None) -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of a model's weights: 5 of the embeddings, and 2 of their projection, if any; 16 per
    block; 2 of the pooler; and those of the head."""
    blocks = {name.format(i=i): shape for i in range(config.num_hidden_layers) for name, shape in _BLOCK.items()}
    embeddings = _EMBEDDINGS | (_PROJECTION if config.embedding_size else {})
    sizes: dict[Any, Any] = dataclasses.asdict(config) | {
        "num_classes": num_classes, "embedding_width": config.embedding_width}
    return {name: tuple(sizes.get(dimension, dimension) for dimension in shape)
            for name, shape in (embeddings | blocks | POOLER | KINDS[kind].head).items()}


def initial(name: str, shape: tuple[int, ...], config: BertConfig) -> np.ndarray:
    """Returns initial values for a weight that a source lacks, float32: 1 for scales, 0 for shifts and biases, and for
    all others a normal distribution truncated at two standard deviations. The seed is the name."""
    if len(shape) == 1:
        return np.full(shape, float(name.endswith("gamma")), np.float32)
    rng = np.random.default_rng(list(name.encode()))
    values = rng.standard_normal(shape, np.float32)
    while (wide := np.abs(values) > 2).any():
        values[wide] = rng.standard_normal(int(wide.sum()), np.float32)
    return values * config.initializer_range


def variable(model: Any, name: str) -> keras.Variable:
    """Returns the variable with that name in a `BertLayer` or a model on one."""
    if isinstance(model, BertLayer):
        name = name.removeprefix("bert.")
    for part in name.split("."):
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    return model
