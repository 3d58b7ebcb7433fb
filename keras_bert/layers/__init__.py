"""Keras layers: tensors in, tensors out."""

from keras_bert.layers.attention import SelfAttention
from keras_bert.layers.bert import BertLayer, standardize_inputs
from keras_bert.layers.embeddings import BertEmbeddings
from keras_bert.layers.encoder import EncoderBlock
from keras_bert.layers.masked_lm import MaskedLMHead

__all__ = ["BertEmbeddings", "BertLayer", "EncoderBlock", "MaskedLMHead", "SelfAttention", "standardize_inputs"]
