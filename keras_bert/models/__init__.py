"""Heads: Keras models on a `BertLayer` passed in."""

from keras_bert.models.classifier import BertClassifier
from keras_bert.models.feature_tagger import BertFeatureTagger
from keras_bert.models.features import BertFeatures
from keras_bert.models.files import load_model
from keras_bert.models.multiple_choice import BertMultipleChoice
from keras_bert.models.pretrainer import BertPretrainer
from keras_bert.models.regressor import BertRegressor
from keras_bert.models.span_labeler import BertSpanLabeler
from keras_bert.models.token_classifier import BertTokenClassifier

__all__ = ["BertClassifier", "BertFeatureTagger", "BertFeatures", "BertMultipleChoice", "BertPretrainer",
           "BertRegressor", "BertSpanLabeler", "BertTokenClassifier", "load_model"]
