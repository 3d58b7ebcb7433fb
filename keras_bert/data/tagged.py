"""Readers of texts whose words or characters have tags, and the tags' schemes."""

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.examples import choose, label_of, only
from keras_bert.data.rows import lines, paired_lines
from keras_bert.data.tables import Rows, at_least_one, check_columns, choose_reader, read_table
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import Record

OUTSIDE = "O"
Unit = Literal["word", "character"]  # what tags belong to
_TAG = re.compile(r"\s*(?:O|([BIELSU])-\s*(\S|\S.*\S))\s*")
_LABEL = re.compile(r"#+\s+intent\s*[:=]\s*(\S.*?)\s*", re.IGNORECASE)  # a comment before a sentence
_RULE = "must be O, or B-, I-, E-, L-, S- or U- and a type"
_KEYS = {"start_offset": "start", "end_offset": "end", "labels": "label"}
_Span = tuple[int, int, str]  # the start and the end of an entity in characters, and its type


@dataclasses.dataclass(frozen=True)
class TaggedExample:
    """The words of a sentence and their BIO tags, if any. `row` is the line of its first word or the record, from 1;
    `label` is the class of the sentence, if it was asked for."""

    words: list[str]
    tags: list[str] | None
    row: int | None
    label: str | None = None

    unit: ClassVar[Unit] = "word"

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def starts(self) -> np.ndarray:
        """The position of each word in the text: int64 [words]."""
        return np.cumsum([0, *(len(word) + 1 for word in self.words[:-1])])


@dataclasses.dataclass(frozen=True)
class TaggedText:
    """A text and the BIO tags of its characters (code points); for the rest, see `TaggedExample`."""

    text: str
    tags: list[str] | None
    row: int | None
    label: str | None = None

    unit: ClassVar[Unit] = "character"

    @property
    def starts(self) -> np.ndarray:
        """The position of each character: int64 [characters]."""
        return np.arange(len(self.text))


Tagged = TaggedExample | TaggedText


def read_tagged(path: Path | Rows, data_format: str | None = None, label_column: str | None = None
                ) -> Iterator[Tagged]:
    """Reads sentences and converts their tags to BIO, see `to_bio`.

    Args:
        path: the file, UTF-8, or the folder; or `Rows`, with the columns of `.jsonl`.
        data_format: `conll`: one word per line, with its tag in the last column. Blank lines and lines of -DOCSTART-
            end sentences. Lines before the first word of a sentence that begin with `# ` are comments, unless they have
            the columns of a word. A file with one column has no tags.
            `klue-ner` (Park et al., 2021): one character per line with its tag, spaces included.
            `naver-ner` (Naver NLP challenge, 2018): a number, a word and its tag per line, separated by tabs, with the
            type first, PER_B, and - for O; or KoBERT-NER's form: a sentence per line, a tab, and a tag for each word,
            PER-B or O.
            `snips` (Goo et al., 2018): a folder of `seq.in`, words, and `seq.out`, tags, with one sentence per line.
            If None, the suffix decides: `.jsonl` and `.parquet` have rows with the lists `words` or `tokens`, and
            `tags`; or with `text` and `entities`, a list of objects with `start`, `end` and `label`. `.conll`, `.bio`,
            `.iob`, `.tsv` and `.txt` are `conll`; a folder with `seq.in` is `snips`.
        label_column: the column of rows that has the label of the sentence. If it is given, labels are also read from
            comments of `conll`, `# intent: LABEL`, and from the file `label` of a folder. Otherwise, they are None.

    Yields:
        `TaggedExample`s, or `TaggedText`s if the tags are those of characters.

    Raises:
        InputError: names the file, the row and the tag.
    """
    if data_format:
        reader = choose(path, data_format, FORMATS)
    elif not isinstance(path, Rows) and os.path.isfile(os.path.join(path, "seq.in")):
        reader = _read_snips
    else:
        reader = choose_reader(path, _READERS, "a file of tagged words",
                               other=(", or have a ", Option("data_format"), f" of {', '.join(FORMATS)}"))
    return at_least_one(reader(path, label_column), f"{path}: holds no sentences")


def to_bio(tags: Iterable[str], places: Iterable[str] | None = None) -> list[str]:
    """Converts a sentence's tags from any of the schemes IOB1, IOB2 (BIO), IOE1, IOE2, IOBES (BIOES) and BILOU to BIO.

    An entity begins at B, S and U, and at I, E and L unless the previous tag is B or I of the same type. This is the
    rule of `conlleval` (Tjong Kim Sang and De Meulder, 2003), and it is correct for each of these schemes.

    Args:
        tags: "O", or a letter, a hyphen and a type.
        places: the name of each tag in error messages; by default, "a tag".

    Returns:
        the tags, without white space around types.

    Raises:
        InputError: names a tag that has another form.
    """
    converted: list[str] = []
    before: tuple[str, str] | None = None
    for tag, place in zip(tags, places or itertools.repeat("a tag")):
        if not (match := _TAG.fullmatch(tag)):
            raise InputError(f"{place} {_RULE}; got {tag!r}")
        letter, kind = match.groups()
        inside = letter in ("I", "E", "L") and before in (("B", kind), ("I", kind))
        converted.append(f"{'I' if inside else 'B'}-{kind}" if letter else OUTSIDE)
        before = letter, kind
    return converted


def type_of(label: str) -> str:
    """Returns the type of the entity of a label other than O: `PER` for `B-PER`, `I-PER` and `PER`."""
    return label[2:] or label if label[:2] in ("B-", "I-") else label


def spans_of(labels: Sequence[str]) -> list[tuple[int, int]]:
    """Returns pairs of the first and the last label + 1 of the entities in BIO labels. An I- that does not follow a
    label of the same type begins an entity. A label of another form, from a tagger of another library, counts as I- of
    a type of this name, as in transformers. keras_bert/tasks/tag_graph.py has this rule as TensorFlow operations on a
    batch, for SavedModels; tests/test_decoding.py compares the two."""
    spans: list[tuple[int, int]] = []
    for index, (before, label) in enumerate(itertools.pairwise([OUTSIDE, *labels])):
        if before != OUTSIDE and not label.startswith("B-") and type_of(before) == type_of(label):
            spans[-1] = (spans[-1][0], index + 1)
        elif label != OUTSIDE:
            spans.append((index, index + 1))
    return spans


def _read_conll(path: Path, label_column: str | None) -> Iterator[TaggedExample]:
    for row, words, tags, comments in _sentences(
            path, "a word in the first column", lambda columns: columns[0].strip() != ""):
        labels = [match[1] for comment in comments if (match := _LABEL.fullmatch(comment.line))]
        yield TaggedExample(words, tags, row, labels[0] if label_column and len(labels) == 1 else None)


def _read_klue_ner(path: Path, _label_column: str | None) -> Iterator[TaggedText]:
    for row, characters, tags, _ in _sentences(path, "one character and a tag", lambda columns: (
            len(columns) > 1 and len(columns[0]) == 1)):
        text = "".join(characters)
        # A few entities of the published files begin with a space.
        spans = [(*_trimmed(text, first, end), tags[first][2:]) for first, end in spans_of(tags)
                 if not text[first:end].isspace()]
        yield _tagged_text(text, spans, row)


def _read_naver_ner(path: Path, _label_column: str | None) -> Iterator[TaggedExample]:
    sentence = []
    for row, _, line in itertools.chain(lines(path), [(0, 1.0, "")]):
        cells = line.strip().split("\t")
        if len(cells) == 3:
            sentence.append((row, cells[1], _naver_tag(cells[2])))
            continue
        if sentence:
            rows, words, tags = map(list, zip(*sentence))
            yield TaggedExample(words, to_bio(tags, (f"{path}: row {row}: a tag" for row in rows)), rows[0])
            sentence = []
        if len(cells) == 2:
            yield _example(path, row, cells[0].split(), list(map(_naver_tag, cells[1].split())))
        elif line.strip():
            raise InputError(f"{path}: row {row}: must have a sentence, a tab and its tags, or a number, a word and a "
                             f"tag, separated by tabs; got {line.strip()[:40]!r}")


def _naver_tag(tag: str) -> str:
    return OUTSIDE if tag == "-" else re.sub("(.+)[-_]([BI])", r"\2-\1", tag)


def _read_snips(folder: Path, label_column: str | None) -> Iterator[TaggedExample]:
    names = "seq.in", "seq.out", "label"
    for row, (words, tags, *label) in paired_lines(folder, *names[:2 if label_column is None else 3]):
        yield _example(os.path.join(folder, "seq.out"), row, words.split(), tags.split(), *label)


def _read_rows(path: Path | Rows, label_column: str | None) -> Iterator[Tagged]:
    columns, rows = read_table(path)
    name = "tokens" if "tokens" in columns else "words"
    check_columns(path, columns, ["text"] * (name not in columns), "; pass words and tags, or text and entities")
    found = {*columns} - {label_column}
    column = next((each for each in ("entities", "spans", "label", "labels") if {each, "text"} <= found), "")
    check_columns(path, columns, [label_column] * (label_column is not None))
    for row in rows:
        label = label_of(row, label_column) if label_column else None
        entities = row.values.get(column)
        if entities is None and "annotation_id" in columns:  # Label Studio leaves out the key if there are no entities
            entities = []
        if isinstance(entities, list) and all(isinstance(x, list | dict) for x in entities):
            row.values["entities"] = list(map(_as_object, entities))
        if "entities" in row.values:
            text = row.text("text", labelled=True)
            yield _tagged_text(text, _spans(row, text), row.place, label)
        elif name not in columns:
            yield TaggedText(row.text("text"), None, row.place, label)
        elif "tags" in columns:
            yield _example(path, row.place, row.texts(name), row.texts("tags"), label)
        else:
            yield TaggedExample(row.texts(name), None, row.place, label)


def _as_object(entity: Any) -> Any:
    """Returns an entity with the keys of this package: of doccano and spaCy, a list, or an object of Label Studio or
    of doccano's relations."""
    if isinstance(entity, list) and len(entity) == 3:
        return dict(zip(("start", "end", "label"), entity))
    return {_KEYS.get(key, key): only(value) for key, value in entity.items()} if isinstance(entity, dict) else entity


def _example(path: Path | Rows, row: int, words: list[str], tags: list[str], label: str | None = None
             ) -> TaggedExample:
    if len(words) != len(tags):
        raise InputError(f"{path}: row {row}: must have as many tags as words, {len(words)}; got {len(tags)}")
    return TaggedExample(words, to_bio(tags, itertools.repeat(f"{path}: row {row}: a tag")), row, label)


def _tagged_text(text: str, spans: Iterable[_Span], row: int, label: str | None = None) -> TaggedText:
    """Returns a `TaggedText` with these entities, which must not overlap."""
    tags = [OUTSIDE] * len(text)
    for start, end, kind in spans:
        tags[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
    return TaggedText(text, tags, row, label)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns the start and the end of a span without the white space at its ends."""
    span = text[start:end]
    return end - len(span.lstrip()), start + len(span.rstrip())


def _spans(row: Record, text: str) -> list[_Span]:
    """Returns the entities of a row, sorted and without white space at their ends."""
    spans = []
    for number, entity in enumerate(row.records("entities", "entity"), 1):
        start, end, label = entity.get("start", int), entity.get("end", int), entity.text("label", labelled=True)
        if not 0 <= start < end <= len(text):
            raise InputError(f"{entity}: must have 0 <= start < end <= {len(text)}, the length of the text in code "
                             f"points; got start {start} and end {end}")
        if not text[start:end].strip():
            raise InputError(f"{entity}: must contain more than white space; got {text[start:end]!r}")
        if (copy := entity.values.get("text") or text[start:end]) != text[start:end]:
            raise InputError(f"{entity}: text[{start}:{end}], counted in code points, must be {copy!r}; "
                             f"got {text[start:end]!r}")
        spans.append((*_trimmed(text, start, end), label.strip(), number))
    spans.sort()
    for (_, end, _, one), (start, _, _, other) in itertools.pairwise(spans):
        if start < end:
            raise InputError(f"{row}: entities must not overlap; entity {one} ends at {end}, and entity {other} "
                             f"starts at {start}")
    return [(start, end, label) for start, end, label, _ in spans]


class _Line(NamedTuple):
    row: int
    line: str
    columns: list[str]


def _sentences(path: Path, rule: str, holds: Callable[[list[str]], bool]
               ) -> Iterator[tuple[int, list[str], Any, list[_Line]]]:
    """Yields the first row, the words, the tags and the comments of each sentence. Words are the first column, tags the
    last one as BIO, or None if there is only one. The columns of each row must have what `rule` says, which `holds`
    tests."""
    count: int | None = None
    block: list[_Line] = []
    for row, _, line in itertools.chain(lines(path), [(0, 1.0, "")]):
        line = line.rstrip("\r\n")
        columns = line.split("\t") if "\t" in line else re.split(" +", line.strip())
        if line.strip() and columns[0] != "-DOCSTART-":
            block.append(_Line(row, line, columns))
            continue
        comments, sentence, block = *_divide(block, count), []
        if sentence:
            count = count or len(sentence[0].columns)
            for row, _, columns in sentence:
                if len(columns) != count:
                    raise InputError(
                        f"{path}: row {row}: must have {count} columns, like the rows before; got {len(columns)}")
                if not holds(columns):
                    raise InputError(f"{path}: row {row}: must have {rule}; got {columns[0]!r}")
            rows = [entry.row for entry in sentence]
            words, tags = ([entry.columns[i] for entry in sentence] for i in (0, -1))
            if rows[0] == 1 and count > 1 and not _TAG.fullmatch(tags[0]):
                raise InputError(f"{path}: row 1: a tag {_RULE}; got {tags[0]!r}; if this is a header, delete it")
            bio = to_bio(tags, (f"{path}: row {row}: a tag" for row in rows)) if count > 1 else None
            yield rows[0], words, bio, comments


def _divide(block: list[_Line], count: int | None) -> tuple[list[_Line], list[_Line]]:
    """Returns the comments before the first word of a sentence, and the rest: `# text` is one, but not the word `#`
    with its tag. `count` is the number of columns of a word, None in the first sentence, whose last line has as many.
    """
    def is_comment(entry: _Line) -> bool:
        is_word = len(entry.columns) == (count or len(block[-1].columns)) and _TAG.fullmatch(entry.columns[-1])
        return re.match("#+ ", entry.line) is not None and not is_word

    comments = list(itertools.takewhile(is_comment, block))
    return comments, block[len(comments):]


_READERS: dict[str | None, Callable] = {
    **dict.fromkeys([".conll", ".bio", ".iob", ".tsv", ".txt"], _read_conll),
    **dict.fromkeys([None, ".jsonl", ".json", ".parquet"], _read_rows)}
FORMATS: dict[str, Callable] = {
    "conll": _read_conll, "klue-ner": _read_klue_ner, "naver-ner": _read_naver_ner, "snips": _read_snips}
