"""``app.schedules``, ``app.every``, ``app.cron`` and ``app.dynamic_interval``, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from headrace import App, Client, Cron, EventKind, Every, Job, JobState, NewJob, ScheduleInfo, TickInfo
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, HeadraceError, InvalidJob, ScheduleNotFound, Unavailable
from headrace.seam.instants import to_datetime
from tests.facades.harness import Events, Gate, Store, Tapped, World, settings, simulate, within, working

MADRID = ZoneInfo("Europe/Madrid")


class Timed:
    """An app with one task that remembers its arguments, and a clock that stands still."""

    def __init__(
        self,
        store: Store,
        start: datetime = datetime(2027, 1, 15, 8, tzinfo=UTC),
        clock: ManualClock | None = None,
        **given: Any,
    ) -> None:
        self.start = start
        self.clock = clock or ManualClock(int(start.timestamp()) * 1_000_000)
        self.app = store.app(clock=self.clock, **given)
        self.events = Events()
        self.app.observe(self.events)
        self.schedules = self.app.schedules
        self.seen: list[str] = []

        @self.app.task(name="ping")
        async def ping(text: str = "-") -> str:
            self.seen.append(text)
            return text

        self.ping = ping

    async def pass_by(self, *lengths: str) -> None:
        """Let time pass, with a worker that looks after each length of it."""
        for length in lengths:
            self.clock.advance(length)
            await within(self.app.drain())

    async def put(self, *, every: str = "30s", **options: Any) -> ScheduleInfo:
        """An interval without jitter, counted from now."""
        return await self.schedules.put(Every(every, self.ping.job(), **({"jitter": 0} | options)))

    def after(self, *seconds: float) -> list[datetime]:
        return [self.start + timedelta(seconds=one) for one in seconds]

    async def slots(self, name: str = "ping", outcome: str = "fired") -> list[datetime]:
        """Earliest first."""
        return sorted(tick.slot for tick in await self.schedules.history(name, 1_000) if tick.outcome == outcome)

    async def jobs(self, *states: JobState) -> int:
        queues = (await self.app.client.stats()).queues
        fields = {JobState.AVAILABLE: "available", JobState.CANCELLED: "cancelled", JobState.COMPLETED: "completed"}
        return sum(getattr(queue, fields[state]) for queue in queues for state in states)


# -- making


async def test_a_schedule_is_stored_as_it_was_said(store: Store) -> None:
    timed = Timed(store)
    job = timed.ping.options(queue="north", tenant="acme", priority=3).job("hello")
    end = timed.start + timedelta(days=9)
    options: dict[str, Any] = {"jitter": 0.2, "misfire": "all", "max_age": "6h", "overlap": "skip", "plan_priority": -5}
    made = await timed.schedules.put(
        Cron("0 6 * * MON-FRI", job, name="morning", tz="Europe/Madrid", end=end, max_runs=7, grace="2m", **options)
    )
    assert made == await timed.schedules.get("morning")
    said = {name: value for name, value in made.to_dict().items() if name in options}
    assert said == options | {"max_age": 21_600.0}
    assert (made.name, made.task, made.args, made.queue) == ("morning", "ping", {"text": "hello"}, "north")
    assert (made.tenant, made.priority, made.rule, made.tz) == ("acme", 3, "0 6 * * MON-FRI", "Europe/Madrid")
    assert (made.grace, made.max_runs, made.end, made.start) == (120.0, 7, end, None)
    assert (made.enabled, made.runs, made.last_slot, made.last_job) == (True, 0, None, None)
    assert made.next_slot == datetime(2027, 1, 18, 6, tzinfo=MADRID)
    assert made.created_at == made.updated_at == timed.start


async def test_it_has_the_name_of_its_task_unless_told(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.put(name="another")
    assert [one.name for one in await timed.schedules.list()] == ["another", "ping"]


async def test_intervals_have_jitter_unless_told_and_cron_expressions_have_none(store: Store) -> None:
    timed = Timed(store)
    every = await timed.schedules.put(Every("1m", timed.ping.job()))
    cron = await timed.schedules.put(Cron("@hourly", timed.ping.job(), name="cron"))
    assert (every.jitter, cron.jitter) == (0.1, 0.0)


async def test_putting_what_is_there_changes_nothing(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("45s")
    before = await timed.schedules.get("ping")
    assert await timed.put() == before
    assert before.runs == 3
    assert before.next_slot == timed.after(120)[0]


async def test_putting_keeps_the_pause(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.schedules.disable("ping")
    assert not (await timed.put(every="45s")).enabled


async def test_a_new_interval_goes_on_from_the_last_slot(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("1s")
    changed = await timed.put(every="50s")
    assert (changed.last_slot, changed.next_slot) == (*timed.after(60), *timed.after(110))


async def test_a_new_job_is_that_of_slots_to_come(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("1s")
    await timed.schedules.put(Every("30s", timed.ping.job("new"), jitter=0))
    await timed.pass_by(*["30s"] * 3)
    assert timed.seen == ["-", "-", "new"]


async def test_a_slot_that_comes_before_anybody_looks_is_planned_at_once(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    assert await timed.slots() == timed.after(30, 60)


# -- firing


async def test_every_slot_has_one_job_and_none_drifts(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="20s")
    await timed.pass_by(*["17s", "31s", "44s"] * 4)
    assert await timed.slots() == timed.after(*range(20, 440, 20))
    assert len(timed.seen) == 368 // 20


async def test_jitter_stays_within_its_share_and_is_told_beforehand(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="100s", jitter=0.1)
    told = await timed.schedules.next("ping", 9)
    await timed.pass_by(*["50s"] * 18)
    ticks = [tick for tick in reversed(await timed.schedules.history("ping")) if tick.run_at <= told[-1]]
    assert [tick.run_at for tick in ticks] == told
    shifts = [(tick.run_at - tick.slot).total_seconds() for tick in ticks]
    assert all(-10 <= shift <= 10 for shift in shifts)
    assert len(set(shifts)) == 9


async def test_a_job_knows_its_schedule(store: Store) -> None:
    timed = Timed(store)
    headers: list[str] = []

    @timed.app.task(name="nosy")
    async def nosy(job: Job[None]) -> None:
        headers.append(job.headers["headrace-schedule"])

    await timed.schedules.put(Every("30s", nosy.job(), name="curious", jitter=0))
    await timed.pass_by("30s")
    assert headers == ["curious"]


async def test_what_is_declared_is_put_once_by_however_many_workers(store: Store) -> None:
    crew = [Timed(store) for _ in range(3)]
    for timed in crew:
        timed.app.every("30s", timed.ping, name="beat", jitter=0)
        timed.app.cron("* * * * *", timed.ping.job("cron"), name="minute", tz="Europe/Madrid")
    await within(asyncio.gather(*(timed.app.drain() for timed in crew)))
    for _ in range(10):
        for timed in crew:
            timed.clock.advance("30s")
        await within(asyncio.gather(*(timed.app.drain() for timed in crew)))
    assert [one.name for one in await crew[0].schedules.list()] == ["beat", "minute"]
    seen = [text for timed in crew for text in timed.seen]
    assert (seen.count("-"), seen.count("cron")) == (10, 5)


async def test_a_worker_hears_of_a_new_schedule_at_once(store: Store) -> None:
    app, events = store.app(planner={"every": "1h"}), Events()
    app.observe(events)

    @app.task(name="ping")
    async def ping() -> None: ...

    async with working(app):
        await app.schedules.put(Every("1s", ping.job(), jitter=0))
        await events.until(EventKind.COMPLETED)


@pytest.mark.parametrize(
    ("options", "fired", "missed"),
    [
        ({"misfire": "once"}, [3_600 * 5], 4),
        ({"misfire": "skip"}, [], 5),
        ({"misfire": "all"}, [3_600 * hour for hour in range(1, 6)], 0),
        ({"misfire": "all", "max_age": "140m"}, [3_600 * 4, 3_600 * 5], 3),
        ({"delivery": "at_most_once"}, [], 5),
    ],
    ids=str,
)
async def test_after_an_outage(store: Store, options: dict[str, Any], fired: list[int], missed: int) -> None:
    timed = Timed(store)
    await timed.put(every="1h", **options)
    await timed.pass_by("330m")
    assert await timed.slots() == timed.after(*fired)
    assert sum(t.count for t in await timed.schedules.history("ping") if t.outcome == "missed") == missed
    await timed.pass_by("30m")
    assert len(timed.seen) == len(fired) + 1
    assert len(timed.events.of(EventKind.TICK_MISSED)) == bool(missed)
    assert len(timed.events.of(EventKind.TICK_FIRED)) == len(fired) + 1


async def test_overlap_skip_skips_while_the_job_before_is_alive(store: Store) -> None:
    timed = Timed(store)
    await timed.schedules.put(Every("30s", timed.ping.options(queue="nobody").job(), jitter=0, overlap="skip"))
    await timed.pass_by("30s", "30s")
    assert await timed.slots() == timed.after(30)
    assert await timed.slots(outcome="skipped") == timed.after(60)
    assert len(timed.events.of(EventKind.TICK_SKIPPED)) == 1


async def test_overlap_cancel_lets_the_newest_win(store: Store) -> None:
    timed = Timed(store)
    await timed.schedules.put(Every("30s", timed.ping.options(queue="nobody").job(), jitter=0, overlap="cancel"))
    await timed.pass_by("30s", "30s")
    assert [tick.state for tick in await timed.schedules.history("ping")] == ["available", "cancelled"]


async def test_start_end_and_number_of_runs(store: Store) -> None:
    timed = Timed(store)
    start, end = timed.after(95, 200)
    await timed.put(name="some", every="20s", start=start, end=end)
    await timed.put(name="three", every="20s", max_runs=3)
    await timed.pass_by(*["30s"] * 10)
    assert await timed.slots("some") == timed.after(95, 115, 135, 155, 175, 195)
    assert await timed.slots("three") == timed.after(20, 40, 60)
    for name in ("some", "three"):
        assert (await timed.schedules.get(name)).next_slot is None
        assert await timed.schedules.next(name) == []


async def test_a_function_says_when_the_next_slot_comes(store: Store) -> None:
    timed = Timed(store)
    lengths: list[str | None] = ["10s", "100s", None]
    asked: list[str] = []

    @timed.app.dynamic_interval("ping")
    def interval(name: str) -> str | None:
        asked.append(name)
        return lengths.pop(0) if lengths else None

    await timed.put(every="70s")
    await timed.pass_by(*["10s"] * 20)
    assert (await timed.slots())[:3] == timed.after(70, 80, 180)
    assert set(asked) == {"ping"}


async def test_a_dynamic_interval_is_left_to_those_who_have_the_function(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    timed = Timed(store)
    other = Timed(store, clock=timed.clock)
    timed.app.dynamic_interval("ping")(lambda name: "10s")
    assert (await timed.put(every="70s")).dynamic_interval
    await timed.pass_by("65s", "5s")
    with caplog.at_level("INFO", "headrace"):
        await other.pass_by("15s")
    assert await timed.slots() == timed.after(70), "by its rule it would have fired later, and not have been asked"
    told = [record.getMessage() for record in caplog.records if "left to workers" in record.getMessage()]
    assert told == ["schedule 'ping' is left to workers that have the function for its interval"]
    await timed.pass_by("5s")
    assert await timed.slots() == timed.after(70, 80, 90)


async def test_changes_by_others_leave_a_dynamic_interval_as_it_is(store: Store) -> None:
    timed = Timed(store)
    other = Timed(store, clock=timed.clock)
    timed.app.dynamic_interval("ping")(lambda name: "10s")
    await timed.put(every="70s")
    await timed.pass_by("70s")
    for change in (
        other.schedules.update("ping", grace="2m"),
        other.put(every="70s", grace="3m"),
        timed.put(every="70s", grace="4m"),
        timed.put(every="70s", grace="4m"),
    ):
        changed = await change
        assert (changed.dynamic_interval, changed.next_slot) == (True, timed.after(80)[0])
    timed.clock.advance("10s")
    await other.schedules.update("ping", grace="5m")
    assert await timed.slots() == timed.after(70), "nothing is planned by the rule"
    await timed.pass_by("0s")
    assert await timed.slots() == timed.after(70, 80)


async def test_a_worker_with_the_function_makes_an_interval_dynamic(store: Store) -> None:
    """Whoever made the schedule."""
    timed = Timed(store)
    other = Timed(store, clock=timed.clock)
    assert not (await other.put(every="100s")).dynamic_interval
    timed.app.dynamic_interval("ping")(lambda name: "10s")
    await timed.pass_by("45s", "55s")
    assert (await other.schedules.get("ping")).dynamic_interval
    assert await timed.slots() == timed.after(100)
    await other.pass_by("10s")
    assert await timed.slots() == timed.after(100)
    await timed.pass_by("10s")
    assert await timed.slots() == timed.after(100, 110, 120)


async def test_an_interval_function_that_nobody_has_keeps_no_other_schedule_waiting(store: Store) -> None:
    timed = Timed(store)
    other = Timed(store, clock=timed.clock, planner={"batch": 1})
    for name in ("a", "b", "c"):
        timed.app.dynamic_interval(name)(lambda name: "10s")
        await timed.put(name=name, every="70s")
    await timed.put(name="z", every="70s", overlap="skip")
    await other.pass_by("70s")
    assert await other.slots("z") == timed.after(70)
    assert await other.slots("a") == []
    await other.pass_by("30s")
    alerts = [event.detail for event in other.events.seen if event.kind is EventKind.ALERT]
    assert alerts[0].startswith("schedule_late: schedule 'a': the slot of 2027-01-15T08:01:10+00:00 waits: a function")
    assert [await other.slots(name) for name in ("a", "b", "c")] == [[], [], []]
    await timed.pass_by("20s")
    assert [(await timed.slots(name))[-1:] for name in ("a", "b", "c")] == [timed.after(120)] * 3


async def test_a_dynamic_interval_can_be_given_up(store: Store) -> None:
    timed = Timed(store)
    other = Timed(store, clock=timed.clock)
    timed.app.dynamic_interval("ping")(lambda name: "10s")
    await timed.put(every="70s")
    with pytest.raises(ConfigError, match="this app has a function"):
        await timed.schedules.update("ping", dynamic_interval=False)
    assert not (await other.schedules.update("ping", dynamic_interval=False)).dynamic_interval
    await other.pass_by("80s")
    assert await timed.slots() == timed.after(70, 140)


# -- changing


async def test_update_changes_single_things(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="1h", max_runs=9)
    changed = await timed.schedules.update("ping", jitter=0.5, overlap="cancel", plan_priority=7)
    assert (changed.rule, changed.max_runs, changed.jitter, changed.overlap, changed.plan_priority) == (
        "every 1h", 9, 0.5, "cancel", 7,
    )  # fmt: skip
    assert changed.next_slot == timed.after(3_600)[0]
    by_clock = await timed.schedules.update("ping", cron="0 6 * * *", tz="Asia/Kolkata")
    assert by_clock.jitter == 0.5
    assert (by_clock.rule, by_clock.tz, by_clock.max_runs) == ("0 6 * * *", "Asia/Kolkata", 9)
    assert (await timed.schedules.update("ping", tz="UTC")).next_slot == datetime(2027, 1, 16, 6, tzinfo=UTC)
    assert (await timed.schedules.update("ping", every="5m")).rule == "every 5m"


async def test_what_is_planned_stays_when_the_interval_changes(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("1s")
    await timed.schedules.update("ping", every="2m")
    await timed.pass_by(*["30s"] * 7)
    assert await timed.slots() == timed.after(30, 60, 180)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bogus": 1}, ["'bogus'", "there are:", "dynamic_interval", "jitter"]),
        ({"evry": "1s"}, ["'evry' (did you mean 'every'?)"]),
        ({"every": "5m", "cron": "@daily"}, ["got both"]),
        ({"tz": "UTC"}, ["an interval has no time zone"]),
        ({"every": "soon"}, ["interval", "'soon'"]),
        ({"every": "10ms"}, ["at least 1s"]),
        ({"cron": "99 * * * *"}, ["cron", "minute"]),
        ({"cron": "@daily", "tz": "Europe/Nowhere"}, ["tz", "Europe/Nowhere"]),
        ({"jitter": 2}, ["jitter", "0 to 0.5"]),
        ({"max_runs": 0}, ["max_runs", "from 1 to"]),
        ({"delivery": "at_most_once", "misfire": "all"}, ["misfire", "at_most_once"]),
    ],
    ids=str,
)
async def test_an_update_that_is_wrong_changes_nothing(
    memory: Store, changes: dict[str, Any], words: list[str]
) -> None:
    timed = Timed(memory)
    before = await timed.put(every="1h")
    with pytest.raises(ConfigError) as refused:
        await timed.schedules.update("ping", **changes)
    assert all(word in str(refused.value) for word in words)
    assert await timed.schedules.get("ping") == before


async def test_many_changes_at_once_all_take_effect(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="1h")
    changes: list[dict[str, Any]] = [{"plan_priority": 3}, {"jitter": 0.3}, {"max_runs": 3}, {"overlap": "skip"}]
    await within(asyncio.gather(*(timed.schedules.update("ping", **change) for change in changes)))
    now = await timed.schedules.get("ping")
    assert (now.plan_priority, now.jitter, now.max_runs, now.overlap) == (3, 0.3, 3, "skip")


# -- pausing


async def test_disabled_it_fires_no_more_and_what_is_planned_still_runs(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("1s")
    paused = await timed.schedules.disable("ping")
    assert not paused.enabled
    await timed.pass_by(*["1m"] * 5)
    assert await timed.slots() == timed.after(30, 60)
    assert len(timed.seen) == 2
    assert await timed.schedules.disable("ping") == await timed.schedules.get("ping")


async def test_another_kind_of_rule_takes_on_its_own_jitter_but_for_one_that_was_chosen(store: Store) -> None:
    timed = Timed(store)
    await timed.schedules.put(Every("1h", timed.ping.job()))
    assert (await timed.schedules.update("ping", cron="@daily")).jitter == 0.0
    assert (await timed.schedules.update("ping", every="2h")).jitter == 0.1
    assert (await timed.schedules.update("ping", cron="@daily", jitter=0.2)).jitter == 0.2
    assert (await timed.schedules.update("ping", every="1h")).jitter == 0.2
    assert (await timed.schedules.update("ping", jitter=0.1)).jitter == 0.1
    assert (await timed.schedules.update("ping", every="3h")).jitter == 0.1


async def test_slots_whose_jobs_were_cancelled_have_fired_and_are_not_covered(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("31s")
    await timed.schedules.disable("ping", cancel_pending=True)
    await timed.pass_by("5m")
    ticks = await timed.schedules.history("ping")
    assert [(one.outcome, one.state, one.waited, one.ran) for one in ticks[:2]] == [
        ("fired", "cancelled", None, None),
        ("fired", "cancelled", None, None),
    ]
    assert await timed.schedules.backfill("ping", ticks[1].slot, ticks[0].slot) == 0
    [health] = await timed.schedules.health("ping")
    assert (health.fired, health.completed, health.cancelled, health.coverage) == (3, 1, 2, 1 / 3)


async def test_disabled_with_what_is_pending(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("31s")
    await timed.schedules.disable("ping", cancel_pending=True)
    assert await timed.schedules.next("ping") == []
    await timed.pass_by("5m")
    assert len(timed.seen) == 1
    assert await timed.jobs(JobState.CANCELLED) == 2


async def test_pending_jobs_can_be_cancelled_later_too(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("1s")
    await timed.schedules.disable("ping")
    await timed.schedules.disable("ping", cancel_pending=True)
    assert await timed.jobs(JobState.CANCELLED) == 2


async def test_enabled_again_it_goes_on_with_the_next_slot_in_its_phase(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.schedules.disable("ping")
    await timed.pass_by("10m", "5s")
    resumed = await timed.schedules.enable("ping")
    assert resumed.enabled
    await timed.pass_by("30s")
    assert await timed.slots() == timed.after(30, 60, 630, 660, 690)
    assert await timed.slots(outcome="missed") == []
    assert await timed.schedules.enable("ping") == await timed.schedules.get("ping")


# -- removing


async def test_deleted_it_is_gone_and_what_is_pending_with_it(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("31s")
    await timed.schedules.delete("ping")
    await timed.pass_by("5m")
    assert len(timed.seen) == 1
    assert await timed.jobs(JobState.CANCELLED) == 2
    assert await timed.schedules.list() == []


async def test_a_job_that_runs_goes_on_when_its_schedule_is_deleted(store: Store) -> None:
    app, gate = store.app(), Gate()

    @app.task(name="slow")
    async def slow() -> str:
        await gate.pass_through()
        return "done"

    async with working(app):
        await app.schedules.put(Every("1h", slow.job()))
        job_id = await app.schedules.run("slow")
        await gate.reached()
        await app.schedules.delete("slow")
        gate.open()
        assert await within(app.client.wait(job_id)) is not None
        assert (await app.get(job_id)).state is JobState.COMPLETED


async def test_made_again_it_is_another(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("5m")
    await timed.schedules.delete("ping")
    again = await timed.put(every="1h")
    assert (again.runs, again.last_slot) == (0, None)
    assert await timed.schedules.history("ping") == []


async def test_a_tenant_goes_with_its_schedules_and_no_other(store: Store) -> None:
    timed = Timed(store)
    for tenant in ("acme", "acme", "bolt", ""):
        job = timed.ping.options(**({"tenant": tenant} if tenant else {})).job()
        number = len(await timed.schedules.list())
        await timed.schedules.put(Every("30s", job, name=f"{tenant or 'all'} {number}", jitter=0))
    assert await timed.schedules.delete_tenant("acme") == 2
    assert await timed.schedules.delete_tenant("acme") == 0
    assert [one.name for one in await timed.schedules.list()] == ["all 3", "bolt 2"]
    assert await timed.jobs(JobState.CANCELLED) == await timed.jobs(JobState.AVAILABLE) == 4


@pytest.mark.parametrize("name", ["get", "update", "enable", "disable", "delete", "next", "history", "run", "backfill"])
async def test_one_that_is_not_there(store: Store, name: str) -> None:
    timed = Timed(store)
    await timed.put(name="other")
    more = (timed.start,) if name == "backfill" else ()
    with pytest.raises(ScheduleNotFound, match="no schedule 'ping'"):
        await getattr(timed.schedules, name)("ping", *more)


# -- looking


async def test_listed_by_tenant_and_queue_page_by_page(store: Store) -> None:
    timed = Timed(store)
    for number in range(5):
        options = {"queue": f"q{number % 2}"} | ({"tenant": "acme"} if number < 2 else {})
        await timed.schedules.put(Every("1h", timed.ping.options(**options).job(), name=f"s{number}"))

    async def names(**filters: Any) -> list[str]:
        return [one.name for one in await timed.schedules.list(**filters)]

    assert await names() == ["s0", "s1", "s2", "s3", "s4"]
    assert await names(queue="q1") == ["s1", "s3"]
    assert await names(tenant="acme") == ["s0", "s1"]
    assert await names(tenant="") == ["s2", "s3", "s4"]
    assert await names(tenant="acme", queue="q0") == ["s0"]
    assert await names(limit=2) == ["s0", "s1"]
    assert await names(limit=2, after="s1") == ["s2", "s3"]


async def test_next_by_the_clocks_of_its_zone_when_they_change(store: Store) -> None:
    timed = Timed(store, datetime(2027, 3, 26, 12, tzinfo=UTC))
    await timed.schedules.put(Cron("30 2 * * *", timed.ping.job(), name="night", tz="Europe/Madrid"))
    told = [one.astimezone(MADRID) for one in await timed.schedules.next("night", 4)]
    assert [f"{one:%d %H:%M %z}" for one in told] == [
        "27 02:30 +0100", "28 03:00 +0200", "29 02:30 +0200", "30 02:30 +0200",
    ]  # fmt: skip


async def test_next_tells_of_slots_that_are_planned_and_of_those_that_are_not(store: Store) -> None:
    timed = Timed(store)
    await timed.put(max_runs=5)
    await timed.pass_by("31s")
    assert (await timed.schedules.get("ping")).last_slot == timed.after(90)[0]
    assert await timed.schedules.next("ping", 2) == timed.after(60, 90)
    assert await timed.schedules.next("ping", 9) == timed.after(60, 90, 120, 150)


async def test_history_tells_of_each_slot_and_its_job(store: Store) -> None:
    timed = Timed(store)
    await timed.put()
    await timed.pass_by("1s", "31s")
    ticks = await timed.schedules.history("ping")
    assert [tick.slot for tick in ticks] == timed.after(90, 60, 30)
    assert [tick.state for tick in ticks] == ["available", "available", "completed"]
    first = ticks[-1]
    assert (first.outcome, first.count, first.run_at) == ("fired", 1, first.slot)
    assert first.planned_at == timed.start
    assert first.job is not None
    assert (await timed.app.get(first.job)).run_at == first.slot
    assert first.to_dict()["outcome"] == "fired"


async def test_history_page_by_page(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="1h")
    await timed.pass_by(*["1h"] * 7)
    pages: list[list[TickInfo]] = [list(await timed.schedules.history("ping", 3))]
    while page := await timed.schedules.history("ping", 3, before=pages[-1][-1].slot):
        pages.append(list(page))
    slots = [tick.slot for page in pages for tick in page]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert all(later - earlier == timedelta(hours=1) for later, earlier in pairwise(slots))


# -- out of turn


async def test_run_makes_a_job_now_beside_the_slots(store: Store) -> None:
    timed = Timed(store)
    before = await timed.put(every="1h")
    job_id = await timed.schedules.run("ping")
    other = await timed.schedules.run("ping")
    assert job_id != other
    await within(timed.app.drain())
    assert timed.seen == ["-", "-"]
    assert (await timed.app.get(job_id)).state is JobState.COMPLETED
    after = await timed.schedules.get("ping")
    assert (after.next_slot, after.last_slot, after.runs) == (before.next_slot, None, 2)
    assert len(await timed.schedules.history("ping")) == 2


async def test_run_while_it_is_disabled(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="1h")
    await timed.schedules.disable("ping")
    await timed.schedules.run("ping")
    await within(timed.app.drain())
    assert timed.seen == ["-"]


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
async def test_run_while_the_job_before_is_alive(store: Store, overlap: Any) -> None:
    timed = Timed(store)
    await timed.schedules.put(Every("1h", timed.ping.options(queue="nobody").job(), overlap=overlap, jitter=0))
    await timed.pass_by("1h")
    job_id = await timed.schedules.run("ping")
    assert (await timed.app.get(job_id)).state is JobState.AVAILABLE
    assert await timed.jobs(JobState.AVAILABLE) == 2


async def test_backfill_fires_what_did_not_and_nothing_twice(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="1h")
    await timed.schedules.disable("ping")
    await timed.pass_by("5h", "30m")
    assert await timed.schedules.backfill("ping", timed.start, dry_run=True) == 6
    assert await timed.slots() == []
    assert await timed.schedules.backfill("ping", *timed.after(3_600 * 2, 3_600 * 3)) == 2
    assert await timed.schedules.backfill("ping", timed.start, dry_run=True) == 4
    assert await timed.schedules.backfill("ping", timed.start) == 4
    assert await timed.schedules.backfill("ping", timed.start) == 0
    await within(timed.app.drain())
    assert len(timed.seen) == 6
    assert await timed.slots() == timed.after(*(3_600 * hour for hour in range(6)))
    ticks = sorted(await timed.schedules.history("ping"), key=lambda one: one.run_at)
    second = [tick.slot for tick in ticks if tick.slot not in timed.after(3_600 * 2, 3_600 * 3)]
    assert second == timed.after(0, 3_600, 3_600 * 4, 3_600 * 5), "due in the order of their slots"
    assert all(tick.waited is not None and tick.waited < 0.001 for tick in ticks)


async def test_backfill_of_missed_slots_leaves_the_others_missed(store: Store) -> None:
    """They are one entry on the ledger, which is split; whatever is made up for, fired and missed make all slots."""
    timed = Timed(store)
    await timed.put(every="1h", misfire="skip")
    await timed.pass_by("10h")

    async def missed() -> list[tuple[datetime, int]]:
        return [(tick.slot, tick.count) for tick in await timed.schedules.history("ping") if tick.outcome == "missed"]

    assert await missed() == [(timed.start + timedelta(hours=1), 9)]
    assert await timed.schedules.backfill("ping", *timed.after(3_600 * 4, 3_600 * 5), dry_run=True) == 2
    assert await timed.schedules.backfill("ping", *timed.after(3_600 * 4, 3_600 * 5)) == 2
    assert await missed() == [(timed.start + timedelta(hours=6), 4), (timed.start + timedelta(hours=1), 3)]
    assert await timed.schedules.backfill("ping", *timed.after(3_600, 3_600 * 20)) == 7
    assert await missed() == []
    assert await timed.slots() == timed.after(*(3_600 * hour for hour in range(1, 11)))


async def test_backfill_in_the_middle_of_an_outage_leaves_the_rest_missed(store: Store) -> None:
    """What was to come until now is dealt with first, as the schedule says."""
    timed = Timed(store)
    await timed.put(every="1h", misfire="skip")
    timed.clock.advance("10h")
    assert await timed.schedules.backfill("ping", *timed.after(3_600, 3_600 * 2)) == 2
    await timed.pass_by("1m")
    history = await timed.schedules.history("ping", 100)
    assert sum(tick.count for tick in history) == 10
    assert sum(tick.count for tick in history if tick.outcome == "missed") == 7


async def test_backfill_keeps_to_start_and_max_runs(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="1h", start=timed.start, max_runs=3)
    await timed.schedules.disable("ping")
    timed.clock.advance("10h")
    since = timed.start - timedelta(days=1)
    assert await timed.schedules.backfill("ping", since, dry_run=True) == 3
    assert await timed.schedules.backfill("ping", since) == 3
    assert await timed.slots() == timed.after(0, 3_600, 7_200)


async def test_backfill_reaches_no_further_back_than_the_ledger(store: Store) -> None:
    """What fired before is not known any more, and would fire once more."""
    timed = Timed(store)
    await timed.put(every="1d")
    assert await timed.schedules.backfill("ping", timed.start - timedelta(days=20)) == 21, (
        "it is new: nothing has fired"
    )
    await timed.pass_by("8d")
    with pytest.raises(
        ConfigError, match=r"since: expected an instant after .*: its history does not reach back further"
    ):
        await timed.schedules.backfill("ping", timed.start)


async def test_backfill_goes_no_further_than_now(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="1h")
    assert await timed.schedules.backfill("ping", *timed.after(-1, 3_600 * 24)) == 1
    assert await timed.schedules.backfill("ping", *timed.after(3_600, 3_600 * 24)) == 0


async def test_several_that_backfill_at_once_fire_each_slot_once(store: Store) -> None:
    timed = Timed(store)
    await timed.schedules.put(Cron("@hourly", timed.ping.job()))
    since = timed.start - timedelta(days=3)
    fired = await within(asyncio.gather(*(timed.schedules.backfill("ping", since) for _ in range(3))))
    assert sum(fired) == await timed.jobs(JobState.AVAILABLE) == 73


async def test_backfill_does_not_mind_what_still_runs(store: Store) -> None:
    timed = Timed(store)
    await timed.schedules.put(Every("1h", timed.ping.options(queue="nobody").job(), overlap="skip", jitter=0))
    await timed.pass_by("1h")
    assert await timed.schedules.backfill("ping", *timed.after(-7_200, 0)) == 3


# -- bad input


JOB = NewJob(task="ping", args={})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Every("30s", JOB, jiter=0), ["unknown option 'jiter' (did you mean 'jitter'?); there are: delivery"]),  # type: ignore[call-arg]
        (lambda: Cron("@daily", JOB, zone="UTC"), ["unknown option 'zone'", "tz"]),  # type: ignore[call-arg]
        (lambda: Every("30s", JOB, name=""), ["name", "empty"]),
        (lambda: Every("30s", JOB, name="a\0b"), ["name", "NUL"]),
        (lambda: Every("30s", JOB, name=5), ["name", "int 5"]),  # type: ignore[arg-type]
        (lambda: Every("30s", "ping"), ["expected a job made with", "task.job("]),  # type: ignore[arg-type]
        (lambda: Every("30s", NewJob(task="ping", args={}, delay="1s")), ["delay", "leave it out"]),
        (lambda: Every("30s", NewJob(task="ping", args={}, key="k")), ["key", "leave it out"]),
        (lambda: Every(0, JOB), ["interval", "at least 1s"]),
        (lambda: Every(-5, JOB), ["interval: expected at least 1s, got -5"]),
        (lambda: Every(timedelta(seconds=-5), JOB), ["interval: expected at least 1s, got "]),
        (lambda: Every("11y", JOB), ["interval", "'11y'"]),
        (lambda: Every(None, JOB), ["interval", "NoneType"]),  # type: ignore[arg-type]
        (lambda: Every("30s", JOB, jitter=0.6), ["jitter", "0.6"]),
        (lambda: Every("30s", JOB, jitter=float("nan")), ["jitter", "nan"]),
        (lambda: Every("30s", JOB, misfire="never"), ["misfire", "'once'", "'never'"]),  # type: ignore[arg-type]
        (lambda: Every("30s", JOB, overlap="never"), ["overlap", "'allow'", "'queue'"]),  # type: ignore[arg-type]
        (lambda: Every("30s", JOB, delivery="twice"), ["delivery", "'at_most_once'"]),  # type: ignore[arg-type]
        (lambda: Every("30s", JOB, max_age="-1s"), ["max_age"]),
        (lambda: Every("30s", JOB, grace="soon"), ["grace", "'soon'"]),
        (lambda: Every("30s", JOB, max_runs=0), ["max_runs"]),
        (lambda: Every("30s", JOB, max_runs=True), ["max_runs"]),
        (lambda: Every("30s", JOB, plan_priority=70_000), ["plan_priority", "70000"]),
        (lambda: Every("30s", JOB, start=datetime(2030, 1, 1)), ["start", "with a time zone"]),
        (lambda: Every("30s", JOB, end="2030"), ["end", "with a time zone"]),  # type: ignore[arg-type]
        (
            lambda: Every("30s", JOB, start=datetime(2030, 1, 2, tzinfo=UTC), end=datetime(2030, 1, 1, tzinfo=UTC)),
            ["end", "after start"],
        ),
        (lambda: Every("30s", JOB, delivery="at_most_once", misfire="once"), ["misfire", "at_most_once"]),
        (lambda: Cron("", JOB), ["cron", "minute hour"]),
        (lambda: Cron("* * * *", JOB), ["cron", "minute hour"]),
        (lambda: Cron("61 * * * *", JOB), ["cron", "61"]),
        (lambda: Cron("0 0 31 2 *", JOB), ["cron", "0 0 31 2 *"]),
        (lambda: Cron("@often", JOB), ["unknown alias", "@daily"]),
        (lambda: Cron(5, JOB), ["cron", "5"]),  # type: ignore[arg-type]
        (lambda: Cron("* " * 200, JOB), ["cron"]),
        (lambda: Cron("@daily", JOB, tz="Mars/Base"), ["tz", "Mars/Base", "Europe/Madrid"]),
        (lambda: Cron("@daily", JOB, tz="../etc/passwd"), ["tz"]),
        (lambda: Cron("@daily", JOB, tz="localtime"), ["tz", "localtime"]),
        (lambda: Every("30s", JOB, start=datetime(9999, 12, 31, tzinfo=UTC)), ["start", "1970 to 2199"]),
        (lambda: Every("30s", JOB, grace="900ms"), ["grace", "at least 1s", "900ms"]),
        (lambda: Cron("@daily", JOB, tz=None), ["tz", "None"]),  # type: ignore[arg-type]
        (lambda: "every minute", ["expected Every(…) or Cron(…)"]),
    ],
)
async def test_a_schedule_that_cannot_be(memory: Store, make: Callable[[], Any], words: list[str]) -> None:
    timed = Timed(memory)
    with pytest.raises((ConfigError, InvalidJob)) as refused:
        await timed.schedules.put(make())
    for word in words:
        assert word in str(refused.value)
    assert len(str(refused.value)) < 600
    assert await timed.schedules.list() == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda it: it.get(5), ["name", "int 5"]),
        (lambda it: it.get(""), ["name", "empty"]),
        (lambda it: it.list(tenant=5), ["tenant", "int 5"]),
        (lambda it: it.list(queue=""), ["queue", "empty"]),
        (lambda it: it.list(after=b"a"), ["after", "bytes"]),
        (lambda it: it.list(limit=0), ["limit", "at least 1"]),
        (lambda it: it.next("ping", 0), ["count", "at least 1"]),
        (lambda it: it.next("ping", "5"), ["count", "'5'"]),
        (lambda it: it.history("ping", True), ["limit", "True"]),
        (lambda it: it.history("ping", before="yesterday"), ["before", "with a time zone"]),
        (lambda it: it.backfill("ping", "yesterday"), ["since", "with a time zone"]),
        (lambda it: it.backfill("ping", datetime(2027, 1, 1)), ["since", "with a time zone"]),
        (lambda it: it.backfill("ping", to_datetime(9), to_datetime(8)), ["until", "after since"]),
        (lambda it: it.backfill("ping", to_datetime(0)), ["at most 100,000 slots", "a shorter time"]),
        (lambda it: it.delete_tenant(""), ["tenant", "empty"]),
        (lambda it: it.delete_tenant(None), ["tenant", "NoneType"]),
    ],
)
async def test_a_call_that_cannot_be(memory: Store, call: Callable[[Any], Any], words: list[str]) -> None:
    timed = Timed(memory)
    await timed.put()
    before = await timed.jobs(JobState.AVAILABLE)
    with pytest.raises(HeadraceError) as refused:
        await call(timed.schedules)
    for word in words:
        assert word in str(refused.value)
    assert len(await timed.schedules.list()) == 1
    assert await timed.jobs(JobState.AVAILABLE) == before


def test_a_declaration_that_cannot_be() -> None:
    app = App("memory://")

    @app.task(name="ping")
    async def ping(text: str = "-") -> None: ...

    app.every("30s", ping)
    wrong: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: app.every("30s", ping), ["'ping' is declared already", "name="]),
        (lambda: app.every("30s", ping, name="a", tz="UTC"), ["'tz'", "there are:", "jitter"]),
        (lambda: app.cron("@daily", ping, name="a", bogus=1), ["'bogus'", "there are:", "tz"]),
        (lambda: app.cron("@dayly", ping, name="a"), ["@dayly"]),
        (lambda: app.every("30s", print, name="a"), ["task.job("]),  # type: ignore[arg-type]
        (lambda: app.dynamic_interval("")(lambda name: None), ["name"]),
        (lambda: app.dynamic_interval("ping")(5), ["dynamic_interval", "5"]),  # type: ignore[arg-type]
    ]
    for declare, words in wrong:
        with pytest.raises((ConfigError, InvalidJob)) as refused:
            declare()
        assert all(word in str(refused.value) for word in words)


async def test_a_store_that_keeps_none_says_so(memory: Store) -> None:
    class Without(Tapped):
        ticks = None

    client = Client(Without(memory.backend()), settings())
    app = App(client)
    with pytest.raises(ConfigError, match="this store does not keep schedules"):
        await app.schedules.list()
    await client.close()


# -- a long time


def test_workers_that_come_and_go_make_one_job_for_each_slot() -> None:
    async def main(world: World) -> None:
        fired: list[datetime] = []
        for shift in range(12):
            app = world.app()

            @app.task(name="ping")
            async def ping(job: Job[None]) -> None:
                fired.append(job.run_at)

            app.every("1m", ping, jitter=0)
            working = asyncio.ensure_future(app.work())
            await asyncio.sleep(1_200 + shift * 7)
            app.stop()
            await working
            await app.client.close()
        gaps = {later - earlier for earlier, later in pairwise(sorted(fired))}
        assert gaps == {timedelta(minutes=1)}
        assert len(fired) > 230

    simulate(main)


# -- what a change leaves of slots that are due


@pytest.mark.parametrize("change", [{"max_runs": 100}, {"end": datetime(2028, 1, 1, tzinfo=UTC)}, {"every": "2h"}])
async def test_slots_that_are_due_when_a_schedule_is_changed_are_dealt_with_by_what_it_was(
    store: Store, change: Any
) -> None:
    timed = Timed(store)
    await timed.put(every="1h", misfire="all")
    timed.clock.advance("5h")
    await timed.schedules.update("ping", **change)
    assert len(await timed.slots()) >= 5
    assert (await timed.slots())[:5] == timed.after(*(3_600 * hour for hour in range(1, 6)))


async def test_a_slot_that_is_due_when_its_schedule_is_disabled_fires(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="1h", overlap="skip")
    timed.clock.advance("1h")
    await timed.schedules.disable("ping")
    assert await timed.slots() == timed.after(3_600)


async def test_the_same_again_changes_nothing_though_planners_have_been_at_work(store: Store) -> None:
    timed = Timed(store)
    for overlap in ("allow", "skip"):
        await timed.put(every="1h", overlap=overlap, name=overlap)
    await timed.pass_by("59m", "1m", "1h")
    for overlap in ("allow", "skip"):
        before = await timed.schedules.get(overlap)
        timed.clock.advance("1s")
        assert await timed.put(every="1h", overlap=overlap, name=overlap) == before


@pytest.mark.parametrize("way", ["disable", "delete"])
async def test_all_that_waits_is_cancelled_however_many_slots_came_after_it(store: Store, way: str) -> None:
    timed = Timed(store)
    job = timed.ping.options(queue="nobody").job()
    await timed.schedules.put(Every("1h", job, overlap="skip", jitter=0, misfire="all", max_age="7d", name="ping"))
    await timed.pass_by("130h", "1m")
    assert len(await timed.slots(outcome="skipped")) > 100
    if way == "disable":
        await timed.schedules.disable("ping", cancel_pending=True)
    else:
        await timed.schedules.delete("ping")
    assert await timed.jobs(JobState.AVAILABLE) == 0
    assert await timed.jobs(JobState.CANCELLED) == 1


async def test_a_delete_that_was_cut_short_can_be_done_again(store: Store) -> None:
    timed = Timed(store)
    await timed.put(every="30s")
    cancel = timed.schedules._cancel_pending

    async def cut_short(*args: Any) -> None:
        raise Unavailable("just now")

    timed.schedules._cancel_pending = cut_short  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await timed.schedules.delete("ping")
    timed.schedules._cancel_pending = cancel  # type: ignore[method-assign]
    await timed.schedules.delete("ping")
    with pytest.raises(ScheduleNotFound):
        await timed.schedules.get("ping")
    assert await timed.jobs(JobState.AVAILABLE) == 0


async def test_many_at_once(store: Store) -> None:
    """New ones, changed ones, ones that are as they should be, overdue ones and ones that fire at once."""
    timed = Timed(store)
    every = {"slow": "1h", "quick": "10s", "same": "2h", "late": "5s"}

    def specs(**changed: str) -> list[Every]:
        return [Every(length, timed.ping.job(name), name=name, jitter=0) for name, length in (every | changed).items()]

    async with timed.app:
        made = await timed.schedules.put_many(specs())
        assert [(one.name, one.rule) for one in made] == [(name, f"every {length}") for name, length in every.items()]
        timed.clock.advance("1m")
        again = await timed.schedules.put_many(specs(slow="30m"))
        assert [one.rule for one in again] == ["every 30m", "every 10s", "every 2h", "every 5s"]
        one_by_one = [await timed.schedules.put(spec) for spec in specs(slow="30m")]
        assert [one.to_dict() for one in again] == [one.to_dict() for one in one_by_one]
        await timed.pass_by("20s")
        assert timed.seen.count("quick") >= 2
        assert await timed.schedules.put_many([]) == []


async def test_many_cost_a_few_trips(memory: Store) -> None:
    class Counting(Tapped):
        calls = 0

        async def _call(self, name: str, args: Any, at: Any, carry: Any) -> Any:
            Counting.calls += 1
            return await carry(at)

    async def main(world: World) -> None:
        app = world.app()

        @app.task
        def ping() -> None: ...

        async with app:
            Counting.calls = 0
            found = await app.schedules.put_many(Every("1m", ping.job(), name=f"n{n}") for n in range(1_000))
            assert len({one.name for one in found}) == 1_000

    await asyncio.to_thread(simulate, main, Counting)
    assert Counting.calls <= 12


async def test_many_are_checked_before_the_first_is_stored(memory: Store) -> None:
    timed = Timed(memory)
    good = Every("1m", timed.ping.job(), name="good")
    async with timed.app:
        for bad, said in (
            ("every minute", "expected Every"),
            (good, "expected each name once, got 'good' several times"),
        ):
            with pytest.raises(ConfigError, match=said):
                await timed.schedules.put_many([good, bad])  # type: ignore[list-item]
        assert await timed.schedules.list() == []
