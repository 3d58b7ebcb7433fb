"""`learn_vocabulary` learns a WordPiece vocabulary from texts, with the trainer of the `tokenizers` library;
`report_vocabulary` says what it makes of other texts."""

import collections
import dataclasses
import glob
import itertools
import json
import math
import os
import unicodedata

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from keras_bert.errors import InputError
from keras_bert.text.rules import Rules
from keras_bert.text.tokenizer import MAX_WORD_LENGTH, UNKNOWN, BertTokenizer
from keras_bert.text.vocabulary import CONTINUES, holds_hangul_syllables

SPECIALS = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
HANGUL = ("syllables", "jamo")
MAX_SIZE = 1_000_000  # the trainer reserves memory for as many pieces before it reads a word
MAX_WORDS = 2_000_000  # distinct words counted at a time; to learn from as many takes under 3 GB
MAX_HELD_OUT = 100_000  # lines; more would tell nothing new
# What the trainer is fed at most, some ten seconds' worth. It counts pairs of pieces in 32 bits: 2^31 would overflow.
FED_CHARACTERS = 200_000_000


@dataclasses.dataclass(frozen=True)
class Learned:
    """A vocabulary that was learned from texts.

    Args:
        pieces: list of str, ids in order, `SPECIALS` first.
        merges: list of pairs of pieces, in the order in which BPE merges them.
        rules: the `Rules` of its words; `BertTokenizer(pieces, lower_case, strip_accents)` chooses the same.
        held_out: list of str, the lines that it was not learned from.
    """

    pieces: list
    merges: list
    rules: Rules
    held_out: list

    def bpe_tokenizer(self):
        """A `tokenizers.Tokenizer` that cuts the words of `rules.normalize` in the order of the merges."""
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        tokenizer = tokenizers.Tokenizer(
            models.BPE(ids, self.merges, unk_token=UNKNOWN, continuing_subword_prefix=CONTINUES))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer


def find_texts(patterns):
    """The files that some globs name, sorted.

    Raises:
        InputError: a glob matches no file.
    """
    paths = set()
    for pattern in patterns:
        found = [path for path in glob.glob(pattern, recursive=True) or [pattern] if os.path.isfile(path)]
        if not found:
            raise InputError(f"{pattern}: must name text files; matches none")
        paths.update(found)
    return sorted(paths)


def learn_vocabulary(paths, size, lower_case=False, strip_accents=None, hangul="syllables", min_frequency=2,
                     held_out=0.01, progress=None):
    """Learns the pieces of a vocabulary from text files, read line by line. The same texts give the same vocabulary.

    Pieces are learned by merging the most frequent pair, again and again (Sennrich et al. 2016, arXiv:1508.07909), as
    tokenizers' WordPieceTrainer does too: WordPiece and BPE differ only in how words are cut later, into the longest
    pieces or in the order of the merges.

    A word with a character that the vocabulary lacks is [UNK], so all characters are kept that occur often enough. But
    no more than fill half of the vocabulary, or else the rare ideographs of a large corpus would leave no place for
    words; unless the words leave some.

    Args:
        paths: list of UTF-8 text files.
        size: pieces in the vocabulary, `SPECIALS` included; fewer are learned where the texts give no more.
        lower_case: lower-case the text.
        strip_accents: drop combining marks; as `lower_case` where None.
        hangul: `syllables`, or `jamo`, which needs `strip_accents`: that is what takes the syllables apart.
        min_frequency: how often a character, or a pair that becomes a piece, must occur.
        held_out: share of the lines to hold out, evenly spread, until there are 100,000; those after them are learned.
        progress: called now and then with a line that says what goes on.

    Returns:
        a `Learned`.

    Raises:
        InputError: an argument is out of range; a file cannot be read, is empty or not UTF-8; the texts hold no words.
    """
    if not paths:
        raise InputError("paths must name one text file at least; got none")
    strip_accents = lower_case if strip_accents is None else strip_accents
    progress = progress or (lambda line: None)
    _check(size, strip_accents, hangul, min_frequency, held_out)
    rules = Rules(lower_case, strip_accents, normalization="NFC" if strip_accents and hangul == "syllables" else "none")
    counts, lines = _count(paths, rules, held_out, progress)
    characters = _characters(counts, rules, min_frequency)
    room = (size - len(SPECIALS)) // 2
    if rules.normalization == "NFC" and not holds_hangul_syllables(characters[:room]):
        # BertTokenizer composes for vocabularies of syllables alone: texts without Korean are learned decomposed.
        rules = dataclasses.replace(rules, normalization="none")
        counts = {unicodedata.normalize("NFD", word): count for word, count in counts.items()}
        characters = _characters(counts, rules, min_frequency)
    if not characters:
        raise InputError(f"{paths[0]}{' and the others' * (len(paths) > 1)}: no character occurs "
                         f"min_frequency={min_frequency} times or more in the lines not held out")
    progress(f"learning {size} pieces from {len(counts)} different words")
    pieces, merges = _merge(counts, characters[:room], size, min_frequency)
    while len(pieces) < size and room < len(characters):
        room += size - len(pieces)
        pieces, merges = _merge(counts, characters[:room], size, min_frequency)
    return Learned(pieces, merges, rules, lines)


def _check(size, strip_accents, hangul, min_frequency, held_out):
    least = len(SPECIALS) + 2  # a character and a merge
    if not least <= size <= MAX_SIZE:
        raise InputError(f"size must be from {least} to {MAX_SIZE}, the {len(SPECIALS)} special tokens included; "
                         f"got {size}")
    if hangul not in HANGUL:
        raise InputError(f"hangul must be one of {', '.join(HANGUL)}; got {hangul!r}")
    if hangul == "jamo" and not strip_accents:
        raise InputError("hangul=jamo needs strip_accents (or lower_case), which takes syllables apart; got "
                         "strip_accents=False")
    if min_frequency < 1:
        raise InputError(f"min_frequency must be at least 1; got {min_frequency}")
    if not 0 <= held_out < 1:
        raise InputError(f"held_out must be a share of at least 0 and under 1; got {held_out}")


def _count(paths, rules, share, progress):
    """How often each word occurs, and the lines held out. Of very large texts the rarest words are forgotten on the
    way; their count is subtracted from all, so none is too low by more than these counts' sum (Misra & Gries 1982)."""
    counts, held_out = collections.Counter(), []
    for number, line in enumerate(_lines(paths, progress)):
        if math.floor((number + 1) * share) > math.floor(number * share) and len(held_out) < MAX_HELD_OUT:
            held_out.append(line)
            continue
        counts.update([word for word in rules.normalize(line).split() if len(word) <= MAX_WORD_LENGTH])
        if len(counts) > MAX_WORDS:
            rare = sorted(counts.values())[len(counts) // 2]
            counts = collections.Counter({word: count - rare for word, count in counts.items() if count > rare})
    return counts, held_out


def _lines(paths, progress):
    """The lines of some text files that hold more than white space, as str."""
    sizes = {path: _size(path) for path in paths}  # asked first: no error after an hour of reading
    total, done = sum(sizes.values()), 0
    for path in paths:
        empty = True
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                done += len(line)
                if number % 10_000 == 0:
                    progress(f"reading {path}, line {number}: {done / total:.0%} of all")
                if not line.isspace():
                    empty = False
                    yield _decode(line, f"{path}: line {number}")
        if empty:
            raise InputError(f"{path}: must hold text; it is empty")


def _size(path):
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {os.strerror(error.errno)}") from None


def _decode(line, place):
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: must be UTF-8 text: {error.reason} at byte {error.start + 1}") from None


def _characters(counts, rules, min_frequency):
    """The pieces of one character, the most frequent first: the character itself, and "##" before it unless the rules
    make it a word of its own."""
    occurrences = collections.Counter()
    for word, count in counts.items():
        for character in word:
            occurrences[character] += count
    pieces = []
    for character, count in sorted(occurrences.items(), key=lambda item: (-item[1], item[0])):
        if count < min_frequency:
            break
        alone = len(rules.normalize(f"a{character}a").split()) > 1
        pieces += [character] if alone else [character, CONTINUES + character]
    return pieces


def _merge(counts, characters, size, min_frequency):
    """The pieces and merges that the trainer learns from those counted words that `characters` spell."""
    starts, continues = set(characters), {piece[2:] for piece in characters if piece.startswith(CONTINUES)}
    counts = {word: count for word, count in counts.items() if word[0] in starts and continues.issuperset(word[1:])}
    scale = max(math.ceil(sum(count * (len(word) + 1) for word, count in counts.items()) / FED_CHARACTERS), 1)
    # The trainer itself numbers characters in the random order of a hash map, and ties between pairs are broken by
    # these numbers. Special tokens, though, get theirs in order.
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=math.ceil(min_frequency / scale),
                                  special_tokens=[*SPECIALS, *characters], limit_alphabet=size,
                                  continuing_subword_prefix=CONTINUES, show_progress=False)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(counts, scale), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(pair) for pair in model["merges"]]


def _repeated(counts, scale):
    """Each word as often as it was counted, over `scale`: the trainer takes texts, no counts. Short strings, which it
    shares out over the cores."""
    for word, count in counts.items():
        left = max(count // scale, 1)
        while left > 0:
            times = min(left, 1000)
            yield f"{word} " * times
            left -= times


@dataclasses.dataclass(frozen=True)
class VocabularyReport:
    """Shares are between 0 and 1, and NaN where no words were held out.

    Args:
        lines: lines held out.
        words: words in them.
        coverage: share of the characters of the words that the vocabulary knows.
        unknown_rate: share of the words of which something is [UNK].
        pieces_per_word: [UNK] counts as one piece.
        one_piece_rate: share of the words that are one piece, [UNK] aside.
        longest: the ten longest pieces, list of str.
    """

    lines: int
    words: int
    coverage: float
    unknown_rate: float
    pieces_per_word: float
    one_piece_rate: float
    longest: list


def report_vocabulary(learned, model="wordpiece"):
    """Cuts the lines that a `Learned` vocabulary has held out.

    Args:
        learned: a `Learned`.
        model: how to cut words: `wordpiece`, by `BertTokenizer`, or `bpe`, in the order of the merges.

    Returns:
        a `VocabularyReport`.
    """
    words = {"wordpiece": _cut_by_bert, "bpe": _cut_by_merges}[model](learned)
    known = set(learned.pieces)
    characters = [c for line in learned.held_out for word in learned.rules.normalize(line).split() for c in word]
    return VocabularyReport(
        lines=len(learned.held_out),
        words=len(words),
        coverage=_share([character in known for character in characters]),
        unknown_rate=_share([UNKNOWN in word for word in words]),
        pieces_per_word=_share([len(word) for word in words]),
        one_piece_rate=_share([len(word) == 1 and word != [UNKNOWN] for word in words]),
        longest=sorted(learned.pieces[len(SPECIALS):], key=lambda piece: -len(piece.removeprefix(CONTINUES)))[:10])


def format_report(report):
    """The lines of a report, as str."""
    rates = [("coverage", f"{report.coverage:.4f} of the characters"),
             ("[UNK]", f"{report.unknown_rate:.4f} of the words"),
             ("one-piece words", f"{report.one_piece_rate:.4f} of the words"),
             ("pieces a word", f"{report.pieces_per_word:.4f}")]
    rows = [("lines held out", report.lines), ("words held out", report.words), *(rates if report.words else []),
            ("longest pieces", " ".join(report.longest))]
    return "\n".join(f"{name:18} {value}" for name, value in rows)


def _cut_by_bert(learned):
    """The pieces of each word held out: list of lists of str."""
    tokenizer = BertTokenizer(learned.pieces, learned.rules.lower_case, learned.rules.strip_accents)
    words = []
    for line in learned.held_out:
        for piece in tokenizer.tokenize(line):
            if piece.startswith(CONTINUES):
                words[-1].append(piece)
            else:
                words.append([piece])
    return words


def _cut_by_merges(learned):
    tokenizer = learned.bpe_tokenizer()
    words = []
    for line in learned.held_out:
        encoding = tokenizer.encode(learned.rules.normalize(line))
        pieces = zip(encoding.word_ids, encoding.tokens)
        words += [[piece for _, piece in word] for _, word in itertools.groupby(pieces, lambda pair: pair[0])]
    return words


def _share(values):
    return sum(values) / len(values) if values else math.nan
