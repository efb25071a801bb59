"""The budget of a store: new jobs are refused in time, while work and cleaning up go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from headrace import App, Event, Task
from headrace.admin.admin import Admin
from headrace.errors import ConfigError, QueueFull, StoreFull
from headrace.keeping.budget import BudgetWatch
from headrace.web.store_metrics import StoreNumbers, of_store
from tests import postgres
from tests.facades.harness import LIMIT, STORES, Store, alerts_of

_MEGABYTE = 1_000_000


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


def make(store: Store) -> App:
    app = store.app()

    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    return app


async def refusal(app: App) -> None:
    """Enqueue until the store is measured and refuses."""
    async with asyncio.timeout(LIMIT):
        while True:
            await app.enqueue_named("work", {"n": 1})
            await asyncio.sleep(0)


async def refused(app: App) -> StoreFull:
    with pytest.raises(StoreFull) as found:
        await refusal(app)
    return found.value


async def test_new_jobs_are_refused_while_work_goes_on(store: Store) -> None:
    app, other = make(store), make(store)
    async with app, other:
        await app.enqueue_named("work", {"n": 1})
        used = (await app.janitor.usage()).used
        assert used > 0
        await app.janitor.set_budget(max(used // 2, 1))
        error = await refused(other)
        assert "new jobs are refused from 85% on" in str(error)
        usage = await app.janitor.usage()
        assert (usage.refuses, usage.budget) == (True, True)
        await other.drain()
        assert (await other.client.stats()).queues[0].available == 0, "what was stored is done"
        await other.janitor.run(force=True)
        await app.janitor.drop_budget()
    third = make(store)
    async with third:
        await third.enqueue_named("work", {"n": 2})
        assert not (await third.janitor.usage()).refuses
        await third.drain()
    await store.close()


def heavy_of(app: App) -> Task[[str], None]:
    @app.task(name="heavy")
    async def heavy(text: str) -> None: ...

    return heavy


async def test_new_jobs_are_taken_again_once_what_has_ended_is_gone(store: Store) -> None:
    app, other = (store.app(payloads={"compress_over": None}) for _ in range(2))
    heavy = heavy_of(app)

    async def fill() -> None:
        async with asyncio.timeout(LIMIT):
            while True:
                await app.enqueue_many([heavy.job("x" * 20_000) for _ in range(10)])
                await asyncio.sleep(0.01)

    async with app:
        await app.janitor.set_budget((await app.janitor.usage()).used + 8 * _MEGABYTE)
        with pytest.raises(StoreFull):
            await fill()
        assert (await app.janitor.usage()).refuses
        await app.drain()
        await app.janitor.keep("1d", states="completed", count=0)
        assert (await app.janitor.run(force=True)).deleted
    if store.kind == "postgres":
        postgres.vacuum()  # the server does it now and then
    async with other:
        usage = await other.janitor.usage()
        assert not usage.refuses, usage
        await heavy_of(other).enqueue("y")
    await store.close()


async def test_a_store_that_fills_up_fast_is_measured_more_often(tmp_path: Path) -> None:
    store = Store("memory", tmp_path)
    app = store.app(payloads={"compress_over": None})
    heavy = heavy_of(app)

    async def fill() -> None:
        """With 20 MB a second: new jobs are to be refused after 2.5 s."""
        loop = asyncio.get_running_loop()
        began, stored = loop.time(), 0
        async with asyncio.timeout(LIMIT):
            while True:
                if stored <= (loop.time() - began) * 200:
                    await heavy.enqueue("x" * 100_000)
                    stored += 1
                await asyncio.sleep(0.001)

    async with app:
        await app.janitor.set_budget(60_000_000)
        with pytest.raises(StoreFull):
            await fill()
        assert 0.85 <= (await app.janitor.usage()).share < 0.95
    await store.close()


async def test_somebody_is_told_before_that(store: Store) -> None:
    app = make(store)
    told: list[Event] = []
    app.observe(told.append)
    async with app:
        await app.enqueue_named("work", {"n": 1})
        used = (await app.janitor.usage()).used
        await app.janitor.set_budget(int(used / 0.82))
        await BudgetWatch(await app.client.backend(), app.client.observers, app.client.clock).measure()
        await app.enqueue_named("work", {"n": 1})
        await app.janitor.drop_budget()
    assert alerts_of(told) == ["budget_nearly_used"]
    await store.close()


async def test_a_worker_looks_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.keeping.budget._EVERY", 0.05)
    app = make(store)
    told = asyncio.Event()
    app.observe(lambda event: told.set() if event.alert == "budget_nearly_used" else None)
    async with app:
        await app.enqueue_named("work", {"n": 1})
        await app.janitor.set_budget(1)
        budget = BudgetWatch(await app.client.backend(), app.client.observers, app.client.clock)
        watch = asyncio.create_task(budget.run(Random(1), asyncio.Event()))
        async with asyncio.timeout(LIMIT):
            await told.wait()
        watch.cancel()
        await app.janitor.drop_budget()
    await store.close()


async def test_what_a_store_takes_up_is_in_the_overview_and_the_metrics(store: Store) -> None:
    app = make(store)
    async with app:
        await app.enqueue_named("work", {"n": 1})
        assert (await Admin(app.client).overview()).store_bytes > 0
        numbers = StoreNumbers(app.client)
        await numbers.fresh()
        families = of_store(numbers.stats, numbers.now, store.kind, numbers.ended, numbers.usage)
        found = {one.name: one.samples for one in families}
        assert found["headrace_backend_bytes"][0].value > 0
        parts = {one.labels["part"] for one in found["headrace_backend_part"]}
        assert store.kind != "postgres" or parts >= {"dead_tuples", "wal", "reserve"}
    await store.close()


async def test_a_queue_has_a_budget_of_its_own(store: Store) -> None:
    app, other = make(store), make(store)
    async with app, other:
        await app.enqueue_many([app.tasks["work"].job(n) for n in range(50)])
        await app.janitor.set_budget(30_000, queue="default")
        await app.enqueue_named("work", {"n": 1}, queue="elsewhere")
        assert (await app.janitor.usage()).queues["default"] < 1
        await app.janitor.set_budget(10_000, queue="default")
        with pytest.raises(
            QueueFull, match=r"queue 'default' is full \(.* of 10,000 bytes are taken up\).*raise the budget"
        ):
            await refusal(other)
        await other.enqueue_named("work", {"n": 1}, queue="elsewhere")
        moved = await other.client.enqueue(other.tasks["work"].options(overflow="elsewhere").job(1))
        record = await other.client.fetch(moved.id)
        assert record is not None
        assert record.queue == "elsewhere"
        await other.drain()
        await app.janitor.drop_budget(queue="default")
        assert (await app.janitor.usage()).queues == {}
    await store.close()


async def test_room_is_kept_aside_and_given_up_when_there_is_no_other(store: Store) -> None:
    app = make(store)
    async with app:
        backend = await app.client.backend()
        watch = BudgetWatch(backend, app.client.observers, app.client.clock)
        await app.janitor.set_budget(10**9, reserve=1_000_000)
        await watch.look()
        kept = (await app.janitor.usage()).parts.get("reserve", 0)
        assert kept >= 1_000_000 or backend.reserve is None
        await watch.make_room()
        await watch.look()
        assert not (await app.janitor.usage()).parts.get("reserve"), "it is not kept again at once"
        await app.janitor.drop_budget()
    await store.close()


async def test_a_budget_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    store = Store("sqlite", tmp_path)
    app = make(store)
    async with app:
        with pytest.raises(ConfigError, match="bytes"):
            await app.janitor.set_budget(0)
        with pytest.raises(ConfigError, match="for the budget of a queue"):
            await app.janitor.set_budget(queue="mail")
        await app.janitor.set_budget()
        usage = await app.janitor.usage()
        assert usage.limit is not None
        assert usage.limit > usage.used
        assert {"free", "wal"} <= usage.parts.keys()
    await store.close()
