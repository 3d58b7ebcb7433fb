"""`BertTokenizer`, which converts texts to WordPiece ids with the `tokenizers` library, outside the TensorFlow
graph."""

import os
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.text import packing
from keras_bert.text.rules import Rules
from keras_bert.text.vocabulary import holds_hangul_syllables, load_vocabulary

# A longer word becomes [UNK], as in google-research/bert `tokenization.py`.
MAX_WORD_LENGTH = 200
UNKNOWN = "[UNK]"


class BertTokenizer:
    """The tokenizer of google-research/bert: cleans texts, puts spaces around CJK ideographs, lower-cases, strips
    accents, splits at punctuation (see `Rules`), then applies greedy WordPiece.

    For example, `BertTokenizer("vocab.txt")(["Hello world"])` returns the inputs of `BertLayer`.

    Args:
        vocabulary: list of WordPiece tokens in the order of their ids, or the path of a `vocab.txt`.
        lower_case: if True, lower-cases the text, as uncased models need. If None, lower-cases if the vocabulary has no
            capital letters.
        strip_accents: if True, decomposes the text (NFD) and drops combining marks. Defaults to `lower_case`.
        split_cjk: if True, makes each CJK ideograph a word.
        normalization: `NFC` or `none`. Stripping accents decomposes Hangul syllables into jamo, which is right for a
            vocabulary of jamo but not for one of syllables. If None, uses `NFC`, which composes the syllables again, if
            accents are stripped and the vocabulary spells Korean in syllables.
    """

    def __init__(self, vocabulary: Path | list[str], lower_case: bool | None = True, strip_accents: bool | None = None,
                 split_cjk: bool = True, normalization: Literal["none", "NFC"] | None = None) -> None:
        self.vocabulary = load_vocabulary(vocabulary) if isinstance(vocabulary, (str, os.PathLike)) else vocabulary
        if lower_case is None:
            lower_case = not any(token != token.lower() for token in self.vocabulary if not token.startswith("["))
        strip_accents = lower_case if strip_accents is None else strip_accents
        if normalization is None:
            normalization = "NFC" if strip_accents and holds_hangul_syllables(self.vocabulary) else "none"
        self.rules = Rules(lower_case, strip_accents, split_cjk, normalization)
        ids = {token: index for index, token in enumerate(self.vocabulary)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id = (
            ids[token] for token in ("[PAD]", UNKNOWN, "[CLS]", "[SEP]"))
        self.mask_id = ids.get("[MASK]")  # only pretraining needs it
        self.wordpiece = tokenizers.Tokenizer(
            models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=MAX_WORD_LENGTH))
        self.wordpiece.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Reads `vocab.txt` and, if it exists, `tokenizer_config.json` (Hugging Face's file) from a folder."""
        path = os.path.join(folder, "tokenizer_config.json")
        settings = read_json(path) if os.path.exists(path) else {}
        return cls(os.path.join(folder, "vocab.txt"), settings.get("do_lower_case"), settings.get("strip_accents"),
                   settings.get("tokenize_chinese_chars", True), settings.get("normalization"))

    def save_settings(self, folder: Path, **additional) -> None:
        """Writes `tokenizer_config.json` with Hugging Face's names of the settings; `normalization` is an addition of
        this package. `additional` are more names and values, which replace these."""
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": self.rules.lower_case,
                    "strip_accents": self.rules.strip_accents, "tokenize_chinese_chars": self.rules.split_cjk,
                    "normalization": self.rules.normalization}
        write_json(os.path.join(folder, "tokenizer_config.json"), settings | additional)

    def tokenize(self, text: str) -> list[str]:
        """Returns the WordPiece tokens of one text, without [CLS] and [SEP]."""
        return self.wordpiece.encode(self.rules.normalize(text)).tokens

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without [CLS] and [SEP]: a list of lists."""
        words = [self.rules.normalize(text) for text in texts]
        return [encoding.ids for encoding in self.wordpiece.encode_batch_fast(words)]

    def flat_ids(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated ids of all texts and the number of ids of each text: int32 [ids], int64 [texts]. For
        many short texts, takes a third of the time of `ids`."""
        # A "[SEP]" in a text itself does not become this token, because the rules split off its brackets.
        words = "".join(f"{self.rules.normalize(text)} [SEP] " for text in texts)
        ids = np.array(self.wordpiece.encode_batch_fast([words])[0].ids, np.int32)
        ends = np.flatnonzero(ids == self.sep_id)
        return np.delete(ids, ends), np.diff(ends, prepend=-1) - 1

    def unknown_rate(self, texts: Sequence[str]) -> float:
        """Returns the share of the words of the texts that the vocabulary cannot spell, between 0 and 1."""
        words = [word for text in texts for word in self.rules.normalize(text).split()]
        unknown = sum(self.unk_id in encoding.ids for encoding in self.wordpiece.encode_batch_fast(words))
        return unknown / max(len(words), 1)

    def pack(self, texts: Sequence[str], text_pairs: Sequence[str] | None = None, max_length: int = 128,
             cut: list[int] | None = None) -> list[tuple[list[int], int]]:
        """Packs each text as [CLS] text [SEP], or [CLS] text [SEP] pair [SEP], truncated to `max_length` ids. In a
        pair, truncates the longer text first.

        Args:
            cut: list to which the indices of the truncated texts or pairs are appended.

        Returns:
            a list of (ids, number of ids in segment 0), not padded.
        """
        if max_length < 3:
            raise InputError(f"max_length must be at least 3; got {max_length}")
        firsts = self.ids(texts)
        seconds = [None] * len(firsts) if text_pairs is None else self.ids(text_pairs)
        if len(firsts) != len(seconds):
            raise InputError(f"texts and text_pairs must have the same length; got {len(firsts)} and {len(seconds)}")
        if cut is not None:
            room = max_length - (2 if text_pairs is None else 3)
            cut += [index for index, (first, second) in enumerate(zip(firsts, seconds))
                    if len(first) + len(second or ()) > room]
        return [packing.pack(first, second, self.cls_id, self.sep_id, max_length)
                for first, second in zip(firsts, seconds)]

    def __call__(self, texts: Sequence[str], text_pairs: Sequence[str] | None = None, max_length: int = 128,
                 pad_to: int | None = None) -> dict[str, np.ndarray]:
        """Returns the inputs of `BertLayer` for a list of texts (and their pairs).

        Args:
            max_length: maximum length in tokens, [CLS] and [SEP] included; longer texts are truncated.
            pad_to: length to which all texts are padded. If None, that of the longest text.

        Returns:
            dict of int32 [batch, length]: `input_word_ids`, `input_mask`, `segment_ids`.

        Raises:
            InputError: `pad_to` is less than the length of a text.
        """
        packed = self.pack(texts, text_pairs, max_length)
        longest = max((len(ids) for ids, _ in packed), default=0)
        if pad_to is not None and pad_to < longest:
            raise InputError(f"pad_to must be at least {longest}, the length of the longest text in tokens, which "
                             f"max_length={max_length} limits; got {pad_to}")
        return packing.pad(packed, self.pad_id, pad_to)
