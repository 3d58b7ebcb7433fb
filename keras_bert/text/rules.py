"""The rules by which both BERT tokenizers, the Python one and the one in the TensorFlow graph, clean a text and split
it into words."""

import dataclasses
import functools
import re
import unicodedata

from keras_bert.errors import InputError
from keras_bert.text.unicode14 import ASSIGNED

NORMALIZATIONS = ("none", "NFC")
# google-research/bert `tokenization.py`, `_is_chinese_char`.
CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
       (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
_ASCII_SYMBOLS = frozenset("$+<=>^`|~")  # punctuation in BERT, but not in Unicode
# The table entry of a character whose result depends on its neighbours. No result contains "\0", because the rules
# delete it from texts.
CONTEXTUAL = "\0"


def _any_of(spans):
    return "[" + "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in spans) + "]"


_CJK, _RUN = re.compile(_any_of(CJK)), re.compile(_any_of(ASSIGNED) + "+")


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

    def __post_init__(self):
        if self.normalization not in NORMALIZATIONS:
            raise InputError(f"normalization must be one of {', '.join(NORMALIZATIONS)}; got {self.normalization!r}")

    def normalize(self, text):
        """Returns the words of a text as one str, with white space between them and possibly at both ends."""
        words = text.translate(self.table)
        return words if CONTEXTUAL not in words else self.normalize_in_context(text)

    @property
    def table(self):
        """The result of `normalize` for each single character, as a table for `str.translate`. Entries are computed
        when first used."""
        return _table(self)

    def normalize_in_context(self, text):
        """Computes the result of `normalize` without the table, one character at a time like Google's code, and correct
        for any neighbours. This method is the definition of the rules."""
        cleaned = "".join(map(self._clean, text))
        return "".join(map(_space_punctuation, _RUN.sub(lambda run: self._rewrite(run[0]), cleaned)))

    def _clean(self, character):
        if is_deleted(character):
            return ""
        if character.isspace():
            return " "
        return f" {character} " if self.split_cjk and _CJK.match(character) else character

    def _rewrite(self, run):
        """Rewrites a run of characters that may change with their neighbours. A code point that Unicode 14 does not
        assign ends a run, because it has no case and does not combine."""
        if self.lower_case:
            run = run.lower()
        if self.strip_accents:
            run = "".join(c for c in unicodedata.normalize("NFD", run) if unicodedata.category(c) != "Mn")
        return unicodedata.normalize("NFC", run) if self.normalization == "NFC" else run

    def is_contextual(self, character):
        """Returns True if neighbours may change the result for a character: a capital sigma, which may be final, or
        marks that may be reordered or composed."""
        if self.lower_case and character == "Σ":
            return True
        return self.combines(self._rewrite(character) if _RUN.match(character) else character)

    def combines(self, text):
        """Returns True if a character of a rewritten text may be reordered or composed with the previous one."""
        if not self.strip_accents and self.normalization == "none":
            return False
        return any(unicodedata.combining(c) or self.normalization == "NFC" and c in second_halves() for c in text)


class _Table(dict):
    def __init__(self, rules):
        self._rules = rules

    def __missing__(self, code_point):
        rules, character = self._rules, chr(code_point)
        words = CONTEXTUAL if rules.is_contextual(character) else rules.normalize_in_context(character)
        return self.setdefault(code_point, words)


_table = functools.cache(_Table)


@functools.cache
def second_halves():
    """Returns the characters that compose with a previous character: {second: {first: composite}}, Hangul included."""
    pairs = {}
    for first_code, last_code in ASSIGNED:
        for composite in map(chr, range(first_code, last_code + 1)):
            if unicodedata.normalize("NFC", composite) != composite:  # excluded from composition
                continue
            decomposed = unicodedata.normalize("NFD", composite)
            if len(decomposed) > 1:
                first = unicodedata.normalize("NFC", decomposed[:-1])
                pairs.setdefault(decomposed[-1], {})[first] = composite
    return pairs


def is_deleted(character):
    """Returns True if BERT deletes a character: U+0000, U+FFFD, surrogates, format characters, and control characters
    except tab, newline and carriage return."""
    return character in "\0\ufffd" or _category(character) in ("Cc", "Cf", "Cs") and character not in "\t\n\r"


def _category(character):
    return unicodedata.category(character) if _RUN.match(character) or "\ud800" <= character <= "\udfff" else "Cn"


def _space_punctuation(character):
    if character in _ASCII_SYMBOLS or _category(character)[0] == "P":
        return f" {character} "
    return character
