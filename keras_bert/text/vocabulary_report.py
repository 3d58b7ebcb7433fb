"""What a learned vocabulary makes of texts that it was not learned from."""

import dataclasses
import itertools
import math

from keras_bert.text.learning import SPECIALS
from keras_bert.text.tokenizer import UNKNOWN, BertTokenizer
from keras_bert.text.vocabulary import CONTINUES


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
