"""Names of the same weights in our layers and elsewhere: ordered, reversible tables."""

import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Name:
    """One weight: `ours` is an attribute path from a `BertLayer`, `theirs` the other library's name, `{i}` stands for
    the block; `transposed` says that they store a dense kernel as [out, in]."""

    ours: str
    theirs: str
    transposed: bool = False

    def for_block(self, index):
        return Name(self.ours.format(i=index), self.theirs.format(i=index), self.transposed)

    def variable(self, bert):
        """The `keras.Variable` of a `BertLayer` that this name stands for."""
        return functools.reduce(_step, self.ours.split("."), bert)

    def convert(self, array):
        """A weight in the other library's layout to ours, or back: the change is its own inverse."""
        return np.transpose(array) if self.transposed else array


def _step(parent, name):
    return parent[int(name)] if name.isdigit() else getattr(parent, name)


def _dense(ours, theirs):
    return Name(f"{ours}.kernel", f"{theirs}.weight", transposed=True), Name(f"{ours}.bias", f"{theirs}.bias")


def _norm(ours, theirs):
    return Name(f"{ours}.gamma", f"{theirs}.weight"), Name(f"{ours}.beta", f"{theirs}.bias")


_HUGGINGFACE_EMBEDDINGS = (
    Name("embeddings.word_embeddings.embeddings", "embeddings.word_embeddings.weight"),
    Name("embeddings.position_embeddings.embeddings", "embeddings.position_embeddings.weight"),
    Name("embeddings.segment_embeddings.embeddings", "embeddings.token_type_embeddings.weight"),
    *_norm("embeddings.norm", "embeddings.LayerNorm"),
)
_HUGGINGFACE_BLOCK = (
    *_dense("blocks.{i}.attention.query", "encoder.layer.{i}.attention.self.query"),
    *_dense("blocks.{i}.attention.key", "encoder.layer.{i}.attention.self.key"),
    *_dense("blocks.{i}.attention.value", "encoder.layer.{i}.attention.self.value"),
    *_dense("blocks.{i}.attention.output_dense", "encoder.layer.{i}.attention.output.dense"),
    *_norm("blocks.{i}.attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
    *_dense("blocks.{i}.intermediate", "encoder.layer.{i}.intermediate.dense"),
    *_dense("blocks.{i}.output_dense", "encoder.layer.{i}.output.dense"),
    *_norm("blocks.{i}.output_norm", "encoder.layer.{i}.output.LayerNorm"),
)
_HUGGINGFACE_POOLER = _dense("pooler", "pooler.dense")


def huggingface_names(config):
    """The weights of Hugging Face's `BertModel`, in order: 5 + 16 a block + 2 `Name`s."""
    blocks = (name.for_block(i) for i in range(config.num_hidden_layers) for name in _HUGGINGFACE_BLOCK)
    return (*_HUGGINGFACE_EMBEDDINGS, *blocks, *_HUGGINGFACE_POOLER)
