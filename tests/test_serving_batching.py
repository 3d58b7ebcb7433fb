"""Batches of requests, without a model and without a server, by a clock that does not wait."""

import asyncio
import selectors

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert.serving import batcher as batcher_module
from keras_bert.serving.batcher import Batcher, Overloaded, Part

REQUESTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 12), st.integers(0, 3), st.booleans()),
                    min_size=1, max_size=25)


class Recorder:
    """Runs batches of (key, number, is bad): the answer is the number; a bad request fails its whole batch."""

    def __init__(self, seconds=0.001):
        self.batches, self.seconds = [], seconds

    async def __call__(self, requests):
        self.batches.append(requests)
        await asyncio.sleep(self.seconds)
        if any(is_bad for _, _, is_bad in requests):
            raise ValueError(str([number for _, number, is_bad in requests if is_bad]))
        return [number for _, number, _ in requests]


async def ask(batcher, number, key="a", tokens=1, is_bad=False):
    """The result of a request of one part."""
    with batcher.queue([Part((key, number, is_bad), key, tokens)]) as (future,):
        return await future


async def ask_parts(batcher, number, count, tokens=10, key="a"):
    """The numbers of a request of many parts."""
    with batcher.queue([Part((key, number, False), key, tokens)] * count) as futures:
        return [(await future).result for future in futures]


def numbers(run):
    return [[number for _, number, _ in batch] for batch in run.batches]


class Clock(selectors.DefaultSelector):
    """Where an event loop would wait for its next timer, moves the time to it."""

    now = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "nothing would ever happen again"
        self.now += max(timeout, 0)
        return super().select(0)


def play(scenario, run, budget=10, delay=0.0, limit=100, **options):
    """The result of a coroutine function of a `Batcher`."""
    clock = Clock()

    async def work():
        batcher = Batcher(run, budget, delay, limit, **options)
        task = asyncio.create_task(batcher.work())
        try:
            return await scenario(batcher)
        finally:
            task.cancel()

    def make_loop():
        loop = asyncio.SelectorEventLoop(clock)
        loop.time = lambda: clock.now
        return loop

    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=make_loop) as runner:
        patch.setattr(batcher_module, "perf_counter", lambda: clock.now)
        return runner.run(work())


def now():
    return asyncio.get_running_loop().time()


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.sampled_from([0.0, 0.002]))
def test_each_gets_its_own_in_order_within_the_budget_whatever_the_others_do(requests, delay):
    run = Recorder()

    async def ask_later(batcher, number, key, tokens, wait, is_bad):
        await asyncio.sleep(wait / 1000 + number / 1e6)  # timers of the same time have no order
        return await ask(batcher, number, key, tokens, is_bad)

    async def scenario(batcher):
        return await asyncio.gather(
            *(ask_later(batcher, number, *request) for number, request in enumerate(requests)),
            return_exceptions=True)

    for number, (answer, (*_, is_bad)) in enumerate(zip(play(scenario, run, delay=delay), requests)):
        if is_bad:
            assert isinstance(answer, ValueError) and str(answer) == f"[{number}]"  # it alone
        else:
            assert answer.result == number and answer.queued >= 0 and answer.computed > 0
    for batch in run.batches:
        assert len({key for key, _, _ in batch}) == 1
        assert len(batch) == 1 or sum(requests[number][1] for _, number, _ in batch) <= 10
    firsts = [number for batch in run.batches for _, number, _ in batch if not requests[number][3]]
    for key in "ab":
        for wait in range(4):  # of those that came together
            for is_large in (False, True):  # the two take turns
                order = [number for number in firsts if requests[number][::2] == (key, wait)
                         and (requests[number][1] > 10) == is_large]
                assert list(dict.fromkeys(order)) == sorted(set(order))


def test_what_waits_runs_together_and_an_idle_model_at_once():
    run = Recorder(0.02)

    async def scenario(batcher):
        first = asyncio.create_task(ask(batcher, 0))
        await asyncio.sleep(0.005)
        rest = [asyncio.create_task(ask(batcher, number)) for number in range(1, 6)]
        return [await task for task in (first, *rest)]

    answers = play(scenario, run, delay=1.0)
    assert [len(batch) for batch in run.batches] == [1, 5]
    assert answers[0].queued < 0.01 and all(0.005 < answer.queued < 0.04 for answer in answers[1:])


def test_after_a_batch_of_several_as_many_are_waited_for_but_not_long():
    run = Recorder()

    async def scenario(batcher):
        async def client(number, rounds):
            return [await ask(batcher, number) for _ in range(rounds)]

        await asyncio.gather(*(client(number, 10) for number in range(4)))
        return await client(9, 2)

    late = play(scenario, run, delay=0.1)
    assert {len(batch) for batch in run.batches[:10]} == {4}
    assert 0.05 < late[0].queued < 0.2 and late[1].queued < 0.05


def test_who_has_gone_is_not_run_and_leaves_its_place():
    run = Recorder(0.02)

    async def scenario(batcher):
        running = asyncio.create_task(ask(batcher, 0))
        await asyncio.sleep(0.005)
        gone, late = asyncio.create_task(ask(batcher, 1)), asyncio.create_task(ask_parts(batcher, 2, 3))
        await asyncio.sleep(0)
        assert (len(batcher), batcher.tokens) == (2, 31)
        with pytest.raises(Overloaded):
            await ask(batcher, 3)
        gone.cancel()
        late.cancel()
        await asyncio.sleep(0)
        assert (len(batcher), batcher.tokens, batcher.abandoned) == (0, 0, 0)
        running.cancel()
        await asyncio.sleep(0)
        assert batcher.abandoned == 1
        answer = await ask(batcher, 4)
        await asyncio.sleep(0.001)
        assert batcher.abandoned == 0
        return answer.result

    assert play(scenario, run, limit=2) == 4
    assert numbers(run) == [[0], [4]]


def test_large_requests_are_finished_in_order_and_take_turns_with_small_ones():
    """A part that leaves room in its batch takes small ones along."""
    run = Recorder(0.002)

    async def scenario(batcher):
        *large, _ = await asyncio.gather(
            ask_parts(batcher, 100, 4, tokens=8), ask_parts(batcher, 200, 4, tokens=8),
            asyncio.gather(*(ask(batcher, number, tokens=5) for number in range(4)),
                           ask(batcher, 9, key="b", tokens=2), ask(batcher, 4, tokens=2)))
        assert large == [[100] * 4, [200] * 4]

    play(scenario, run)
    assert numbers(run) == [[0, 1], [100], [2, 3], [100, 4], [9], [100], [100], [200], [200], [200], [200]]


def test_what_cannot_be_answered_in_time_is_rejected_at_once_and_the_rest_answered():
    """A batch of 10 tokens takes 10 ms. 64 clients, and then none, ask for 160 tokens at a time, in 2 seconds: without
    limits, all would wait 10 seconds."""
    run, timeout_s, seconds = Recorder(0.01), 2.0, 60.0

    async def scenario(batcher):
        answered, rejected = [], []

        async def client(batcher, number):
            while now() < end:
                start = now()
                try:
                    async with asyncio.timeout(timeout_s):
                        await ask_parts(batcher, number, 16)
                    answered.append(now() - start)
                except TimeoutError:  # it counts as one that ran in vain
                    pass
                except Overloaded as error:
                    rejected.append((start, now() - start, error.retry_after))
                    await asyncio.sleep(error.retry_after)

        async def small(batcher):
            slowest = 0.0
            while now() < end:
                answer = await ask(batcher, 0)
                slowest = max(slowest, answer.queued + answer.computed)
                await asyncio.sleep(0.05)
            return slowest

        end = now() + seconds
        slowest, *_ = await asyncio.gather(
            small(batcher), *(client(batcher, number) for number in range(1, 65)))
        assert (len(batcher), batcher.tokens) == (0, 0)
        return answered, rejected, slowest

    answered, rejected, slowest = play(scenario, run, timeout_s=timeout_s)
    batches = [bool(batch[0]) for batch in numbers(run)]
    assert sum(batches) >= 0.95 * (seconds / 0.01 - batches.count(False))  # it has been idle for 5% of the time at most
    assert 16 * len(answered) >= 0.95 * sum(batches)  # nearly all that ran was answered in time
    assert not any(waited for start, waited, _ in rejected if start > timeout_s)  # now, the throughput is known
    assert len(rejected) > len(answered) and {retry_after for *_, retry_after in rejected} <= {1, 2}
    assert slowest <= 0.03  # the running batch, one of a large request, and its own


@pytest.mark.parametrize("budget,seconds_before", [(1, 12), (128, 0), (2048, 12)])
def test_light_load_does_not_lower_the_estimate(budget, seconds_before):
    """Batches that could have been larger say little about the throughput, and the first guess must not reject."""
    async def run(batch):
        await asyncio.sleep(0.01 + 0.001 * len(batch))
        return batch

    async def scenario(batcher):
        while now() < seconds_before:
            await ask(batcher, 0, tokens=20)
            await asyncio.sleep(0.01)
        await asyncio.gather(*(ask(batcher, number, tokens=20) for number in range(400)))

    play(scenario, run, budget, limit=512, timeout_s=30)


def test_a_request_that_alone_takes_too_long_is_tried_if_nothing_waits():
    """Otherwise, a wrong measurement would never be corrected."""
    run = Recorder(0.05)

    async def scenario(batcher):
        assert await ask_parts(batcher, 1, 4) == [1] * 4
        with pytest.raises(Overloaded):
            await asyncio.gather(ask_parts(batcher, 2, 4), ask_parts(batcher, 3, 4), ask_parts(batcher, 4, 4))

    play(scenario, run, timeout_s=0.1)


def test_batches_run_in_parallel():
    run = Recorder(0.05)

    async def scenario(batcher):
        start = now()
        await asyncio.gather(*(ask(batcher, number, key=number) for number in range(6)))
        return now() - start

    assert 0.09 < play(scenario, run, parallel=3) < 0.2
