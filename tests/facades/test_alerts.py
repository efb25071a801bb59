"""What a worker alerts to, in virtual time: when it should, once, and not otherwise; and how it all adds up."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from headrace import App, Counters, Event, EventKind, Every
from headrace.errors import QueueFull, Unavailable
from headrace.seam.records import Selector
from tests.facades.harness import Events, Tapped, World, simulate
from tests.facades.test_planner import HOUR, quiet, working


def alerts(events: Events) -> list[str]:
    return [event.alert for event in events.of(EventKind.ALERT)]


def watched(world: World, **given: Any) -> tuple[App, Events]:
    app, events = world.app(**given), Events()
    app.observe(events)
    return app, events


# -- leases


class Deaf(Tapped):
    """A store that hears no heartbeats for a while."""

    deaf = False

    async def renew(self, beat: Any, at: Any = None) -> Any:
        if Deaf.deaf:
            raise Unavailable("not now")
        return await self.inner.renew(beat, at)


def one_long_job(seconds: float, *deaf: float) -> Any:
    """A job that is claimed at 0.9 and runs so long, under a lease of 12 s, with heartbeats at 0, 2, 4 …; and the
    stretch of time in which these are not heard."""

    async def main(world: World) -> Any:
        Deaf.deaf = False
        app, events = watched(world, worker={"lease": "12s"})

        @app.task(name="long", queue="q")
        async def long() -> None:
            await asyncio.sleep(seconds)

        async with working(app):
            await asyncio.sleep(0.9)
            handle = await long.enqueue()
            for instant in deaf:
                await asyncio.sleep(instant - world.now())
                Deaf.deaf = not Deaf.deaf
            await handle.result(None)
        await app.client.close()
        return events, handle.id

    return simulate(main, Deaf)


def test_a_lease_that_was_renewed_at_the_last_moment() -> None:
    events, job_id = one_long_job(100, 7, 11)
    [alert] = events.of(EventKind.ALERT)
    assert (alert.alert, alert.job_id, alert.queue, alert.task) == ("lease_nearly_over", job_id, "q", "long")
    assert str(job_id) in alert.detail


def test_a_job_that_ended_at_the_last_moment_of_its_lease() -> None:
    events, job_id = one_long_job(11, 7, 30)
    [alert] = events.of(EventKind.ALERT)
    assert (alert.alert, alert.job_id) == ("lease_nearly_over", job_id)


@pytest.mark.parametrize("seconds", [1, 11, 100])
def test_a_job_whose_lease_is_renewed_in_time(seconds: float) -> None:
    events, _ = one_long_job(seconds)
    assert alerts(events) == []


# -- schedules


def test_schedules_in_time() -> None:
    async def main(world: World) -> Any:
        app, events = watched(world)
        task = app.task(quiet)
        app.every("10s", task, name="often")
        app.every("1m", task, name="one after the other", overlap="skip", jitter=0.5)
        app.cron("*/5 * * * *", task, name="by the clock", misfire="skip")
        async with working(app):
            await asyncio.sleep(3 * HOUR)
        return events

    events = simulate(main)
    assert events.of(EventKind.TICK_FIRED)
    assert alerts(events) == []


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("misfire", "told"), [("skip", " after it were missed: nobody planned them in time"), ("all", "after its instant")]
)
def test_a_schedule_that_nobody_planned_for_long(declared: bool, misfire: Any, told: str) -> None:
    """Whoever finds it so: a planner, or a worker that starts and puts what is declared."""

    async def main(world: World) -> Any:
        app, events = watched(world)
        task = app.task(quiet, name="quiet")
        await app.schedules.put(Every("1m", task.job(), name="s", jitter=0, misfire=misfire))
        if declared:
            app.every("1m", task, name="s", jitter=0, misfire=misfire)
        await asyncio.sleep(HOUR)
        async with working(app):
            await asyncio.sleep(HOUR / 2)
        return events

    events = simulate(main)
    [alert] = events.of(EventKind.ALERT)
    assert (alert.alert, alert.queue) == ("schedule_late", "default")
    assert "schedule 's': the slot of " in alert.detail
    assert told in alert.detail


def test_a_slot_that_is_late_by_less_than_two_distances() -> None:
    async def main(world: World) -> Any:
        app, events = watched(world)
        task = app.task(quiet)
        await app.schedules.put(Every("1h", task.job(), name="s", jitter=0, misfire="all"))
        await asyncio.sleep(2.5 * HOUR)
        async with working(app):
            await asyncio.sleep(60)
        await app.client.close()
        return events

    events = simulate(main)
    assert len(events.of(EventKind.TICK_FIRED)) == 2
    assert alerts(events) == []


@pytest.mark.parametrize(("schedules", "away", "told"), [(99, 600, 0), (250, 600, 1), (250, 1, 0)])
def test_planners_that_do_not_keep_up(schedules: int, away: float, told: int) -> None:
    async def main(world: World) -> Any:
        app, events = watched(world)
        task = app.task(quiet)
        for number in range(schedules):
            await app.schedules.put(Every("1h", task.job(), name=f"s{number}", jitter=0, misfire="all"))
        look_in = HOUR - 60
        await asyncio.sleep(look_in + away)
        async with working(app):
            await asyncio.sleep(HOUR / 2)
        await app.client.close()
        return events

    events = simulate(main)
    assert len(events.of(EventKind.TICK_FIRED)) == schedules
    assert alerts(events) == ["planner_behind"] * told


# -- sweeps


def test_keys_that_are_freed_before_their_time() -> None:
    """More outlive the records of their jobs than may: told with their number, and only then."""

    async def main(world: World) -> Any:
        app, events = watched(world, retention={"every": "1m", "completed": {"count": 0}, "keys": 2})
        task = app.task(quiet)
        seen = []
        async with working(app):
            for keys in (["a", "b"], ["c", "d", "e"]):
                for key in keys:
                    await task.options(key=key, result_ttl="1d").enqueue()
                await asyncio.sleep(600)
                seen.append([event.detail for event in events.of(EventKind.ALERT)])
        return seen, events

    (quiet_so_far, told), events = simulate(main)
    assert quiet_so_far == []
    [sentence] = told
    assert sentence.startswith("keys_freed: 3 keys of completed jobs were freed before their result_ttl ended")
    assert alerts(events) == ["keys_freed"]


@pytest.mark.parametrize("trouble", [Unavailable("away"), RuntimeError("no such index")])
def test_sweeps_that_fail(trouble: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The third in a row is told, and those after it, until one has succeeded."""
    caplog.set_level(logging.WARNING, "headrace")
    sweeps: list[bool] = []
    fine = [*[False] * 2, True, *[False] * 10, True, *[False] * 3]

    class Failing(Tapped):
        async def sweep(self, clause: Any, at: Any = None) -> Any:
            if clause.target == "results":
                sweeps.append(len(sweeps) >= len(fine) or fine[len(sweeps)])
            if sweeps and not sweeps[-1]:
                raise trouble
            return await self.inner.sweep(clause, at)

    async def main(world: World) -> Any:
        app, events = watched(world, retention={"every": "1m"})
        app.task(quiet)
        told = []
        async with working(app):
            while len(sweeps) < len(fine) + 5:
                await asyncio.sleep(1)
                if len(alerts(events)) > len(told):
                    told.append(len(sweeps))
        return told, events

    told, events = simulate(main, Failing)
    assert told[0] == 6, "with the third failure in a row"
    assert len(told) > 4, "and while it goes on"
    assert min(count for count in told if count > 13) == 17, "and again with the third after a success"
    assert set(alerts(events)) == {"cleanup_failing"}
    assert events.of(EventKind.ALERT)[0].error is trouble
    assert str(trouble) in caplog.text


# -- queues


def test_a_queue_that_is_full() -> None:
    async def main(world: World) -> Any:
        app, events = watched(world)
        task = app.task(quiet, queue="small")
        await app.policies.set("small", depth=2)
        for _ in range(3):
            for _ in range(50):
                try:
                    await task.enqueue()
                except QueueFull:
                    continue
            await asyncio.sleep(61)
        await app.client.close()
        return events

    events = simulate(main)
    assert len(events.of(EventKind.REFUSED)) == 148
    assert [(one.alert, one.queue) for one in events.of(EventKind.ALERT)] == [("queue_full", "small")] * 3


class Slow(Tapped):
    """A store that takes long for an insert, and for what has to do with one job."""

    async def insert(self, rows: Any, at: Any = None) -> Any:
        await asyncio.sleep(3)
        return await self.inner.insert(rows, at)


def test_a_store_that_is_slow() -> None:
    async def main(world: World) -> Any:
        app, events = watched(world)
        task = app.task(quiet, queue="q")
        for _ in range(25):
            await task.enqueue()
        await app.client.close()
        return events

    found = simulate(main, Slow).of(EventKind.ALERT)
    assert [(one.alert, one.seconds) for one in found] == [("store_slow", 3.0)] * 2
    assert "insert took 3.0 s" in found[0].detail


class SlowOtherwise(Tapped):
    """A store that takes long for whatever is neither an insert nor a trip."""

    async def _call(self, name: str, args: Any, at: Any, carry: Any) -> Any:
        if name in ("alter", "fetch", "renew", "scan", "stats", "ticks.due", "ticks.plan"):
            await asyncio.sleep(3)
        return await super()._call(name, args, at, carry)


def test_whatever_a_store_takes_long_for_is_told() -> None:
    async def main(world: World) -> Any:
        app, events = watched(world)
        task = app.task(quiet, queue="q")
        app.every("10s", task.job(), name="often")
        async with working(app):
            await asyncio.sleep(60)
        handle = await task.enqueue()
        await handle.cancel()
        await handle.info()
        store = await app.client.backend()
        await store.stats()
        await store.scan(Selector(queue="q"))
        await app.client.close()
        return events

    found = simulate(main, SlowOtherwise).of(EventKind.ALERT)
    told = {one.subject for one in found if one.alert == "store_slow"}
    assert told == {"alter", "due", "fetch", "plan", "renew", "scan", "stats"}


# -- how it adds up


def test_counters_add_up() -> None:
    """Two workers, a schedule with an outage, jobs that fail and are tried again: what is counted is what was told,
    and what is on the ledger."""

    async def main(world: World) -> Any:
        counters, events = Counters(), Events()

        def make() -> App:
            app = world.app()
            app.observe(counters)
            app.observe(events)

            @app.task(name="work", queue="work")
            async def work() -> None:
                await asyncio.sleep(3)
                if world.now() % 7 < 1:
                    raise ValueError("no")

            app.every("30s", work, name="s", jitter=0.1, misfire="once", grace="1s")
            return app

        one, two = make(), make()
        async with working(one, two):
            await asyncio.sleep(HOUR)
        await asyncio.sleep(HOUR)
        async with working(one, two):
            await asyncio.sleep(HOUR)
        await asyncio.sleep(120)  # until what is planned ahead has come
        history = await one.schedules.history("s", 1_000)
        [health] = await one.schedules.health("s", period="1d")
        await one.client.close()
        return counters.snapshot(), events, history, health

    counted, events, history, health = simulate(main)
    assert {kind: n for kind, n in counted["events"].items() if n} == Counter(one.kind.value for one in events.seen)
    of_work = Counter(one.kind.value for one in events.seen if one.queue == "work")
    assert counted["queues"] == {"work": of_work}
    slots: Counter[str] = Counter()
    for tick in history:
        slots[tick.outcome] += tick.count
    ticks = counted["ticks"]
    assert (ticks["fired"], ticks["missed"], ticks["skipped"]) == (slots["fired"], slots["missed"], 0)
    assert ticks["coverage"] == health.coverage == slots["fired"] / (slots["fired"] + slots["missed"])
    assert ticks["per_second"] == pytest.approx(slots["fired"] / (3 * HOUR + 120))
    started = events.of(EventKind.STARTED)
    assert counted["late"] == counted["waited"]["work"]
    assert (counted["late"]["count"], counted["late"]["max"]) == (len(started), max(one.seconds for one in started))
    assert all(one.detail.startswith("s 2027-") for one in started)
    ended = events.of(EventKind.COMPLETED, EventKind.RETRYING, EventKind.FAILED)
    assert of_work["retrying"]
    assert counted["ran"]["work"]["count"] == len(ended)
    assert counted["ran"]["work"]["sum"] == pytest.approx(sum(one.seconds for one in ended))
    assert counted["alerts"] == Counter(alerts(events)) == {"schedule_late": 1}


def test_jobs_of_no_slot_are_not_late() -> None:
    async def main(world: World) -> Any:
        app, counters = world.app(), Counters()
        app.observe(counters)
        task = app.task(quiet, queue="q")
        await task.enqueue()
        await task.options(headers={"trace": "headrace-slot"}).enqueue()
        await asyncio.sleep(5)
        await app.drain()
        await app.client.close()
        return counters.snapshot()

    counted = simulate(main)
    assert (counted["late"]["count"], counted["waited"]["q"]["count"], counted["waited"]["q"]["max"]) == (0, 2, 5.0)


# -- the log


def test_what_is_logged_of_schedules_and_sweeps(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        app = world.app(retention={"every": "1m", "completed": {"age": "1m"}})
        task = app.task(quiet, result_ttl="1s")
        await app.schedules.put(Every("1m", task.job(), name="s", jitter=0))
        await app.schedules.put(Every("1m", task.job(), name="s", jitter=0))
        await app.schedules.update("s", every="2m")
        await app.schedules.disable("s")
        await app.schedules.disable("s")
        await app.schedules.enable("s")
        async with working(app):
            await asyncio.sleep(10 * 60)
        await app.schedules.delete("s")
        await app.client.close()

    with caplog.at_level(logging.DEBUG, "headrace"):
        simulate(main)
    said = [(one.levelname, one.getMessage()) for one in caplog.records]
    changes = [text for level, text in said if level == "INFO" and text.startswith("schedule ")]
    assert changes == [
        f"schedule 's': {what}" for what in ("made", "changed", "disabled", "enabled", "disabled", "removed")
    ]
    assert ("DEBUG", "planned 1 schedules; slots: {'fired': 1}") in said
    assert [
        one for one in said if one[0] == "DEBUG" and ": completed, started 0." in one[1] and "ran 0.000 s" in one[1]
    ]
    assert ("DEBUG", "a sweep found nothing to remove") in said
    assert [text for level, text in said if level == "INFO" and text.startswith("swept ")]


def test_an_alert_is_told_to_every_observer_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace")

    async def main(world: World) -> Any:
        app, heard = world.app(), []
        for name in ("a", "b"):

            def observe(event: Event, name: str = name) -> None:
                if event.kind is EventKind.ALERT:
                    heard.append((name, event.alert))

            app.observe(observe)
        task = app.task(quiet)
        await app.schedules.put(Every("1m", task.job(), name="s", jitter=0))
        await asyncio.sleep(HOUR)
        async with working(app):
            await asyncio.sleep(10)
        return heard

    assert simulate(main) == [("a", "schedule_late"), ("b", "schedule_late")]
    assert [one.levelname for one in caplog.records if "schedule_late" in one.getMessage()] == ["WARNING"]
