"""Writes the tokenizer's files of Hugging Face folders, which `text.tokenizer_files` reads."""

import os
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from keras_bert.text import BertTokenizer
from keras_bert.text.tokenizer_files import SPECIAL, TOKENIZER
from keras_bert.weights import assets


def write_tokenizer(tokenizer: BertTokenizer | None, folder: str, max_length: int | None, positions: int) -> None:
    """Writes the files of a tokenizer. transformers truncates to `max_length`; if it is None, to the tokenizer's, at
    most the number of positions. A tokenizer with NFC is written as a `PreTrainedTokenizerFast`, which follows
    `tokenizer.json`, because its `BertTokenizer` cannot compose characters."""
    if tokenizer is None:
        return
    assets.write_tokenizer(tokenizer, folder)
    settings: dict[str, Any] = {"model_max_length": max_length or min(tokenizer.max_length or positions, positions)}
    if tokenizer.rules.normalization == "NFC":
        _fast_tokenizer(tokenizer).save(os.path.join(folder, TOKENIZER))
        names = ["input_ids", *["token_type_ids"] * tokenizer.has_segments, "attention_mask"]
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL, "model_input_names": names}
    tokenizer.save_settings(folder, **settings)


def _fast_tokenizer(tokenizer: BertTokenizer) -> tokenizers.Tokenizer:
    rules = tokenizer.rules
    fast = tokenizers.Tokenizer(tokenizer.wordpiece.model)
    fast.normalizer = normalizers.Sequence([
        normalizers.BertNormalizer(True, rules.split_cjk, rules.strip_accents, rules.lower_case), normalizers.NFC()])
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    second = int(tokenizer.has_segments)
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair=f"[CLS]:0 $A:0 [SEP]:0 $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)])
    return fast
