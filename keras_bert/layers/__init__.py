"""Keras layers: tensors in, tensors out."""

from keras_bert.layers.attention import SelfAttention
from keras_bert.layers.bert import BertLayer, standardize_inputs
from keras_bert.layers.embeddings import BertEmbeddings
from keras_bert.layers.encoder import EncoderBlock

__all__ = ["BertEmbeddings", "BertLayer", "EncoderBlock", "SelfAttention", "standardize_inputs"]
