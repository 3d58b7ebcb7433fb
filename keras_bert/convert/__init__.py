"""Conversion of pretrained weights between all supported formats."""

from keras_bert.convert.conversion import convert
from keras_bert.convert.task_settings import open_source
from keras_bert.weights import FORMATS, load_pretrained

__all__ = ["FORMATS", "convert", "load_pretrained", "open_source"]
