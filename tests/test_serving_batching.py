"""Batches of requests, without a model and without a server."""

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert.serving.batcher import Batcher

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


@contextlib.asynccontextmanager
async def working(run, budget=10, delay=0.0, limit=100):
    batcher = Batcher(run, budget, delay, limit)
    task = asyncio.create_task(batcher.work())
    yield batcher
    task.cancel()


def play(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 20))


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.sampled_from([0.0, 0.002]))
def test_each_gets_its_own_in_order_within_the_budget_whatever_the_others_do(requests, delay):
    run = Recorder()

    async def ask(batcher, number, key, tokens, wait, is_bad):
        await asyncio.sleep(wait / 1000)
        return await batcher.submit((key, number, is_bad), key, tokens)

    async def scenario():
        async with working(run, delay=delay) as batcher:
            return await asyncio.gather(*(ask(batcher, number, *request) for number, request in enumerate(requests)),
                                        return_exceptions=True)

    for number, (answer, (*_, is_bad)) in enumerate(zip(play(scenario()), requests)):
        if is_bad:
            assert isinstance(answer, ValueError) and str(answer) == f"[{number}]"  # it alone
        else:
            assert answer.result == number and answer.queued >= 0 and answer.computed > 0
    for batch in run.batches:
        assert len({key for key, _, _ in batch}) == 1
        assert len(batch) == 1 or sum(requests[number][1] for _, number, _ in batch) <= 10
    firsts = [[number for _, number, _ in batch if not requests[number][3]] for batch in run.batches]
    for key in "ab":
        for wait in range(4):  # of those that came at the same time
            order = [number for batch in firsts for number in batch if requests[number][::2] == (key, wait)]
            assert list(dict.fromkeys(order)) == sorted(set(order))


def test_what_waits_runs_together_and_an_idle_model_at_once():
    run = Recorder(0.02)

    async def scenario():
        async with working(run, delay=1.0) as batcher:
            first = asyncio.create_task(batcher.submit(("a", 0, False), "a", 1))
            await asyncio.sleep(0.005)
            rest = [asyncio.create_task(batcher.submit(("a", number, False), "a", 1)) for number in range(1, 6)]
            return [await task for task in (first, *rest)]

    answers = play(scenario())
    assert [len(batch) for batch in run.batches] == [1, 5]
    assert answers[0].queued < 0.01 and all(0.005 < answer.queued < 0.04 for answer in answers[1:])


def test_after_a_batch_of_several_as_many_are_waited_for_but_not_long():
    run = Recorder()

    async def scenario():
        async with working(run, delay=0.1) as batcher:
            async def client(number, rounds):
                return [await batcher.submit(("a", number, False), "a", 1) for _ in range(rounds)]

            await asyncio.gather(*(client(number, 10) for number in range(4)))
            return await client(9, 2)

    late = play(scenario())
    assert {len(batch) for batch in run.batches[:10]} == {4}
    assert 0.05 < late[0].queued < 0.2 and late[1].queued < 0.05


def test_who_has_gone_is_not_run_and_leaves_its_place():
    run = Recorder(0.02)

    async def scenario():
        async with working(run, limit=2) as batcher:
            async def ask(number, seconds=5):
                async with asyncio.timeout(seconds):
                    return (await batcher.submit(("a", number, False), "a", 1)).result

            running = asyncio.create_task(ask(0))
            await asyncio.sleep(0.005)
            gone, late = asyncio.create_task(ask(1)), asyncio.create_task(ask(2, 0.005))
            await asyncio.sleep(0)
            with pytest.raises(asyncio.QueueFull):
                await ask(3)
            gone.cancel()
            with pytest.raises(TimeoutError):
                await late
            assert len(batcher) == 0
            return [await running, await ask(4)]

    assert play(scenario()) == [0, 4]
    assert [[number for _, number, _ in batch] for batch in run.batches] == [[0], [4]]


def test_a_request_larger_than_the_budget_is_a_batch_of_its_own():
    run = Recorder()

    async def scenario():
        async with working(run) as batcher:
            await asyncio.gather(*(batcher.submit(("a", number, False), "a", tokens)
                                   for number, tokens in enumerate([4, 50, 4, 4])))

    play(scenario())
    assert [[number for _, number, _ in batch] for batch in run.batches] == [[0], [1], [2, 3]]
