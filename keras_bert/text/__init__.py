"""Conversion of texts to token ids."""

from keras_bert.text.packing import pack, pad, truncate_pair
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import load_vocabulary, save_vocabulary

__all__ = ["BertTokenizer", "load_vocabulary", "pack", "pad", "save_vocabulary", "truncate_pair"]
