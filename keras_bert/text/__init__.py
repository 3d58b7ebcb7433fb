"""Conversion of texts to token ids."""

from keras_bert.text.packing import pack, pad, truncate_pair
from keras_bert.text.tokenizer import Tokenizer
from keras_bert.text.tokenizer_files import load_tokenizer
from keras_bert.text.vocabulary import load_vocabulary, save_vocabulary
from keras_bert.text.wordpiece import BertTokenizer

__all__ = ["BertTokenizer", "Tokenizer", "load_tokenizer", "load_vocabulary", "pack", "pad", "save_vocabulary",
           "truncate_pair"]
