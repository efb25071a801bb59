"""Natural batching: one buffer, one trip at a time, an answer for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from headrace.core.batcher import Batcher
from headrace.core.tasks import Tasks
from headrace.errors import Corrupt, StoreFull, Unavailable
from headrace.testing.sim.loop import run


class Store:
    """A store that answers each item with its double, and takes as long as it is told."""

    def __init__(self, *troubles: BaseException | None) -> None:
        self.trips: list[list[int]] = []
        self.troubles = list(troubles)
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, items: list[int]) -> list[int]:
        self.trips.append(items)
        await self.gate.wait()
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble is not None:
            raise trouble
        return [2 * item for item in items]


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks()
    yield tasks
    await tasks.close()


def make(store: Store, tasks: Tasks, **options: Any) -> Batcher[int, int]:
    return Batcher(store.send, tasks, Random(1), **{"max_batch": 10, "patience": 3_600, **options})


async def test_what_comes_alone_goes_at_once(tasks: Tasks) -> None:
    store = Store()
    batcher = make(store, tasks)
    assert [await batcher.submit(n) for n in range(3)] == [0, 2, 4]
    assert store.trips == [[0], [1], [2]]


async def test_a_store_that_answers_at_once_starves_nobody(tasks: Tasks) -> None:
    batcher, turns = make(Store(), tasks), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    tasks.start(other(), "other")
    for n in range(160):
        assert await batcher.put(n) == 2 * n
    assert turns >= 10


async def test_what_comes_meanwhile_goes_together(tasks: Tasks) -> None:
    store = Store()
    store.gate.clear()
    batcher = make(store, tasks)
    first = batcher.submit(0)
    await asyncio.sleep(0)
    rest = [batcher.submit(n) for n in range(1, 15)]
    store.gate.set()
    assert await asyncio.gather(first, *rest) == [2 * n for n in range(15)]
    assert store.trips == [[0], list(range(1, 11)), list(range(11, 15))]


async def test_a_batch_is_bounded_by_weight(tasks: Tasks) -> None:
    """But one item that is too heavy alone goes alone."""
    store = Store()
    batcher = make(store, tasks, max_bytes=10, weigh=lambda item: item)
    answers = await asyncio.gather(*(batcher.submit(n) for n in (4, 4, 4, 50, 1, 1)))
    assert answers == [8, 8, 8, 100, 2, 2]
    assert store.trips == [[4, 4], [4], [50], [1, 1]]


async def test_flush(tasks: Tasks) -> None:
    store = Store()
    batcher = make(store, tasks)
    await batcher.flush()
    answers = [batcher.submit(n) for n in range(25)]
    await batcher.flush()
    assert all(answer.done() for answer in answers)


def test_a_store_that_is_away_is_asked_again_with_the_same_batch() -> None:
    async def main() -> tuple[Any, list[list[int]], float]:
        store, tasks = Store(*[Unavailable("away")] * 4), Tasks()
        batcher = make(store, tasks)
        answers = await asyncio.gather(*(batcher.submit(n) for n in range(3)))
        await tasks.close()
        return answers, store.trips, asyncio.get_running_loop().time()

    answers, trips, took = run(main())
    assert answers == [0, 2, 4]
    assert trips == [[0, 1, 2]] * 5
    assert 0.3 < took < 1


@pytest.mark.parametrize("alone", [False, True])
def test_who_wants_another_part_of_the_store_does_not_wait_for_the_one_that_is_away(alone: bool) -> None:
    """Odd items go to a part that is away until it is told to come back."""

    async def main() -> None:
        away, trips = True, 0

        async def send(items: list[int]) -> list[int]:
            nonlocal trips
            trips += 1
            if away and any(item % 2 for item in items):
                raise Unavailable("odd ones are away")
            return [2 * item for item in items]

        tasks = Tasks()
        batcher = Batcher(send, tasks, Random(1), max_batch=10, patience=60, apart=lambda item: item % 2)
        if alone:
            odd = [asyncio.ensure_future(batcher.put(1))]
            await asyncio.sleep(0.01)
            odd.append(asyncio.ensure_future(batcher.put(3)))
        else:
            odd = [asyncio.ensure_future(batcher.submit(1)), asyncio.ensure_future(batcher.submit(3))]
            together = batcher.submit(2)
        began = asyncio.get_running_loop().time()
        for number in range(4, 40, 2):
            assert await batcher.put(number) == 2 * number
        assert asyncio.get_running_loop().time() < began + 0.2
        if not alone:
            async with asyncio.timeout(1):
                assert await together == 4
        await asyncio.sleep(20)
        assert not any(one.done() for one in odd)
        assert trips < 60
        away = False
        assert await asyncio.gather(*odd) == [2, 6]
        await batcher.flush()
        await tasks.close()

    run(main())


def test_each_caller_has_a_patience_of_its_own() -> None:
    """A caller that comes while the store is away waits as long as the first one, and until its own time is over."""

    async def main() -> list[float]:
        store, tasks = Store(*[Unavailable("away")] * 100), Tasks()
        batcher, loop = make(store, tasks, patience=10), asyncio.get_running_loop()
        ends = []

        async def ask(number: int) -> None:
            with pytest.raises(Unavailable):
                await batcher.put(number)
            ends.append(loop.time())

        async with asyncio.TaskGroup() as group:
            group.create_task(ask(1))
            await asyncio.sleep(5)
            group.create_task(ask(2))
        await tasks.close()
        return ends

    first, second = run(main())
    assert 7 < first <= 10
    assert 12 < second <= 15


def test_patience_ends() -> None:
    """The error is told to all who wait, and the next batch gets patience of its own."""

    async def main() -> tuple[list[Any], float, int]:
        store, tasks = Store(*[Unavailable("away")] * 100), Tasks()
        batcher = make(store, tasks, patience=30)
        answers = await asyncio.gather(*(batcher.submit(n) for n in range(3)), return_exceptions=True)
        took = asyncio.get_running_loop().time()
        store.troubles.clear()
        again = await batcher.submit(7)
        await tasks.close()
        return answers, took, again

    answers, took, again = run(main())
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    assert 20 <= took <= 30
    assert again == 14


def test_patience_ends_if_the_store_hangs() -> None:
    """For each caller in its own time, though the trips before were for others."""

    async def main() -> list[float]:
        tasks, loop = Tasks(), asyncio.get_running_loop()

        async def send(items: list[int]) -> list[int]:
            return await loop.create_future()  # type: ignore[no-any-return]

        batcher = Batcher(send, tasks, Random(1), max_batch=2, patience=10)

        async def ask(number: int) -> float:
            began = loop.time()
            with pytest.raises(Unavailable, match="expected an answer from the store within 10 s"):
                await batcher.put(number)
            return loop.time() - began

        async with asyncio.TaskGroup() as group:
            asked = []
            for number in range(20):
                asked.append(group.create_task(ask(number)))
                await asyncio.sleep(number % 3)
        await batcher.flush()
        await tasks.close()
        return [one.result() for one in asked]

    assert max(run(main())) <= 11.001


def test_a_large_item_has_more_time() -> None:
    async def main() -> int:
        tasks = Tasks()

        async def send(items: list[int]) -> list[int]:
            await asyncio.sleep(15)
            return items

        batcher = Batcher(send, tasks, Random(1), max_batch=2, patience=10, weigh=lambda item: item)
        return await batcher.put(5 * 1024 * 1024)

    assert run(main()) == 5 * 1024 * 1024


async def test_a_full_store_is_told_at_once(tasks: Tasks) -> None:
    store = Store(StoreFull("full"))
    batcher = make(store, tasks)
    answers = await asyncio.gather(*(batcher.submit(n) for n in range(2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreFull, StoreFull]
    assert await batcher.submit(5) == 10


async def test_none_is_refused_for_its_neighbours(tasks: Tasks) -> None:
    """A batch that the store will not take is sent item by item: the one that is to blame hears of it, and no other."""
    trouble = Corrupt("bad")
    store = Store(trouble, None, trouble)
    batcher = make(store, tasks)
    answers = await asyncio.gather(*(batcher.submit(n) for n in range(3)), return_exceptions=True)
    assert answers == [0, trouble, 4]
    assert store.trips == [[0, 1, 2], [0], [1], [2]]


@pytest.mark.parametrize("trouble", [RuntimeError("a bug"), KeyError("x"), OSError("disk")], ids=repr)
async def test_an_unexpected_error_is_told_to_those_it_concerns(
    tasks: Tasks, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Not as a cancellation, which nobody asked for; and what came after goes its own way."""
    store = Store(trouble)
    store.gate.clear()
    batcher = make(store, tasks)
    first = batcher.submit(1)
    await asyncio.sleep(0)
    second = batcher.submit(2)
    store.gate.set()
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert not isinstance(answers[0], asyncio.CancelledError)
    assert isinstance(answers[0], Exception)
    assert answers[1] == 4
    assert await batcher.submit(3) == 6
    assert [item for trip in store.trips for item in trip] == [1, 2, 3]


async def test_an_answer_of_the_wrong_length_is_a_bug_that_is_told(tasks: Tasks) -> None:
    async def send(items: list[int]) -> list[int]:
        return items[:-1]

    batcher: Batcher[int, int] = Batcher(send, tasks, Random(1), max_batch=10, patience=3_600)
    with pytest.raises(Exception, match="shorter"):
        await asyncio.wait_for(batcher.submit(1), 60)


async def test_a_caller_that_gives_up_waiting_harms_nobody(tasks: Tasks) -> None:
    store = Store()
    store.gate.clear()
    batcher = make(store, tasks)
    first, second = batcher.submit(1), batcher.submit(2)
    await asyncio.sleep(0)
    first.cancel()
    store.gate.set()
    assert await second == 4


async def test_what_was_given_up_on_before_its_trip_is_not_sent(tasks: Tasks) -> None:
    """A caller that was cancelled while its item still lay in the buffer has not enqueued it."""
    store = Store()
    store.gate.clear()
    batcher = make(store, tasks)
    first = batcher.submit(1)
    await asyncio.sleep(0)
    second, third = batcher.submit(2), batcher.submit(3)
    second.cancel()
    store.gate.set()
    await asyncio.gather(first, third)
    assert [item for trip in store.trips for item in trip] == [1, 3]


async def test_closing_ends_it() -> None:
    store, tasks = Store(), Tasks()
    store.gate.clear()
    batcher = make(store, tasks)
    answers = [batcher.submit(n) for n in range(3)]
    await asyncio.sleep(0)
    await tasks.close()
    assert all(answer.cancelled() for answer in answers)
    await asyncio.wait_for(batcher.flush(), 60)


def test_what_has_piled_up_goes_in_one_batch_after_another_when_the_store_is_back() -> None:
    """Without a pause between them."""

    async def main() -> tuple[list[int], float]:
        away = True

        async def send(items: list[int]) -> list[int]:
            if away:
                raise Unavailable("away")
            return [2 * item for item in items]

        tasks, loop = Tasks(), asyncio.get_running_loop()
        batcher = Batcher(send, tasks, Random(1), max_batch=10, patience=3_600)
        answers = [batcher.submit(number) for number in range(5_000)]
        await asyncio.sleep(60)
        away = False
        await answers[0]
        back = loop.time()
        found = await asyncio.gather(*answers)
        await tasks.close()
        return found, loop.time() - back

    found, took = run(main())
    assert found == [2 * number for number in range(5_000)]
    assert took < 0.1
