"""Makes examples in several processes on one machine."""

import collections
import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from keras_bert.arguments import Path
from keras_bert.pretraining.corpus import Block, Section
from keras_bert.pretraining.tfrecord import frame
from keras_bert.processes import map_in_order

MakeExamples = Callable[[Section], Iterator[tuple[np.ndarray, collections.Counter[str]]]]  # `ExampleMaker.examples`
_TOKENIZING = 0.2  # of the time, about


class Processes:
    """Makes pretraining examples on this machine, with the `progress` of `make_pretraining_data`. If `processes` is 1,
    this process does the work."""

    def __init__(self, processes: int, progress: Callable[[float, int], None] | None) -> None:
        self._processes = processes
        self._progress = progress or (lambda share, examples: None)

    def tokenize(self, write_part: Callable[[Block], int], read: Callable[[Path, int], Iterator[Block]],
                 paths: Sequence[Path]) -> collections.Counter[str]:
        """Passes each block of the files to `write_part`; returns the number of documents."""
        ends = [0, *itertools.accumulate(os.path.getsize(path) for path in paths)]
        counts = collections.Counter[str]()
        blocks = (block for number, path in enumerate(paths) for block in read(path, number))
        for block, documents in map_in_order(write_part, blocks, self._processes):
            counts["documents"] += documents
            done = ends[block.file] + block.share * (ends[block.file + 1] - ends[block.file])
            self._progress(_TOKENIZING * done / ends[-1], 0)
        return counts

    def write_shards(self, sections: Sequence[Section], make: MakeExamples, folder: str,
                     shards: int) -> collections.Counter[str]:
        """Writes examples to TFRecord files in turn, in the order of the texts, whichever process made them; returns
        the sum of the counts of `make`.

        A worker gets a section and writes its records to a temporary file, so that memory holds no more than one
        section per process and a few thousand examples.
        """
        counts = collections.Counter[str]()
        write = functools.partial(_write_section, make=make, folder=folder)
        with contextlib.ExitStack() as stack:
            paths = [os.path.join(folder, f"pretraining-{shard:05}-of-{shards:05}.tfrecord") for shard in range(shards)]
            files = [stack.enter_context(open(path, "wb")) for path in paths]  # numbered as TensorFlow and Beam do
            for section, (part, shapes, made) in map_in_order(write, sections, self._processes):
                with open(part, "rb") as file:
                    for shape in shapes:
                        records = np.fromfile(file, np.uint8, math.prod(shape)).reshape(shape)
                        for index, shard in enumerate(files):
                            shard.write(records[index::shards].tobytes())
                        files = files[len(records) % shards:] + files[:len(records) % shards]
                os.remove(part)
                counts.update(made)
                self._progress(_TOKENIZING + (1 - _TOKENIZING) * section.last / sections[-1].last, counts["examples"])
        return counts


def _write_section(section: Section, make: MakeExamples,
                   folder: str) -> tuple[str, list[tuple], collections.Counter[str]]:
    """Writes a section's records as arrays to a new file; returns its path, the shapes of the arrays, the counts."""
    part, shapes, counts = os.path.join(folder, f"{section.number}.part"), [], collections.Counter[str]()
    with open(part, "wb") as file:
        for examples, made in make(section):
            records = frame(examples)
            file.write(records.data)
            shapes.append(records.shape)
            counts.update(made)
    return part, shapes, counts
