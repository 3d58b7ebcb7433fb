"""Documents from text, JSON Lines and Parquet files, read a block at a time."""

import contextlib
import dataclasses
import json
import os
import re

from keras_bert.errors import InputError

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
    with reading(path):
        for share, lines in reader(path, text):
            if split_sentences:
                lines = [sentence for line in lines for sentence in _END.sub(r"\1\2\n", line).split("\n")]
            if sentences := [line.strip() for line in lines if line.strip()]:
                documents.append(sentences)
                characters += sum(map(len, sentences))
            if characters >= BLOCK and len(documents) > 1:
                yield Block(file, number, documents, share)
                documents, characters, number = [], 0, number + 1
    if documents:
        yield Block(file, number, documents, 1.0)


@contextlib.contextmanager
def reading(path):
    """Turns a failure of the system, a missing file say, into an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {os.strerror(error.errno) if error.errno else error}") from None


def _read_text(path, _):
    document = []
    for _, share, line in _lines(path):
        if line := line.strip():
            document.append(line)
        else:
            yield share, document
            document = []
    yield 1.0, document


def _read_json_lines(path, text):
    for row, share, line in _lines(path):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{path}: row {row}: not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError(f"{path}: row {row}: must be an object; got {line.strip()[:40]}")
        yield share, _document(path, row, text, values.get(text))


def _read_parquet(path, text):
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet files need pyarrow: pip install pyarrow") from None
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns, rows = file.schema_arrow.names, file.metadata.num_rows
            if text not in columns:
                raise InputError(f"{path}: there is no column {text!r}; the file has {', '.join(columns)}")
            for batch in file.iter_batches(1024, columns=[text]):  # of one row group
                for value in batch.column(0):
                    row += 1
                    yield row / rows, _document(path, row, text, value.as_py())
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: not a Parquet file: {error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: row {row}: must be UTF-8 text: {error.reason}") from None


_READERS = {".jsonl": _read_json_lines, ".parquet": _read_parquet}


def _lines(path):
    """(row, share of the file read, line) for each line."""
    read, size = 0, os.path.getsize(path)
    with open(path, "rb") as file:
        for row, line in enumerate(file, 1):
            read += len(line)
            try:
                yield row, read / size, line.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}: row {row}: must be UTF-8 text: {error.reason} at byte {error.start + 1}"
                                 ) from None


def _document(path, row, text, value):
    if not isinstance(value, str):
        raise InputError(f"{path}: row {row}: {text!r} must be a text; got {str(value)[:40]}")
    return value.split("\n")
