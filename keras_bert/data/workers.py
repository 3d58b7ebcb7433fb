"""Makes examples in multiple processes on one machine."""

import collections
import contextlib
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
        for block, (part, shapes, made) in _parts(maker, blocks, folder, processes):
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


def _parts(maker, blocks, folder, processes):
    """Yields (block, result of `_make`) for each block, in order."""
    if processes == 1:
        for block in blocks:
            yield block, _make(block, maker, folder)
        return
    with _pool(processes, maker, folder) as pool:
        waiting = collections.deque()
        for block in blocks:
            waiting.append((block, pool.submit(_work, block)))
            if len(waiting) > processes:
                block, future = waiting.popleft()
                yield block, future.result()
        for block, future in waiting:
            yield block, future.result()


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
def _pool(processes, maker, folder):
    """Context manager that gives a pool of worker processes. They end at once when this process ends or when the body
    of the `with` statement fails, so that none still writes while the folder is removed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once
    held, lifeline = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, _begin, (held, maker, folder))
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


def _begin(held, *arguments):
    """Initialises a worker."""
    global _arguments
    _arguments = arguments
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process has one core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one handles it
    threading.Thread(target=_end_with, args=(held,), daemon=True).start()


def _work(block):
    return _make(block, *_arguments)


def _end_with(held):
    with contextlib.suppress(EOFError, OSError):
        held.recv_bytes()  # nothing is ever sent; this ends when the other end closes
    os._exit(1)
