"""Documents from text, JSON Lines and Parquet files, read a block at a time."""

import dataclasses
import os
import re

from keras_bert.data.tables import check_columns, json_lines, lines, parquet_rows, text_of

BLOCK = 1_000_000  # characters that close a block
# The end of a sentence: Latin stops before white space, full-width ones wherever they stand; closing quotes stay.
_END = re.compile(r"""([.!?…]["'”’»」』)\]]*)\s+|([。！？]["'”’»」』)\]）]*)""")


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive documents of one file; examples are made of one block at a time.

    Args:
        file: number of the file.
        number: number of the block in its file.
        documents: list of list of str, the sentences of each document; no document and no sentence is empty.
        share: how much of the file has been read when this block ends, up to 1.
    """

    file: int
    number: int
    documents: list
    share: float


def read_blocks(path, file=0, text="text", split_sentences=False):
    """The blocks of a file, which is read as a stream: a block ends where it holds a million characters and two
    documents, the last one at the end of the file. So none is larger than that and two documents.

    In text files a line is a sentence, and a blank line ends a document. In `.jsonl` and `.parquet` files a row is a
    document, and the lines of its text are the sentences.

    Args:
        path: the file, UTF-8.
        file: its number, for the blocks.
        text: key or column of the text, in `.jsonl` and `.parquet` files.
        split_sentences: split lines after `. ! ? …` and closing quotes before white space, and after `。 ！ ？`.

    Yields:
        `Block`s.

    Raises:
        InputError: names the file and the row, or says how to install pyarrow, which Parquet needs.
    """
    reader = _READERS.get(os.path.splitext(path)[1].lower(), _read_text)
    documents, characters, number = [], 0, 0
    for share, document in reader(path, text):
        if split_sentences:
            document = [sentence for line in document for sentence in _END.sub(r"\1\2\n", line).split("\n")]
        if sentences := [line.strip() for line in document if line.strip()]:
            documents.append(sentences)
            characters += sum(map(len, sentences))
        if characters >= BLOCK and len(documents) > 1:
            yield Block(file, number, documents, share)
            documents, characters, number = [], 0, number + 1
    if documents:
        yield Block(file, number, documents, 1.0)


def _read_text(path, _):
    document = []
    for _, share, line in lines(path):
        if line := line.strip():
            document.append(line)
        else:
            yield share, document
            document = []
    yield 1.0, document


def _read_json_lines(path, text):
    for row, share, values in json_lines(path):
        yield share, text_of(path, row, values, text).split("\n")


def _read_parquet(path, text):
    rows = parquet_rows(path, [text])
    check_columns(path, next(rows), [text])
    for row, share, values in rows:
        yield share, text_of(path, row, values, text).split("\n")


_READERS = {".jsonl": _read_json_lines, ".parquet": _read_parquet}
