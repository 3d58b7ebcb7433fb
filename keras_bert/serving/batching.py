"""Requests that wait are run together. Pure asyncio: what runs is passed in."""

import asyncio
import contextlib
import dataclasses
from time import perf_counter  # asyncio's own clock may tick in milliseconds


class QueueFull(Exception):
    """As many requests wait as may."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a request gets.

    Args:
        result: its own.
        queued: seconds that it waited.
        computed: seconds that its batch ran.
        batch: number of requests in it.
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
    """Joins requests into batches and runs one batch at a time.

    What waits when a batch has ended is the next batch, so that nothing waits where nothing runs. Only where the last
    batch had more requests than now wait, they are given `delay` seconds from its end: clients that were answered
    together ask again together, and without the pause the first of them would run alone.

    Args:
        run: coroutine function of a list of requests; returns the list of their results.
        budget: most tokens of a batch; a request with more is a batch of its own.
        delay: seconds.
        limit: most requests that may wait.
    """

    def __init__(self, run, budget, delay, limit):
        self._run, self._budget, self._delay, self._limit = run, budget, delay, limit
        self._waiting, self._arrived = [], asyncio.Event()
        self._ended, self._size = 0.0, 0  # of the last batch

    def __len__(self):
        """How many requests wait."""
        return len(self._waiting)

    async def submit(self, request, key, tokens):
        """Returns the `Answer`. Whoever cancels this takes the request out, if it does not run already.

        Args:
            request: for `run`.
            key: requests of equal keys may be in one batch.
            tokens: what it counts in the budget.

        Raises:
            QueueFull: it was not taken.
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
        """Runs batches for ever."""
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
        """The oldest request and those like it behind it, in their order, up to the budget."""
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
            if len(batch) > 1:  # one of them is at fault: the others shall not know
                for item in batch:
                    if not item.future.done():
                        await self._answer([item])
            elif not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for item, result in zip(batch, results):
            if not item.future.done():
                item.future.set_result(Answer(result, start - item.since, perf_counter() - start, len(batch)))
