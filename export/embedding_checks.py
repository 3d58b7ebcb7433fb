"""The checks of the contract of TF-Hub's text embeddings (docs/hub_contract.md)."""

import numpy as np
import tensorflow as tf

from keras_bert.arguments import Path

from .checking import Loaded, expect
from .loaded_again import keras_layer, saved_again, static_shapes

_TEXTS = ["play some music", "", "turn off the light please, it is late", "Zürich, 서울"]
_TOLERANCE = {tf.float32: 1e-5, tf.bfloat16: 0.02}  # of rows in batches of another size, relative to the largest value


def _root(loaded: Loaded, _: Path) -> str:
    """the root takes string [batch] and returns float32 [batch, dim]"""
    for texts in (_TEXTS, _TEXTS[:1], []):
        embeddings = loaded(tf.constant(texts, tf.string))
        expect(isinstance(embeddings, tf.Tensor), f"returned {type(embeddings).__name__}")
        expect(embeddings.dtype == tf.float32 and embeddings.shape.rank == 2 and len(embeddings) == len(texts),
               f"a batch of {len(texts)} gave {embeddings.dtype.name} {embeddings.shape}")
    return f"{embeddings.shape[1]} dimensions"


def _static_shapes(loaded: Loaded, _: Path) -> None:
    """dim is static for a batch of unknown size"""
    width = loaded(tf.constant(_TEXTS)).shape[1]
    shape = static_shapes(loaded, tf.TensorSpec([None], tf.string))
    expect(shape.rank == 2 and shape[1] == width, f"the shape is {shape}")


def _rows(loaded: Loaded, _: Path) -> None:
    """an embedding does not depend on the other texts of the batch"""
    alone = tf.concat([loaded(tf.constant([text])) for text in _TEXTS], 0)
    dtypes = {variable.dtype for signature in loaded.signatures.values() for variable in signature.variables}
    _expect_same(loaded, alone, "of texts alone", tf.bfloat16 if tf.bfloat16 in dtypes else tf.float32)


def _any_text(loaded: Loaded, _: Path) -> None:
    """empty texts, long texts and bytes that are not UTF-8 get finite embeddings"""
    texts = [b"", b" \t\n", b"play " * 10_000, b"x" * 10_000, b"\xff\xfe\0", b"\xe2\x82"]
    for text, embedding in zip(texts, loaded(tf.constant(texts)).numpy()):
        expect(np.isfinite(embedding).all(), f"the embedding of {text[:10]!r} is not finite")


def _serving_default(loaded: Loaded, _: Path) -> None:
    """serving_default takes one input, string [batch], and returns the root's embeddings as its output embedding"""
    signature = loaded.signatures["serving_default"]
    name, = signature.structured_input_signature[1]
    outputs = signature(**{name: tf.constant(_TEXTS)})
    expect("embedding" in outputs, f"returned {', '.join(sorted(outputs))}")
    _expect_same(loaded, outputs["embedding"], "of the signature")


def _keras_layer(loaded: Loaded, path: Path) -> None:
    """hub.KerasLayer(path) returns the root's embeddings"""
    _expect_same(loaded, keras_layer(path)(tf.constant(_TEXTS)), "of the layer")


def _saved_again(loaded: Loaded, path: Path) -> None:
    """a copy made by loading and saving works without the original files"""
    with saved_again(path) as copy:
        _expect_same(loaded, tf.saved_model.load(copy)(tf.constant(_TEXTS)), "of the copy")


def _expect_same(loaded: Loaded, others: tf.Tensor, whose: str, dtype: tf.DType = tf.float32) -> None:
    """Fails unless `others` are the embeddings that the root returns for `_TEXTS`, within the tolerance of a dtype."""
    embeddings = loaded(tf.constant(_TEXTS)).numpy()
    difference = np.abs(embeddings - others).max()
    expect(difference <= _TOLERANCE[dtype] * np.abs(embeddings).max(),
           f"the embeddings {whose} differ by {difference:.1e}")


# docs/hub_contract.md has the same rules.
CHECKS = tuple(enumerate((_root, _static_shapes, _rows, _any_text, _serving_default, _keras_layer, _saved_again), 1))
