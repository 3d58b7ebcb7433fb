"""The normalization of SentencePiece: the rules that a model contains as `precompiled_charsmap`.

Source: google/sentencepiece, src/normalizer.cc, and s-yata/darts-clone, the format of the trie.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from keras_bert.errors import InputError
from keras_bert.text.rules import Traced

_VALUE, _LABEL, _OFFSET = 2**31 - 1, 2**31 | 0xFF, 10  # of a unit of the trie: masks, and the bits before the offset
_HAS_VALUE, _IS_WIDE = 8, 9  # bits


def read_charsmap(charsmap: bytes) -> dict[str, str]:
    """Returns the rules of a `precompiled_charsmap`: texts and what replaces them. Raises an `InputError` if it is
    damaged."""
    try:
        size = int.from_bytes(charsmap[:4], "little")
        units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
        results = charsmap[4 + size:]
        return {key.decode(): results[value:results.index(0, value)].decode() for key, value in _read_trie(units)}
    except (ValueError, IndexError) as error:
        raise InputError(f"precompiled_charsmap is damaged: {error}") from None


def _read_trie(units: np.ndarray) -> list[tuple[bytes, int]]:
    """Returns the keys of a trie of darts-clone, int64 [units], with their values. All nodes of a depth are read at
    once: in a Python loop, 225,000 keys would take a minute."""
    if not units.size:
        return []
    offsets = (units >> _OFFSET) << ((units >> _IS_WIDE & 1) << 3)
    labels = units & _LABEL
    # A child's index is its parent's index, XOR the parent's offset, XOR the child's label.
    children = np.flatnonzero((labels > 0) & (labels < 256))
    parents = children ^ labels[children]
    order = np.argsort(parents, kind="stable")
    children, parents = children[order], parents[order]
    at, keys, found = np.zeros(1, np.int64), np.zeros((1, 0), np.uint8), []
    while at.size:
        base = at ^ offsets[at]
        ends = np.flatnonzero(units[at] >> _HAS_VALUE & 1)
        found += zip(map(bytes, keys[ends]), (units[base[ends]] & _VALUE).tolist())
        first, last = np.searchsorted(parents, base, "left"), np.searchsorted(parents, base, "right")
        count = last - first
        row = np.repeat(np.arange(at.size), count)
        at = children[np.arange(row.size) - np.repeat(np.cumsum(count) - count, count) + first[row]]
        keys = np.concatenate([keys[row], labels[at, None].astype(np.uint8)], 1)
    return found


# Unicode's White_Space, at which `WhitespaceSplit` of `tokenizers` divides texts.
WHITE_SPACE = "".join(map(chr, [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                                0x205F, 0x3000]))


class Charsmap:
    """The rules of a model: at each place of a text, the longest one applies. A result is not normalized again. Words
    are what is between spaces.

    Args:
        rules: texts, of one character or more, and what replaces them.
        white_space: characters that become spaces, in results, too.
    """

    def __init__(self, rules: Mapping[str, str], white_space: str = "") -> None:
        spaces = dict.fromkeys(map(ord, white_space), " ")
        rules = {key: result.translate(spaces) for key, result in rules.items()}
        # As in sentencepiece, what is no Unicode becomes U+FFFD, for which there may be a rule.
        self.single = dict.fromkeys(range(0xD800, 0xE000), rules.get("\ufffd", "\ufffd")) | spaces | {
            ord(key): result for key, result in rules.items() if len(key) == 1}
        self.several = {key: result for key, result in rules.items() if len(key) > 1}
        self._longest = max(map(len, self.several), default=1)
        self.later = {character for key in self.several for character in key[1:]}
        later = "".join(map(re.escape, sorted(self.later)))
        self._later = re.compile(f"[{later}]" if later else r"(?!)")
        self._run = re.compile(f"[^{later}]?[{later}]+" if later else r"(?!)", re.DOTALL)

    def normalize(self, text: str) -> str:
        """Returns the words of a text as one str, with spaces between them and possibly at both ends."""
        if not self._later.search(text):
            return text.translate(self.single)
        parts, at = [], 0
        for run in self._run.finditer(text):  # only in these, a rule of several characters may apply
            parts += [text[at:run.start()].translate(self.single), *(result for result, _ in self._apply(run[0]))]
            at = run.end()
        return "".join(parts) + text[at:].translate(self.single)

    def trace(self, text: str) -> list[Traced]:
        """Returns the result of `normalize` character by character, with what each came from."""
        traced, at = [], 0
        for result, size in self._apply(text):
            traced += [Traced(character, at, at + size) for character in result]
            at += size
        return traced

    def _apply(self, text: str) -> Iterator[tuple[str, int]]:
        """Yields the results of the rules, and the number of characters that each replaces."""
        at = 0
        while at < len(text):
            size = next((size for size in range(min(self._longest, len(text) - at), 1, -1)
                         if text[at:at + size] in self.several), 1)
            yield self.several[text[at:at + size]] if size > 1 else self.single.get(ord(text[at]), text[at]), size
            at += size
