"""Makes examples, and other results, in multiple processes on one machine."""

import collections
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.documents import Block
from keras_bert.data.tfrecord import frame
from keras_bert.errors import InputError

if TYPE_CHECKING:
    from keras_bert.data.pretraining import ExampleMaker

_TOKENIZING = 0.2  # of the time, about


def shard_path(folder, shard, shards):
    """Returns the path of a file of examples, numbered as TensorFlow and Beam do."""
    return os.path.join(folder, f"pretraining-{shard:05}-of-{shards:05}.tfrecord")


class Processes:
    """Makes pretraining examples on this machine.

    Args:
        processes: number of workers. If 1, this process does the work.
        progress: see `make_pretraining_data`.
    """

    def __init__(self, processes: int, progress: Callable[[float, int], None] | None):
        self._processes = processes
        self._progress = progress or (lambda share, examples: None)

    def tokenize(self, write_part: Callable[[Block], int], read: Callable[[Path, int], Iterator[Block]],
                 paths: Sequence[Path]) -> collections.Counter:
        """Passes each block of the files to `write_part`; returns the `Counter` of documents."""
        ends = [0, *itertools.accumulate(os.path.getsize(path) for path in paths)]
        counts: collections.Counter = collections.Counter()
        blocks = (block for number, path in enumerate(paths) for block in read(path, number))
        for block, documents in map_in_order(write_part, blocks, self._processes):
            counts["documents"] += documents
            done = ends[block.file] + block.share * (ends[block.file + 1] - ends[block.file])
            self._progress(_TOKENIZING * done / ends[-1], 0)
        return counts

    def write_shards(self, maker: "ExampleMaker", folder: str, shards: int) -> collections.Counter:
        """Writes examples to TFRecord files in turn, in the order of the texts, whichever process made them.

        A worker gets a section and writes its records to a temporary file, so that memory holds no more than one
        section per process and a few thousand examples.

        Returns:
            `Counter` of examples, tokens, masked and random_next.
        """
        counts: collections.Counter = collections.Counter()
        total = len(maker.corpus.documents) - 1
        make = functools.partial(_make, maker=maker, folder=folder)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(shard_path(folder, shard, shards), "wb")) for shard in range(shards)]
            for section, (part, shapes, made) in map_in_order(make, maker.corpus.sections(), self._processes):
                with open(part, "rb") as file:
                    for shape in shapes:
                        records = np.fromfile(file, np.uint8, math.prod(shape)).reshape(shape)
                        for index, shard in enumerate(files):
                            shard.write(records[index::shards].tobytes())
                        files = files[len(records) % shards:] + files[:len(records) % shards]
                os.remove(part)
                counts.update(made)
                self._progress(_TOKENIZING + (1 - _TOKENIZING) * section.last / total, counts["examples"])
        return counts


def map_in_order(function, items, processes):
    """Yields (item, function(item)) for each item, in order. Holds about twice as many items as there are processes.

    Args:
        function: function of an item. Each process gets a copy.
        items: iterable, which is read by this process.
        processes: number of worker processes. If 1, this process does the work.

    Raises:
        InputError: a worker was killed.
    """
    if processes == 1:
        for item in items:
            yield item, function(item)
        return
    with _pool(processes, function) as pool:
        waiting, starting = collections.deque(), _starting_context(function)
        for item in items:
            with starting():  # this may start a process
                future = pool.submit(_work, item)
            waiting.append((item, future))
            if len(waiting) > processes:
                item, future = waiting.popleft()
                yield item, future.result()
        for item, future in waiting:
            yield item, future.result()


def _make(section, maker, folder):
    """Writes the records of a section as arrays to a new file; returns (its path, shapes of the arrays, `Counter`)."""
    part, shapes, counts = os.path.join(folder, f"{section.number}.part"), [], collections.Counter()
    with open(part, "wb") as file:
        for examples, made in maker.examples(section):
            records = frame(examples)
            file.write(records)
            shapes.append(records.shape)
            counts.update(made)
    return part, shapes, counts


def _starting_context(function):
    """Returns the context manager in which to start processes that get a function: one that does nothing if the
    function needs the user's script, for example for a class that is defined there."""
    with _no_main_module():
        try:
            pickle.dumps(function)
            return _no_main_module
        except (pickle.PicklingError, AttributeError):
            return contextlib.nullcontext


@contextlib.contextmanager
def _no_main_module():
    """Context manager in which new processes do not run the user's script again, as `multiprocessing` makes them do: a
    script needs no `if __name__ == "__main__":`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _pool(processes, function):
    """Context manager that gives a pool of worker processes. They end at once when this process ends or when the body
    of the `with` statement fails, so that none still writes while its folder is removed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once
    held, lifeline = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, _begin, (held, function))
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise InputError("a worker process was killed, perhaps because memory ran out; pass a smaller processes=…"
                         ) from None
    except BrokenPipeError:
        raise InputError("a worker process ended while it started, with the error above") from None
    finally:
        lifeline.close()
        pool.shutdown()
        held.close()


def _begin(held, function):
    """Initialises a worker."""
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process has one core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one handles it
    threading.Thread(target=_end_with, args=(held,), daemon=True).start()


def _work(item):
    return _function(item)


def _end_with(held):
    with contextlib.suppress(EOFError, OSError):
        held.recv_bytes()  # nothing is ever sent; this ends when the other end closes
    os._exit(1)
