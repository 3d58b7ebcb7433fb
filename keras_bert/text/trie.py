"""A vocabulary as a trie in arrays, for greedy longest-match in the graph."""

import dataclasses

import numpy as np

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
