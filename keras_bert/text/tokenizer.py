"""`BertTokenizer`, which converts texts to WordPiece ids with the `tokenizers` library."""

import copy
import dataclasses
import os
import sys
from collections.abc import Iterable
from typing import Any, Literal, Self

import numpy as np
import tokenizers

from keras_bert.arguments import Normalization, Path, as_texts, check_texts
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import check_followed, write_json
from keras_bert.files.paths import naming_damage
from keras_bert.text import packing
from keras_bert.text.rules import Rules
from keras_bert.text.tokenizer_files import CONFIG, TokenizerFiles, other_vocabulary, read_tokenizer_files
from keras_bert.text.vocabulary import MAX_WORD_LENGTH, has_capitals, holds_hangul_syllables, load_vocabulary

_CHARACTERS = 8  # of a long text that are read at first, for each id that is needed
_LONG = 4096  # characters
_MAX_LENGTH = 128  # of an input, if neither the call nor the tokenizer says one
UNKNOWN = "[UNK]"


class BertTokenizer:
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

    def __init__(self, vocabulary: Path | list[str], lower_case: bool | None = True, strip_accents: bool | None = None,
                 split_cjk: bool = True, normalization: Normalization | None = None,
                 max_length: int | None = None, has_segments: bool = True,
                 truncation_side: Literal["right", "left"] = "right", max_word_length: int = MAX_WORD_LENGTH) -> None:
        self.vocabulary = load_vocabulary(vocabulary) if isinstance(vocabulary, (str, os.PathLike)) else vocabulary
        if lower_case is None:
            lower_case = not has_capitals(self.vocabulary)
        strip_accents = lower_case if strip_accents is None else strip_accents
        if normalization is None:
            normalization = "NFC" if strip_accents and holds_hangul_syllables(self.vocabulary) else "none"
        if max_word_length < len("[SEP]"):  # which `flat_ids` puts between texts
            raise InputError(f"max_word_length must be at least {len('[SEP]')}; got {max_word_length}")
        self.rules = Rules(lower_case, strip_accents, split_cjk, normalization)
        self.max_length, self.max_word_length = max_length, max_word_length
        self.has_segments, self.truncation_side = has_segments, truncation_side
        ids = {token: index for index, token in enumerate(self.vocabulary)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id = (
            ids[token] for token in ("[PAD]", UNKNOWN, "[CLS]", "[SEP]"))
        self.mask_id = ids.get("[MASK]")  # only pretraining needs it
        self.wordpiece = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=max_word_length))
        self.wordpiece.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()

    @property
    def default_length(self) -> int:
        """Maximum number of ids of an input, unless a call gives another: `max_length`, or 128 if it is None."""
        return self.max_length or _MAX_LENGTH

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Reads a folder that this package, transformers, sentence-transformers, KerasHub or Google wrote, see
        `read_tokenizer_files`. What no file says is guessed, with a warning.

        Raises:
            InputError: the folder has no vocabulary, or its tokenizer is not BERT's, or does what this one does not.
        """
        files = read_tokenizer_files(folder)
        if files is None:
            found = "it has neither" if os.path.isdir(folder) else "there is no such folder"
            raise InputError(other_vocabulary(folder) or f"{os.fspath(folder)}: must be a folder with a WordPiece "
                             f"vocabulary, vocab.txt or tokenizer.json; {found}")
        check_followed(folder, files.differences)
        files.warn(folder)
        with naming_damage(folder):
            return cls.from_files(files)

    @classmethod
    def from_files(cls, files: TokenizerFiles) -> Self:
        """Makes the tokenizer that the files of a folder describe."""
        return cls(files.vocabulary, **files.arguments)

    def with_normalization(self, normalization: str | None) -> Self:
        """Returns a copy with this `normalization`, or the same one if it is None."""
        other = copy.copy(self)
        other.rules = dataclasses.replace(self.rules, normalization=normalization or self.rules.normalization)
        return other

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

    def tokenize(self, text: str) -> list[str]:
        """Returns the WordPiece tokens of one text, without [CLS] and [SEP]."""
        if not isinstance(text, str):
            raise InputError(f"text must be one text; got {text!r:.60}; for several texts, call tokenizer.ids(texts)")
        return self.wordpiece.encode(self.rules.normalize(text)).tokens

    def ids(self, texts: Iterable[str], needed: int = sys.maxsize) -> list[list[int]]:
        """Returns the ids of each text, without [CLS] and [SEP]; of a long text perhaps only the `needed` number."""
        return self._ids("texts", texts, needed)

    def _ids(self, name: str, texts: Iterable[str], needed: int = sys.maxsize) -> list[list[int]]:
        return [encoding.ids for encoding in self.wordpiece.encode_batch_fast(self._normalized(name, texts, needed))]

    def _normalized(self, name: str, texts: Iterable[str], needed: int = sys.maxsize) -> list[str]:
        """Returns the words of each text, or of its `part`, see `Rules.normalize`. Messages call the texts `name`."""
        texts, long = as_texts(name, texts), _CHARACTERS * needed
        try:
            return [self.words(text if len(text) <= long else self.part(text, needed), needed) for text in texts]
        except (AttributeError, TypeError):
            check_texts(name, texts)
            raise

    def words(self, text: str, needed: int = sys.maxsize) -> str:
        """Returns the words of a text, see `Rules.normalize`; of a long text at most the `needed` number, with [UNK] in
        place of those that are too long to have tokens: `tokenizers` takes a microsecond for each character."""
        words = self.rules.normalize(text)
        if len(words) <= _LONG:
            return words
        kept = packing.truncate(words.split(), needed, self.truncation_side)  # each has at least one id
        return " ".join(word if len(word) <= self.max_word_length else UNKNOWN for word in kept)

    def part(self, text: str, needed: int) -> str:
        """Returns a part of a text, from the end that is not cut, with at least the `needed` number of ids, which are
        those of the text there; or the text if it has fewer."""
        size, is_right = _CHARACTERS * needed, self.truncation_side == "right"
        while size < len(text) // 4:  # to tokenize the part again takes longer than the rest of a shorter text
            border = self.rules.border.search(text, size if is_right else len(text) - size)
            if border is None:
                break
            part = text[:border.start()] if is_right else text[border.start():]
            if len(self.wordpiece.encode(self.words(part)).ids) >= needed:
                return part
            size *= 2
        return text

    def flat_ids(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated ids of all texts, int32 [ids], and the number of ids of each text, int64 [texts], in
        a third of the time of `ids` for many short texts."""
        # A "[SEP]" in a text itself does not become this token, because the rules split off its brackets.
        words = "".join(f"{text} [SEP] " for text in self._normalized("texts", texts))
        ids = np.array(self.wordpiece.encode_batch_fast([words])[0].ids, np.int32)
        ends = np.flatnonzero(ids == self.sep_id)
        return np.delete(ids, ends), np.diff(ends, prepend=-1) - 1

    def unknown_rate(self, texts: Iterable[str]) -> float:
        """Returns the share of the words of the texts that the vocabulary cannot spell, between 0 and 1."""
        words = [word for words in self._normalized("texts", texts) for word in words.split()]
        unknown = sum(self.unk_id in encoding.ids for encoding in self.wordpiece.encode_batch_fast(words))
        return unknown / max(len(words), 1)

    def pack(self, texts: Iterable[str], text_pairs: Iterable[str] | None = None,
             max_length: int | None = None) -> list[tuple[list[int], int]]:
        """Packs each text as [CLS] text [SEP], or [CLS] text [SEP] pair [SEP], truncated to `max_length` ids, by
        default the tokenizer's, at its `truncation_side`, the longer text of a pair first.

        Returns:
            a list of (ids, number of ids in segment 0), not padded.

        Raises:
            InputError: `max_length` is below 3; the texts are one text, a table, or not as many as their pairs; or one
                of them is no text, and the message names its row.
        """
        return self.pack_with_cuts(texts, text_pairs, max_length)[0]

    def with_segments(self, ids: list[int], first: int) -> tuple[list[int], int]:
        """Returns packed ids, and how many are in segment 0: `first`, those of the first text, or all of them."""
        return ids, first if self.has_segments else len(ids)

    def pack_with_cuts(self, texts: Iterable[str], text_pairs: Iterable[str] | None = None,
                       max_length: int | None = None) -> tuple[list[tuple[list[int], int]], list[int]]:
        """Returns what `pack` returns, and the indices of the texts or pairs that were truncated."""
        if max_length is None:
            max_length = self.default_length
        if max_length < 3:
            raise InputError(Option("max_length"), f" must be at least 3; got {max_length}")
        firsts = self._ids("texts", texts, max_length)
        seconds = [None] * len(firsts) if text_pairs is None else self._ids("text_pairs", text_pairs, max_length)
        if len(firsts) != len(seconds):
            raise InputError(f"texts and text_pairs must have the same length; got {len(firsts)} and {len(seconds)}")
        texts_of_rows, room = [*zip(firsts, seconds)], max_length - (2 if text_pairs is None else 3)
        packed = [self.with_segments(*packing.pack(*row, self.cls_id, self.sep_id, max_length, self.truncation_side))
                  for row in texts_of_rows]
        return packed, [index for index, (first, second) in enumerate(texts_of_rows)
                        if len(first) + len(second or ()) > room]

    def __call__(self, texts: Iterable[str], text_pairs: Iterable[str] | None = None, max_length: int | None = None,
                 pad_to: int | None = None) -> dict[str, np.ndarray]:
        """Returns the inputs of `BertLayer` for texts (and their pairs): a list, Series, array or generator of str.

        Args:
            max_length: maximum length in tokens, [CLS] and [SEP] included; longer texts are truncated. If None, the
                tokenizer's `max_length`.
            pad_to: length to which all texts are padded. If None, the length of the longest text.

        Returns:
            dict of int32 [batch, length]: `input_word_ids`, `input_mask`, `segment_ids`.

        Raises:
            InputError: see `pack`; or `pad_to` is less than the length of a text.
        """
        packed = self.pack(texts, text_pairs, max_length)
        longest = max((len(ids) for ids, _ in packed), default=0)
        if pad_to is not None and pad_to < longest:
            raise InputError(f"pad_to must be at least {longest}, the length of the longest text in tokens; "
                             f"got {pad_to}; a smaller ", Option("max_length=…"), " cuts texts")
        return packing.pad(packed, self.pad_id, pad_to)
