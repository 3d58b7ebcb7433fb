"""Labelled texts with their classes as numbers."""

import dataclasses
import hashlib

import numpy as np
import tensorflow as tf

from keras_bert import kernels
from keras_bert.data import Example, TextBatches, read_examples
from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class Labelled:
    """The examples of a file.

    Args:
        path: the file.
        examples: its `Example`s.
        labels: names of the classes.
        targets: int32 [examples], the class of each; -1 for a text out of scope.
    """

    path: str
    examples: list[Example]
    labels: list[str]
    targets: np.ndarray

    @classmethod
    def read(cls, path, text="text", text_pair=None, label="label", labels=None, out_of_scope=None):
        """Reads a file, see `read_examples`.

        Args:
            labels: names of the classes; those of the file where None.
            out_of_scope: label of the texts out of scope.

        Raises:
            InputError: names the file and the row; a label is not among `labels`, no text is in scope, or the file
                gives fewer than two classes.
        """
        examples = read_examples(path, text, text_pair, label)
        if labels is None:
            labels = sorted({example.label for example in examples})
            if len(labels) < 2:
                raise InputError(f"{path}: a classifier needs at least two labels; got {labels[0]}")
        numbers = {label: number for number, label in enumerate(labels)}
        if out_of_scope in numbers:
            raise InputError(f"out_of_scope must not be a label of the training file; got {out_of_scope!r}")
        if out_of_scope is not None:
            numbers[out_of_scope] = -1
        for example in examples:
            if example.label not in numbers:
                raise InputError(
                    f"{path}: row {example.row}: label {example.label!r} does not occur in the training file")
        targets = np.array([numbers[example.label] for example in examples], np.int32)
        if (targets < 0).all():
            raise InputError(f"{path}: scores need texts in scope; every row has the label {out_of_scope!r}")
        return cls(path, examples, labels, targets)

    def only(self, chosen):
        """The examples where `chosen`, bool [examples], is true."""
        indices = np.flatnonzero(chosen)
        return dataclasses.replace(self, examples=[self.examples[i] for i in indices], targets=self.targets[indices])

    @property
    def pairs(self):
        """Whether there are second texts."""
        return self.examples[0].text_pair is not None

    def texts(self):
        """The texts, and the second texts or None."""
        return ([example.text for example in self.examples],
                [example.text_pair for example in self.examples] if self.pairs else None)

    def batches(self, tokenizer, max_length, whole=False):
        """`TextBatches` of the texts and their classes."""
        packed = tokenizer.pack(*self.texts(), max_length)
        return TextBatches(packed, tokenizer.pad_id, self.targets, 16 if compiles() else 1, whole)

    def balanced_weights(self):
        """For each class the weight that makes all classes count alike (King and Zeng, 2001): a dict."""
        counts = np.bincount(self.targets, minlength=len(self.labels))
        return {number: len(self.targets) / (len(counts) * count) for number, count in enumerate(counts)}

    def digest(self):
        """The SHA-256 of the file."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def compiles():
    """Whether `fit` compiles each shape by XLA: always on JAX; with TensorFlow where there is a GPU."""
    return kernels.BACKEND == "jax" or bool(tf.config.list_physical_devices("GPU"))
