"""Jobs of one group run one after the other, and so do those of a schedule that says so."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from headrace import Every, Job, Retry
from headrace.errors import ConfigError, InvalidJob
from headrace.schedules.spec import QUEUE
from tests.facades.harness import Store, World, simulate, within, working


async def test_jobs_of_a_group_run_in_order_one_at_a_time(store: Store) -> None:
    app = store.app()
    order: list[tuple[str, int]] = []
    running: set[str] = set()

    @app.task
    async def move(job: Job[Any], account: str, step: int) -> None:
        assert account not in running
        assert job.group == account
        running.add(account)
        await asyncio.sleep(0)
        order.append((account, step))
        running.discard(account)

    await app.enqueue_many(move.options(group=name).job(name, step) for step in range(10) for name in ("ada", "bob"))
    await within(app.drain())
    for name in ("ada", "bob"):
        assert [step for account, step in order if account == name] == list(range(10))


async def test_a_retry_keeps_the_others_waiting(store: Store) -> None:
    app = store.app()
    order: list[tuple[int, int]] = []

    @app.task
    async def step(job: Job[Any], number: int) -> Retry | None:
        order.append((number, job.attempt))
        return Retry(0, error="once more") if job.attempt < 2 else None

    await app.enqueue_many(step.options(group="g").job(number) for number in range(3))
    await within(app.drain())
    assert order == [(number, attempt) for number in range(3) for attempt in range(3)]


async def test_a_queue_has_groups_too(store: Store) -> None:
    queue = store.queue(concurrency=5)
    order: list[int] = []

    @queue.execute
    async def handle(job: Job[int]) -> None:
        order.append(job.payload)
        await asyncio.sleep(0)

    for number in range(8):
        await queue.enqueue(f"id-{number}", number, group="g")
    await within(queue.work(burst=True))
    assert order == list(range(8))


async def test_the_group_is_told(store: Store) -> None:
    app = store.app()

    @app.task
    def note() -> None: ...

    handle = await note.options(group="g").enqueue()
    info = await handle.info()
    assert (info.group, info.to_dict()["group"]) == ("g", "g")


@pytest.mark.parametrize("group", ["", 5, "a\0b", "x" * 1_025, b"g"])
async def test_a_group_that_cannot_be(memory: Store, group: Any) -> None:
    app = memory.app()

    @app.task
    def note() -> None: ...

    with pytest.raises(InvalidJob, match="group"):
        await note.options(group=group).enqueue()
    assert await memory.count() == 0


def test_with_overlap_queue_jobs_of_a_schedule_wait_for_each_other() -> None:
    async def main(world: World) -> Any:
        app = world.app()
        spans: list[tuple[float, float]] = []

        @app.task
        async def slow() -> None:
            start = world.now()
            await asyncio.sleep(90)
            spans.append((start, world.now()))

        app.every("1m", slow, name="slow", jitter=0, overlap="queue", max_runs=4)
        async with working(app):
            await asyncio.sleep(10 * 60)
        info = await app.schedules.get("slow")
        ticks = [tick.outcome for tick in await app.schedules.history("slow")]
        await app.client.close()
        return spans, ticks, info.overlap

    spans, ticks, overlap = simulate(main)
    assert ticks == ["fired"] * 4
    assert len(spans) == 4
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert overlap == QUEUE


async def test_the_group_of_a_schedule_tells_its_name(memory: Store) -> None:
    app = memory.app()

    @app.task
    def note() -> None: ...

    for name in ("nightly", "ñ" * 512):
        await app.schedules.put(Every("1h", note.job(), name=name, overlap="queue"))
        group = (await app.get(await app.schedules.run(name))).group
        assert group is not None
        assert group.startswith(f"headrace-schedule:{name[:400]}")
        assert len(group.encode()) <= 1_024


async def test_a_group_and_overlap_queue_are_too_much(memory: Store) -> None:
    app = memory.app()

    @app.task
    def note() -> None: ...

    with pytest.raises(ConfigError, match="leave out group='g'"):
        await app.schedules.put(Every("1m", note.options(group="g").job(), overlap="queue"))


async def test_jobs_of_a_schedule_may_be_in_a_group_with_others(store: Store) -> None:
    app = store.app()

    @app.task(name="note")
    def note() -> None: ...

    await app.schedules.put(Every("1h", note.options(group="g").job(), jitter=0))
    job = await app.schedules.run("note")
    assert (await app.get(job)).group == "g"
