"""The rules by which both BERT tokenizers, the Python one and the one in the TensorFlow graph, clean a text and split
it into words."""

import dataclasses
import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from keras_bert.arguments import Normalization, check_value
from keras_bert.text.unicode14 import ASSIGNED, code_points

# google-research/bert `tokenization.py`, `_is_chinese_char`.
CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
       (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
_ASCII_SYMBOLS = frozenset("$+<=>^`|~")  # punctuation in BERT, but not in Unicode
# The table entry of a character whose result depends on its neighbours. No result contains "\0", because the rules
# delete it from texts.
CONTEXTUAL = "\0"


def any_of(spans: Iterable[tuple[int, int]]) -> str:
    """Returns a pattern for the characters in ranges."""
    return "[" + "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in spans) + "]"


_BORDERS = {True: re.compile(f"[ \\t\\n\\r\u3000]|{any_of(CJK)}"), False: re.compile("[ \\t\\n\\r\u3000]")}
_CJK, _RUN = re.compile(any_of(CJK)), re.compile(any_of(ASSIGNED) + "+")


class Traced(NamedTuple):
    """A character of the result, with the spaces around it, and the range of the text that it came from."""

    character: str
    start: int
    end: int

    @property
    def combining(self) -> int:
        return unicodedata.combining(self.character)


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules of Google's `BasicTokenizer` (google-research/bert `tokenization.py`), with the character categories of
    Unicode 14 in every version of Python. The arguments choose the steps. In this order: deletes control and format
    characters, puts spaces around CJK ideographs, lower-cases, decomposes (NFD) and drops nonspacing marks, recomposes
    (NFC), puts spaces around punctuation.

    Args:
        lower_case: if True, lower-cases the text, as uncased models need.
        strip_accents: if True, decomposes the text and drops nonspacing marks (category Mn).
        split_cjk: if True, makes each CJK ideograph a word.
        normalization: `NFC` composes the remaining characters, above all the Hangul syllables that `strip_accents` has
            decomposed; `none` does not, like Google's code.
    """

    lower_case: bool = True
    strip_accents: bool = True
    split_cjk: bool = True
    normalization: str = "none"

    def __post_init__(self) -> None:
        check_value("normalization", self.normalization, Normalization)

    @property
    def border(self) -> re.Pattern[str]:
        """White space or an ideograph, before which a text can be divided: the words of both parts are those of the
        text."""
        return _BORDERS[self.split_cjk]

    def normalize(self, text: str) -> str:
        """Returns the words of a text as one str, with white space between them and possibly at both ends."""
        words = text.translate(self.table)
        return words if CONTEXTUAL not in words else self.normalize_in_context(text)

    @property
    def table(self) -> "_Table":
        """The result of `normalize` for each character, for `str.translate`. Entries are computed on first use."""
        return _table(self)

    def trace_words(self, text: str) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Returns the words, and the start and end of what each of their characters came from, int64 [characters]."""
        words = text.translate(self.table)
        if CONTEXTUAL in words:
            traced = self.trace(text)
            spans = [(part.start, part.end) for part in traced if not part.character.isspace()]
            starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
            return "".join(part.character for part in traced).split(), starts, ends
        code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        lengths = np.frombuffer(self.table.lengths, np.uint8)[code_points]
        starts = np.repeat(np.arange(len(text)), lengths)
        return words.split(), starts, starts + 1

    def normalize_in_context(self, text: str) -> str:
        """Computes the result of `normalize` without the table, one character at a time like Google's code, and correct
        for any neighbours. This method is the definition of the rules."""
        cleaned = "".join(map(self._clean, text))
        return "".join(map(_space_punctuation, _RUN.sub(lambda run: self._rewrite(run[0]), cleaned)))

    def _clean(self, character: str) -> str:
        if is_deleted(character):
            return ""
        if character.isspace():
            return " "
        return f" {character} " if self.split_cjk and _CJK.match(character) else character

    def _rewrite(self, run: str) -> str:
        """Rewrites a run of characters that may change with their neighbours. A code point that Unicode 14 does not
        assign ends a run, because it has no case and does not combine."""
        if self.lower_case:
            run = run.lower()
        if self.strip_accents:
            run = "".join(c for c in unicodedata.normalize("NFD", run) if unicodedata.category(c) != "Mn")
        return unicodedata.normalize("NFC", run) if self.normalization == "NFC" else run

    def trace(self, text: str) -> list[Traced]:
        """Returns the result of `normalize_in_context` character by character, with what each came from."""
        cleaned = [Traced(part, index, index + 1) for index, character in enumerate(text)
                   for part in self._clean(character)]
        traced: list[Traced] = []
        for is_assigned, group in itertools.groupby(cleaned, lambda part: bool(_RUN.match(part.character))):
            run = list(group)
            traced += self._trace_run(run) if is_assigned else run
        return [part._replace(character=_space_punctuation(part.character)) for part in traced]

    def _trace_run(self, run: list[Traced]) -> list[Traced]:
        """Takes the steps of `_rewrite`."""
        if self.lower_case:
            lowered = iter("".join(part.character for part in run).lower())
            run = [part._replace(character=next(lowered)) for part in run for _ in part.character.lower()]
        if self.normalization == "NFC":
            run = _decomposed(run)
            return _composed(_in_canonical_order(_without_accents(run) if self.strip_accents else run))
        return _without_accents(_in_canonical_order(_decomposed(run))) if self.strip_accents else run

    def is_contextual(self, character: str) -> bool:
        """Returns True if neighbours may change the result for a character: a capital sigma, which may be final, or
        marks that may be reordered or composed."""
        if self.lower_case and character == "Σ":
            return True
        return self.combines(self._rewrite(character) if _RUN.match(character) else character)

    def combines(self, text: str) -> bool:
        """Returns True if a character of a rewritten text may be reordered or composed with the previous one."""
        if not self.strip_accents and self.normalization == "none":
            return False
        return any(unicodedata.combining(c) or self.normalization == "NFC" and c in second_halves() for c in text)


class _Table(dict[int, str]):
    """See `Rules.table`. `lengths` contains the number of characters of each entry, without spaces."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.lengths = bytearray(sys.maxunicode + 1)

    def __missing__(self, code_point: int) -> str:
        rules, character = self._rules, chr(code_point)
        words = CONTEXTUAL if rules.is_contextual(character) else rules.normalize_in_context(character)
        self.lengths[code_point] = len(words.replace(" ", ""))
        return self.setdefault(code_point, words)


_table = functools.cache(_Table)


def _decomposed(run: list[Traced]) -> list[Traced]:
    return [part._replace(character=character) for part in run
            for character in unicodedata.normalize("NFD", part.character)]


def _without_accents(run: list[Traced]) -> list[Traced]:
    return [part for part in run if unicodedata.category(part.character) != "Mn"]


def _in_canonical_order(run: list[Traced]) -> list[Traced]:
    """Sorts the marks between two starters by combining class. If one of them moves, each gets the range of all."""
    ordered: list[Traced] = []
    for _, group in itertools.groupby(run, lambda part: part.combining > 0):
        before = list(group)
        after = sorted(before, key=lambda part: part.combining)
        start, end = before[0].start, before[-1].end
        ordered += before if after == before else [Traced(part.character, start, end) for part in after]
    return ordered


def _composed(run: list[Traced]) -> list[Traced]:
    """Composes each starter with what follows it. The marks between the starter and a mark that it was composed with
    end where that mark ends."""
    composed: list[Traced] = []
    starter = -1  # the index of the last one in `composed`
    for part in run:
        is_reachable = starter == len(composed) - 1 or composed[-1].combining < part.combining
        composite = second_halves().get(part.character, {}).get(composed[starter].character) if starter >= 0 else None
        if is_reachable and composite:
            composed[starter] = composed[starter]._replace(character=composite)
            composed[starter:] = [earlier._replace(end=part.end) for earlier in composed[starter:]]
            continue
        if not part.combining:
            starter = len(composed)
        composed.append(part)
    return composed


@functools.cache
def second_halves() -> dict[str, dict[str, str]]:
    """Returns the characters that compose with a previous character: {second: {first: composite}}, Hangul included."""
    pairs: dict[str, dict[str, str]] = {}
    for composite in map(chr, code_points()):
        if unicodedata.normalize("NFC", composite) != composite:  # excluded from composition
            continue
        decomposed = unicodedata.normalize("NFD", composite)
        if len(decomposed) > 1:
            first = unicodedata.normalize("NFC", decomposed[:-1])
            pairs.setdefault(decomposed[-1], {})[first] = composite
    return pairs


def is_deleted(character: str) -> bool:
    """Returns True if BERT deletes a character: U+0000, U+FFFD, surrogates, format characters, and control characters
    except tab, newline and carriage return."""
    return character in "\0\ufffd" or _category(character) in ("Cc", "Cf", "Cs") and character not in "\t\n\r"


def _category(character: str) -> str:
    return unicodedata.category(character) if _RUN.match(character) or "\ud800" <= character <= "\udfff" else "Cn"


def _space_punctuation(character: str) -> str:
    if character in _ASCII_SYMBOLS or _category(character)[0] == "P":
        return f" {character} "
    return character
