"""``app.schedules.stale`` and ``app.schedules.health``: what is wrong with schedules, as the store tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from headrace import App, Cron, Every, NewJob, ScheduleHealth
from headrace.errors import ConfigError, HeadraceError, ScheduleNotFound
from headrace.seam.ticks import NewTick, Plan
from tests.facades.harness import Store, World, simulate
from tests.facades.test_planner import HOUR, quiet, working
from tests.facades.test_schedules import Timed

SECOND = 1_000_000


async def stale(app: App, **given: Any) -> list[str]:
    return [one.name for one in await app.schedules.stale(**given)]


async def only(app: App, name: str = "ping", **given: Any) -> ScheduleHealth:
    [health] = await app.schedules.health(name, **given)
    return health


# -- on every store


async def test_a_schedule_that_nobody_plans_is_overdue(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="30s")
    await timed.pass_by("30s", "30s")
    assert await stale(timed.app) == []
    timed.clock.advance("10m")
    assert await stale(timed.app) == ["ping"]
    assert (await only(timed.app)).stale == "overdue"
    await timed.pass_by("1s")
    assert await stale(timed.app) == []
    assert (await only(timed.app)).stale == ""


async def test_a_schedule_whose_slots_are_skipped_is_silent(store: Store) -> None:
    """As when a job hangs, or nobody runs its queue."""
    timed = Timed(store)
    nobody = NewJob(task="ping", queue="nobody's")
    await timed.schedules.put(Every("30s", nobody, name="s", jitter=0, overlap="skip"))
    await timed.pass_by("30s", "30s")
    assert await stale(timed.app) == [], "one may be skipped"
    await timed.pass_by("30s", "1s")
    assert await stale(timed.app) == ["s"]
    health = await only(timed.app, "s")
    assert (health.stale, health.fired, health.skipped, health.missed) == ("silent", 1, 2, 0)


async def test_those_that_need_not_fire_are_not_stale(store: Store) -> None:
    timed = Timed(store)
    await timed.put(name="disabled")
    await timed.schedules.disable("disabled")
    await timed.put(name="over", max_runs=1)
    await timed.put(name="to come", start=timed.start + timedelta(days=9))
    await timed.pass_by("30s")
    timed.clock.advance("1h")
    await timed.put(name="new", every="1h")
    assert await stale(timed.app) == []
    await timed.schedules.enable("disabled")
    assert await stale(timed.app) == [], "as it has just been enabled"


async def test_stale_ones_come_page_by_page_and_by_tenant_and_queue(store: Store) -> None:
    timed = Timed(store)
    for number in range(5):
        job = timed.ping.options(tenant=f"t{number % 2}", queue=f"q{number % 3}").job()
        await timed.schedules.put(Every("30s", job, name=f"s{number}", jitter=0))
    timed.clock.advance("10m")
    assert await stale(timed.app) == ["s0", "s1", "s2", "s3", "s4"]
    assert await stale(timed.app, limit=2) == ["s0", "s1"]
    assert await stale(timed.app, limit=2, after="s1") == ["s2", "s3"]
    assert await stale(timed.app, tenant="t1") == ["s1", "s3"]
    assert await stale(timed.app, tenant="t0", queue="q0") == ["s0"]


async def test_slots_and_their_jobs_are_counted(store: Store) -> None:
    timed = Timed(store, planner={"ahead": "1s"})

    @timed.app.task(name="work")
    async def work() -> None:
        timed.seen.append("work")
        if len(timed.seen) % 4 == 0:
            raise ValueError("no")

    job = work.options(max_attempts=1).job()
    await timed.schedules.put(Every("30s", job, name="s", jitter=0, misfire="skip", grace="1s"))
    await timed.pass_by(*["30s"] * 8)
    await timed.pass_by("65s", "25s")
    health = await only(timed.app, "s")
    assert (health.fired, health.missed, health.skipped) == (9, 2, 0)
    assert (health.completed, health.failed, health.cancelled) == (7, 2, 0)
    assert (health.failure_rate, health.coverage, health.complete) == (2 / 9, 9 / 11, True)
    recent = await only(timed.app, "s", period="70s")
    assert (recent.fired, recent.missed) == (1, 2)
    assert json.loads(json.dumps(health.to_dict()))["failed"] == 2


async def test_of_several_each_by_itself(store: Store) -> None:
    timed = Timed(store)
    for name in ("a", "b", "c"):
        await timed.put(name=name)
    await timed.pass_by("30s")

    def names(found: Sequence[ScheduleHealth]) -> list[str]:
        return [one.name for one in found]

    assert names(await timed.schedules.health()) == ["a", "b", "c"]
    assert names(await timed.schedules.health(limit=2)) == ["a", "b"]
    assert names(await timed.schedules.health(limit=2, after="b")) == ["c"]
    assert names(await timed.schedules.health("c", "a")) == ["c", "a"]
    assert {one.fired for one in await timed.schedules.health(queue="default")} == {1}
    assert names(await timed.schedules.health(tenant="nobody")) == []


# -- in virtual time


def test_slow_ones_are_the_slowest_first() -> None:
    async def main(world: World) -> Any:
        app, ran = world.app(), []

        @app.task
        async def work() -> None:
            ran.append(len(ran))
            await asyncio.sleep(ran[-1])

        app.every("1m", work, name="s", jitter=0)
        async with working(app):
            await asyncio.sleep(HOUR / 2 + 40)
        found = await only(app, "s", slow="15s")
        some = await only(app, "s", slow="25s")
        await app.client.close()
        return found, some

    found, some = simulate(main)
    assert [one.ran for one in found.slow] == [float(seconds) for seconds in range(29, 19, -1)]
    assert [one.ran for one in some.slow] == [29.0, 28.0, 27.0, 26.0]
    assert {one.state for one in found.slow} == {"completed"}


def test_a_schedule_with_a_pace_of_its_own_is_not_silent() -> None:
    async def main(world: World) -> Any:
        app = world.app()
        app.every("1m", app.task(quiet), name="s", jitter=0)
        app.dynamic_interval("s")(lambda name: "1h")
        async with working(app):
            await asyncio.sleep(2.5 * HOUR)
        found = await stale(app)
        await app.client.close()
        return found

    assert simulate(main) == []


def test_schedules_by_the_clock() -> None:
    async def main(world: World) -> Any:
        app = world.app()
        task = app.task(quiet)
        await app.schedules.put(Cron("0 6 * * MON-FRI", task.job(), name="work days", tz="Europe/Madrid"))
        await app.schedules.put(Cron("0 6 1 * *", task.job(), name="monthly"))
        found = []
        for _ in range(40):
            await asyncio.sleep(24 * HOUR)
            await app.drain()
            found += await stale(app)
        await asyncio.sleep(3 * 24 * HOUR)
        later = await stale(app)
        await app.client.close()
        return found, later

    assert simulate(main) == ([], ["work days"])


def test_a_great_many_slots_are_not_all_read() -> None:
    async def main(world: World) -> Any:
        app = world.app()
        await app.schedules.put(Every("1d", app.task(quiet).job(), name="s", jitter=0))
        uid = world.memory.store.ledger.schedules["s"].uid
        missed = [NewTick(slot, slot) for slot in range(world.clock.now() - 12_000 * SECOND, world.clock.now(), SECOND)]
        await world.memory.ticks.plan([Plan("s", uid, None, missed)])
        found = await only(app, "s")
        recent = await only(app, "s", period="1h")
        await app.client.close()
        return found, recent

    found, recent = simulate(main)
    assert (found.missed, found.complete) == (10_000, False)
    assert (recent.missed, recent.complete) == (3_600, True)


# -- bad input


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"limit": 0}, "limit: expected a whole number of at least 1, got 0"),
        ({"period": "soon"}, "period: "),
        ({"slow": -1}, "slow: "),
        ({"tenant": 7}, "tenant: expected a string"),
        ({"after": ""}, "after: expected a name"),
    ],
)
async def test_what_cannot_be_asked_for(memory: Store, given: Any, says: str) -> None:
    with pytest.raises(HeadraceError, match=says):
        await memory.app().schedules.health(**given)
    if given.keys() <= {"limit", "tenant", "after"}:
        with pytest.raises(HeadraceError, match=says):
            await memory.app().schedules.stale(**given)


async def test_names_or_a_selection(memory: Store) -> None:
    app = memory.app()
    with pytest.raises(ScheduleNotFound, match="no schedule 'nobody'"):
        await app.schedules.health("nobody")
    with pytest.raises(ConfigError, match="expected names, or tenant="):
        await app.schedules.health("a", tenant="t")
