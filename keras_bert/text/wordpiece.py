"""`BertTokenizer`, whose vocabulary is one of WordPiece."""

import copy
import dataclasses
import functools
import json
import os
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import tokenizers
from tokenizers import decoders, processors

from keras_bert.arguments import Normalization, Path
from keras_bert.errors import InputError
from keras_bert.files.json_files import write_json
from keras_bert.text import vocabulary as words
from keras_bert.text.packing import Side
from keras_bert.text.rules import Rules
from keras_bert.text.tokenizer import Tokenizer
from keras_bert.text.tokenizer_files import CONFIG, SPECIAL, TOKENIZER, load_tokenizer, own_steps
from keras_bert.text.vocabulary import CONTINUES, MAX_WORD_LENGTH, has_capitals, holds_hangul_syllables, load_vocabulary

# Arguments that do not depend on the vocabulary.
_KEPT = "has_segments", "truncation_side", "max_word_length"


class BertTokenizer(Tokenizer):
    """The tokenizer of google-research/bert: cleans texts, puts spaces around CJK ideographs, lower-cases, strips
    accents, splits at punctuation (see `Rules`), then applies greedy WordPiece.

    For example, `BertTokenizer("vocab.txt")(["Hello world"])` returns the inputs of `BertLayer`.

    Args:
        vocabulary: list of WordPiece tokens in the order of their ids, or the path of a `vocab.txt`.
        lower_case: if True, lower-cases the text, for uncased models. If None, only if the vocabulary has no capitals.
        strip_accents: if True, decomposes the text (NFD) and drops combining marks. Defaults to `lower_case`.
        split_cjk: if True, makes each CJK ideograph a word.
        normalization: `NFC` or `none`. Stripping accents decomposes Hangul syllables into jamo; `NFC` composes them
            again. If None, `NFC` if accents are stripped and the vocabulary spells Korean in syllables.
        max_length: maximum number of ids of an input, unless a call gives another. If None, 128.
        has_segments: if False, both texts of a pair have id 0, for encoders with one segment type: RoBERTa, DistilBERT.
        truncation_side: the end at which a long text is cut: `right`, or `left`, which keeps its last tokens.
        max_word_length: maximum number of characters of a word; longer words become [UNK]. 200 in google-research/bert,
            100 in transformers.
    """

    files, continues = ("vocab.txt", CONFIG), CONTINUES
    rules: Rules

    def __init__(self, vocabulary: Path | list[str], lower_case: bool | None = True, strip_accents: bool | None = None,
                 split_cjk: bool = True, normalization: Normalization | None = None,
                 max_length: int | None = None, has_segments: bool = True,
                 truncation_side: Side = "right", max_word_length: int = MAX_WORD_LENGTH) -> None:
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = load_vocabulary(vocabulary)
        if lower_case is None:
            lower_case = not has_capitals(vocabulary)
        strip_accents = lower_case if strip_accents is None else strip_accents
        if normalization is None:
            normalization = "NFC" if strip_accents and holds_hangul_syllables(vocabulary) else "none"
        if max_word_length < 1:
            raise InputError(f"max_word_length must be at least 1; got {max_word_length}")
        rules = Rules(lower_case, strip_accents, split_cjk, normalization)
        ids = {token: index for index, token in enumerate(vocabulary)}
        model = tokenizers.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=max_word_length)
        self.max_word_length = max_word_length
        super().__init__(vocabulary, ids, [*SPECIAL.values()], rules, model, max_length, has_segments, truncation_side)

    @classmethod
    def from_folder(cls, folder: Path) -> "BertTokenizer":
        """Reads a folder, see `load_tokenizer`. Raises an InputError also if its tokenizer is of another kind."""
        return wordpiece(load_tokenizer(folder), os.fspath(folder),
                         "; use keras_bert.text.load_tokenizer, which reads both kinds")

    def with_normalization(self, normalization: str | None) -> Self:
        other = copy.copy(self)
        other.rules = dataclasses.replace(self.rules, normalization=normalization or self.rules.normalization)
        return other

    def settings(self) -> dict[str, Any]:
        return super().settings() | vars(self.rules)

    def save_settings(self, folder: Path, **additional: Any) -> None:
        """Writes `tokenizer_config.json` with Hugging Face's names of the settings; only this package reads
        `normalization`. The values of `additional` replace these."""
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": self.rules.lower_case,
                    "strip_accents": self.rules.strip_accents, "tokenize_chinese_chars": self.rules.split_cjk,
                    "normalization": self.rules.normalization}
        optional = {"model_max_length": (self.max_length, None), "truncation_side": (self.truncation_side, "right"),
                    "max_input_chars_per_word": (self.max_word_length, MAX_WORD_LENGTH)}
        settings |= {name: value for name, (value, default) in optional.items() if value != default}
        if not self.has_segments:
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        write_json(os.path.join(folder, CONFIG), settings | additional)

    def save(self, folder: Path) -> None:
        words.save_vocabulary(self.vocabulary, os.path.join(folder, self.files[0]))
        self.save_settings(folder)

    def save_for_transformers(self, folder: Path, length: int) -> None:
        self.save(folder)
        fast, second = tokenizers.Tokenizer(self.subwords.model), int(self.has_segments)
        fast.enable_truncation(length, direction=self.truncation_side)
        fast.enable_padding(pad_id=self.pad_id, pad_token="[PAD]")
        fast.decoder = decoders.WordPiece()
        fast.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair=f"[CLS]:0 $A:0 [SEP]:0 $B:{second} [SEP]:{second}",
            special_tokens=[("[CLS]", self.cls_id), ("[SEP]", self.sep_id)])
        write_json(os.path.join(folder, TOKENIZER), json.loads(fast.to_str()) | own_steps(self.rules))
        # All versions of transformers follow `tokenizer.json` for this class.
        names = ["input_ids", *["token_type_ids"] * self.has_segments, "attention_mask"]
        special = {key: token for key, token in SPECIAL.items() if token in self.vocabulary}
        self.save_settings(folder, tokenizer_class="PreTrainedTokenizerFast", model_max_length=length,
                           model_input_names=names, **special)

    def graph(self) -> Any:
        from keras_bert.text.graph_tokenizer import GraphWordPiece

        return GraphWordPiece(self)

    @functools.cached_property
    def starts_word(self) -> np.ndarray:  # type: ignore[override]  # computed when needed, as the others
        return np.array([not token.startswith(CONTINUES) for token in self.vocabulary])

    @functools.cached_property
    def is_special(self) -> np.ndarray:  # type: ignore[override]
        return np.array([len(token) > 2 and token[0] + token[-1] == "[]" for token in self.vocabulary])

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        """The number of characters of each token, int64 [vocabulary]."""
        return np.array([len(token.removeprefix(CONTINUES)) for token in self.vocabulary])

    @property
    def is_character(self) -> np.ndarray:  # type: ignore[override]
        return self._lengths == 1

    def restricted(self, ids: list[int]) -> "BertTokenizer":
        return self._with([self.vocabulary[index] for index in ids])

    def extended(self, tokens: dict[str, list[int]]) -> "BertTokenizer":
        return self._with([*self.vocabulary, *tokens])

    def _with(self, vocabulary: list[str]) -> "BertTokenizer":
        kept = {name: getattr(self, name) for name in ("max_length", *_KEPT)}
        return BertTokenizer(vocabulary, **vars(self.rules), **kept)

    def spell(self, words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids = np.array(self.ids_of_words([" ".join(words)])[0], np.int32)
        firsts, lengths = np.flatnonzero(self.starts_word[ids]), self._lengths[ids]
        for word in np.flatnonzero(ids[firsts] == self.unk_id).tolist():
            lengths[firsts[word]] = len(words[word])
        return ids, np.diff(firsts, append=len(ids)), lengths

    def with_vocabulary(self, path: Path) -> "BertTokenizer":
        """Returns the tokenizer of another vocabulary, with the rules that its tokens suggest. If this vocabulary
        suggests the same rules, it gets the rules of this tokenizer instead."""
        kept = {name: getattr(self, name) for name in _KEPT}
        new = BertTokenizer(path, lower_case=None, **kept)
        if new.rules != BertTokenizer(self.vocabulary, lower_case=None).rules:
            return new
        return BertTokenizer(new.vocabulary, **vars(self.rules), **kept)

    def spellings(self, tokens: Iterable[str]) -> list[list[int]]:
        ids = {token: index for index, token in enumerate(self.vocabulary)}
        return [[ids[token]] if token in ids else _spell(token, ids) for token in tokens]


def _spell(token: str, ids: dict[str, int]) -> list[int]:
    if token.startswith("[") and token.endswith("]"):
        return []
    prefix = CONTINUES if token.startswith(CONTINUES) else ""
    rest, spelling = token.removeprefix(CONTINUES), []
    while rest:
        end = next((end for end in range(len(rest), 0, -1) if prefix + rest[:end] in ids), None)
        if end is None:
            return []
        spelling.append(ids[prefix + rest[:end]])
        rest, prefix = rest[end:], CONTINUES
    return spelling


def wordpiece(tokenizer: Tokenizer, user: str, advice: str = "") -> BertTokenizer:
    """Returns a tokenizer whose vocabulary is one of WordPiece; an InputError says that the `user` needs one."""
    if not isinstance(tokenizer, BertTokenizer):
        raise InputError(f"{user}: the vocabulary must be one of WordPiece; this is {tokenizer.files[0]}{advice}")
    return tokenizer
