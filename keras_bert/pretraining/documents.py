"""Documents of text, JSON Lines and Parquet files, read one block at a time."""

import dataclasses
import re
from collections.abc import Iterator

from keras_bert.arguments import Path
from keras_bert.data.rows import ROW_FORMATS, lines, suffix_of
from keras_bert.data.tables import check_columns
from keras_bert.files.json_files import Record

BLOCK = 1_000_000  # characters after which a block ends
# The end of a sentence: Latin punctuation before white space, full-width punctuation anywhere, each with the closing
# quotes and brackets after it.
_END = re.compile(r"""([.!?…]["'”’»」』)\]]*)\s+|([。！？]["'”’»」』)\]）]*)""")


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive documents of one file. No document and no sentence is empty."""

    file: int
    number: int  # in its file
    documents: list[list[str]]  # the sentences of each
    share: float  # of the file that has been read at the end of this block, at most 1


def read_blocks(path: Path, file: int = 0, text_column: str = "text", split_sentences: bool = False) -> Iterator[Block]:
    """Yields the blocks of a file, which is read as a stream.

    A block ends once it has at least a million characters; the last one ends with the file. So no block is larger than
    a million characters plus a document.

    In text files, each line is a sentence, and a blank line ends a document. In `.jsonl` and `.parquet` files, each row
    is a document, and the lines of its text are the sentences.

    Args:
        path: the file, UTF-8.
        file: number of the file, stored in the blocks.
        text_column: key or column of the text in `.jsonl` and `.parquet` files.
        split_sentences: if True, also splits lines after `. ! ? …` (and closing quotes) followed by white space, and
            after `。 ！ ？`.

    Raises:
        InputError: the file is invalid (the message names the file and the row), or pyarrow, which Parquet needs, is
            not installed.
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
