"""The normalization of SentencePiece: the rules that a model contains as `precompiled_charsmap`.

Source: google/sentencepiece, src/normalizer.cc, and s-yata/darts-clone, the format of the trie.
"""

import functools
import re
from collections.abc import Iterator

import numpy as np

from keras_bert.errors import InputError

META = "\u2581"  # begins each word, in place of the space before it
_WHITE_SPACE = "".join(map(chr, [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
                                 0x202F, 0x205F, 0x3000]))  # Unicode's
_SPACES = _WHITE_SPACE + "\x1c\x1d\x1e\x1f"  # Python's
# Stand-ins for white space that is no space, so that words contain none. Unicode has these for internal use; where a
# text has them, they become another one.
STAND_INS = {ord(space): chr(0xFDD0 + number) for number, space in enumerate(_SPACES) if space != " "}
STAND_INS |= dict.fromkeys(map(ord, STAND_INS.values()), "\ufdef")
_VALUE, _LABEL, _OFFSET = 2**31 - 1, 2**31 | 0xFF, 10  # of a unit of the trie: masks, and the bits before the offset
_HAS_VALUE, _IS_WIDE = 8, 9  # bits


class Charsmap:
    """The rules of a model. At each place of a text, the longest one applies; its result is not normalized again. Words
    are what is between spaces. Surrogates become U+FFFD first, as what is no Unicode does in sentencepiece.

    Args:
        data: the `precompiled_charsmap`; empty for no rules.
        splits_white_space: if True, all white space in the result separates words, as with `WhitespaceSplit` of Hugging
            Face's `tokenizers`; otherwise, spaces alone.
    """

    def __init__(self, data: bytes = b"", splits_white_space: bool = False) -> None:
        self.data, self.splits_white_space = data, splits_white_space
        rules = read_charsmap(data)
        remaining = STAND_INS | dict.fromkeys(map(ord, _WHITE_SPACE if splits_white_space else ()), " ")
        rules = {key: result.translate(remaining) for key, result in rules.items()}
        self.single = dict.fromkeys(range(0xD800, 0xE000), rules.get("\ufffd", "\ufffd")) | remaining | {
            ord(key): result for key, result in rules.items() if len(key) == 1}
        self.several = {key: result for key, result in rules.items() if len(key) > 1}
        self.longest = max(map(len, self.several), default=1)
        self.later = {character for key in self.several for character in key[1:]}
        later = "".join(map(re.escape, sorted(self.later))) or "\0"
        self._later, self._run = re.compile(f"[{later}]"), re.compile(f"[^{later}]?[{later}]+", re.DOTALL)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Charsmap) and (self.data, self.splits_white_space) == (
            other.data, other.splits_white_space)

    __hash__ = None  # type: ignore[assignment]

    @property
    def lower_case(self) -> bool:
        """True if texts are lower-cased."""
        return self.normalize("A") == META + "a"

    @property
    def border(self) -> re.Pattern[str]:
        """See `Normalizer`."""
        return re.compile("(?!)" if " " in self.later else " ")

    def normalize(self, text: str) -> str:
        """Returns the words of a text as one str, each after U+2581, with spaces between them."""
        return " ".join(META + word for word in self._rewrite(text).split())

    def _rewrite(self, text: str) -> str:
        if not self._later.search(text):
            return text.translate(self.single)
        parts, at = [], 0
        for run in self._run.finditer(text):  # only in these, a rule of several characters may apply
            parts += [text[at:run.start()].translate(self.single), *(result for result, _ in self._apply(run[0]))]
            at = run.end()
        return "".join(parts) + text[at:].translate(self.single)

    def _apply(self, text: str) -> Iterator[tuple[str, int]]:
        """Yields the results of the rules, and the number of characters that each replaces."""
        at = 0
        while at < len(text):
            size = 1
            if text[at + 1:at + 2] in self.later:
                size = next((size for size in range(min(self.longest, len(text) - at), 1, -1)
                             if text[at:at + size] in self.several), 1)
            yield self.several[text[at:at + size]] if size > 1 else self.single.get(ord(text[at]), text[at]), size
            at += size

    def trace_words(self, text: str) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Returns the words, and the start and end of what each of their characters came from, int64 [characters]. The
        U+2581 before a word has the range of its first character."""
        characters, starts, ends, at, begins = [], [], [], 0, True
        for result, size in self._apply(text):
            for character in result:
                if character != " " and begins:
                    characters.append(f" {META}")
                    starts.append(at)
                    ends.append(at + size)
                if character != " ":
                    characters.append(character)
                    starts.append(at)
                    ends.append(at + size)
                begins = character == " "
            at += size
        return "".join(characters).split(), np.array(starts, np.int64), np.array(ends, np.int64)


@functools.lru_cache(2)
def read_charsmap(data: bytes) -> dict[str, str]:
    """Returns the rules of a `precompiled_charsmap`: texts and what replaces them. Raises an `InputError` if it is
    damaged."""
    try:
        size = int.from_bytes(data[:4], "little")
        units = np.frombuffer(data[4:4 + size], "<u4").astype(np.int64)
        results = data[4 + size:]
        return {key.decode(): results[value:results.index(0, value)].decode() for key, value in _read_trie(units)}
    except (ValueError, IndexError):
        raise InputError("precompiled_charsmap is damaged; copy the tokenizer's files again") from None


def _read_trie(units: np.ndarray) -> list[tuple[bytes, int]]:
    """Returns the keys of a trie of darts-clone, int64 [units], with their values. All nodes of a depth are read at
    once: in a Python loop, 225,000 keys would take a minute."""
    offsets = (units >> _OFFSET) << ((units >> _IS_WIDE & 1) << 3)
    labels = units & _LABEL
    # A child's index is its parent's index, XOR the parent's offset, XOR the child's label.
    children = np.flatnonzero((labels > 0) & (labels < 256))
    parents = children ^ labels[children]
    order = np.argsort(parents, kind="stable")
    children, parents = children[order], parents[order]
    at, keys, found = np.zeros(min(len(units), 1), np.int64), np.zeros((1, 0), np.uint8), list[tuple[bytes, int]]()
    while at.size:
        base = at ^ offsets[at]
        ends = np.flatnonzero(units[at] >> _HAS_VALUE & 1)
        found += zip(map(bytes, keys[ends]), (units[base[ends]] & _VALUE).tolist())
        first, count = np.searchsorted(parents, base), np.searchsorted(parents, base, "right")
        count -= first
        row = np.repeat(np.arange(at.size), count)
        at = children[np.arange(row.size) - np.repeat(np.cumsum(count) - count, count) + first[row]]
        keys = np.concatenate([keys[row], labels[at, None].astype(np.uint8)], 1)
    return found
