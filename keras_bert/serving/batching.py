"""Batching of waiting requests. Uses only asyncio; the function that runs a batch is passed in."""

import asyncio
import contextlib
import dataclasses
from time import perf_counter  # asyncio's own clock may have a resolution of milliseconds


class QueueFull(Exception):
    """The maximum number of requests is waiting."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a request, with its times.

    Args:
        result: result of this request alone.
        queued: seconds that the request waited.
        computed: seconds that its batch ran.
        batch: number of requests in the batch.
    """

    result: object
    queued: float
    computed: float
    batch: int


@dataclasses.dataclass(eq=False)
class _Item:
    request: object
    key: object
    tokens: int
    future: asyncio.Future
    since: float


class Batcher:
    """A queue that joins requests into batches and runs one batch at a time.

    The requests that wait when a batch ends form the next batch, so none waits while nothing runs. There is one
    exception: if fewer requests wait than the last batch had, the next batch starts as soon as that many wait, but at
    most `delay` seconds after the end of the last batch. Clients that got their answers together send their next
    requests together, and without this pause the first of these requests would run alone.

    Args:
        run: coroutine function from a list of requests to the list of their results.
        budget: maximum tokens per batch; a request with more is a batch of its own.
        delay: maximum length of the pause, in seconds.
        limit: maximum number of waiting requests.
    """

    def __init__(self, run, budget, delay, limit):
        self._run, self._budget, self._delay, self._limit = run, budget, delay, limit
        self._waiting, self._arrived = [], asyncio.Event()
        self._ended, self._size = 0.0, 0  # of the last batch

    def __len__(self):
        """Returns the number of waiting requests."""
        return len(self._waiting)

    async def submit(self, request, key, tokens):
        """Queues a request and returns its `Answer`. Cancelling this call removes the request, unless it is already
        running.

        Args:
            request: a request for `run`.
            key: requests with equal keys may be in one batch.
            tokens: number of tokens that the request counts towards the budget.

        Raises:
            QueueFull: the request was not queued.
            Exception: whatever `run` raised for this request alone.
        """
        if len(self) >= self._limit:
            raise QueueFull
        item = _Item(request, key, tokens, asyncio.get_running_loop().create_future(), perf_counter())
        self._waiting.append(item)
        self._arrived.set()
        try:
            return await item.future
        finally:
            if item in self._waiting:
                self._waiting.remove(item)

    async def work(self):
        """Runs batches forever."""
        while True:
            await self._gather()
            if batch := self._take():
                await self._answer(batch)
                self._ended, self._size = perf_counter(), len(batch)

    async def _gather(self):
        while not self._waiting:
            await self._arrival()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ended + self._delay - perf_counter()):
                while len(self) < self._size:
                    await self._arrival()

    async def _arrival(self):
        self._arrived.clear()
        await self._arrived.wait()

    def _take(self):
        """Removes the oldest request and the later ones with the same key from the queue, up to the budget; returns
        them in order."""
        batch, tokens = [], 0
        for item in self._waiting:
            if item.key == self._waiting[0].key:
                tokens += item.tokens
                if batch and tokens > self._budget:
                    break
                batch.append(item)
        self._waiting = [item for item in self._waiting if item not in batch]
        return batch

    async def _answer(self, batch):
        start = perf_counter()
        try:
            results = await self._run([item.request for item in batch])
        except Exception as error:
            if len(batch) > 1:  # one request is at fault: run each alone, so that the others succeed
                for item in batch:
                    if not item.future.done():
                        await self._answer([item])
            elif not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for item, result in zip(batch, results):
            if not item.future.done():
                item.future.set_result(Answer(result, start - item.since, perf_counter() - start, len(batch)))
