"""The rules of the tokenizer and a vocabulary as arrays, for the tokenizer in the graph."""

import collections
import dataclasses
import functools
import itertools
import unicodedata

import numpy as np

from keras_bert.text.rules import CJK, CONTEXTUAL, is_deleted, second_halves
from keras_bert.text.unicode14 import ASSIGNED
from keras_bert.text.vocabulary import CONTINUES

_WINDOW = 1024


@dataclasses.dataclass(frozen=True)
class DoubleArray:
    """A trie whose node n reads symbol s by going to node `base[n] + s`, which exists if `parent[base[n] + s] == n`
    (Aoe, 1989). The root is node 0. Arrays of one length, int32.

    Args:
        base, parent: as said; the parent of a place without a node is -1.
        depth: how many symbols lead to a node.
        match: the id of the longest key on the way to a node, -1 where there is none.
        behind: how many symbols were read after that key.
    """

    base: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    match: np.ndarray
    behind: np.ndarray


def double_array(keys, symbols):
    """The `DoubleArray` of some keys.

    Args:
        keys: dict of tuples of symbols to ids >= 0; symbols are below `symbols`, best low where frequent.
        symbols: number of symbols.
    """
    children, values = _trie(keys)
    slots = _Slots(symbols)
    bases = np.zeros(len(children), np.int64)
    nodes = sorted((node for node, below in enumerate(children) if below), key=lambda node: -len(children[node]))
    wide = sum(len(below) > 1 for below in children)
    for node in nodes[:wide]:
        bases[node] = slots.place(np.sort(np.fromiter(children[node], np.int64)))
    only = np.fromiter((next(iter(children[node])) for node in nodes[wide:]), np.int64)
    bases[nodes[wide:]] = slots.fill_gaps(len(only)) - only
    return _arrays(children, values, bases, symbols)


def _trie(keys):
    """Nodes as dicts of symbol to node, and the ids that end at them; parents come before their children."""
    children, values = [{}], [-1]
    for key, value in keys.items():
        node = 0
        for symbol in key:
            following = children[node].get(symbol)
            if following is None:
                following = children[node][symbol] = len(children)
                children.append({})
                values.append(-1)
            node = following
        values[node] = value
    return children, values


class _Slots:
    """The places of the nodes. Wide nodes take the next fit; the gaps that they leave are filled by the many nodes that
    are an only child."""

    def __init__(self, symbols):
        self._free = np.ones(4 * (symbols + _WINDOW), bool)
        self._free[:symbols] = False  # so that no base is negative
        self._margin = symbols + _WINDOW
        self._cursor = symbols

    def place(self, offsets):
        """Takes base + offsets, all of them free; returns the base."""
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

    def fill_gaps(self, count):
        """The first free slots."""
        free = np.flatnonzero(self._free)[:count]
        return np.concatenate([free, np.arange(count - len(free)) + len(self._free)])


def _arrays(children, values, bases, symbols):
    length = int(bases.max()) + symbols
    base, parent, depth, match, behind = (np.full(length, fill, np.int32) for fill in (0, -1, 0, -1, 0))
    slots = np.zeros(len(children), np.int64)
    for node, below in enumerate(children):
        slot = slots[node]
        base[slot] = bases[node]
        for symbol, child in below.items():
            slots[child] = following = bases[node] + symbol
            parent[following] = slot
            depth[following] = depth[slot] + 1
            match[following], behind[following] = (
                (match[slot], behind[slot] + 1) if values[child] < 0 else (values[child], 0))
    return DoubleArray(base, parent, depth, match, behind)


CODE_POINTS = 0x110000
# A cell says what becomes of a code point: a symbol of the vocabulary under these flags, the rare ones high.
SYMBOL = (1 << 20) - 1
ALONE = 1 << 20  # a word of its own: punctuation, or a CJK ideograph
SPACE = 1 << 21
DROPPED = 1 << 22  # nothing is left of the character
SEVERAL = 1 << 23  # several cells come of it: in place of a symbol, their row
IN_CONTEXT = 1 << 24  # its neighbours may change it
_BLOCK = 128  # code points that are tried together


class Symbols:
    """The characters of a vocabulary, numbered from 1, the frequent ones first; 0 stands for all others. At the start
    of a word a character's number is higher by `count`."""

    def __init__(self, vocabulary):
        self._pieces = [(piece.removeprefix(CONTINUES), piece.startswith(CONTINUES), index)
                        for index, piece in enumerate(vocabulary) if piece not in ("", CONTINUES)]
        frequencies = collections.Counter(character for text, _, _ in self._pieces for character in text)
        self._numbers = {character: number for number, (character, _) in enumerate(frequencies.most_common(), 1)}
        self.count = len(self._numbers) + 1

    def __getitem__(self, character):
        return self._numbers.get(character, 0)

    def __iter__(self):
        return iter(self._numbers)

    def trie(self):
        """The pieces as a `DoubleArray`; one root serves both the starts and the middles of words."""
        keys = {}
        for text, continues, index in self._pieces:
            first, *rest = (self._numbers[character] for character in text)
            keys[first if continues else first + self.count, *rest] = index
        return double_array(keys, 2 * self.count)


def cells(rules, symbols):
    """What becomes of each code point.

    Returns:
        cells: int32 [CODE_POINTS].
        several: int32 [n, longest], cells again; -1 fills the rows.
    """
    flags, rewritten = _rewritten(rules)
    table, rows = flags.copy(), []
    for character in symbols:
        table[ord(character)] |= symbols[character]
    for code_point, words in rewritten.items():
        row = [SPACE] if words.isspace() else _cells_of(words, symbols)
        if len(row) > 1:
            table[code_point] = flags[code_point] | SEVERAL | len(rows)
            rows.append(row)
        else:
            table[code_point] = flags[code_point] | (row[0] if row else DROPPED)
    return table, _padded(rows)


@functools.cache
def _rewritten(rules):
    """What the rules make of each code point, whatever the vocabulary.

    Returns:
        flags: int32 [CODE_POINTS], ALONE, IN_CONTEXT or 0.
        rewritten: dict of each code point that they change, or may change, to its words.
    """
    flags, rewritten = np.zeros(CODE_POINTS, np.int32), {}
    known = sorted({*_all_assigned(), *_code_points(CJK)})  # assigned or not, CJK is spaced; all others stay
    for _, block in itertools.groupby(known, lambda code_point: code_point // _BLOCK):
        block = list(block)
        flag = _flag_of_all("".join(map(chr, block)), rules)
        if flag is not None:
            flags[block] = flag
            continue
        for code_point in block:
            words = rules.table[code_point]
            if words == CONTEXTUAL:
                flags[code_point] = IN_CONTEXT
                words = rules.normalize_in_context(chr(code_point))
            rewritten[code_point] = words
    return flags, rewritten


def _flag_of_all(characters, rules):
    """0 if the rules leave every character as it is, ALONE if they only make each a word, else None. Of 280,000
    code points all but 30,000 are in such blocks, which take a sixth of the time of single ones."""
    words = rules.normalize_in_context(characters)
    if not rules.combines(words):
        if words == characters and not any(map(str.isspace, characters)):
            return 0
        if words.split() == list(characters):
            return ALONE
    return None


def _cells_of(words, symbols):
    """Characters between spaces are words of their own."""
    row = []
    for word in words.split():
        alone = ALONE if words != word else 0
        row += [alone | symbols[character] for character in word]
    return row


@functools.cache
def sigma_context():
    """Two bool [CODE_POINTS]: characters that a final sigma does not see (case-ignorable and deleted ones), and the
    cased ones, as `str.lower` knows them."""
    unseen, cased = deleted().copy(), np.zeros(CODE_POINTS, bool)
    for code_point in _all_assigned():
        character = chr(code_point)
        cased[code_point] = (character + "Σ").lower()[-1] == "ς"
        unseen[code_point] |= not cased[code_point] and ("A" + character + "Σ").lower()[-1] == "ς"
    return unseen, cased


@functools.cache
def deleted():
    """What BERT deletes: bool [CODE_POINTS]."""
    table = np.zeros(CODE_POINTS, bool)
    for code_point in _all_assigned():
        table[code_point] = is_deleted(chr(code_point))
    return table


@functools.cache
def decompositions(rules):
    """What each code point is lower-cased and decomposed to before marks are dropped: int16 [CODE_POINTS] of rows, -1
    where nothing changes, and int32 [n, longest], the rows: code points, -1 after the last."""
    which = np.full(CODE_POINTS, -1, np.int16)
    rows = []
    for code_point in _all_assigned():
        character = chr(code_point)
        decomposed = unicodedata.normalize("NFD", character.lower() if rules.lower_case else character)
        if decomposed != character:
            which[code_point] = len(rows)
            rows.append([ord(part) for part in decomposed])
    return which, _padded(rows)


@functools.cache
def combining_classes():
    """The canonical combining class of each code point: uint8 [CODE_POINTS]."""
    classes = np.zeros(CODE_POINTS, np.uint8)
    for code_point in _all_assigned():
        classes[code_point] = unicodedata.combining(chr(code_point))
    return classes


def compositions():
    """Canonical composition: first * CODE_POINTS + second, int64 [n] in order, and what they compose to, int32 [n]."""
    pairs = sorted((ord(first) * CODE_POINTS + ord(second), ord(composite))
                   for second, firsts in second_halves().items() for first, composite in firsts.items())
    return np.array([key for key, _ in pairs], np.int64), np.array([composite for _, composite in pairs], np.int32)


def _all_assigned():
    return _code_points(ASSIGNED)


def _code_points(spans):
    for first, last in spans:
        yield from range(first, last + 1)


def _padded(rows):
    padded = np.full((max(len(rows), 1), max(map(len, rows), default=1)), -1, np.int32)
    for index, row in enumerate(rows):
        padded[index, :len(row)] = row
    return padded
