"""Reading and writing of `vocab.txt`, which has one WordPiece token per line; the line number, counted from 0, is the
token's id."""

from keras_bert.errors import InputError
from keras_bert.files import decode, reading

CONTINUES = "##"  # prefix of a token that continues a word
_NEEDED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def load_vocabulary(path):
    """Reads a `vocab.txt` into a list of tokens in the order of their ids.

    Raises:
        InputError: the file cannot be read or is not UTF-8, or [PAD], [UNK], [CLS] or [SEP] is missing.
    """
    with reading(path), open(path, "rb") as file:
        text = decode(file.read(), path, is_first=True)
    tokens = [line.strip() for line in text.removesuffix("\n").split("\n")]
    check_special_tokens(path, tokens)
    return tokens


def check_special_tokens(path, tokens):
    """Raises an InputError that names the file `path` if [PAD], [UNK], [CLS] or [SEP] is missing among the tokens."""
    missing = [token for token in _NEEDED if token not in tokens]
    if missing:
        raise InputError(f"{path}: a BERT vocabulary must contain [PAD], [UNK], [CLS] and [SEP], one token per line; "
                         f"missing {', '.join(missing)}")


def fits_a_line(token):
    """Returns True if `save_vocabulary` and `load_vocabulary` keep a token: not one with a line break, or with white
    space at an end."""
    return token == token.strip() and "\n" not in token


def save_vocabulary(tokens, path):
    """Writes a `vocab.txt` that `load_vocabulary` can read."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{token}\n" for token in tokens)


def holds_hangul_syllables(tokens):
    """Returns True if a vocabulary spells Korean in syllables (U+AC00 to U+D7A3) rather than in jamo (U+1100 to
    U+11FF)."""
    text = "".join(tokens)
    syllables = sum("\uac00" <= character <= "\ud7a3" for character in text)
    jamo = sum("\u1100" <= character <= "\u11ff" for character in text)
    return syllables > jamo
