"""Documents of text, JSON Lines and Parquet files, read one block at a time, and the token ids of a block."""

import dataclasses
import itertools
import re

import numpy as np

from keras_bert.data.tables import check_columns, json_lines, lines, parquet_rows, suffix_of, text_of

BLOCK = 1_000_000  # characters after which a block ends
# The end of a sentence: Latin punctuation before white space, full-width punctuation anywhere, each with the closing
# quotes and brackets after it.
_END = re.compile(r"""([.!?…]["'”’»」』)\]]*)\s+|([。！？]["'”’»」』)\]）]*)""")


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive documents of one file, from which examples are made.

    Args:
        file: number of the file.
        number: number of the block in its file.
        documents: list of list of str, the sentences of each document. No document and no sentence is empty.
        share: fraction of the file that has been read at the end of this block, at most 1.
    """

    file: int
    number: int
    documents: list
    share: float


def read_blocks(path, file=0, text_column="text", split_sentences=False):
    """Yields the blocks of a file, which is read as a stream.

    A block ends once it has at least a million characters and at least two documents; the last one ends with the file.
    So no block is larger than a million characters plus two documents.

    In text files, each line is a sentence, and a blank line ends a document. In `.jsonl` and `.parquet` files, each row
    is a document, and the lines of its text are the sentences.

    Args:
        path: path of the file, UTF-8.
        file: number of the file, stored in the blocks.
        text_column: key or column of the text in `.jsonl` and `.parquet` files.
        split_sentences: if True, also splits lines after `. ! ? …` (and closing quotes) followed by white space, and
            after `。 ！ ？`.

    Yields:
        `Block`s.

    Raises:
        InputError: the file is invalid (the message names the file and the row), or pyarrow, which Parquet needs, is
            not installed.
    """
    reader = _READERS.get(suffix_of(path), _read_text)
    documents, characters, number = [], 0, 0
    for share, document in reader(path, text_column):
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


def _read_json_lines(path, text_column):
    for row, share, values in json_lines(path):
        yield share, text_of(path, row, values, text_column).split("\n")


def _read_parquet(path, text_column):
    rows = parquet_rows(path, [text_column])
    check_columns(path, next(rows), [text_column])
    for row, share, values in rows:
        yield share, text_of(path, row, values, text_column).split("\n")


_READERS = {".jsonl": _read_json_lines, ".parquet": _read_parquet}


class WordIds:
    """A converter of texts to token ids that keeps the ids of each word that it has tokenized.

    It takes a third of the tokenizer's time, because most words of a text have occurred before.

    Args:
        tokenizer: `BertTokenizer`. The ids of a text must be those of its parts between spaces, joined.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self._reset()

    def __call__(self, texts):
        """Returns the ids of all texts, concatenated, int32 [ids], and the number of ids per text, int64 [texts]."""
        if len(self._ids) > BLOCK:  # bounds the memory
            self._reset()
        words = " ".join(texts).split(" ")
        numbers = np.fromiter(map(self._numbers.__getitem__, words), int, len(words))
        self._add(list(itertools.islice(self._numbers, len(self._counts), None)))
        counts = self._counts[numbers]
        begins = np.cumsum(self._counts)[numbers] - counts
        positions = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        firsts = np.cumsum([0, *(text.count(" ") + 1 for text in texts[:-1])])
        return self._ids[positions], np.add.reduceat(counts, firsts)

    def _reset(self):
        self._numbers = _Numbers()
        self._ids, self._counts = np.empty(0, np.int32), np.empty(0, int)  # of all words, in the order of their numbers

    def _add(self, words):
        ids, counts = self.tokenizer.flat_ids(words)
        self._ids, self._counts = np.append(self._ids, ids), np.append(self._counts, counts)


class _Numbers(dict):
    """A dict that numbers words from 0 in the order in which they are first looked up."""

    def __missing__(self, word):
        return self.setdefault(word, len(self))


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The concatenated token ids of documents, without the sentences and documents that have no tokens.

    Args:
        ids: int32 [tokens].
        sentences: list of int, the index in `ids` at which each sentence begins, then the end of the last one.
        documents: list of int, the number of each document's first sentence, then the number of sentences.
    """

    ids: np.ndarray
    sentences: list
    documents: list

    @classmethod
    def of(cls, documents, words):
        """Tokenizes documents, lists of str, with a `WordIds`, a million characters at a time to bound the memory."""
        sentences = [sentence for document in documents for sentence in document]
        ends = np.cumsum([len(sentence) for sentence in sentences]) // BLOCK
        ids, lengths = zip(*(words([sentences[i] for i in group])
                             for _, group in itertools.groupby(range(len(sentences)), ends.__getitem__)))
        lengths = np.concatenate(lengths)
        owners = np.repeat(np.arange(len(documents)), [len(document) for document in documents])[lengths > 0]
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        return cls(np.concatenate(ids), [0, *np.cumsum(lengths[lengths > 0]).tolist()], [*firsts.tolist(), len(owners)])
