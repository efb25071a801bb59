"""Corner cases of how a job ends: by whom, by a stop, by a cancel; and who is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import EventKind, Job, JobState, Queued, never
from headrace.core.clock import ManualClock
from headrace.errors import JobCancelled
from headrace.seam.records import Claim, Reap, Settlement
from tests.facades.harness import Events, Gate, Store, serving, within


async def test_a_stop_gives_back_what_it_cannot_finish(store: Store) -> None:
    """P3: at once, with its attempts, and it is run by the next who comes."""
    queue, other, gate = store.queue(grace="20ms"), store.queue(), Gate()

    @queue.execute
    async def endless(job: Job[int]) -> None:
        await gate.pass_through()

    @other.execute
    async def tell(job: Job[int]) -> list[int]:
        return [job.payload, job.attempt, job.lost]

    await queue.start()
    await queue.enqueue("a", 7)
    await gate.reached()
    await within(queue.stop())
    async with serving(other):
        assert await within(other.enqueue_and_wait("a", 8)) == [7, 0, 0]


@pytest.mark.parametrize("late", [JobState.COMPLETED, JobState.FAILED, JobState.AVAILABLE])
async def test_a_worker_that_wakes_up_late_changes_nothing(late: JobState, store: Store) -> None:
    """P4: neither the newer run nor its result is overwritten, and no second copy comes."""
    clock = ManualClock()
    queue, gate = store.queue(clock=clock), Gate()
    await queue.enqueue("a", 1)
    backend = await queue.client.backend()
    [job] = (await backend.claim(Claim("asleep", ("jobs",), 1, 1_000_000), clock.stamp())).jobs
    clock.advance("1m")
    await backend.reap(Reap(), clock.stamp())
    wakes_up = [Settlement(job.id, job.epoch, "asleep", late, result=b"stale", result_ttl=10**9)]

    @queue.execute
    async def newer(job: Job[int]) -> str:
        await gate.pass_through()
        return "newer"

    async with serving(queue):
        await gate.reached()
        assert await backend.finish(wakes_up, clock.stamp()) == [None]
        gate.open()
        assert await within(queue.enqueue_and_wait("a", 2)) == "newer"
    assert await backend.finish(wakes_up, clock.stamp()) == [None]
    assert await queue.result("a") == "newer"
    assert await store.count() == 1


async def test_a_cancel_and_a_start_at_the_same_time_agree_on_who_came_first(store: Store) -> None:
    """P8: what was cancelled never runs and never comes back; and what has failed is not said to be cancelled."""
    queue, elsewhere = store.queue(concurrency=4, retry=never()), store.queue()
    ran: set[str | None] = set()

    @queue.execute
    async def note(job: Job[int]) -> int:
        ran.add(job.key)
        if job.payload % 3 == 0:
            raise ValueError("no")
        return job.payload

    names = [f"job-{number}" for number in range(60)]
    for number, name in enumerate(names):
        await queue.enqueue(name, number)
    backwards = names[::-1]
    assert await elsewhere.cancel(backwards[0]) == "cancelled"
    work = asyncio.ensure_future(queue.work(burst=True))
    told = await asyncio.gather(*map(elsewhere.cancel, backwards[1:]))
    await within(work)
    answers = dict(zip(backwards, ("cancelled", *told), strict=True))
    for number, name in enumerate(names):
        status = await queue.status(name)
        assert status is not None
        if answers[name] == "cancelled":
            assert (status.state, name in ran) == ("cancelled", False)
        else:
            assert answers[name] in ("processing", status.state)
            assert status.state in ("cancelled", "completed" if number % 3 else "failed")


async def test_a_cancelled_id_that_is_enqueued_again_runs_once_with_what_came_last(store: Store) -> None:
    """P9: the entry of before is gone with its payload, however often."""
    queue = store.queue()
    ran: list[int] = []

    @queue.execute
    async def note(job: Job[int]) -> int:
        ran.append(job.payload)
        return job.payload

    for payload in range(5):
        assert await queue.enqueue("a", payload) == Queued()
        assert await queue.cancel("a") == "cancelled"
    await queue.enqueue("a", 5)
    async with serving(queue):
        assert await within(queue.enqueue_and_wait("a", 6)) == 5
    assert ran == [5]


async def test_a_waiter_is_told_of_a_cancel(store: Store) -> None:
    """P10: at once, not by its timeout."""
    queue, elsewhere, events = store.queue(), store.queue(), Events()
    queue.client.observers.add(events)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_raised(queue.enqueue_and_wait("a", 1, timeout=None)))
        await events.until(EventKind.QUEUED)
        assert await elsewhere.cancel("a") == "cancelled"
        assert isinstance(await within(waiting), JobCancelled)


async def _raised(work: Any) -> BaseException | None:
    try:
        await work
    except Exception as error:
        return error
    return None
