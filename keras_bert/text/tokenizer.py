"""`Tokenizer`, what the tokenizers of all kinds of vocabularies give, with the `tokenizers` library."""

import abc
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import tokenizers

from keras_bert.arguments import Path, as_texts, check_texts
from keras_bert.errors import InputError, Option
from keras_bert.text import packing

_CHARACTERS = 8  # of a long text that are read at first, for each id that is needed
_LONG = 4096  # characters


class Normalizer(Protocol):
    """Cleans texts and splits them into words: a frozen dataclass of settings."""

    @property
    def lower_case(self) -> bool:
        """True if texts are lower-cased."""

    @property
    def border(self) -> re.Pattern[str]:
        """What a text can be divided before: the words of both parts are those of the text."""

    def normalize(self, text: str) -> str:
        """Returns the words of a text as one str, with white space between them and possibly at both ends."""

    def trace_words(self, text: str) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Returns the words, and the start and end of what each of their characters came from, int64 [characters]."""


class Tokenizer(abc.ABC):
    """Converts texts to ids, and packs these as the inputs of `BertLayer`.

    The `rules` split a text into words, and `subwords` splits these into tokens. There is a subclass for each kind of
    vocabulary: `BertTokenizer` for WordPiece. [CLS], [SEP] and [MASK] mean the tokens for the same purpose, which other
    vocabularies name otherwise.

    Args:
        vocabulary: the tokens, in the order of their ids.
        ids: the ids of the tokens.
        special: the names of [PAD], [UNK], [CLS], [SEP] and [MASK]. The last may be missing; `mask_id` is None then.
        rules: the rules.
        model: splits words into tokens.
        max_length: maximum number of ids of an input, unless a call gives another. If None, 128.
        has_segments: if False, both texts of a pair have the segment id 0.
        truncation_side: the end at which a long text is cut.
    """

    files: ClassVar[tuple[str, ...]]  # names of the files that `save` writes; the first has the vocabulary
    continues = ""  # prefix of tokens within words
    can_normalize = True  # if `with_normalization` takes one
    separators = 1  # number of [SEP] between the texts of a pair
    starts_word: np.ndarray  # True for tokens that begin a word: bool [vocabulary]
    is_special: np.ndarray  # True for [CLS] and the like: bool [vocabulary]
    is_character: np.ndarray  # True for single characters, at the start of a word or within one: bool [vocabulary]
    max_split = 0.25  # share of the words in three or more tokens above which a vocabulary does not fit their language
    max_word_length = sys.maxsize  # number of characters; longer words become [UNK]

    def __init__(self, vocabulary: list[str], ids: dict[str, int], special: Sequence[str], rules: Normalizer,
                 model: tokenizers.models.Model, max_length: int | None, has_segments: bool,
                 truncation_side: packing.Side) -> None:
        self.vocabulary, self.rules, self.max_length = vocabulary, rules, max_length
        self.has_segments, self.truncation_side = has_segments, truncation_side
        self.pad_id, self.unk_id, self.cls_id, self.sep_id = map(ids.__getitem__, special[:4])
        self.mask_id = ids.get(special[4])  # only pretraining needs it
        self.subwords = tokenizers.Tokenizer(model)
        self.subwords.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()

    @abc.abstractmethod
    def with_normalization(self, normalization: str | None) -> Self:
        """Returns a copy with this `normalization`, or the same one if it is None."""

    @abc.abstractmethod
    def spell(self, words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the concatenated ids of words, int32 [ids], the number of ids of each, int64 [words], and the number
        of characters that each id stands for, int64 [ids]."""

    @abc.abstractmethod
    def restricted(self, ids: list[int]) -> Self:
        """Returns the tokenizer of these tokens, special ones among them, in this order."""

    @abc.abstractmethod
    def extended(self, tokens: dict[str, list[int]]) -> Self:
        """Returns the tokenizer with more tokens after its own: characters, without ids; or the ids that each joins."""

    @abc.abstractmethod
    def spellings(self, tokens: Iterable[str]) -> list[list[int]]:
        """Returns the ids that spell each token of another vocabulary: its own id, or those of its parts; [] if none
        do, or it is special."""

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the `files`, which `load_tokenizer` reads."""

    @abc.abstractmethod
    def save_for_transformers(self, folder: Path, length: int) -> None:
        """Writes the `files` and `tokenizer.json`, with which transformers gives the ids of `pack` for this length."""

    @abc.abstractmethod
    def graph(self) -> Any:
        """Returns the `GraphTokenizer` with the same ids."""

    def check_rows(self, place: object, rows: int) -> None:
        """Raises an InputError that names the place if a model has fewer rows of embeddings than there are tokens."""
        if (tokens := len(self.vocabulary)) > rows:
            raise InputError(f"{place}: its vocabulary must have at most the model's vocab_size ({rows}) "
                             f"tokens; got {tokens}; take the tokenizer of these weights")

    @property
    def default_length(self) -> int:
        """Maximum number of ids of an input, unless a call gives another: `max_length`, or 128 if it is None."""
        return self.max_length or 128

    def settings(self) -> dict[str, Any]:
        """Returns what decides inputs, without the vocabulary, and without the maximum length, which runs choose."""
        return {name: value for name, value in vars(self).items() if name != "max_length" and isinstance(
            value, bool | int | str | None)}

    def special_tokens(self, texts: int) -> int:
        """Returns the number of special tokens of an input of one or more texts."""
        return 2 + self.separators * (texts - 1)

    def tokenize(self, text: str) -> list[str]:
        """Returns the tokens of one text, without [CLS] and [SEP]."""
        if not isinstance(text, str):
            raise InputError(f"text must be one text; got {text!r:.60}; for several texts, call tokenizer.ids(texts)")
        return self.subwords.encode(self.rules.normalize(text)).tokens

    def ids(self, texts: Iterable[str], needed: int = sys.maxsize) -> list[list[int]]:
        """Returns the ids of each text, without [CLS] and [SEP]; of a long text perhaps only the `needed` number."""
        return self.ids_of_words(self._normalized("texts", texts, needed))

    def ids_of_words(self, words: list[str]) -> list[list[int]]:
        """Returns the ids of texts that the rules have normalized, or of words."""
        return [encoding.ids for encoding in self.subwords.encode_batch_fast(words)]

    def _normalized(self, name: str, texts: Iterable[str], needed: int = sys.maxsize) -> list[str]:
        """Returns the words of each text, or of its `part`, see `Normalizer.normalize`. Messages call the texts
        `name`."""
        texts, long = as_texts(name, texts), _CHARACTERS * needed
        try:
            return [self.words(text if len(text) <= long else self.part(text, needed), needed) for text in texts]
        except (AttributeError, TypeError):
            check_texts(name, texts)
            raise

    def words(self, text: str, needed: int = sys.maxsize) -> str:
        """Returns the words of a text, see `Normalizer`; of a long text at most the `needed` number, with [UNK]
        in place of those that are too long to have tokens: `tokenizers` takes a microsecond for each character."""
        words = self.rules.normalize(text)
        if len(words) <= _LONG:
            return words
        kept = packing.truncate(words.split(), needed, self.truncation_side)  # each has at least one id
        return " ".join(word if len(word) <= self.max_word_length else self.vocabulary[self.unk_id] for word in kept)

    def part(self, text: str, needed: int) -> str:
        """Returns a part of a text, from the end that is not cut, with at least the `needed` number of ids, which are
        those of the text there; or the text if it has fewer."""
        size, is_right = _CHARACTERS * needed, self.truncation_side == "right"
        while size < len(text) // 4:  # to tokenize the part again takes longer than the rest of a shorter text
            border = self.rules.border.search(text, size if is_right else len(text) - size)
            if border is None:
                break
            part = text[:border.start()] if is_right else text[border.start():]
            if len(self.ids_of_words([self.words(part)])[0]) >= needed:
                return part
            size *= 2
        return text

    def flat_ids(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated ids of all texts, int32 [ids], and the number of ids of each text, int64 [texts], in
        a third of the time of `ids` for many short texts."""
        words = [words.split() for words in self._normalized("texts", texts)]
        ids, counts, _ = self.spell([*itertools.chain.from_iterable(words)])
        return ids, np.diff(np.append(0, np.cumsum(counts))[np.cumsum([0, *map(len, words)])])

    def unknown_rate(self, texts: Iterable[str]) -> float:
        """Returns the share of the words of the texts that the vocabulary cannot spell, between 0 and 1."""
        words = [word for words in self._normalized("texts", texts) for word in words.split()]
        return sum(self.unk_id in ids for ids in self.ids_of_words(words)) / max(len(words), 1)

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

    def pack_ids(self, first: list[int], second: list[int] | None, max_length: int) -> tuple[list[int], int]:
        """Packs the ids of one text, or of a pair, as `pack` does."""
        ids, count = packing.pack(first, second, self.cls_id, self.sep_id, max_length, self.truncation_side,
                                  self.separators)
        return ids, count if self.has_segments else len(ids)

    def pack_with_cuts(self, texts: Iterable[str], text_pairs: Iterable[str] | None = None,
                       max_length: int | None = None) -> tuple[list[tuple[list[int], int]], list[int]]:
        """Returns what `pack` returns, and the indices of the texts or pairs that were truncated."""
        if max_length is None:
            max_length = self.default_length
        added = self.special_tokens(1 if text_pairs is None else 2)
        if max_length < (shortest := max(added, 3)):
            raise InputError(Option("max_length"), f" must be at least {shortest}; got {max_length}")
        firsts = self.ids(texts, max_length)
        seconds = [None] * len(firsts) if text_pairs is None else self.ids_of_words(
            self._normalized("text_pairs", text_pairs, max_length))
        if len(firsts) != len(seconds):
            raise InputError(f"texts and text_pairs must have the same length; got {len(firsts)} and {len(seconds)}")
        rows = [*zip(firsts, seconds)]
        return [self.pack_ids(*row, max_length) for row in rows], [
            index for index, (first, second) in enumerate(rows) if len(first) + len(second or ()) + added > max_length]

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
