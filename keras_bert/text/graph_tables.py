"""Arrays of the tokenizer's rules and vocabulary, for the tokenizer in the TensorFlow graph."""

import collections
import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Callable

import numpy as np

from keras_bert.text.rules import CJK, CONTEXTUAL, Rules, is_deleted, second_halves
from keras_bert.text.unicode14 import code_points
from keras_bert.text.vocabulary import CONTINUES

_WINDOW = 1024


@dataclasses.dataclass(frozen=True)
class DoubleArray:
    """A trie as a double array (Aoe, 1989): symbol s leads from node n to node `base[n] + s`, which exists if
    `parent[base[n] + s] == n`. The root is node 0. All arrays are int32 and have the same length."""

    base: np.ndarray
    parent: np.ndarray  # -1 for an index without a node
    depth: np.ndarray  # number of symbols that lead to a node
    match: np.ndarray  # id of the longest key on the path to a node, -1 if there is none
    behind: np.ndarray  # number of symbols on the path after that key


def double_array(keys: dict[tuple[int, ...], int], symbols: int) -> DoubleArray:
    """Builds the `DoubleArray` of keys and their ids. Symbols are below `symbols`; frequent ones should be low."""
    children, ids = _trie(keys)
    slots = _Slots(symbols)
    bases = np.zeros(len(children), np.int64)
    nodes = sorted((node for node, below in enumerate(children) if below), key=lambda node: -len(children[node]))
    wide = sum(len(below) > 1 for below in children)
    for node in nodes[:wide]:
        bases[node] = slots.place(np.sort(np.fromiter(children[node], np.int64)))
    only = np.fromiter((next(iter(children[node])) for node in nodes[wide:]), np.int64)
    bases[nodes[wide:]] = slots.fill_gaps(len(only)) - only

    length = int(bases.max()) + symbols
    base, parent, depth, match, behind = (np.full(length, fill, np.int32) for fill in (0, -1, 0, -1, 0))
    at = np.zeros(len(children), np.int64)
    for node, below in enumerate(children):
        slot = at[node]
        base[slot] = bases[node]
        for symbol, child in below.items():
            at[child] = following = bases[node] + symbol
            parent[following] = slot
            depth[following] = depth[slot] + 1
            match[following], behind[following] = (
                (ids[child], 0) if child in ids else (match[slot], behind[slot] + 1))
    return DoubleArray(base, parent, depth, match, behind)


def _trie(keys: dict[tuple[int, ...], int]) -> tuple[list[dict[int, int]], dict[int, int]]:
    """Returns the nodes, as dicts of symbol to child node, parents first; and the ids of the keys by last node."""
    children: list[dict[int, int]] = [{}]
    ids = {}
    for key, value in keys.items():
        node = 0
        for symbol in key:
            node = children[node].setdefault(symbol, len(children))
            if node == len(children):
                children.append({})
        ids[node] = value
    return children, ids


class _Slots:
    """The free indices of the arrays. The children of a node with more than one child are placed by next fit. The many
    nodes that are only children fill the gaps between them."""

    def __init__(self, symbols: int) -> None:
        self._free = np.ones(4 * (symbols + _WINDOW), bool)
        self._free[:symbols] = False  # so that no base is negative
        self._margin = symbols + _WINDOW
        self._cursor = symbols

    def place(self, offsets: np.ndarray) -> int:
        """Reserves the free base + offsets; returns the base."""
        while True:
            if self._cursor + self._margin > len(self._free):
                self._free = np.pad(self._free, (0, len(self._free)), constant_values=True)
            bases = np.flatnonzero(self._free[self._cursor:self._cursor + _WINDOW]) + self._cursor - offsets[0]
            fits = self._free[bases[:, None] + offsets].all(axis=1)
            if fits.any():
                base = bases[np.argmax(fits)]
                self._free[base + offsets] = False
                self._cursor = base + offsets[0]
                return base
            self._cursor += _WINDOW

    def fill_gaps(self, count: int) -> np.ndarray:
        """Returns the first `count` free slots."""
        free = np.flatnonzero(self._free)[:count]
        return np.concatenate([free, np.arange(count - len(free)) + len(self._free)])


CODE_POINTS = 0x110000
# A cell is the result for a code point: a symbol of the vocabulary in the low bits, and these flags above it. The rare
# flags are the highest bits, so that one comparison finds them.
SYMBOL = (1 << 20) - 1
ALONE = 1 << 20  # a word of its own: punctuation, or a CJK ideograph
SPACE = 1 << 21
DROPPED = 1 << 22  # the character is removed
MULTIPLE = 1 << 23  # it becomes multiple cells; the low bits are their row in the second result of `cells`
IN_CONTEXT = 1 << 24  # its neighbours may change the result
_BLOCK = 128  # code points that are tested together


def number_symbols(vocabulary: list[str]) -> dict[str, int]:
    """Numbers the characters of a vocabulary from 1, the frequent ones first. 0 is the number of all other characters.
    At the start of a word, the number of a character is higher by the size of the dict plus 1."""
    frequencies = collections.Counter(character for token in vocabulary for character in token.removeprefix(CONTINUES))
    return {character: number for number, (character, _) in enumerate(frequencies.most_common(), 1)}


def vocabulary_trie(vocabulary: list[str], symbols: dict[str, int]) -> DoubleArray:
    """Returns the tokens as a `DoubleArray` with a single root. The first symbol of a token distinguishes those that
    start a word from those that continue one."""
    keys, count = {}, len(symbols) + 1
    for index, token in enumerate(vocabulary):
        if text := token.removeprefix(CONTINUES):
            first, *rest = map(symbols.__getitem__, text)
            keys[first if token.startswith(CONTINUES) else first + count, *rest] = index
    return double_array(keys, 2 * count)


def cells(rules: Rules, symbols: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cell of each code point, int32 [CODE_POINTS]; and rows of cells for the code points with the flag
    MULTIPLE, int32 [n, longest], padded with -1."""
    flags, rewritten = _rewritten(rules)
    table = flags.copy()
    rows: list[list[int]] = []
    for character, symbol in symbols.items():
        table[ord(character)] |= symbol
    for code_point, words in rewritten.items():
        # If there are spaces around the words, each of their characters is ALONE.
        row = [SPACE] if words.isspace() else [
            (ALONE if words != word else 0) | symbols.get(character, 0) for word in words.split() for character in word]
        if len(row) > 1:
            rows.append(row)
            row = [MULTIPLE | len(rows) - 1]
        table[code_point] = flags[code_point] | (row[0] if row else DROPPED)
    return table, padded(rows)


@functools.cache
def _rewritten(rules: Rules) -> tuple[np.ndarray, dict[int, str]]:
    """Applies the rules to each code point, independently of the vocabulary. Returns the flags, int32 [CODE_POINTS],
    ALONE, IN_CONTEXT or 0; and the words of each code point that the rules change, or may change."""
    flags, rewritten = np.zeros(CODE_POINTS, np.int32), {}
    known = sorted({*code_points(), *code_points(CJK)})  # other code points do not change; CJK may be unassigned
    for _, group in itertools.groupby(known, lambda code_point: code_point // _BLOCK):
        block = list(group)
        if (flag := _flag_of_all("".join(map(chr, block)), rules)) is not None:
            flags[block] = flag
            continue
        for code_point in block:
            words = rules.table[code_point]
            if words == CONTEXTUAL:
                flags[code_point] = IN_CONTEXT
                words = rules.normalize_in_context(chr(code_point))
            rewritten[code_point] = words
    return flags, rewritten


def _flag_of_all(characters: str, rules: Rules) -> int | None:
    """Returns 0 if the rules change none of the characters, ALONE if they only make each a word of its own, else None.
    It takes a sixth of the time of testing them one by one; only 30,000 of 280,000 code points are in other blocks."""
    words = rules.normalize_in_context(characters)
    if not rules.combines(words):
        if words == characters and not any(map(str.isspace, characters)):
            return 0
        if words.split() == list(characters):
            return ALONE
    return None


@functools.cache
def sigma_context() -> tuple[np.ndarray, np.ndarray]:
    """Returns two bool [CODE_POINTS]: the characters that do not decide if a sigma is final (case-ignorable and deleted
    ones), and the cased characters, both as in `str.lower`."""
    cased = tabulate(lambda character: (character + "Σ").lower()[-1] == "ς", bool)
    keeps_final = tabulate(lambda character: ("A" + character + "Σ").lower()[-1] == "ς", bool)
    return tabulate(is_deleted, bool) | keeps_final & ~cased, cased


@functools.cache
def decompositions(rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """Lower-cases, if the rules do, and decomposes each code point. Returns the row of each one, int16 [CODE_POINTS],
    -1 if it does not change; and the rows of code points, int32 [n, longest], padded with -1."""
    which = np.full(CODE_POINTS, -1, np.int16)
    rows: list[list[int]] = []
    for code_point in code_points():
        character = chr(code_point)
        decomposed = unicodedata.normalize("NFD", character.lower() if rules.lower_case else character)
        if decomposed != character:
            which[code_point] = len(rows)
            rows.append([ord(part) for part in decomposed])
    return which, padded(rows)


def compositions() -> tuple[np.ndarray, np.ndarray]:
    """Returns the compositions: first * CODE_POINTS + second, int64 [n], sorted; and the composites, int32 [n]."""
    pairs = sorted((ord(first) * CODE_POINTS + ord(second), ord(composite))
                   for second, firsts in second_halves().items() for first, composite in firsts.items())
    return np.array([key for key, _ in pairs], np.int64), np.array([composite for _, composite in pairs], np.int32)


@functools.cache
def tabulate(function: Callable[[str], int], dtype: type) -> np.ndarray:
    """Returns the results of a function of one character for all assigned code points, else 0: [CODE_POINTS]."""
    table: np.ndarray = np.zeros(CODE_POINTS, dtype)
    for code_point in code_points():
        table[code_point] = function(chr(code_point))
    return table


def padded(rows: list[list[int]]) -> np.ndarray:
    columns = itertools.zip_longest(*rows or [[-1]], fillvalue=-1)
    return np.array([*columns], np.int32).T
