"""Reads and writes the tokenizer's files in Hugging Face folders: `vocab.txt`, or `tokenizer.json` without it, as
transformers 5 writes; `tokenizer_config.json`; and the tokens that were added to the vocabulary."""

import os

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from keras_bert.convert import assets
from keras_bert.errors import InputError
from keras_bert.text import BertTokenizer
from keras_bert.text.tokenizer import MAX_WORD_LENGTH, UNKNOWN
from keras_bert.text.vocabulary import check_special_tokens, fits_a_line, load_vocabulary

_TOKENIZER, _CONFIG, _ADDED = "tokenizer.json", "tokenizer_config.json", "added_tokens.json"
_SPECIAL = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
# The classes of transformers that follow `tokenizer.json` alone. BertTokenizer follows `tokenizer_config.json`.
_FAST = ("PreTrainedTokenizerFast", "TokenizersBackend")
_SETTINGS = {"do_lower_case": "lower_case", "strip_accents": "strip_accents", "tokenize_chinese_chars": "split_cjk",
             "normalization": "normalization"}
_UNLIMITED = 10**6  # transformers writes 1e30 if no length is known


def read_tokenizer(folder, vocab_size):
    """Reads the tokenizer of a folder.

    An id without a token gets one that no text contains, because it has brackets: `[hole 7]`. So does an id whose token
    `vocab.txt` cannot hold, for example a line break.

    Returns:
        `BertTokenizer` or None, its maximum length in tokens or None, notes and losses; see `Source` for these two.

    Raises:
        InputError: an id is not below `vocab_size`, or the tokenizer is not a WordPiece tokenizer.
    """
    config, stored, listed = (assets.read_settings(folder, name) for name in (_CONFIG, _TOKENIZER, _ADDED))
    tokens, rules = _vocabulary(folder, stored, vocab_size)
    if not tokens:
        return None, None, (), ()
    losses = ()
    if stored and config.get("tokenizer_class") in _FAST:
        rules, losses = {"normalization": "none"} | _rules(stored), _other_steps(stored)
    else:
        rules |= {name: config[key] for key, name in _SETTINGS.items() if key in config}
    entries = [*((token["content"], token["id"]) for token in stored.get("added_tokens") or ()), *listed.items(),
               *((token["content"], int(id)) for id, token in (config.get("added_tokens_decoder") or {}).items())]
    if added := [token for token in dict(entries) if token not in _SPECIAL]:
        names = ", ".join(map(repr, added[:5])) + (", …" if added[5:] else "")
        losses += (f"transformers finds the added tokens {names} in texts before it splits these into words; here they "
                   "are tokens of the vocabulary like all others",)
    known = set(tokens.values())
    tokens |= _by_id(folder, [(token, id) for token, id in entries if token not in known], vocab_size)
    holes = [id for id in range(max(tokens) + 1) if id not in tokens or not fits_a_line(tokens[id])]
    tokens |= {id: f"[hole {id}]" for id in holes}
    vocabulary = [tokens[id] for id in range(len(tokens))]
    notes = ()
    if holes:
        notes = (f"named {len(holes)} ids without a token that vocab.txt can hold: {vocabulary[holes[0]]}, …",)
    length = config.get("model_max_length")
    length = int(length) if isinstance(length, (int, float)) and abs(length) < _UNLIMITED else None
    return BertTokenizer(vocabulary, **{"lower_case": None} | rules), length, notes, losses


def _by_id(folder, pairs, vocab_size):
    """Returns a dict of ids to tokens, after checking the ids."""
    for token, id in pairs:
        if type(id) is not int or not 0 <= id < vocab_size or not isinstance(token, str):
            raise InputError(f"{folder}: the ids of tokens must be from 0 to {vocab_size - 1}, below the config's "
                             f"vocab_size; got {id!r} for {token!r}")
    return {id: token for token, id in pairs}


def _vocabulary(folder, stored, vocab_size):
    """Returns (dict of ids to tokens, dict of the rules), of `vocab.txt` or else of `tokenizer.json`; ({}, {}) if there
    is neither."""
    path = os.path.join(folder, "vocab.txt")
    if os.path.exists(path):
        return dict(enumerate(load_vocabulary(path))), {}
    if not stored:
        return {}, {}
    path, model = os.path.join(folder, _TOKENIZER), stored.get("model") or {}
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise InputError(f"{path}: must be a WordPiece tokenizer with a vocabulary; got {model.get('type')!r}")
    tokens = _by_id(folder, model["vocab"].items(), vocab_size)
    check_special_tokens(path, tokens.values())
    return tokens, _rules(stored)


def _normalizers(stored):
    steps = stored.get("normalizer") or {"normalizers": []}
    return steps.get("normalizers", [steps])


def _rules(stored):
    """Returns the rules in `tokenizer.json`, arguments of `BertTokenizer`."""
    steps = _normalizers(stored)
    bert = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
    rules = {"lower_case": bert.get("lowercase"), "strip_accents": bert.get("strip_accents"),
             "split_cjk": bert.get("handle_chinese_chars", True)}
    return rules | ({"normalization": "NFC"} if {"type": "NFC"} in steps else {})


def _other_steps(stored):
    """Returns what is lost of the steps in `tokenizer.json`: those that are not BERT's."""
    steps = [step.get("type") for step in (*_normalizers(stored), stored.get("pre_tokenizer") or {})]
    if steps in (["BertNormalizer", "BertPreTokenizer"], ["BertNormalizer", "NFC", "BertPreTokenizer"]):
        return ()
    return (f"the steps in {_TOKENIZER} must be BertNormalizer, perhaps NFC, and BertPreTokenizer, not "
            f"{', '.join(map(str, steps))}",)


def write_tokenizer(tokenizer, folder, max_length):
    """Writes the files of a tokenizer, unless it is None. transformers truncates to `max_length`.

    Its `BertTokenizer` cannot compose characters. A tokenizer with NFC is written as a `PreTrainedTokenizerFast`, whose
    rules are those of `tokenizer.json`.
    """
    if tokenizer is None:
        return
    assets.write_tokenizer(tokenizer, folder)
    settings = {"model_max_length": max_length}
    if tokenizer.rules.normalization == "NFC":
        _fast_tokenizer(tokenizer).save(os.path.join(folder, _TOKENIZER))
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": UNKNOWN, "cls_token": "[CLS]",
                     "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]",
                     "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    tokenizer.save_settings(folder, **settings)


def _fast_tokenizer(tokenizer):
    rules = tokenizer.rules
    fast = tokenizers.Tokenizer(models.WordPiece(
        {token: id for id, token in enumerate(tokenizer.vocabulary)}, unk_token=UNKNOWN,
        max_input_chars_per_word=MAX_WORD_LENGTH))
    fast.normalizer = normalizers.Sequence([
        normalizers.BertNormalizer(True, rules.split_cjk, rules.strip_accents, rules.lower_case), normalizers.NFC()])
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)])
    return fast
