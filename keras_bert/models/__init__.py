"""Heads: Keras models on a `BertLayer` passed in."""

from keras_bert.models.classifier import BertClassifier

__all__ = ["BertClassifier"]
