"""Reading and writing of `vocab.txt`, which has one WordPiece token per line: the token's id is its line, from 0."""

import re
from collections.abc import Collection, Iterable

from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.files.paths import reading
from keras_bert.files.utf8 import decode

CONTINUES = "##"  # prefix of a token that continues a word
MAX_WORD_LENGTH = 200  # of a word that is split into tokens, in characters: google-research/bert `tokenization.py`
_SENTENCE_PIECE = "\u2581"  # prefix of a SentencePiece token that begins a word
INSTEAD = "use a model with a WordPiece or unigram vocabulary, for Korean klue-bert-base"
_NEEDED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def load_vocabulary(path: Path) -> list[str]:
    """Reads a `vocab.txt` into a list of tokens in the order of their ids.

    Raises:
        InputError: the file cannot be read or is not UTF-8; a token occurs twice, or has white space in it and no
            brackets around it; or see `check_vocabulary`.
    """
    tokens = read_tokens(path)
    check_vocabulary(path, tokens)
    check_tokens(path, tokens)
    return tokens


def check_tokens(path: Path, tokens: Iterable[str]) -> None:
    """Raises an InputError that names the line of a token that no text gets: it occurs twice, or has white space."""
    lines: dict[str, int] = {}
    for line, token in enumerate(tokens, 1):
        is_hole = token.startswith("[") and token.endswith("]")  # see `read_tokenizer_files`
        found = "it has white space" if len(token.split()) > 1 and not is_hole else (
            f"it is also in line {lines[token]}" if token in lines else "")
        if found:
            raise InputError(f"{path}: line {line}: a token must occur once, and have no white space; got {token!r}, "
                             f"{found}; to keep the other ids, put a name in brackets in its place: [line {line}]")
        lines[token] = line


def read_tokens(path: Path) -> list[str]:
    """Reads the tokens of a `vocab.txt`, which may be those of any vocabulary."""
    with reading(path), open(path, "rb") as file:
        text = decode(file.read(), path, is_first=True)
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def check_vocabulary(path: Path, tokens: Collection[str]) -> None:
    """Raises an InputError that names the file if the tokens are SentencePiece's, many of which begin with U+2581 and
    hardly any with ##; or if [PAD], [UNK], [CLS] or [SEP] is missing."""
    pieces, continuing = count_prefixes(tokens)
    if pieces > max(continuing, len(tokens) / 10):
        raise InputError(f"{path}: must be a WordPiece vocabulary, whose tokens within words begin with {CONTINUES}; "
                         f"{pieces} of {len(tokens)} tokens begin with {_SENTENCE_PIECE}, as SentencePiece's do, and "
                         f"{continuing} with {CONTINUES}; {INSTEAD}")
    if missing := [token for token in _NEEDED if token not in tokens]:
        raise InputError(f"{path}: a BERT vocabulary must contain [PAD], [UNK], [CLS] and [SEP], one token per line; "
                         f"missing {', '.join(missing)}")


def count_prefixes(tokens: Collection[str]) -> tuple[int, int]:
    """Returns how many tokens begin with U+2581, and how many with ##."""
    pieces, continuing = (sum(token.startswith(prefix) for token in tokens) for prefix in (_SENTENCE_PIECE, CONTINUES))
    return pieces, continuing


def fits_a_line(token: str) -> bool:
    """Returns True if `save_vocabulary` keeps a token: it has no line break, and no white space at an end."""
    return token == token.strip() and "\n" not in token


def save_vocabulary(tokens: Iterable[str], path: Path) -> None:
    """Writes a `vocab.txt` that `load_vocabulary` can read."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{token}\n" for token in tokens)


def has_capitals(tokens: Iterable[str]) -> bool:
    """Returns True if a token other than a special one, `[CLS]` for example, has a capital letter."""
    return any(token != token.lower() for token in tokens if not token.startswith("["))


def holds_hangul_syllables(tokens: Iterable[str]) -> bool:
    """Returns True if a vocabulary spells Korean in syllables (U+AC00 to U+D7A3), not in jamo."""
    text = "".join(tokens)
    syllables, jamo = (len(re.findall(kind, text)) for kind in ("[\uac00-\ud7a3]", "[\u1100-\u11ff]"))
    return syllables > jamo
