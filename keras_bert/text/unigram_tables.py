"""Arrays of a unigram model and its charsmap, for the tokenizer in the TensorFlow graph."""

import dataclasses

import numpy as np

from keras_bert.text.charsmap import Charsmap
from keras_bert.text.graph_tables import CODE_POINTS, DROPPED, IN_CONTEXT, MULTIPLE, SPACE, double_array, number_symbols
from keras_bert.text.graph_tables import _padded as padded
from keras_bert.text.unigram import META, UNKNOWN_PENALTY, Unigram


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces as a trie of symbols, see `DoubleArray`. `scores`, float64 [pieces + 1], are by id + 1; the first is
    that of no piece."""

    base: np.ndarray
    parent: np.ndarray
    piece: np.ndarray  # int32 [nodes], the id of the piece that ends at a node, -1 if none does
    scores: np.ndarray


def piece_tables(model: Unigram, symbols: dict[str, int]) -> Pieces:
    keys = {tuple(map(symbols.__getitem__, piece)): index for index, piece in enumerate(model.pieces)
            if index not in model.hidden}
    trie = double_array(keys, len(symbols) + 1)
    scores = np.concatenate([[-np.inf], model.scores])
    scores[model.unk_id + 1] = model.scores[list(keys.values())].min() - UNKNOWN_PENALTY
    is_end = (trie.behind == 0) & (trie.match >= 0)
    return Pieces(trie.base, trie.parent, np.where(is_end, trie.match, -1).astype(np.int32), scores)


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules of a charsmap. Those of one character are in `cells`, int32 [CODE_POINTS]; cells of later characters of
    the others have the flag IN_CONTEXT. The others are a trie, whose symbols are in `symbols`, int16 [CODE_POINTS]."""

    cells: np.ndarray
    rows: np.ndarray  # of cells with the flag MULTIPLE, int32 [n, longest], padded with -1
    symbols: np.ndarray
    base: np.ndarray
    parent: np.ndarray
    match: np.ndarray  # int32 [nodes], the index of the longest rule on the path to a node, -1 if there is none
    size: np.ndarray  # int32 [nodes], its number of characters
    results: np.ndarray  # int32 [rules], the cell of each rule's result
    longest: int  # number of characters of a rule


def rule_tables(charsmap: Charsmap, symbols: dict[str, int]) -> Rules:
    rows: list[list[int]] = []
    known: dict[str, int] = {}

    def cell(text: str) -> int:
        if text not in known:
            row = [SPACE if character == " " else symbols.get(character, 0) for character in text]
            if len(row) > 1:
                rows.append(row)
                row = [MULTIPLE | len(rows) - 1]
            known[text] = row[0] if row else DROPPED
        return known[text]

    cells = np.zeros(CODE_POINTS, np.int32)
    for character in [" ", *symbols]:
        cells[ord(character)] = cell(character)
    for code_point, result in charsmap.single.items():
        cells[code_point] = cell(result)
    numbers = number_symbols(list(charsmap.several))
    of_rules = np.zeros(CODE_POINTS, np.int16)
    for character, number in numbers.items():
        of_rules[ord(character)] = number
    keys = {tuple(map(numbers.__getitem__, key)): index for index, key in enumerate(charsmap.several)}
    trie = double_array(keys, len(numbers) + 1)
    results = np.array([cell(result) for result in charsmap.several.values()], np.int32)
    for character in charsmap.later:
        cells[ord(character)] |= IN_CONTEXT
    return Rules(cells, padded(rows), of_rules, trie.base, trie.parent, trie.match,
                 (trie.depth - trie.behind).astype(np.int32), results, max(map(len, charsmap.several), default=1))
