"""Makes examples, and other results, in multiple processes on one machine."""

import collections
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from keras_bert.data.tfrecord import frame
from keras_bert.errors import InputError


def shard_path(folder, shard, shards):
    """Returns the path of a file of examples, numbered as TensorFlow and Beam do."""
    return os.path.join(folder, f"pretraining-{shard:05}-of-{shards:05}.tfrecord")


def write_shards(maker, read, paths, folder, shards, processes, progress=None):
    """Writes examples to TFRecord files in turn, in the order of the texts, whichever process made them.

    A worker gets a block and writes its records to a temporary file, so that memory holds no more than one block per
    process and a few thousand examples.

    Args:
        maker: an object with the method `examples` of `ExampleMaker`. Each worker gets a copy.
        read: function of a path and its number that yields `Block`s.
        paths: list of input files.
        folder: output folder.
        shards: number of TFRecord files.
        processes: number of workers. If 1, this process does the work.
        progress: see `make_pretraining_data`.

    Returns:
        `Counter` of documents, examples, tokens, masked and random_next.
    """
    ends = [0, *itertools.accumulate(os.path.getsize(path) for path in paths)]
    counts = collections.Counter()
    blocks = (block for number, path in enumerate(paths) for block in read(path, number))
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(shard_path(folder, shard, shards), "wb")) for shard in range(shards)]
        make = functools.partial(_make, maker=maker, folder=folder)
        for block, (part, shapes, made) in map_in_order(make, blocks, processes):
            with open(part, "rb") as file:
                for shape in shapes:
                    records = np.fromfile(file, np.uint8, math.prod(shape)).reshape(shape)
                    for index, shard in enumerate(files):
                        shard.write(records[index::shards].tobytes())
                    files = files[len(records) % shards:] + files[:len(records) % shards]
            os.remove(part)
            counts.update(made)
            if progress:
                done = ends[block.file] + block.share * (ends[block.file + 1] - ends[block.file])
                progress(done / ends[-1], counts["examples"])
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
        waiting = collections.deque()
        for item in items:
            waiting.append((item, pool.submit(_work, item)))
            if len(waiting) > processes:
                item, future = waiting.popleft()
                yield item, future.result()
        for item, future in waiting:
            yield item, future.result()


def _make(block, maker, folder):
    """Writes the records of a block as arrays to a new file; returns (its path, shapes of the arrays, `Counter`)."""
    part, shapes = os.path.join(folder, f"{block.file}-{block.number}.part"), []
    counts = collections.Counter(documents=len(block.documents))
    with open(part, "wb") as file:
        for examples, made in maker.examples(block):
            records = frame(examples)
            file.write(records)
            shapes.append(records.shape)
            counts.update(made)
    return part, shapes, counts


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
