"""Corner cases of results: those that are nothing, those that are gone, and those who wait for them."""

from __future__ import annotations

import asyncio

import pytest

from headrace import Completed, Job, immediate
from headrace.core.clock import ManualClock
from headrace.errors import ResultExpired, WaitTimeout
from headrace.seam.records import Selector
from headrace.worker.handler import Ending
from tests.facades.harness import Calls, Gate, Store, serving, within


async def test_nothing_is_a_result(store: Store) -> None:
    """P11: whoever waits for it gets it, and a finished id is finished."""
    queue = store.queue()

    @queue.execute
    async def nothing(job: Job[int]) -> None:
        return None

    async with serving(queue):
        assert await within(queue.enqueue_and_wait("a", 1)) is None
    assert await queue.enqueue("a", 2) == Completed(None)
    assert await queue.result("a", default="none yet") is None


async def test_a_result_that_has_expired_is_not_waited_for(store: Store) -> None:
    """P12: a typed error, at once; the id is free, so an enqueue of it runs it again."""
    clock = ManualClock()
    queue = store.queue(clock=clock, result_ttl="1m")

    @queue.execute
    async def echo(job: Job[int]) -> int:
        return job.payload

    async with serving(queue):
        await within(queue.enqueue_and_wait("a", 1))
        [job] = await queue.client.list_jobs(Selector(queue="jobs"))
        clock.advance("2m")
        with pytest.raises(ResultExpired):
            await within(queue.client.wait(job.id, timeout=None))
        assert await within(queue.enqueue_and_wait("a", 2)) == 2


async def test_one_waiter_that_leaves_takes_no_other_along(store: Store) -> None:
    """P13: on one id, in one process."""
    queue, gate = store.queue(), Gate()

    @queue.execute
    async def gated(job: Job[int]) -> str:
        await gate.pass_through()
        return "for those who stayed"

    async with serving(queue), asyncio.TaskGroup() as group:
        stays = group.create_task(queue.enqueue_and_wait("a", 1, timeout=None))
        await gate.reached()
        with pytest.raises(WaitTimeout):
            await within(queue.enqueue_and_wait("a", 1, timeout="10ms"))
        leaves = asyncio.ensure_future(queue.enqueue_and_wait("a", 1))
        await asyncio.sleep(0)
        leaves.cancel()
        gate.open()
        assert await within(stays) == "for those who stayed"


async def test_each_result_has_a_time_of_its_own(store: Store) -> None:
    """P14: the shortest does not take the others along."""
    clock = ManualClock()
    queue = store.queue(clock=clock)

    @queue.execute
    async def echo(job: Job[int]) -> int:
        return job.payload

    async with serving(queue):
        for minutes in (3, 1, 2):
            await within(queue.enqueue_and_wait(f"{minutes}m", minutes, result_ttl=f"{minutes}m"))
    for gone in ((), ("1m",), ("1m", "2m"), ("1m", "2m", "3m")):
        found = {name for name in ("1m", "2m", "3m") if await queue.result(name) is None}
        assert found == set(gone)
        clock.advance("61s" if not gone else "1m")


async def test_a_hook_that_fails_leaves_the_result_and_its_time_as_they_were(store: Store) -> None:
    """P29: an error tells of it; and it is called when a job ends, not when it is tried again."""
    clock = ManualClock()
    queue, errors = store.queue(clock=clock, retry=immediate(3)), Calls()
    queue.on("error", errors)
    calls: list[int] = []

    @queue.execute
    async def third_time(job: Job[int]) -> int:
        if job.attempt < 2:
            raise ValueError("not yet")
        return job.payload

    @queue.after
    async def broken(job: Job[int], ending: Ending) -> None:
        calls.append(job.attempt)
        ending.result_ttl = "1s"
        raise ZeroDivisionError("in the hook")

    async with serving(queue):
        assert await within(queue.enqueue_and_wait("a", 1, result_ttl="1h")) == 1
    [(error,)] = errors.seen
    assert (type(error), calls) == (ZeroDivisionError, [2])
    clock.advance("59m")
    assert await queue.result("a") == 1
