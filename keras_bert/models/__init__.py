"""Heads: Keras models on a `BertLayer` passed in."""

from keras_bert.models.classifier import BertClassifier
from keras_bert.models.files import load_model

__all__ = ["BertClassifier", "load_model"]
