"""The name of `keras_bert.pretraining.input` up to version 0.2."""

from keras_bert.pretraining.input import PretrainingInput, PretrainingRecords

__all__ = ["PretrainingInput", "PretrainingRecords"]
