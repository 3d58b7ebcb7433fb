"""The cores that a process may use, and functions called in several processes on one machine."""

import collections
import contextlib
import ctypes
import math
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

from keras_bert.errors import InputError, Option

# The files of the CPU limit of Linux's cgroups, version 2 and 1: microseconds in each period, and the period.
_CPU_LIMITS = ("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
_CGROUPS = "/sys/fs/cgroup"
_HUGE_PAGE, _MADV_COLLAPSE = 2**21, 25  # of Linux, on x86-64 and on arm64 with pages of 4 KiB
_function: Callable[[Any], Any]  # what a worker calls


def available_cores() -> int:
    """Returns the number of cores that this process may use: those that it may run on or, if that is less, those of its
    container's limit (`docker run --cpus`, Kubernetes's `limits.cpu`), rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in _CPU_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or the quota is "max"
            quota, period = (int(part) for name in names for part in pathlib.Path(_CGROUPS, name).read_text().split())
            count = min(count, math.ceil(quota / period)) if quota > 0 else count  # -1 is version 1's "max"
    return count


def map_in_order(function: Callable[[Any], Any], items: Iterable, processes: int) -> Iterator[tuple[Any, Any]]:
    """Yields (item, function(item)) for each item, in order. This process reads the items and holds about twice as many
    as there are processes; each of these gets a copy of the function. With one process, this one does the work. Raises
    an InputError if a worker was killed."""
    if processes == 1:
        for item in items:
            yield item, function(item)
        return
    with _pool(processes, function) as pool:
        waiting: collections.deque[tuple[Any, Future]] = collections.deque()
        starting = _starting_context(function)
        for item in items:
            with starting():  # this may start a process
                waiting.append((item, pool.submit(_work, item)))
            if len(waiting) > processes:
                item, future = waiting.popleft()
                yield item, future.result()
        for item, future in waiting:
            yield item, future.result()


def _starting_context(function: Callable[[Any], Any]) -> Callable[[], contextlib.AbstractContextManager]:
    """Returns the context manager in which to start processes: one that does nothing if the function needs the user's
    script, for example for a class that is defined there."""
    with _no_main_module():
        try:
            pickle.dumps(function)
            return _no_main_module
        except (pickle.PicklingError, AttributeError):
            return contextlib.nullcontext


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Context manager in which new processes do not run the user's script again, so that it needs no
    `if __name__ == "__main__":`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _pool(processes: int, function: Callable[[Any], Any]) -> Iterator[ProcessPoolExecutor]:
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
        raise InputError("a worker process was killed, perhaps because memory ran out; pass a smaller ",
                         Option("processes=…")) from None
    except BrokenPipeError:
        raise InputError("a worker process ended while it started, with the error above") from None
    finally:
        lifeline.close()
        pool.shutdown()
        held.close()


def _begin(held: Connection, function: Callable[[Any], Any]) -> None:
    """Initialises a worker."""
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process has one core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one handles it
    threading.Thread(target=_end_with, args=(held,), daemon=True).start()


def _work(item: Any) -> Any:
    return _function(item)


def _end_with(held: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        held.recv_bytes()  # nothing is ever sent; this ends when the other end closes
    os._exit(1)


@contextlib.contextmanager
def huge_pages(waits: bool) -> Iterator[None]:
    """Context manager that moves the memory of this process that is new after its block into huge pages of 2 MiB, on
    Linux 6.1 or later; in the background, unless it `waits`. Without them, a processor that has not read the memory for
    a while spends more time on finding the addresses of its pages than on reading it: after 200 ms without a request,
    MiniLM in float32 takes 24 ms on one core for 16 tokens, and 10 with huge pages."""
    before = _large_memory()
    yield
    new = _large_memory() - before
    if waits:
        _collapse(new)
    else:
        with contextlib.suppress(RuntimeError):  # there may be no more threads
            threading.Thread(target=_collapse, args=(new,), daemon=True).start()


def _large_memory() -> set[int]:
    """Returns the numbers of the huge pages that this process's private memory could have."""
    try:
        maps = pathlib.Path("/proc/self/maps").read_bytes()
    except OSError:  # not Linux
        return set()
    found = re.findall(rb"^(\w+)-(\w+) rw-p 0+ 00:00 0 *(?:\[heap\])?$", maps, re.MULTILINE)
    return {page for start, end in found for page in range(
        -(-int(start, 16) // _HUGE_PAGE), int(end, 16) // _HUGE_PAGE)}


def _collapse(pages: Iterable[int]) -> None:
    for page in pages:  # one that has been freed meanwhile stays free
        ctypes.CDLL(None).madvise(ctypes.c_void_p(page * _HUGE_PAGE), ctypes.c_size_t(_HUGE_PAGE), _MADV_COLLAPSE)
