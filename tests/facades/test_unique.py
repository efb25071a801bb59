"""Keys as people mean them: one job that waits, one that lives, or one in a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import Completed, Duplicate, Job, JobState, Queued
from headrace.errors import InvalidJob
from tests.facades.harness import Gate, Store, serving, simulate, within


async def test_until_done(store: Store) -> None:
    """A click while it waits or runs joins that job; a click afterwards is a new one, although the result is kept."""
    app, gate = store.app(), Gate()

    @app.task
    async def sync_customer(n: int) -> int:
        await gate.pass_through()
        return n

    once = sync_customer.options(key="customer-42", unique="until done")
    async with app:
        first = await once.enqueue(5)
        assert (await once.enqueue(6)).id == first.id
        work = asyncio.ensure_future(app.work())
        await gate.reached()
        running = await once.enqueue(7)
        assert (running.duplicate, running.state) == (True, JobState.RUNNING)
        gate.open()
        assert await within(first.result()) == 5
        later = await once.enqueue(8)
        assert not later.duplicate
        assert await within(later.result()) == 8
        assert await first.result() == 5
        app.stop()
        await within(work)


async def test_while_pending(store: Store) -> None:
    """A change that comes while the job runs is not lost: one more job waits, and only one."""
    app, gate, seen = store.app(), Gate(), list[int]()

    @app.task
    async def reindex(n: int) -> None:
        seen.append(n)
        await gate.pass_through()

    pending = reindex.options(key="index", unique="while pending")
    async with app:
        first = await pending.enqueue(1)
        assert (await pending.enqueue(2)).id == first.id
        work = asyncio.ensure_future(app.work())
        await gate.reached()
        again = await pending.options(delay="1h").enqueue(3)
        assert not again.duplicate
        assert (await pending.enqueue(4)).id == again.id
        gate.open()
        await within(first.result())
        assert (await pending.enqueue(5)).id == again.id
        app.stop()
        await within(work)
    assert seen == [1]
    assert await store.count() == 2


def test_for_a_time() -> None:
    """The key, and the result, are kept for that long after the job has completed."""

    async def main(world: Any) -> None:
        app = world.app()

        @app.task
        async def digest(n: int) -> int:
            return n

        daily = digest.options(key="ada", unique="10m")
        async with app:
            first = await daily.enqueue(1)
            await app.drain()
            await asyncio.sleep(9 * 60)
            again = await daily.enqueue(2)
            assert (again.id, await again.result()) == (first.id, 1)
            await asyncio.sleep(2 * 60)
            assert not (await daily.enqueue(3)).duplicate

    simulate(main)


async def test_of_a_queue(store: Store) -> None:
    queue = store.queue()

    @queue.execute
    async def double(job: Job[int]) -> int:
        return 2 * job.payload

    async with serving(queue):
        assert await queue.enqueue_and_wait("a", 1) == 2
        assert await queue.enqueue("a", 2) == Completed(2)
        assert await queue.enqueue("a", 3, unique="until done", delay="1h") == Queued()
        assert isinstance(await queue.enqueue("a", 4, unique="while pending"), Duplicate)


async def test_a_wait_joins_only_what_counts(store: Store) -> None:
    """``call`` runs the task again, and does not take the kept result for an answer."""
    app = store.app()

    @app.task
    async def same(n: int) -> int:
        return n

    async with app:
        work = asyncio.ensure_future(app.work())
        assert await within(same.options(key="k").call(1)) == 1
        assert await within(same.options(key="k").call(2)) == 1
        assert await within(same.options(key="k", unique="until done").call(3)) == 3
        app.stop()
        await within(work)


@pytest.mark.parametrize("unique", ["", "while running", "until", -1, [], object()])
async def test_bad_values(memory: Store, unique: Any) -> None:
    app = memory.app()

    @app.task
    def note() -> None: ...

    with pytest.raises(InvalidJob, match="unique"):
        await note.options(key="k", unique=unique).enqueue()
    assert await memory.count() == 0


async def test_without_a_key_and_beside_a_result_ttl(memory: Store) -> None:
    app = memory.app()

    @app.task
    def note() -> None: ...

    with pytest.raises(InvalidJob, match="unique: expected a key beside it"):
        await note.options(unique="until done").enqueue()
    with pytest.raises(InvalidJob, match="unique for a time, or result_ttl, got both"):
        await note.options(key="k", unique="10m", result_ttl="1h").enqueue()
    await note.options(key="k", unique="10m", result_ttl="600s").enqueue()
    await note.options(key="k", unique="until done", result_ttl="1d").enqueue()
    assert await memory.count() == 1


async def test_debounce(store: Store) -> None:
    """The last call before it starts counts; a call while it runs makes one more job."""
    app, gate, seen = store.app(), Gate(), list[int]()

    @app.task
    async def reindex(n: int) -> None:
        seen.append(n)
        await gate.pass_through()

    debounced = reindex.options(key="index", unique="while pending", on_duplicate="replace")
    async with app:
        first = await debounced.options(delay="1h").enqueue(1)
        last = await debounced.enqueue(2)
        assert (last.id, last.duplicate, last.replaced, first.replaced) == (first.id, True, True, False)
        work = asyncio.ensure_future(app.work())
        await gate.reached()
        again = await debounced.enqueue(3)
        assert (again.duplicate, again.replaced) == (False, False)
        gate.open()
        await within(again.result())
        app.stop()
        await within(work)
    assert seen == [2, 3]


async def test_throttle_with_the_latest_arguments(memory: Store) -> None:
    app, seen = memory.app(), list[int]()

    @app.task
    async def reindex(n: int) -> None:
        seen.append(n)

    throttled = reindex.options(key="index", on_duplicate="replace arguments", delay="1ms")
    async with app:
        first = await throttled.enqueue(1)
        due = (await first.info()).run_at
        many = await app.enqueue_many([throttled.options(delay="1h").job(n) for n in (2, 3)])
        assert [(one.id, one.replaced) for one in many] == [(first.id, True)] * 2
        assert (await first.info()).run_at == due
        await app.drain()
        kept = await throttled.enqueue(4)
        assert (kept.duplicate, kept.replaced) == (True, False)
    assert seen == [3]


async def test_a_queue_says_that_it_replaced(memory: Store) -> None:
    queue = memory.queue()

    @queue.execute
    async def same(job: Job[int]) -> int:
        return job.payload

    async with serving(queue):
        assert await queue.enqueue("a", 3, delay="1h") == Queued()
        answer = await queue.enqueue("a", 4, on_duplicate="replace")
        assert answer == Duplicate("queued", status="replaced")
        assert await queue.enqueue_and_wait("a", 5) == 4


@pytest.mark.parametrize("on_duplicate", ["", "drop", 1, [], object(), None])
async def test_bad_values_of_on_duplicate(memory: Store, on_duplicate: Any) -> None:
    app = memory.app()

    @app.task
    def note() -> None: ...

    with pytest.raises(InvalidJob, match="on_duplicate: expected 'keep', 'replace'"):
        await note.options(key="k", on_duplicate=on_duplicate).enqueue()
    with pytest.raises(InvalidJob, match="on_duplicate: expected a key beside it"):
        await note.options(on_duplicate="replace").enqueue()
    assert await memory.count() == 0
