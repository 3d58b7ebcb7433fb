"""Arrays of a unigram model and its charsmap, for the tokenizer in the TensorFlow graph."""

import dataclasses

import numpy as np

from keras_bert.text import graph_tables
from keras_bert.text.charsmap import Charsmap
from keras_bert.text.graph_tables import CODE_POINTS, DROPPED, IN_CONTEXT, MULTIPLE, SPACE, DoubleArray, double_array
from keras_bert.text.unigram import UNKNOWN_PENALTY, UnigramTokenizer


def piece_trie(tokenizer: UnigramTokenizer, symbols: dict[str, int]) -> tuple[DoubleArray, np.ndarray, np.ndarray]:
    """Returns the pieces that texts have as a `DoubleArray`; the id of the piece that ends at each node, -1 if none
    does, int32 [nodes]; and the scores of the pieces by id + 1, float64 [pieces + 1], the lowest one for no piece."""
    keys = {tuple(map(symbols.__getitem__, piece)): index for index, piece in enumerate(tokenizer.forms)
            if index not in tokenizer.hidden}
    trie = double_array(keys, len(symbols) + 1)
    scores = np.append(-np.inf, tokenizer.scores)
    scores[tokenizer.unk_id + 1] = tokenizer.scores[list(keys.values())].min() - UNKNOWN_PENALTY
    return trie, np.where((trie.behind == 0) & (trie.match >= 0), trie.match, -1).astype(np.int32), scores


@dataclasses.dataclass(frozen=True)
class RuleTables:
    """The rules of a charsmap, with the cells of their results."""

    cells: np.ndarray  # by those of one character, int32 [CODE_POINTS]; IN_CONTEXT for a later character of others
    rows: np.ndarray  # of cells with the flag MULTIPLE, int32 [n, longest], padded with -1
    symbols: np.ndarray  # in rules of several characters, int16 [CODE_POINTS]
    trie: DoubleArray  # of these rules
    results: np.ndarray  # their cells, int32 [rules]


def rule_tables(charsmap: Charsmap, symbols: dict[str, int]) -> RuleTables:
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
    numbers = graph_tables.number_symbols(list(charsmap.several))
    of_rules = np.zeros(CODE_POINTS, np.int16)
    for character, number in numbers.items():
        of_rules[ord(character)] = number
    keys = {tuple(map(numbers.__getitem__, key)): index for index, key in enumerate(charsmap.several)}
    trie = double_array(keys, len(numbers) + 1)
    results = np.array([cell(result) for result in charsmap.several.values()], np.int32)
    for character in charsmap.later:
        cells[ord(character)] |= IN_CONTEXT
    return RuleTables(cells, graph_tables.padded(rows), of_rules, trie, results)
