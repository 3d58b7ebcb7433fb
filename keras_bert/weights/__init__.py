"""The formats of BERT weights: their tables of names, and reading and building models.

`keras_bert.convert` adds the settings of a model's task, and writes one format as another.
"""

from keras_bert.weights.loading import FORMATS, load_pretrained, open_weights

__all__ = ["FORMATS", "load_pretrained", "open_weights"]
