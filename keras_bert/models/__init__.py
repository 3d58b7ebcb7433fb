"""The heads: Keras models on top of a given `BertLayer`."""

from keras_bert.models.base import load_model
from keras_bert.models.embedder import BertEmbedder, BertEmbeddingClassifier
from keras_bert.models.feature_tagger import BertFeatures, BertFeatureTagger
from keras_bert.models.heads import (
    BertClassifier,
    BertJointClassifier,
    BertMultipleChoice,
    BertPretrainer,
    BertRegressor,
    BertSpanLabeler,
    BertTokenClassifier,
)

__all__ = ["BertClassifier", "BertEmbedder", "BertEmbeddingClassifier", "BertFeatureTagger", "BertFeatures",
           "BertJointClassifier", "BertMultipleChoice", "BertPretrainer", "BertRegressor", "BertSpanLabeler",
           "BertTokenClassifier", "load_model"]
