"""Trains a WordPiece vocabulary on texts with the trainer of `tokenizers`, and evaluates it on other texts."""

import dataclasses
import math
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import tokenizers

from keras_bert.arguments import Count, Path, Share, as_list, check
from keras_bert.errors import InputError, Option
from keras_bert.files.paths import reading
from keras_bert.files.utf8 import LongLine, decode, read_lines
from keras_bert.lazy import moved
from keras_bert.text.rules import Rules
from keras_bert.text.tokenizer import Normalizer
from keras_bert.text.tokenizer_files import SPECIAL
from keras_bert.text.vocabulary import CONTINUES, MAX_WORD_LENGTH, holds_hangul_syllables
from keras_bert.text.wordpiece import BertTokenizer

__getattr__ = moved(__name__, {"find_texts": "keras_bert.files.paths:find_texts"})  # as in version 0.2
SPECIALS = tuple(SPECIAL.values())
MAX_SIZE = 1_000_000  # the trainer reserves memory for this many tokens before it reads a word
MAX_WORDS = 2_000_000  # maximum number of distinct words counted at a time; training on them takes under 3 GB
MAX_HELD_OUT = 100_000  # lines; more would give no new information
# Maximum number of characters for the trainer, which takes some ten seconds for them. It counts pairs of tokens in 32
# bits: 2^31 would overflow.
FED_CHARACTERS = 200_000_000
_NOT_LINES = (".csv", ".jsonl", ".json", ".parquet", ".gz", ".zip")


@dataclasses.dataclass(frozen=True)
class TrainedVocabulary:
    """A vocabulary that was trained on texts."""

    tokens: list[str]  # in the order of their ids, `SPECIALS` first
    rules: Rules  # of its words; `BertTokenizer(tokens, lower_case, strip_accents)` chooses the same ones
    held_out: list[str]  # the lines that were not used for training


def train_vocabulary(paths: Path | list[str] | list[Path], vocab_size: int, lower_case: bool = False,
                     strip_accents: bool | None = None, hangul: Literal["syllables", "jamo"] = "syllables",
                     min_frequency: Count = 2, held_out: Share = 0.01,
                     progress: Callable[[str], object] | None = None) -> TrainedVocabulary:
    """Trains a vocabulary on text files, which are read line by line. The same texts give the same vocabulary.

    Tokens are created by repeatedly merging the most frequent pair (Sennrich et al. 2016, arXiv:1508.07909), as in
    tokenizers' WordPieceTrainer. Only the splitting of words is not that of byte-pair encoding: WordPiece takes the
    longest tokens.

    A word with a character that is not in the vocabulary becomes [UNK], so all characters that occur often enough are
    kept, but in at most half of the vocabulary, unless the words leave more: otherwise the rare ideographs of a large
    corpus would fill it.

    Args:
        paths: UTF-8 text files, or one.
        vocab_size: number of tokens, `SPECIALS` included; it gets fewer if the texts do not contain enough.
        lower_case: if True, lower-cases the text.
        strip_accents: if True, drops combining marks. Defaults to `lower_case`.
        hangul: `syllables`, or `jamo`, which needs `strip_accents`, because that decomposes the syllables.
        min_frequency: how often a character, or a pair that becomes a token, must occur.
        held_out: share of the lines to hold out, evenly spread, until there are 100,000.
        progress: called from time to time with a line of text about the progress.

    Raises:
        InputError: an argument is out of range; a file cannot be read, is empty or not UTF-8; there are no words.
    """
    files = as_list(paths)
    if not files:
        raise InputError("paths must name at least one text file; got none")
    strip_accents = lower_case if strip_accents is None else strip_accents
    progress = progress or (lambda line: None)
    smallest = len(SPECIALS) + 2  # space for one character and one merge
    check(
        train_vocabulary, locals(),
        ("vocab_size", vocab_size, f"from {smallest} to {MAX_SIZE}, the {len(SPECIALS)} special tokens included",
         smallest <= vocab_size <= MAX_SIZE),
        ("strip_accents", strip_accents, ["True for ", Option("hangul=jamo"), ", because it decomposes the syllables"],
         strip_accents or hangul != "jamo"))
    rules = Rules(lower_case, strip_accents, normalization="NFC" if strip_accents and hangul == "syllables" else "none")
    counts, lines = count_words(files, rules, held_out, progress)
    characters = characters_of(counts, rules, min_frequency)
    limit = (vocab_size - len(SPECIALS)) // 2
    if rules.normalization == "NFC" and not holds_hangul_syllables(characters[:limit]):
        # BertTokenizer composes (NFC) only for vocabularies of syllables: texts without Korean are counted decomposed.
        rules = dataclasses.replace(rules, normalization="none")
        counts = {unicodedata.normalize("NFD", word): count for word, count in counts.items()}
        characters = characters_of(counts, rules, min_frequency)
    if not characters:
        raise InputError(f"{files[0]}{' and the others' * (len(files) > 1)}: no character occurs at least ",
                         Option(f"min_frequency={min_frequency}"), " times in the lines that are not held out")
    progress(f"training {vocab_size} tokens on {len(counts)} different words")
    tokens = _merge(counts, characters[:limit], vocab_size, min_frequency)
    while len(tokens) < vocab_size and limit < len(characters):
        limit += vocab_size - len(tokens)
        tokens = _merge(counts, characters[:limit], vocab_size, min_frequency)
    return TrainedVocabulary(tokens, rules, lines)


def count_words(paths: Sequence[Path], rules: Normalizer, share: float, progress: Callable[[str], object],
                ) -> tuple[Mapping[str, int], list[str]]:
    """Returns how often each word occurs, and the lines that are held out for the report.

    Whenever there are more than `MAX_WORDS` different words, subtracts the median count from each count and drops words
    that reach 0. A count is too low by at most the sum of these medians (Misra & Gries 1982).
    """
    counts: Counter[str] = Counter()
    held_out: list[str] = []
    for number, line in enumerate(read_texts(paths, progress)):
        if math.floor((number + 1) * share) > math.floor(number * share) and len(held_out) < MAX_HELD_OUT:
            held_out.append(line)
            continue
        words = rules.normalize(line.rstrip("\r\n")).split()  # some rules take line breaks for parts of words
        counts.update([word for word in words if len(word) <= MAX_WORD_LENGTH])
        if len(counts) > MAX_WORDS:
            rare = sorted(counts.values())[len(counts) // 2]
            counts = Counter({word: count - rare for word, count in counts.items() if count > rare})
    return counts, held_out


def read_texts(paths: Sequence[Path], progress: Callable[[str], object]) -> Iterator[str]:
    """Yields the lines of the text files that contain more than white space."""
    total, done = sum(map(_size, paths)), 0  # now, so that a missing file fails before hours of reading
    for path in paths:
        if (suffix := os.path.splitext(path)[1].lower()) in _NOT_LINES:
            raise InputError(f"{path}: must have one text per line, as .txt and .tsv; got {suffix}: write its texts to "
                             "a .txt file")
        empty = True
        with open(path, "rb") as file:
            for number, size, line in read_lines(file, f"{path}: line"):
                done += size
                if number % 10_000 == 0:
                    progress(f"reading {path}, line {number}: {done / total:.0%} of all")
                if isinstance(line, LongLine) or not line.isspace():
                    empty = False
                    yield decode(line, f"{path}: line {number}", number == 1)
        if empty:
            raise InputError(f"{path}: must contain text; it has none")


def _size(path: Path) -> int:
    with reading(path), open(path, "rb") as file:
        return os.fstat(file.fileno()).st_size


def characters_of(counts: Mapping[str, int], rules: Normalizer, min_frequency: int,
                  continues: str = CONTINUES) -> list[str]:
    """Returns the tokens of one character, the most frequent first: itself and, unless the rules make it a word of its
    own, the one within words, which begins with `continues`."""
    occurrences: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            occurrences[character] += count
    frequent = [character for character, count in occurrences.items() if count >= min_frequency]
    tokens = []
    for character in sorted(frequent, key=lambda character: (-occurrences[character], character)):
        alone = len(rules.normalize(f"a{character}a").split()) > 1
        tokens += [character] if alone else [character, continues + character]
    return tokens


def _merge(counts: Mapping[str, int], characters: list[str], vocab_size: int, min_frequency: int) -> list[str]:
    """Returns the tokens that the trainer gets from the counted words that consist of `characters`."""
    starts, continues = set(characters), {token[2:] for token in characters if token.startswith(CONTINUES)}
    counts = {word: count for word, count in counts.items() if word[0] in starts and continues.issuperset(word[1:])}
    return merge(counts, [*SPECIALS, *characters], vocab_size, min_frequency, continuing_subword_prefix=CONTINUES)


def merge(counts: Mapping[str, int], first: list[str], size: int, min_frequency: int, **options: Any) -> list[str]:
    """Returns at most `size` tokens: the `first`, then those that the trainer makes of the characters among them."""
    scale = max(math.ceil(sum(count * (len(word) + 1) for word, count in counts.items()) / FED_CHARACTERS), 1)
    # The first are passed as special tokens, which the trainer numbers in the given order. It would number other
    # characters in the random order of a hash map, and it uses these numbers to break ties between pairs.
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, min_frequency=min(math.ceil(min_frequency / scale), 2**32), show_progress=False,
        special_tokens=first, limit_alphabet=size, **options)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(counts, scale), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _repeated(counts: Mapping[str, int], scale: int) -> Iterator[str]:
    """Yields each word as many times as it was counted, divided by `scale`, because the trainer reads texts and not
    counts. The texts are short so that the trainer can distribute them over the cores."""
    for word, count in counts.items():
        times = max(count // scale, 1)
        yield from (f"{word} " * min(times - first, 1000) for first in range(0, times, 1000))


@dataclasses.dataclass(frozen=True)
class VocabularyReport:
    """Statistics of a vocabulary on held-out lines. Shares are between 0 and 1, and NaN if no words were held out."""

    lines: int  # held out, as the words
    words: int
    coverage: float  # share of the characters of the words that are in the vocabulary
    unknown_rate: float  # share of the words that contain [UNK]
    tokens_per_word: float  # a mean; [UNK] counts as one token
    single_token_rate: float  # share of the words that are one token other than [UNK]
    longest: list[str]  # the ten longest tokens


def report_vocabulary(vocabulary: TrainedVocabulary) -> VocabularyReport:
    """Computes statistics of a vocabulary on its held-out lines."""
    rules, tokens = vocabulary.rules, vocabulary.tokens
    tokenizer = BertTokenizer(tokens)
    words: list[list[int]] = []
    characters: list[str] = []
    for line in vocabulary.held_out:
        normalized = rules.normalize(line)
        characters += "".join(normalized.split())
        words += tokenizer.ids_of_words(normalized.split())
    known = set(tokens)
    return VocabularyReport(
        lines=len(vocabulary.held_out), words=len(words),
        coverage=_mean([character in known for character in characters]),
        unknown_rate=_mean([tokenizer.unk_id in word for word in words]),
        tokens_per_word=_mean([len(word) for word in words]),
        single_token_rate=_mean([len(word) == 1 and word != [tokenizer.unk_id] for word in words]),
        longest=sorted(tokens[len(SPECIALS):], key=lambda token: -len(token.removeprefix(CONTINUES)))[:10])


def format_report(report: VocabularyReport) -> str:
    """Returns a report in multiple lines."""
    rates = [("coverage", f"{report.coverage:.4f} of the characters"),
             ("[UNK]", f"{report.unknown_rate:.4f} of the words"),
             ("single-token words", f"{report.single_token_rate:.4f} of the words"),
             ("tokens per word", f"{report.tokens_per_word:.4f}")]
    rows = [("lines held out", report.lines), ("words held out", report.words), *(rates if report.words else []),
            ("longest tokens", " ".join(report.longest))]
    return "\n".join(f"{name:18} {value}" for name, value in rows)


def _mean(values: list[bool] | list[int]) -> float:
    return sum(values) / len(values) if values else math.nan
