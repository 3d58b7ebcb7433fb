"""The Keras layers of the encoder and the masked language model head."""

from keras_bert.layers.attention import EncoderBlock, SelfAttention
from keras_bert.layers.bert import BertEmbeddings, BertLayer, BertOutput, first_parts, standardize_inputs
from keras_bert.layers.masked_lm import MaskedLMHead

__all__ = ["BertEmbeddings", "BertLayer", "BertOutput", "EncoderBlock", "MaskedLMHead", "SelfAttention",
           "first_parts", "standardize_inputs"]
