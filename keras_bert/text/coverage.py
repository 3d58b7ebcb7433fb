"""`Coverage`, which measures how well a vocabulary spells texts."""

import collections
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping

from keras_bert.text.tokenizer import BertTokenizer

_CACHED = 1024  # texts; the context of a question usually occurs several times in a row
_MOST_FREQUENT = 5  # unknown words that are named
_SHOWN = 40  # characters of a name
MAX_UNKNOWN = 0.05  # of the tokens
# A vocabulary with Hangul syllables needs at most one token for each; Google's uncased English one, which has only the
# letters, needs 2.4 on Korean film reviews (tests/test_data_report.py).
_MAX_PER_SYLLABLE, _MIN_KOREAN = 1.5, 0.1  # tokens; share of Korean among the words
_KOREAN, _SYLLABLE = re.compile("[가-힣\u1100-\u11ff]+"), re.compile("[가-힣\u1100-\u115f]")


class Coverage:
    """Counts the tokens of texts and the words that become [UNK]. Each distinct word is tokenized once."""

    def __init__(self, tokenizer: BertTokenizer) -> None:
        self._tokenizer = tokenizer
        self._words_of = functools.lru_cache(_CACHED)(lambda text: tokenizer.rules.normalize(text).split())
        self._words: collections.Counter[str] = collections.Counter()
        self._tokens: dict[str, int] = {}  # of each word
        self._unknown: set[str] = set()

    def lengths(self, texts: Iterable[str]) -> list[int]:
        """Counts the words of texts; returns the number of tokens of each text, without [CLS] and [SEP]."""
        words = [self._words_of(text) for text in texts]
        before = len(self._words)
        self._words.update(itertools.chain.from_iterable(words))
        new = list(itertools.islice(self._words, before, None))
        for word, encoding in zip(new, self._tokenizer.wordpiece.encode_batch_fast(new)):
            self._tokens[word] = len(encoding.ids)
            if self._tokenizer.unk_id in encoding.ids:
                self._unknown.add(word)
        return [sum(map(self._tokens.__getitem__, of_text)) for of_text in words]

    def unknown(self) -> tuple[float, dict[str, int]]:
        """Returns the share of [UNK] among the tokens, and the most frequent unknown words with their counts."""
        counts = collections.Counter({word: self._words[word] for word in self._unknown})
        # A rare word is named in the order of the alphabet, so that the report is the same in every process.
        words = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_FREQUENT]
        tokens = sum(count * self._tokens[word] for word, count in self._words.items())
        return counts.total() / max(tokens, 1), {
            shorten(unicodedata.normalize("NFC", word)): count for word, count in words}

    def tokens_per_syllable(self) -> float | None:
        """Returns the tokens per Hangul syllable of the words that are Korean and known; None if few words are."""
        korean = [word for word in self._words.keys() - self._unknown if _KOREAN.fullmatch(word)]
        count, tokens, syllables = (sum(self._words[word] * number(word) for word in korean) for number in (
            lambda word: 1, self._tokens.__getitem__, lambda word: len(_SYLLABLE.findall(word))))
        return tokens / syllables if count > _MIN_KOREAN * self._words.total() and syllables else None

    def problems(self) -> list[str]:
        """Returns what is wrong with this vocabulary for the texts, each in one line that says what to do."""
        share, words = self.unknown()
        found = []
        if share > MAX_UNKNOWN:
            found.append(f"{share:.1%} of the tokens are [UNK], most often {describe(words)}; use a model for this "
                         f"language, and check its lower_case, which is {self._tokenizer.rules.lower_case}")
        if (rate := self.tokens_per_syllable() or 0) > _MAX_PER_SYLLABLE:
            found.append(f"the vocabulary spells Korean letter by letter ({rate:.1f} tokens per syllable); use a "
                         "Korean or multilingual model")
        return found


def shorten(name: str) -> str:
    """Returns the beginning of a long word or label."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"


def describe(counts: Mapping[str, int]) -> str:
    """Returns counts as words: `a (12), b (3)`."""
    return ", ".join(f"{shorten(name)} ({count:,})" for name, count in counts.items())
