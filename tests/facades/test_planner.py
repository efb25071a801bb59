"""Schedules at work, in virtual time: workers plan them, run their jobs, and note what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headrace import App, Client, Cron, Event, EventKind, Every, Job, NewJob, immediate
from headrace.backends.memory import MemoryBackend
from headrace.core.clock import SystemClock
from headrace.core.config import PlannerSettings
from headrace.core.events import Observers
from headrace.errors import ConfigError, Unavailable
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition, Misfire, Template
from headrace.schedules.planner import Planner
from headrace.seam.records import Claim, Reap
from headrace.seam.ticks import Save, Schedule
from tests.facades.harness import Tapped, World, simulate

HOUR, DAY = 3_600.0, 86_400.0


async def quiet() -> None: ...


@asynccontextmanager
async def working(*apps: App) -> AsyncIterator[None]:
    """Workers of these apps, all the while."""
    async with asyncio.TaskGroup() as group:
        for app in apps:
            group.create_task(app.work())
        try:
            yield
        finally:
            for app in apps:
                app.stop()


def test_one_job_for_each_slot_however_many_workers_there_are() -> None:
    async def main(world: World) -> list[float]:
        ran: list[float] = []

        def make() -> App:
            app = world.app()

            @app.task(name="note")
            async def note() -> None:
                ran.append(world.now())

            app.every("10s", note, jitter=0)
            return app

        async with working(*(make() for _ in range(5))):
            await asyncio.sleep(HOUR / 3 + 1)
        return ran

    ran = simulate(main)
    assert len(ran) == 120
    assert all(abs(at - 10 * number) < 0.5 for number, at in enumerate(ran, 1)), "each at its slot: no drift"


def test_a_handler_knows_its_slot() -> None:
    """Whatever jitter and retries made of the instant at which it runs."""

    async def main(world: World) -> Any:
        app, seen = world.app(), []

        @app.task(retry=immediate(2))
        async def note(job: Job[None]) -> None:
            seen.append(job.slot)
            if len(seen) == 1:
                raise ValueError("once more")

        await app.schedules.put(Every("1h", note.job(), jitter=0.5, max_runs=1))
        await note.enqueue()
        slot = (await app.schedules.get(note.name)).next_slot
        async with working(app):
            await asyncio.sleep(2 * HOUR)
        return slot, seen

    slot, seen = simulate(main)
    assert seen == [None, None, slot]


def test_jitter_moves_jobs_and_not_slots() -> None:
    async def main(world: World) -> Any:
        app = world.app()
        app.every("1h", app.task(quiet), name="hourly")
        async with working(app):
            await asyncio.sleep(DAY)
        history = await app.schedules.history("hourly", 100)
        await app.client.close()
        return history

    history = simulate(main)
    slots = [tick.slot for tick in reversed(history)]
    assert {later - earlier for earlier, later in pairwise(slots)} == {timedelta(hours=1)}
    moved = [(tick.run_at - tick.slot).total_seconds() for tick in history]
    assert max(map(abs, moved)) <= 360
    assert len(set(moved)) == len(moved)


def test_what_became_of_a_slot_is_noted() -> None:
    async def main(world: World) -> Any:
        app = world.app()

        @app.task
        async def work(fails: bool) -> None:
            await asyncio.sleep(2)
            if fails:
                raise ValueError("no")

        await app.schedules.put(Every("1m", work.job(False), name="good", jitter=0, max_runs=1))
        await app.schedules.put(Every("1m", work.options(max_attempts=1).job(True), name="bad", jitter=0, max_runs=1))
        async with working(app):
            await asyncio.sleep(120)
        [good], [bad] = await app.schedules.history("good"), await app.schedules.history("bad")
        await app.client.close()
        return good, bad

    good, bad = simulate(main)
    assert (good.outcome, good.state, good.ran) == ("fired", "completed", 2.0)
    assert good.waited == pytest.approx(0, abs=0.1)
    assert (bad.outcome, bad.state, bad.ran) == ("fired", "failed", 2.0)


@pytest.mark.parametrize(
    ("misfire", "fired", "missed"), [("once", 1, 359), ("skip", 0, 360), ("all", 360, 0)]
)  # fmt: skip
def test_an_outage_is_made_up_for_as_the_schedule_says(misfire: Any, fired: int, missed: int) -> None:
    """Six hours without a worker; then all that was missed is on the ledger, and slots fire again in time."""

    async def main(world: World) -> Any:
        app = world.app()
        app.every("1m", app.task(quiet), name="s", jitter=0, misfire=misfire, grace="1s")
        async with working(app):
            await asyncio.sleep(60 * 10.5)
        before = await app.schedules.history("s", 1_000)
        await asyncio.sleep(6 * HOUR)
        async with working(app):
            await asyncio.sleep(60)
        after = await app.schedules.history("s", 1_000)
        await app.client.close()
        return before, after[: len(after) - len(before)]

    before, after = simulate(main)
    assert [tick.outcome for tick in before] == ["fired"] * len(before)
    counts = {outcome: sum(tick.count for tick in after if tick.outcome == outcome) for outcome in ("fired", "missed")}
    in_time = 2
    ahead = len(before) - 10
    assert counts == {"fired": fired - ahead * (misfire == "all") + in_time, "missed": max(0, missed - ahead)}


def test_a_job_that_may_be_started_once_is_not_started_again_when_its_worker_is_lost() -> None:
    async def main(world: World) -> Any:
        app, ran = world.app(), []

        @app.task
        async def charge() -> None:
            ran.append(1)

        for name, delivery in (("once", "at_most_once"), ("retried", "exactly_once")):
            await app.schedules.put(
                Every("1m", charge.job(), name=name, jitter=0, max_runs=1, delivery=delivery)  # type: ignore[arg-type]
            )
        await asyncio.sleep(60)
        claimed = await world.memory.claim(Claim("one that vanishes", ("default",), 2, 1_000_000))
        assert len(claimed.jobs) == 2
        await asyncio.sleep(2)
        await world.memory.reap(Reap())
        async with working(app):
            await asyncio.sleep(60)
        [once], [retried] = await app.schedules.history("once"), await app.schedules.history("retried")
        info = await app.get(once.job)
        await app.client.close()
        return ran, once, retried, info

    ran, once, retried, info = simulate(main)
    assert ran == [1]
    assert (once.state, retried.state) == ("cancelled", "completed")
    assert "at most once" in info.reason


def test_a_late_slot_of_at_most_once_is_missed() -> None:
    async def main(world: World) -> Any:
        app = world.app()
        app.every("1m", app.task(quiet), name="s", jitter=0, delivery="at_most_once", grace="5s")
        async with working(app):
            await asyncio.sleep(1)
        await asyncio.sleep(HOUR)
        async with working(app):
            await asyncio.sleep(1)
        history = await app.schedules.history("s", 100)
        await app.client.close()
        return history

    history = simulate(main)
    in_time, late = history[:2], history[2:]
    assert [tick.outcome for tick in in_time] == ["fired", "fired"]
    assert [(tick.outcome, tick.count) for tick in late] == [("missed", 58), ("fired", 1)]


def test_a_job_of_at_most_once_that_was_planned_ahead_is_not_run_late() -> None:
    async def main(world: World) -> Any:
        app, ran = world.app(), []

        @app.task
        async def note() -> None:
            ran.append(world.now())

        await app.schedules.put(Every("30s", note.job(), name="s", jitter=0, max_runs=1, delivery="at_most_once"))
        await asyncio.sleep(DAY)
        async with working(app):
            await asyncio.sleep(60)
        [tick] = await app.schedules.history("s")
        await app.client.close()
        return ran, tick

    ran, tick = simulate(main)
    assert ran == []
    assert (tick.outcome, tick.state) == ("fired", "cancelled")


def test_a_crowd_of_changes_is_looked_at_together() -> None:
    class Counting(Tapped):
        looks = 0

        async def _call(self, name: str, args: Any, at: Any, carry: Any) -> Any:
            Counting.looks += name == "ticks.due"
            return await carry(at)

    async def main(world: World) -> None:
        app = world.app()
        app.task(quiet)
        async with working(app):
            await asyncio.sleep(1)
            Counting.looks = 0
            for _ in range(200):
                world.memory.store.publish("schedules:all")
                await asyncio.sleep(0.005)
            await asyncio.sleep(1)

    simulate(main, Counting)
    assert 1 <= Counting.looks <= 25


@pytest.mark.parametrize("refused", ["due", "note"])
def test_a_worker_that_may_not_plan_or_note_works_all_the_same(refused: str, caplog: pytest.LogCaptureFixture) -> None:
    class Confined(Tapped):
        async def _call(self, name: str, args: Any, at: Any, carry: Any) -> Any:
            if name == f"ticks.{refused}":
                raise ConfigError(f"permission denied for {refused}")
            return await carry(at)

    async def main(world: World) -> Any:
        other = App(Client(world.memory, world.client().settings, clock=world.clock, heartbeat_thread=False))
        app, ran = world.app(), []

        @app.task(name="note")
        async def note() -> None:
            ran.append(1)

        await other.schedules.put(Every("30s", NewJob(task="note"), name="s", jitter=0, max_runs=1))
        await asyncio.sleep(30)
        async with working(app):
            await asyncio.sleep(5)
        await note.enqueue()
        await app.drain()
        await app.client.close()
        await other.client.close()
        return ran

    assert simulate(main, Confined) == [1, 1]
    assert f"permission denied for {refused}" in caplog.text


def test_while_the_last_job_lives_a_slot_is_skipped_or_takes_its_place() -> None:
    async def main(world: World) -> Any:
        app, cut = world.app(), []

        @app.task
        async def slow() -> None:
            try:
                await asyncio.sleep(150)
            except asyncio.CancelledError:
                cut.append(world.now())
                raise

        app.every("1m", slow, name="skips", jitter=0, overlap="skip")
        app.every("1m", slow, name="cancels", jitter=0, overlap="cancel")
        async with working(app):
            await asyncio.sleep(7 * 60 + 30)
        skips = [tick.outcome for tick in reversed(await app.schedules.history("skips"))]
        cancels = [(tick.outcome, tick.state) for tick in reversed(await app.schedules.history("cancels"))]
        await app.client.close()
        return skips, cancels, cut

    skips, cancels, cut = simulate(main)
    assert skips == ["fired", "skipped", "skipped", "fired", "skipped", "skipped", "fired"]
    assert [outcome for outcome, _ in cancels] == ["fired"] * 7
    assert [state for _, state in cancels[:6]] == ["cancelled"] * 6
    assert len(cut) >= 6


def test_a_schedule_that_comes_up_before_the_next_look_is_planned_in_time() -> None:
    """Though planners look only once a day: whoever saves one wakes them, and they know when the next is due."""

    async def main(world: World) -> Any:
        app, ran = world.app(planner={"every": "1d"}), []

        @app.task
        async def note() -> None:
            ran.append(world.now())

        other = world.app()
        async with working(app):
            await asyncio.sleep(10)
            await other.schedules.put(Every("1h", note.job(), name="s", jitter=0, overlap="skip"))
            await asyncio.sleep(3 * HOUR + 1)
        await other.client.close()
        await app.client.close()
        return ran

    ran = simulate(main)
    assert ran == [pytest.approx(10 + n * HOUR, abs=0.5) for n in (1, 2, 3)]


def test_a_share_that_nobody_plans_is_planned_by_others() -> None:
    """A little later than its own planner would, and somebody is told."""

    async def main(world: World) -> Any:
        alerts: list[Any] = []

        def make(share: int) -> App:
            app = world.app(planner={"share": share, "shares": 3})
            app.observe(lambda event: alerts.append(event) if event.kind is EventKind.ALERT else None)
            task = app.task(quiet, name="t")
            for number in range(9):
                app.every("1m", task.job(), name=f"s{number}", jitter=0)
                app.every("1m", task.job(), name=f"exact{number}", jitter=0, overlap="skip")
            return app

        first, second = make(0), make(1)
        async with working(first, second):
            await asyncio.sleep(HOUR)
        fared = await first.schedules.health(period="1d", limit=100)
        await first.client.close()
        await second.client.close()
        return fared, alerts

    fared, alerts = simulate(main)
    assert {(one.missed, one.skipped, one.stale) for one in fared} == {(0, 0, "")}
    assert all(59 <= one.fired <= 61 for one in fared)
    assert {event.alert for event in alerts} == {"share_unattended"}
    assert "share 2 of 3" in alerts[0].detail


def test_shares_that_are_looked_after_are_left_alone() -> None:
    async def main(world: World) -> Any:
        alerts: list[Any] = []

        def make(share: int) -> App:
            app = world.app(planner={"share": share, "shares": 2})
            app.observe(lambda event: alerts.append(event) if event.kind is EventKind.ALERT else None)
            task = app.task(quiet, name="t")
            for number in range(9):
                app.every("1m", task.job(), name=f"s{number}", jitter=0, overlap="skip")
            return app

        apps = [make(0), make(1)]
        async with working(*apps):
            await asyncio.sleep(HOUR)
        for app in apps:
            await app.client.close()
        return alerts

    assert simulate(main) == []


def test_a_function_may_set_the_pace() -> None:
    async def main(world: World) -> Any:
        app, ran, asked = world.app(), [], []

        @app.task
        async def note() -> None:
            ran.append(world.now())

        app.every("10m", note, name="s", jitter=0)

        @app.dynamic_interval("s")
        def interval(name: str) -> str | None:
            asked.append(name)
            return ("1m", "2m", None)[len(asked) % 3]

        async with working(app):
            await asyncio.sleep(HOUR)
        return ran, set(asked)

    ran, asked = simulate(main)
    assert asked == {"s"}
    gaps = {round((later - earlier) / 60) for earlier, later in pairwise(ran)}
    assert {1, 2} <= gaps
    assert len(ran) > 10


def test_a_pace_that_raises_is_told_and_the_rule_goes_on() -> None:
    async def main(world: World) -> Any:
        app, errors = world.app(), []
        app.observe(lambda event: errors.append(event.detail) if event.kind is EventKind.ERROR else None)
        app.every("1m", app.task(quiet), name="s", jitter=0)

        @app.dynamic_interval("s")
        def interval(name: str) -> str:
            raise ValueError("no idea")

        async with working(app):
            await asyncio.sleep(5 * 60 + 1)
        info = await app.schedules.get("s")
        await app.client.close()
        return errors, info.runs

    errors, runs = simulate(main)
    assert set(errors) == {"interval of schedule s"}
    assert runs >= 5


def test_planning_goes_on_when_the_store_comes_back() -> None:
    class Away(Tapped):
        away = False

        async def _call(self, name: str, args: Any, at: Any, carry: Any) -> Any:
            if Away.away and name.startswith("ticks."):
                raise Unavailable("away")
            return await carry(at)

    async def main(world: World) -> Any:
        app = world.app()
        app.every("10s", app.task(quiet), name="s", jitter=0, misfire="all", max_age="1h")
        async with working(app):
            await asyncio.sleep(100)
            Away.away = True
            await asyncio.sleep(600)
            Away.away = False
            await asyncio.sleep(100)
        info = await app.schedules.get("s")
        await app.client.close()
        return info.runs

    assert simulate(main, Away) == pytest.approx(80 + 6, abs=2)


def test_burst_plans_first_what_is_due() -> None:
    async def main(world: World) -> Any:
        app, ran = world.app(), []

        @app.task
        async def note() -> None:
            ran.append(world.now())

        await app.schedules.put(Cron("0 * * * *", note.job(), overlap="skip"))
        await asyncio.sleep(HOUR)
        await app.drain()
        await app.client.close()
        return ran

    assert len(simulate(main)) == 1


def test_a_schedule_that_cannot_be_read_keeps_nobody_else_from_firing(caplog: pytest.LogCaptureFixture) -> None:
    """As one that a newer version has made."""

    async def main(world: World) -> Any:
        app = world.app()
        task = app.task(quiet)
        for number in range(3):
            await app.schedules.put(Every("1m", task.job(), name=f"s{number}", jitter=0))
        ledger = world.memory.store.ledger
        ledger.schedules["s1"] = _unreadable(ledger.schedules["s1"])
        async with working(app):
            await asyncio.sleep(10 * 60)
        return {name: schedule.runs for name, schedule in ledger.schedules.items()}

    runs = simulate(main)
    assert runs["s0"] == runs["s2"] >= 10
    assert runs["s1"] == 1
    assert "cannot be planned" in caplog.text


@pytest.mark.parametrize("interval", [1, 999_999, 0, -1_000_000, 2**62])
def test_a_stored_schedule_that_says_what_none_may_is_disabled(interval: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can write to the store could otherwise have jobs made without end; it is seen in lists all the same."""

    async def main(world: World) -> Any:
        app = world.app()
        task = app.task(quiet)
        told: list[Event] = []
        app.observe(lambda event: told.append(event) if event.kind is EventKind.ERROR else None)
        for number in range(2):
            await app.schedules.put(Every("1m", task.job(), name=f"s{number}", jitter=0))
        ledger = world.memory.store.ledger
        ledger.schedules["s1"] = _every(ledger.schedules["s1"], interval)
        async with working(app):
            await asyncio.sleep(10 * 60)
        listed = [(one.name, one.enabled, one.rule[:20]) for one in await app.schedules.list()]
        assert await app.schedules.stale() == []
        await app.schedules.delete("s1")
        return listed, ledger.schedules["s0"].runs, [event.detail for event in told]

    listed, runs, told = simulate(main)
    assert listed == [("s0", True, "every 1m"), ("s1", False, "<interval: expected ")]
    assert runs >= 10
    assert told == ["schedule s1 is disabled"]
    assert caplog.text.count("'s1' is disabled, because it is not valid: interval: expected 1,000,000 to") == 1


def test_a_schedule_that_the_store_will_not_plan_keeps_nobody_else_from_firing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Picky(Tapped):
        async def _call(self, name: str, args: Any, at: Any, carry: Any) -> Any:
            if name == "ticks.plan" and any(plan.name == "s1" and plan.ticks for plan in args[0]):
                raise OverflowError("a number is out of range")
            return await carry(at)

    async def main(world: World) -> Any:
        app = world.app()
        for number in range(3):
            app.every("1m", app.task(quiet, name=f"quiet{number}"), name=f"s{number}", jitter=0, overlap="skip")
        async with working(app):
            await asyncio.sleep(10 * 60)
        return {name: schedule.runs for name, schedule in world.memory.store.ledger.schedules.items()}

    runs = simulate(main, Picky)
    assert runs["s0"] == runs["s2"] >= 9
    assert runs["s1"] == 0
    assert "the store rejected a plan of schedule 's1'" in caplog.text


def _unreadable(schedule: Any) -> Any:
    return replace(schedule, definition=b"\xc1")


def _every(schedule: Any, interval: int) -> Any:
    told = msgspec.msgpack.decode(schedule.definition)
    told["rule"]["interval"] = interval
    return replace(schedule, definition=msgspec.msgpack.encode(told))


async def test_schedules_with_very_much_to_make_up_keep_nobody_else_waiting() -> None:
    """More of them than one look brings, each with millions of slots: it lines up again behind those that are due."""
    store = MemoryBackend()
    await store.open()
    now = await store.now()
    endless = Definition(
        rule=EveryRule(1_000_000, 0), template=Template("t", {}), misfire=Misfire.ALL, max_age=3_650 * 86_400_000_000
    )
    hourly = Definition(rule=EveryRule(3_600_000_000, 0), template=Template("t", {}))
    behind = Schedule(name="", uid=b"", queue="q", definition=endless.pack(), slot=10**12, look_at=1)
    saves = [Save(replace(behind, name=f"s{n}", uid=n.to_bytes(16, "big")), 0) for n in range(15)]
    slot = now // 3_600_000_000 * 3_600_000_000
    uid = (99).to_bytes(16, "big")
    other = Schedule(name="other", uid=uid, queue="q", definition=hourly.pack(), slot=slot, look_at=slot)
    assert all(await store.ticks.save([*saves, Save(other, 0)]))
    settings = PlannerSettings(batch=10)
    planner = Planner(store.ticks, SystemClock(), Random(1), Observers(), settings)
    planning = asyncio.create_task(planner.look())
    try:
        async with asyncio.timeout(60):
            while not await store.ticks.history(other.uid):
                await asyncio.sleep(0)
        assert not planning.done()
    finally:
        planning.cancel()
    await store.close()
