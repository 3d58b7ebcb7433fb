"""A corpus as token ids in files, which may be larger than the memory. Blocks of documents are read (`read_blocks`),
tokenized in any order and by any process (`write_part`), and joined into one `Corpus` (`join`)."""

import bisect
import collections
import contextlib
import dataclasses
import itertools
import os
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Self

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.rows import ROW_FORMATS, lines, suffix_of
from keras_bert.data.tables import check_columns
from keras_bert.files.json_files import Record
from keras_bert.text import Tokenizer
from keras_bert.text.packing import positions_of

SECTION = 250_000  # tokens after which a section ends
_BATCH = 1_000_000  # characters that are tokenized at once, and words whose ids are kept; bounds the memory
BLOCK = 1_000_000  # characters after which a block ends
# The end of a sentence: Latin punctuation before white space, full-width punctuation anywhere, each with the closing
# quotes and brackets after it.
_END = re.compile(r"""([.!?…]["'”’»」』)\]]*)\s+|([。！？]["'”’»」』)\]）]*)""")
_DTYPES = {"ids": np.int32, "sentences": np.int64, "documents": np.int64}


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive documents of one file. No document and no sentence is empty."""

    file: int
    number: int  # in its file
    documents: list[list[str]]  # the sentences of each
    share: float  # of the file that has been read at the end of this block, at most 1


def read_blocks(path: Path, file: int = 0, text_column: str = "text", split_sentences: bool = False) -> Iterator[Block]:
    """Yields the blocks of a file, which is read as a stream. A block ends once it has at least a million characters.

    In text files, each line is a sentence, and a blank line ends a document. In `.jsonl` and `.parquet` files, each row
    is a document, and the lines of its text are the sentences.

    Args:
        path: the file, UTF-8.
        file: number of the file, stored in the blocks.
        text_column: key or column of the text in `.jsonl` and `.parquet` files.
        split_sentences: if True, also splits lines after `. ! ? …` (and closing quotes) followed by white space, and
            after `。 ！ ？`.

    Raises:
        InputError: the file is invalid (the message names it and the row), or pyarrow is missing, which Parquet needs.
    """
    has_rows = suffix_of(path) in (".jsonl", ".parquet")
    documents, characters, number = [], 0, 0
    for share, document in _read_rows(path, text_column) if has_rows else _read_text(path):
        if split_sentences:
            document = [sentence for line in document for sentence in _END.sub(r"\1\2\n", line).split("\n")]
        if sentences := [line.strip() for line in document if line.strip()]:
            documents.append(sentences)
            characters += sum(map(len, sentences))
        if characters >= BLOCK:
            yield Block(file, number, documents, share)
            documents, characters, number = [], 0, number + 1
    if documents:
        yield Block(file, number, documents, 1.0)


def _read_text(path: Path) -> Iterator[tuple[float, list[str]]]:
    """Yields the share of the file that has been read, and the lines of each document, perhaps none."""
    document = []
    for _, share, line in lines(path):
        if line := line.strip():
            document.append(line)
        else:
            yield share, document
            document = []
    yield 1.0, document


def _read_rows(path: Path, text_column: str) -> Iterator[tuple[float, list[str]]]:
    form = ROW_FORMATS[suffix_of(path)]
    columns, rows = form.open(path, [text_column])
    check_columns(path, columns or [text_column], [text_column])
    for row, share, cells in rows:
        yield share, Record(path, row, form.parse(path, row, cells, columns)).text(text_column).split("\n")


@dataclasses.dataclass(frozen=True)
class Section:
    """The documents from number `first` up to `last`, exclusive, of which examples are made at once."""

    number: int
    first: int
    last: int


# Returns a few thousand examples of a section at a time, with their counts: `ExampleMaker.examples`.
MakeExamples = Callable[[Section], Iterator[tuple[np.ndarray, collections.Counter[str]]]]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The concatenated token ids of documents, without the sentences and documents that have no tokens."""

    ids: np.ndarray  # int32 [tokens]
    sentences: np.ndarray  # int64 [sentences + 1], where each one begins in `ids`, then the end of the last
    documents: np.ndarray  # int64 [documents + 1], the number of each one's first sentence, then of all sentences

    @classmethod
    def open(cls, folder: str) -> Self:
        """Opens the corpus that `join` wrote; its arrays are read from the files where they are used."""
        return cls(*(np.memmap(os.path.join(folder, name), dtype, "r").view(np.ndarray)
                     for name, dtype in _DTYPES.items()))

    def part(self, section: Section) -> "Corpus":
        documents = self.documents[section.first:section.last + 1]
        sentences = self.sentences[documents[0]:documents[-1] + 1]
        return Corpus(self.ids[sentences[0]:sentences[-1]], sentences - sentences[0], documents - documents[0])

    def sections(self) -> Iterator[Section]:
        """Divides all documents into sections of at least `SECTION` tokens, except the last."""
        count, number, first = len(self.documents) - 1, 0, 0
        while first < count:
            last = bisect.bisect_left(range(count), self._begin(first) + SECTION, first + 1, key=self._begin)
            yield Section(number, first, last)
            number, first = number + 1, last

    def _begin(self, document: int) -> np.int64:
        return self.sentences[self.documents[document]]


def write_part(block: Block, words: "WordIds", folder: str) -> int:
    """Writes the token ids of a block into a folder; returns the number of its documents."""
    sentences = [sentence for document in block.documents for sentence in document]
    batches = np.cumsum([len(sentence) for sentence in sentences]) // _BATCH
    ids, lengths = zip(*(words([sentences[i] for i in batch])
                         for _, batch in itertools.groupby(range(len(sentences)), batches.__getitem__)))
    lengths = np.concatenate(lengths)
    owners = np.repeat(np.arange(len(block.documents)), [len(document) for document in block.documents])
    sizes = np.bincount(owners[lengths > 0])
    path = os.path.join(folder, f"{block.file:08}-{block.number:08}.npz")
    unfinished = f"{path}.{secrets.token_hex(8)}"  # Beam may give a block to two workers
    with open(unfinished, "wb") as file:
        np.savez(file, ids=np.concatenate(ids), sentences=lengths[lengths > 0], documents=sizes[sizes > 0])
    os.replace(unfinished, path)
    return len(block.documents)


def join(folder: str) -> int:
    """Joins what `write_part` wrote, in order, for `Corpus.open`; returns the number of documents that have tokens."""
    totals, documents = {"sentences": 0, "documents": 0}, 0  # totals: tokens, and sentences, so far
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(os.path.join(folder, name), "wb")) for name in _DTYPES}
        for name in totals:
            np.zeros(1, _DTYPES[name]).tofile(files[name])
        for part in sorted(name for name in os.listdir(folder) if name.endswith(".npz")):
            with np.load(os.path.join(folder, part)) as arrays:
                arrays["ids"].tofile(files["ids"])
                documents += len(arrays["documents"])
                for name, total in totals.items():
                    (total + np.cumsum(arrays[name], dtype=_DTYPES[name])).tofile(files[name])
                    totals[name] = total + int(arrays[name].sum())
            os.remove(os.path.join(folder, part))
    return documents


class WordIds:
    """A converter of texts to token ids that keeps the ids of each word between spaces, and so takes a third of the
    tokenizer's time. With the tokenizer, the ids of a text must be the joined ids of these words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._reset()

    def _reset(self) -> None:
        self._numbers = _Numbers()
        self._ids, self._counts = np.empty(0, np.int32), np.empty(0, int)  # of all words, in the order of their numbers

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all texts, concatenated, int32 [ids], and the number of ids per text, int64 [texts]."""
        if len(self._ids) > _BATCH:
            self._reset()
        words = " ".join(texts).split(" ")
        numbers = np.fromiter(map(self._numbers.__getitem__, words), int, len(words))
        ids, new = self.tokenizer.flat_ids(list(itertools.islice(self._numbers, len(self._counts), None)))
        self._ids, self._counts = np.append(self._ids, ids), np.append(self._counts, new)
        firsts = np.cumsum([0, *(text.count(" ") + 1 for text in texts[:-1])])
        return self._ids[positions_of(numbers, self._counts)], np.add.reduceat(self._counts[numbers], firsts)


class _Numbers(dict):
    """A dict that numbers words from 0 in the order in which they are first looked up."""

    def __missing__(self, word: str) -> int:
        return self.setdefault(word, len(self))
