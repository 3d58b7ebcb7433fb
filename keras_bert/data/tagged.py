"""Sentences whose words have tags, of named entities or slots."""

import dataclasses
import itertools
import os
import re

from keras_bert.data.formats import choose
from keras_bert.data.tables import lines, read_table, texts_of
from keras_bert.errors import InputError

_TAG = re.compile(r"O|([BIELSU])-(.+)")


@dataclasses.dataclass(frozen=True)
class TaggedExample:
    """The words of a sentence and their BIO tags, None where the file has none. `row` is the line of the first word, or
    the record, counted from 1."""

    words: list[str]
    tags: list[str] | None
    row: int


def read_tagged(path, format=None):
    """Reads sentences, all tags as BIO, see `to_bio`.

    Args:
        path: the file, UTF-8, or the folder.
        format: `conll`: a word a line, its tag in the last column; blank lines end sentences, lines of -DOCSTART- and
            comments (`# …` that ends in no tag) are passed over, a file of one column has no tags. `klue-ner` (Park et
            al., 2021): a character a line; a word, between spaces, has the tag of its first character. `snips` (Goo et
            al., 2018): a folder of `seq.in`, words, and `seq.out`, tags, a sentence a line. Where None the suffix
            decides: `.jsonl` and `.parquet` have the lists `words` or `tokens`, and `tags`, in a row; `.conll`, `.bio`,
            `.iob`, `.tsv`, `.txt` are `conll`; a folder is `snips`.

    Yields:
        `TaggedExample`s.

    Raises:
        InputError: names the file, the row and the tag.
    """
    suffix = os.path.splitext(path)[1].lower()
    if format:
        reader = choose(path, format, FORMATS)
    elif os.path.isdir(path):
        reader = _read_snips
    elif suffix in _SUFFIXES:
        reader = _SUFFIXES[suffix]
    else:
        raise InputError(f"{path}: tagged words must be in a file that ends in {', '.join(_SUFFIXES)}, or have a format"
                         f" of {', '.join(FORMATS)}; got {suffix or 'no suffix'}")
    example = None
    for example in reader(path):
        yield example
    if example is None:
        raise InputError(f"{path}: holds no sentences")


def to_bio(tags, places=None):
    """Tags of a sentence in one of the schemes BIO, IOB1, IOE1, IOE2, BIOES and BILOU, to BIO.

    An entity begins at B, S and U, and at I, E and L unless the word before is B or I of the same type. This is the
    rule of `conlleval` (Tjong Kim Sang and De Meulder, 2003), and right in each scheme.

    Args:
        tags: list of str, "O" or a letter, a hyphen and a type.
        places: how an error names each tag, iterable of str; "a tag" where None.

    Returns:
        list of str.

    Raises:
        InputError: names a tag of another form.
    """
    converted, before = [], None
    for tag, place in zip(tags, places or itertools.repeat("a tag")):
        match = _TAG.fullmatch(tag)
        if not match:
            raise InputError(f"{place} must be O, or B-, I-, E-, L-, S- or U- and a type; got {tag!r}")
        letter, kind = match.groups()
        inside = letter in ("I", "E", "L") and before in (("B", kind), ("I", kind))
        converted.append(tag if tag == "O" else f"{'I' if inside else 'B'}-{kind}")
        before = letter, kind
    return converted


def _read_conll(path):
    for rows, words, tags in _sentences(path):
        for row, word in zip(rows, words):
            if not word.strip():
                raise InputError(f"{path}: row {row}: must have a word in the first column; got {word!r}")
        yield TaggedExample(words, tags, rows[0])


def _read_klue_ner(path):
    for rows, characters, tags in _sentences(path):
        if tags is None:
            raise InputError(f"{path}: row {rows[0]}: must have a character and a tag; got {characters[0]!r}")
        spaces = [True, *map(str.isspace, characters)]
        firsts = [before and not space for before, space in itertools.pairwise(spaces)]
        yield _example(path, rows[0], "".join(characters).split(), list(itertools.compress(tags, firsts)))


def _read_snips(folder):
    words_path, tags_path = (os.path.join(folder, name) for name in ("seq.in", "seq.out"))
    pairs = itertools.zip_longest(lines(words_path), lines(tags_path), fillvalue=(0, 1.0, ""))
    for row, ((_, _, words), (_, _, tags)) in enumerate(pairs, 1):
        if words.strip() or tags.strip():
            yield _example(tags_path, row, words.split(), tags.split())


def _read_rows(path):
    columns, rows = read_table(path)
    name = "tokens" if "tokens" in columns else "words"
    for row, values in rows:
        words = texts_of(path, row, values, name)
        if "tags" in columns:
            yield _example(path, row, words, texts_of(path, row, values, "tags"))
        else:
            yield TaggedExample(words, None, row)


def _example(path, row, words, tags):
    if len(words) != len(tags):
        raise InputError(f"{path}: row {row}: must have as many tags as words, {len(words)}; got {len(tags)}")
    return TaggedExample(words, to_bio(tags, itertools.repeat(f"{path}: row {row}: a tag")), row)


def _sentences(path):
    """Yields (rows, words, tags) of each sentence: list of int; first column and last one, as BIO, None if there is
    but one column."""
    count, sentence = None, []
    for row, _, line in itertools.chain(lines(path), [(0, 1.0, "")]):
        line = line.rstrip("\r\n")
        columns = line.split("\t") if "\t" in line else re.split(" +", line.strip())
        if not line.strip() or columns[0] == "-DOCSTART-":
            if sentence:
                rows, words, tags = map(list, zip(*sentence))
                yield rows, words, to_bio(tags, (f"{path}: row {row}: a tag" for row in rows)) if count > 1 else None
            sentence = []
        elif not re.match("#+ ", line) or _TAG.fullmatch(columns[-1]):
            count = count or len(columns)
            if len(columns) != count:
                raise InputError(f"{path}: row {row}: must have {count} columns as the rows before; got {len(columns)}")
            sentence.append((row, columns[0], columns[-1]))


_SUFFIXES = {".conll": _read_conll, ".bio": _read_conll, ".iob": _read_conll, ".tsv": _read_conll, ".txt": _read_conll,
             ".jsonl": _read_rows, ".parquet": _read_rows}
FORMATS = {"conll": _read_conll, "klue-ner": _read_klue_ner, "snips": _read_snips}
