"""TFRecord files as one list of records, each of them checked when it is read."""

import mmap
import os

import numpy as np

from keras_bert.data.tfrecord import FRAME, HEAD, checksums
from keras_bert.errors import InputError
from keras_bert.files import reading

MAX_RECORD = 2**17  # bytes; some hundred such examples are held in memory at once


class RecordFiles:
    """The records of some files by number. Only where they begin is kept in memory.

    Args:
        paths: list of TFRecord files, uncompressed.
        skip_corrupt: note what is broken in `broken` instead of raising an error.

    Attributes:
        broken: set of (path, byte), the broken places met so far.
        firsts: int64 [files + 1], the number of each file's first record, and of all records.

    Raises:
        InputError: a file cannot be read, or its records cannot be told apart: names the byte where.
    """

    def __init__(self, paths, skip_corrupt=False):
        self.paths = [os.fspath(path) for path in paths]
        self.skip_corrupt = skip_corrupt
        self.broken = set()
        bounds = [np.array(self._find(path), np.int64) for path in self.paths]
        self.firsts = np.cumsum([0, *(len(places) - 1 for places in bounds)])
        self._begins = np.concatenate([np.empty(0, np.int64), *(places[:-1] for places in bounds)])
        self._lengths = np.concatenate([np.empty(0, np.int64), *map(np.diff, bounds)]) - FRAME

    def __len__(self):
        return len(self._begins)

    def read(self, numbers):
        """The records of these numbers: list of bytes, None where one is broken and that is no error."""
        numbers, records = np.asarray(numbers), [None] * len(numbers)
        files = np.searchsorted(self.firsts, numbers, side="right") - 1
        for file in np.unique(files):
            with reading(self.paths[file]), open(self.paths[file], "rb") as stream:
                for row in np.flatnonzero(files == file):
                    stream.seek(self._begins[numbers[row]] + HEAD)
                    records[row] = stream.read(self._lengths[numbers[row]] + FRAME - HEAD)
        contents = [record[:HEAD - FRAME] for record in records]
        for row, checksum in enumerate(checksums(contents)):
            if records[row][HEAD - FRAME:] != checksum:
                self._note(self.paths[files[row]], self._begins[numbers[row]], "the record is corrupt")
                contents[row] = None
        return contents

    def _find(self, path):
        """Where each record begins and the last whole one ends: a list of int."""
        bounds, heads, size = [0], [], 0
        with reading(path), open(path, "rb") as file:
            if size := os.fstat(file.fileno()).st_size:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    while bounds[-1] + FRAME <= size:
                        heads.append(data[bounds[-1]:bounds[-1] + HEAD])
                        bounds.append(bounds[-1] + FRAME + int.from_bytes(heads[-1][:8], "little"))
        for begin, head, checksum in zip(bounds, heads, checksums([head[:8] for head in heads])):
            length = int.from_bytes(head[:8], "little")
            if head[8:] != checksum:
                problem = "no TFRecord begins here, or its length is corrupt"
            elif length > MAX_RECORD:
                problem = f"a record of {length} bytes is no example"
            elif begin + FRAME + length > size:
                problem = "the file is cut off within the record"
            else:
                continue
            self._note(path, begin, problem)
            return bounds[:bounds.index(begin) + 1]
        if bounds[-1] != size:
            self._note(path, bounds[-1], "the file is cut off within the record")
        return bounds

    def _note(self, path, byte, problem):
        if not self.skip_corrupt:
            raise InputError(f"{path}: byte {byte}: {problem}; with skip_corrupt it is left out")
        self.broken.add((path, int(byte)))
