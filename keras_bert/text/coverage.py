"""`Coverage`, which measures how well a vocabulary spells texts."""

import collections
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping

from keras_bert.text.charsmap import META
from keras_bert.text.tokenizer import Tokenizer

_CACHED = 1024  # texts; the context of a question usually occurs several times in a row
_MOST_FREQUENT = 5  # unknown words that are named
_SHOWN = 40  # characters of a name
MAX_UNKNOWN = 0.05  # of the tokens
# Words with a letter, no digit, and nothing of scripts without spaces between words (Thai, Lao, Burmese, Khmer, kana),
# in linear time. `Tokenizer.max_split` is for these. Measured shares of those in three or more tokens, and tokens
# per word: English texts 0.00 to 0.06 (1.0 to 1.2) with Google's uncased English vocabulary, 0.02 to 0.09 (1.1 to 1.4)
# with the multilingual one, 0.29 to 0.50 (2.1 to 2.7) with KoELECTRA's; Korean 0.07 to 0.22 (1.4 to 1.9) with
# KoELECTRA's, 0.28 to 0.51 (2.2 to 2.7) with the multilingual one, 0.58 to 0.75 with the English one; German 0.15 to
# 0.18 (1.6) with the multilingual one, 0.29 to 0.33 (2.0 to 2.2) with the English one.
_WORD = re.compile(r"(?=\D*[^\W\d])[^\d\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff]+")


class Coverage:
    """Counts the tokens of texts and the words that have [UNK]. Each distinct word is tokenized once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
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
        for word, ids in zip(new, self._tokenizer.ids_of_words(new)):
            self._tokens[word] = len(ids)
            if self._tokenizer.unk_id in ids:
                self._unknown.add(word)
        return [sum(map(self._tokens.__getitem__, of_text)) for of_text in words]

    def unknown(self) -> tuple[float, dict[str, int]]:
        """Returns the share of [UNK] among the tokens, and the most frequent unknown words with their counts."""
        counts = collections.Counter({word: self._words[word] for word in self._unknown})
        # A rare word is named in the order of the alphabet, so that the report is the same in every process.
        words = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_FREQUENT]
        tokens = sum(count * self._tokens[word] for word, count in self._words.items())
        return counts.total() / max(tokens, 1), {
            shorten(unicodedata.normalize("NFC", word.removeprefix(META))): count for word, count in words}

    def tokens_per_word(self) -> tuple[float, float]:
        """Returns the mean number of tokens of the words with letters, and the share of those with three or more."""
        words = [(count, self._tokens[word]) for word, count in self._words.items() if _WORD.fullmatch(word)]
        total = max(sum(count for count, _ in words), 1)
        return sum(count * n for count, n in words) / total, sum(count for count, n in words if n > 2) / total

    def problems(self) -> list[str]:
        """Returns what is wrong with this vocabulary for the texts, each in one line that says what to do."""
        share, words = self.unknown()
        found, unknown = [], self._tokenizer.vocabulary[self._tokenizer.unk_id]
        if share > MAX_UNKNOWN:
            found.append(f"{share:.1%} of the tokens are {unknown}, most often {describe(words)}; use a model for this "
                         f"language, and check its lower_case, which is {self._tokenizer.rules.lower_case}")
        rate, share = self.tokens_per_word()
        if share > self._tokenizer.max_split:
            found.append(f"{share:.0%} of the words are split into three or more tokens ({rate:.1f} tokens per word; "
                         "1.0 to 1.9 if the vocabulary fits); use a model for this language")
        return found


def shorten(name: str) -> str:
    """Returns the beginning of a long word or label."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"


def describe(counts: Mapping[str, int]) -> str:
    """Returns counts as words: `a (12), b (3)`."""
    return ", ".join(f"{shorten(name)} ({count:,})" for name, count in counts.items())
