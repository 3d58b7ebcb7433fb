"""Batching of waiting requests. Uses only asyncio; the function that runs a batch is passed in."""

import asyncio
import collections
import contextlib
import dataclasses
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from time import perf_counter  # asyncio's own clock may have a resolution of milliseconds
from typing import Generic, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

_DECAY_S = 10  # seconds in which the weight of a measured throughput falls to 1/e
_PRIOR = 20_000  # tokens per second before the first measurement: many, so that a guess does not reject requests
_PRIOR_S = 0.01  # seconds that this guess counts as
_SMALL = 256  # tokens of a request, a few short texts
_SHARE = 0.8  # of the timeout that the work in the queue may take; the rest is for errors of the estimate


class Overloaded(Exception):
    """The request cannot be answered in time. The queue will have room in `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(retry_after)
        self.retry_after = math.ceil(max(1, retry_after))


@dataclasses.dataclass(frozen=True)
class Part(Generic[Work]):
    """A part of a request. Parts with equal keys may be in one batch."""

    work: Work
    key: Hashable
    tokens: int


@dataclasses.dataclass(frozen=True)
class BatchResult(Generic[Result]):
    """The result of a part."""

    result: Result
    queued: float  # seconds that the part waited
    computed: float  # seconds that its batch ran


@dataclasses.dataclass(eq=False)
class _Waiting(Generic[Work, Result]):
    """A part that waits or runs."""

    part: Part[Work]
    lane: "_Lane[Work, Result]"
    future: asyncio.Future[BatchResult[Result]]
    queued_at: float


@dataclasses.dataclass(eq=False)
class _Request(Generic[Work, Result]):
    """The parts of a request that wait."""

    parts: collections.deque[_Waiting[Work, Result]]
    tokens: int  # of all its parts
    queued_at: float
    has_begun: bool = False


class _Lane(Generic[Work, Result]):
    """A queue of requests, in the order of arrival, and its throughput: tokens that ran, by the seconds in which the
    lane had work, from its first batch on, also while another lane ran. A batch after which nothing waited could have
    been larger: what it says of the throughput counts only if it is faster than before."""

    def __init__(self) -> None:
        self.requests: list[_Request[Work, Result]] = []
        self.parts = 0  # of all requests
        self.waiting = self.running = 0  # tokens
        self._is_idle = True  # until its first batch begins
        self._tokens, self._seconds, self._measured_at = _PRIOR * _PRIOR_S, _PRIOR_S, 0.0

    def add(self, parts: Sequence[Part[Work]], tokens: int) -> _Request[Work, Result]:
        now, loop = perf_counter(), asyncio.get_running_loop()
        waiting = collections.deque(_Waiting(part, self, loop.create_future(), now) for part in parts)
        self.requests.append(request := _Request(waiting, tokens, now))
        self.parts += len(parts)
        self.waiting += tokens
        return request

    def remove(self, request: _Request[Work, Result]) -> None:
        self.requests.remove(request)
        self.parts -= len(request.parts)
        self.waiting -= sum(waiting.part.tokens for waiting in request.parts)

    def take(self, batch: list[_Waiting[Work, Result]], room: int) -> int:
        """Moves parts to a batch, in order, as long as they have the key of its first part and at most `room` tokens.
        Returns the room that is left."""
        if self.requests and self._is_idle:
            self._is_idle, self._measured_at = False, perf_counter()
        for request in self.requests.copy():
            while request.parts and (not batch or request.parts[0].part.key == batch[0].part.key):
                tokens = request.parts[0].part.tokens
                if batch and tokens > room:
                    return room
                batch.append(request.parts.popleft())
                request.has_begun = True
                self.parts -= 1
                room, self.waiting, self.running = room - tokens, self.waiting - tokens, self.running + tokens
            if not request.parts:
                self.requests.remove(request)
        return room

    def estimate(self, tokens: int) -> float:
        """Returns the seconds that so many tokens take."""
        return tokens * self._seconds / self._tokens

    def measure(self, tokens: int, is_full: bool) -> None:
        """Adds tokens that have run since the last call, or none. `is_full` says whether others waited when they
        began."""
        now = perf_counter()
        seconds = now - self._measured_at
        if self.waiting + self.running and (is_full or tokens * self._seconds > seconds * self._tokens):
            weight = math.exp(-seconds / _DECAY_S)
            self._tokens, self._seconds = weight * self._tokens + tokens, weight * self._seconds + seconds
        self._measured_at = now
        self.running -= tokens
        self._is_idle = not self.waiting + self.running


class Batcher(Generic[Work, Result]):
    """A queue that joins requests into batches and runs them. A large request is queued in parts.

    Requests run in the order of arrival, and all parts of a request before the next request, so that under overload
    those that were begun are finished. Small requests do not wait for all larger ones before them: there is one lane
    for each kind, and they take turns, batch by batch. A batch that has room takes parts of the other lane, too.

    A request is rejected if, by the throughput of the last seconds, it would not be answered within the timeout; unless
    nothing waits in its lane, because only running something corrects the measured throughput. A request that has
    waited too long to be answered in time does not begin.

    The requests that wait when a batch ends form the next batch, so none waits while nothing runs. There is one
    exception: if fewer parts wait than the last batch had, the next batch starts as soon as that many wait, but at
    most `delay` seconds after the end of the last batch. Clients that got their answers together send their next
    requests together, and without this pause the first of these requests would run alone: 8 clients would get 172
    answers per second instead of 196.

    Args:
        run: returns the results of a batch.
        budget: maximum tokens per batch; a part with more is a batch of its own.
        delay: maximum length of the pause, in seconds.
        limit: maximum number of waiting requests.
        timeout_s: seconds in which a request must be answered.
        parallel: number of batches that run at the same time.
    """

    def __init__(self, run: Callable[[list[Work]], Awaitable[list[Result]]], budget: int, delay: float, limit: float,
                 timeout_s: float = math.inf, parallel: int = 1) -> None:
        self._run, self._budget, self._delay, self._limit = run, budget, delay, limit
        self._timeout_s, self._parallel = timeout_s, parallel
        self._small, self._large = _Lane[Work, Result](), _Lane[Work, Result]()
        self._turns = [self._small, self._large]  # the lane whose turn is next, then the other
        self._running: dict[_Waiting[Work, Result], float] = {}  # and when it began
        self._arrived, self._last_end, self._last_size = asyncio.Event(), 0.0, 0

    def __len__(self) -> int:
        """The number of requests of which at least one part waits."""
        return sum(len(lane.requests) for lane in self._turns)

    @property
    def tokens(self) -> int:
        """The tokens that wait."""
        return sum(lane.waiting for lane in self._turns)

    @property
    def abandoned(self) -> int:
        """The number of parts that run although nobody waits for them."""
        return sum(waiting.future.cancelled() for waiting in self._running)

    @property
    def lateness(self) -> float:
        """The seconds that a batch runs longer than the timeout, when what runs it should have ended it."""
        return perf_counter() - min(self._running.values(), default=math.inf) - self._timeout_s

    @contextlib.contextmanager
    def queue(self, parts: Sequence[Part[Work]]) -> Iterator[list[asyncio.Future[BatchResult[Result]]]]:
        """Context manager that queues the parts of a request, and yields the futures of their results. Parts that still
        wait when the block ends are removed. A future may raise what `run` raised for its part alone.

        Raises:
            Overloaded: here, or from the futures.
        """
        tokens = sum(part.tokens for part in parts)
        lane = self._small if tokens <= min(self._budget, _SMALL) else self._large
        too_late = lane.estimate(lane.waiting + lane.running + tokens) - _SHARE * self._timeout_s
        if len(self) >= self._limit or (lane.requests and too_late > 0):
            raise Overloaded(min(too_late, self._timeout_s))
        request = lane.add(parts, tokens)
        futures = [waiting.future for waiting in request.parts]
        self._arrived.set()
        try:
            yield futures
        finally:
            if request in lane.requests:
                lane.remove(request)
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # otherwise asyncio would log that nobody has seen it

    async def work(self) -> None:
        """Runs batches until its task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._parallel):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            await self._wait()
            if batch := self._next_batch():
                full = [lane for lane in self._turns if lane.waiting]
                await self._run_batch(batch)
                for waiting in batch:
                    del self._running[waiting]
                for lane in self._turns:
                    lane.measure(sum(waiting.part.tokens for waiting in batch if waiting.lane is lane), lane in full)
                self._last_end, self._last_size = perf_counter(), len(batch)

    async def _wait(self) -> None:
        """Waits for a part, then for as many as the last batch had, but not beyond the pause."""
        await self._wait_for(1)
        if (seconds := self._last_end + self._delay - perf_counter()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wait_for(self._last_size)

    async def _wait_for(self, count: int) -> None:
        while sum(lane.parts for lane in self._turns) < count:
            self._arrived.clear()
            await self._arrived.wait()

    def _next_batch(self) -> list[_Waiting[Work, Result]]:
        """Takes from the queue the oldest part of the lane whose turn it is, and other parts with its key."""
        self._reject_late()
        self._turns.sort(key=lambda lane: not lane.requests)  # a lane without requests has no turn
        batch: list[_Waiting[Work, Result]] = []
        room = self._budget
        for lane in self._turns:
            room = lane.take(batch, room)
        self._turns.reverse()
        return batch

    def _reject_late(self) -> None:
        """Rejects the next requests that would not be answered in time any more."""
        for lane in self._turns:
            while lane.requests and not lane.requests[0].has_begun:
                request = lane.requests[0]
                seconds = lane.estimate(request.tokens)
                left = request.queued_at + self._timeout_s - perf_counter()
                if seconds <= left or seconds > _SHARE * self._timeout_s:
                    break
                lane.remove(request)
                for waiting in request.parts:
                    if not waiting.future.done():  # it may just have been cancelled
                        waiting.future.set_exception(Overloaded(0))

    async def _run_batch(self, batch: list[_Waiting[Work, Result]]) -> None:
        start = perf_counter()
        self._running.update(dict.fromkeys(batch, start))
        try:
            results = await self._run([waiting.part.work for waiting in batch])
        except Exception as error:
            if len(batch) > 1:  # one part is at fault: run each alone, so that the others succeed
                for waiting in batch:
                    if not waiting.future.done():
                        await self._run_batch([waiting])
            elif not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.future.done():
                queued = start - waiting.queued_at
                waiting.future.set_result(BatchResult(result, queued, perf_counter() - start))
