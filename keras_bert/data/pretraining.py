"""The name of `keras_bert.pretraining.examples` up to version 0.2."""

from keras_bert.pretraining.examples import PretrainingSettings, make_pretraining_data

__all__ = ["PretrainingSettings", "make_pretraining_data"]
