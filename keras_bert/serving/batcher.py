"""Batching of waiting requests. Uses only asyncio; the function that runs a batch is passed in."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Hashable
from time import perf_counter  # asyncio's own clock may have a resolution of milliseconds
from typing import Generic, NoReturn, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class BatchResult(Generic[Result]):
    """The result of one request of a batch."""

    result: Result
    queued: float  # seconds that the request waited
    computed: float  # seconds that its batch ran


@dataclasses.dataclass(eq=False)
class _Waiting(Generic[Request, Result]):
    """A request in the queue."""

    request: Request
    key: Hashable
    tokens: int
    future: asyncio.Future[BatchResult[Result]]
    queued_at: float


class Batcher(Generic[Request, Result]):
    """A queue that joins requests into batches and runs one batch at a time.

    The requests that wait when a batch ends form the next batch, so none waits while nothing runs. There is one
    exception: if fewer requests wait than the last batch had, the next batch starts as soon as that many wait, but at
    most `delay` seconds after the end of the last batch. Clients that got their answers together send their next
    requests together, and without this pause the first of these requests would run alone: 8 clients would get 172
    answers per second instead of 196.

    Args:
        run: returns the results of a batch of requests.
        budget: maximum tokens per batch; a request with more is a batch of its own.
        delay: maximum length of the pause, in seconds.
        limit: maximum number of waiting requests.
    """

    def __init__(self, run: Callable[[list[Request]], Awaitable[list[Result]]], budget: int, delay: float,
                 limit: float) -> None:
        self._run, self._budget, self._delay, self._limit = run, budget, delay, limit
        self._queue: list[_Waiting[Request, Result]] = []
        self._running: list[_Waiting[Request, Result]] = []
        self._arrived, self._last_end, self._last_size = asyncio.Event(), 0.0, 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def abandoned(self) -> int:
        """The number of requests that run although their call of `submit` was cancelled."""
        return sum(waiting.future.cancelled() for waiting in self._running)

    async def submit(self, request: Request, key: Hashable, tokens: int) -> BatchResult[Result]:
        """Queues a request of so many tokens; requests with equal keys may be in one batch. Cancelling this call
        removes the request, unless it is already running.

        Raises:
            asyncio.QueueFull: the maximum number of requests is waiting.
            Exception: whatever `run` raised for this request alone.
        """
        if len(self) >= self._limit:
            raise asyncio.QueueFull
        waiting = _Waiting(request, key, tokens, asyncio.get_running_loop().create_future(), perf_counter())
        self._queue.append(waiting)
        self._arrived.set()
        try:
            return await waiting.future
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)

    async def work(self) -> NoReturn:
        """Runs batches until its task is cancelled. Several tasks run as many batches at the same time."""
        while True:
            await self._wait()
            if batch := self._next_batch():
                await self._run_batch(batch)
                self._last_end, self._last_size = perf_counter(), len(batch)

    async def _wait(self) -> None:
        """Waits for a request, then for as many as the last batch had, but not beyond the pause."""
        await self._wait_for(1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._last_end + self._delay - perf_counter()):
                await self._wait_for(self._last_size)

    async def _wait_for(self, count: int) -> None:
        while len(self) < count:
            self._arrived.clear()
            await self._arrived.wait()

    def _next_batch(self) -> list[_Waiting[Request, Result]]:
        """Takes from the queue the oldest request and the later ones with its key, in order, up to the budget."""
        batch: list[_Waiting[Request, Result]] = []
        tokens = 0
        for waiting in self._queue:
            if waiting.key == self._queue[0].key:
                tokens += waiting.tokens
                if batch and tokens > self._budget:
                    break
                batch.append(waiting)
        self._queue = [waiting for waiting in self._queue if waiting not in batch]
        return batch

    async def _run_batch(self, batch: list[_Waiting[Request, Result]]) -> None:
        start = perf_counter()
        try:
            results = await self._run_together(batch)
        except Exception as error:
            if len(batch) > 1:  # one request is at fault: run each alone, so that the others succeed
                for waiting in batch:
                    if not waiting.future.done():
                        await self._run_batch([waiting])
            elif not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.future.done():
                waiting.future.set_result(BatchResult(result, start - waiting.queued_at, perf_counter() - start))

    async def _run_together(self, batch: list[_Waiting[Request, Result]]) -> list[Result]:
        self._running += batch
        try:
            return await self._run([waiting.request for waiting in batch])
        finally:
            self._running = [waiting for waiting in self._running if waiting not in batch]
