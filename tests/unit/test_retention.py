"""Retention: each of its steps by itself, whatever the others do; and when it looks between two runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.core.clock import ManualClock
from headrace.core.config import Keep, RetentionSettings
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import ConfigError, Unavailable
from headrace.keeping import retention as keeping
from headrace.keeping.papers import Papers, Run, Step
from headrace.keeping.retention import Retention
from headrace.seam.records import Claim, Row, Settlement, Stamp, SweepClause, SweepTarget, Swept
from headrace.testing.sim.loop import run
from headrace.testing.wrapped import Wrapped
from headrace.types import JobState

_T0 = 1_700_000_000_000_000
_ENDS = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
_NOTHING = RetentionSettings(**{state.value: Keep(count=0) for state in _ENDS})


class Store(Wrapped):
    """A store with one job of each kind that can be swept, where the sweep of one place fails."""

    def __init__(self, trouble: Mapping[str, Exception]) -> None:
        super().__init__(MemoryBackend())
        self.trouble = dict(trouble)
        self.asked: list[str] = []

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        error = self.trouble.get(clause.target.value)
        if error or not clause.dry_run:
            self.asked.append(clause.target.value)
        if error:
            raise error
        return await self.inner.sweep(clause, at)

    async def tidy(self, clauses: Sequence[SweepClause], at: Stamp = None) -> Mapping[SweepTarget, int]:
        self.asked.append("days")
        if error := self.trouble.get("days"):
            raise error
        return {SweepTarget.COMPLETED: 7}

    async def fill(self) -> None:
        """Of each end one job."""
        await self.inner.open()
        await self.inner.insert([Row(bytes([n]) * 16, "q", "t", {}) for n in range(len(_ENDS))], _T0)
        jobs = (await self.inner.claim(Claim("h", ("q",), 10, 1_000_000), _T0)).jobs
        ends = [Settlement(job.id, job.epoch, "h", state) for job, state in zip(jobs, _ENDS, strict=True)]
        assert await self.inner.finish(ends, _T0) == list(_ENDS)


def retention(store: Any, settings: RetentionSettings = _NOTHING, *, spare: int = 0) -> tuple[Retention, list[Event]]:
    events: list[Event] = []
    observers = Observers()
    observers.add(events.append)
    return Retention(store, ManualClock(_T0), Random(1), observers, settings, spare=spare), events


def completed(number: int) -> list[Settlement]:
    return [Settlement(n.to_bytes(16), 1, "h", JobState.COMPLETED) for n in range(number)]


@pytest.mark.parametrize(
    "trouble", [Unavailable("no answer in 31 s"), RuntimeError("no index"), ConfigError("no right")]
)
@pytest.mark.parametrize("place", [*(place.value for place in SweepTarget), "days"])
async def test_a_step_that_fails_stops_no_other(place: str, trouble: Exception) -> None:
    store = Store({place: trouble})
    await store.fill()
    janitor, events = retention(store)
    await janitor.sweep()
    assert set(store.asked) == {*(one.value for one in SweepTarget), "days"}
    left = {one.target: one.count for one in (await store.stats(_T0)).kept if one.target in _ENDS}
    assert left == {state.value: int(state.value == place) for state in _ENDS}
    swept = {event.detail for event in events if event.kind is EventKind.SWEPT}
    assert ("7 from completed" in swept) is (place != "days")


async def test_failures_are_counted_for_each_step_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    store = Store({"completed": Unavailable("one"), "days": Unavailable("other")})
    await store.fill()
    janitor, events = retention(store)
    await janitor.sweep()
    del store.trouble["days"]
    await janitor.sweep()
    store.trouble["days"] = Unavailable("other")
    told = []
    for _ in range(5):
        await janitor.sweep()
        told.append([event.detail for event in events if event.kind is EventKind.ALERT])
    first = "cleanup_failing: 3 or more sweeps of completed failed in a row, and old records pile up: one"
    second = "cleanup_failing: 3 or more sweeps of completed, days failed in a row, and old records pile up: one"
    assert told == [[first], [first], [first, second], [first, second], [first, second]]


async def test_steps_that_fail_together_are_told_together() -> None:
    away = Unavailable("away")
    store = Store(dict.fromkeys([*(place.value for place in SweepTarget), "days"], away))
    janitor, events = retention(store)
    for _ in range(4):
        await janitor.sweep()
    [alert] = [event for event in events if event.kind is EventKind.ALERT]
    assert alert.error is away
    assert "results, completed, cancelled, failed, keys, ticks, tenants, days" in alert.detail


async def test_what_a_worker_may_not_do_is_tried_less_and_less_often() -> None:
    store = Store({"completed": ConfigError("no right")})
    janitor, events = retention(store)
    for _ in range(31):
        await janitor.sweep()
    assert store.asked.count("completed") == 4 + 1, "on beats 1, 3, 7, 15 and 31"
    assert store.asked.count("failed") == store.asked.count("days") == 31
    assert not [event for event in events if event.kind is EventKind.ALERT]
    del store.trouble["completed"]
    for _ in range(40):
        await janitor.sweep()
    assert store.asked.count("completed") > 5


async def _looks(keep: Keep, trips: int) -> list[str]:
    """What was swept between two runs while so many trips of a hundred completed jobs went on for 1.5 seconds."""
    store = Store({})
    await store.fill()
    janitor, _ = retention(store, RetentionSettings(completed=keep), spare=60_000_000)
    between = janitor.between(lambda settlement: None)
    duty = asyncio.get_running_loop().create_task(janitor.run())
    for _ in range(trips):
        _, loads = between.weigh(completed(100))
        await between.make_room(loads)
        between.stored(loads)
        await asyncio.sleep(1.5 / trips)
    duty.cancel()
    await asyncio.wait([duty])
    return store.asked


def test_a_fast_worker_looks_after_completed_jobs_once_a_second() -> None:
    assert run(_looks(Keep(count=2_000), 300)) == ["completed"]


def test_completed_jobs_of_which_none_is_spared_go_at_once() -> None:
    assert len(run(_looks(Keep(count=0), 300))) == 300


async def test_the_log_tells_what_went_by_which_age_also_of_days_that_were_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store({})
    await store.fill()
    monkeypatch.setattr(keeping, "_MANY", 3)
    janitor, events = retention(store, RetentionSettings(completed=Keep(age="2d", count=0)))
    assert await janitor.sweep() > 7
    assert await janitor.sweep() == 7, "of which one day more is dropped on each beat here"
    assert store.inner.documents is not None
    [run] = await Papers(store.inner.documents).runs(10)
    [days] = [step for step in run.steps if step.target == "completed" and step.cutoff is not None]
    two = 2 * 86_400_000_000
    assert (days.cutoff, days.retention) == (_T0 - two, two)
    assert days.kept == 0
    alerts = [event.detail for event in events if event.kind is EventKind.ALERT]
    assert [alert for alert in alerts if alert.startswith("many_deleted: 8 records were deleted in one run")]


async def test_steps_of_an_hour_are_added_up_by_target_and_reason() -> None:
    store = MemoryBackend()
    await store.open()
    assert store.documents is not None
    papers = Papers(store.documents)
    old = Step(target="failed", deleted=2, bytes=20, kept=9, cutoff=5, retention=7)
    for step in (old, Step(target="failed", deleted=3, kept=6), old, Step(target="failed", deleted=1)):
        await papers.log(Run(at=_T0, by="workers", steps=(step,)), add_up=True)
    [run] = await papers.runs(10)
    assert run.runs == 4
    aged, over = run.steps
    assert (aged.deleted, aged.bytes, aged.kept, aged.cutoff, aged.retention) == (4, 40, 9, 5, 7)
    assert (over.deleted, over.kept, over.cutoff, over.retention) == (4, 6, None, None)
