"""The janitor: rules in the store, runs that are safe, and a log of what was deleted; on every store."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from headrace import App, Event, EventKind
from headrace.core.alerts import Alert
from headrace.core.clock import ManualClock
from headrace.core.durations import micros
from headrace.errors import ConfigError, InvalidJob, SafetyStop
from headrace.keeping import retention
from headrace.keeping.retention import Retention
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Row, Settlement
from headrace.types import JobState
from tests.facades.harness import Events, Store, alerts_of

_DAY = 86_400_000_000
_ENDS = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
_NO_BOUND = {state.value: {"age": "1d", "count": None, "bytes": None} for state in _ENDS}
_LEASE = 3_650 * _DAY


class Jobs:
    """Makes jobs that end at given instants."""

    def __init__(self, app: App, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock
        self._made = 0
        self.backend: Backend

    async def end(self, age: str, count: int = 1, state: JobState = JobState.COMPLETED, **row: Any) -> None:
        """Jobs that ended this long ago."""
        store, at = await self.app.client.backend(), self.clock.now() - micros(age)
        first, self._made = self._made, self._made + count
        given: dict[str, Any] = {"queue": "q", "task": "t", "cells": {}} | row
        rows = [Row(id=(n + 1).to_bytes(16), **given) for n in range(first, first + count)]
        for start in range(0, count, 1_000):
            await store.insert(rows[start : start + 1_000], at)
            jobs = (await store.claim(Claim("h", (given["queue"],), 1_000, _LEASE), at)).jobs
            ends = [Settlement(job.id, job.epoch, "h", state) for job in jobs]
            assert await store.finish(ends, at) == [state] * len(jobs)

    async def kept(self) -> dict[str, int]:
        """How many jobs there are, by state."""
        found = (await self.app.client.stats()).kept
        return {one.target: one.count for one in found if one.target in ("completed", "cancelled", "failed")}

    async def left(self) -> Counter[str]:
        """How many jobs there are by queue and task."""
        store = await self.app.client.backend()
        assert store.archive is not None
        pages = [(await store.archive.ended(state, limit=1_000, at=self.clock.now())).records for state in _ENDS]
        return Counter(f"{one.queue}/{one.task}" for page in pages for one in page)

    def duty(self) -> Retention:
        """What a worker does."""
        client = self.app.client
        return Retention(self.backend, self.clock, Random(1), client.observers, client.settings.retention)


@pytest.fixture
async def jobs(store: Store) -> Jobs:
    return await make(store)


async def make(store: Store, **retention: Any) -> Jobs:
    """An app on the store, open."""
    clock = ManualClock()
    app = store.app(clock=clock, retention=_NO_BOUND | retention, patience="1s")
    jobs = Jobs(app, clock)
    jobs.backend = await app.client.backend()
    return jobs


async def test_a_run_deletes_what_is_past_its_rule_and_says_so(jobs: Jobs) -> None:
    await jobs.end("40d", state=JobState.FAILED)
    await jobs.end("2d", 3)
    await jobs.end("23h", 2)
    await jobs.app.janitor.keep("30d", states="failed")
    plan = await jobs.app.janitor.preview()
    assert await jobs.kept() == {"completed": 5, "cancelled": 0, "failed": 1}, "nothing has changed"
    run = await jobs.app.janitor.run()
    assert plan.steps == run.steps
    assert await jobs.kept() == {"completed": 2, "cancelled": 0, "failed": 0}
    by_target = {step.target: step for step in run.steps}
    assert (by_target["completed"].deleted, by_target["completed"].kept, by_target["failed"].deleted) == (3, 2, 1)
    assert (by_target["completed"].retention, by_target["failed"].retention) == ("1d", "30d")
    assert by_target["completed"].cutoff is not None
    assert by_target["completed"].cutoff.timestamp() * 1e6 == jobs.clock.now() - _DAY
    [logged] = await jobs.app.janitor.log()
    assert logged == run


async def test_jobs_are_kept_by_state_queue_and_task(jobs: Jobs) -> None:
    for queue in ("mail", "bills"):
        for task in ("send", "charge"):
            for state in (JobState.COMPLETED, JobState.FAILED):
                await jobs.end("8d", state=state, queue=queue, task=task)
                await jobs.end("2d", state=state, queue=queue, task=task)
    keep = jobs.app.janitor.keep
    await keep("1d", states="completed", queue="mail")
    await keep("3d", states="completed", task="charge")
    await keep("forever", states="completed", queue="bills", task="charge")
    await keep("30d", states=["failed"])
    run = await jobs.app.janitor.run()
    assert run.deleted == 2 + 1 + 2, "completed: both of mail/send, the older of mail/charge, both of bills/send"
    expected = {"mail/send": 0 + 2, "mail/charge": 1 + 2, "bills/send": 0 + 2, "bills/charge": 2 + 2}
    assert await jobs.left() == expected
    rules = {(rule.state, rule.queue, rule.task): (rule.age, rule.stored) for rule in await jobs.app.janitor.rules()}
    assert rules == {
        ("completed", "bills", "charge"): ("for ever", True),
        ("completed", None, "charge"): ("3d", True),
        ("completed", "mail", None): ("1d", True),
        ("completed", None, None): ("1d", False),
        ("cancelled", None, None): ("1d", False),
        ("failed", None, None): ("30d", True),
    }
    assert await jobs.app.janitor.forget(queue="mail") == 1
    assert await jobs.app.janitor.forget(queue="mail") == 0


async def test_workers_go_by_the_same_rules_and_find_what_becomes_too_old_later(jobs: Jobs) -> None:
    await jobs.app.janitor.keep("forever", states="completed", queue="bills")
    await jobs.app.janitor.keep("7d", states="completed", task="charge")
    await jobs.end("30d", 3, queue="bills")
    await jobs.end("6d", 2, task="charge")
    await jobs.end("25h", 4)
    await jobs.end("23h", 1)
    duty = jobs.duty()
    assert await duty.sweep() == 4
    assert await jobs.left() == {"bills/t": 3, "q/charge": 2, "q/t": 1}
    assert await duty.sweep() == 0
    jobs.clock.advance("2h")
    assert await duty.sweep() == 1
    jobs.clock.advance("22h")
    assert await duty.sweep() == 2
    assert await jobs.left() == {"bills/t": 3}
    await jobs.app.janitor.forget(queue="bills")
    assert await duty.sweep() == 3, "they are few"
    logged = await jobs.app.janitor.log()
    assert sum(run.deleted for run in logged) == 10
    assert {run.by for run in logged} == {"workers"}


async def test_a_run_that_deletes_very_many_old_jobs_tells_somebody(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MANY", 20)
    jobs, told = await make(memory), Events()
    jobs.app.observe(told)
    await jobs.end("2d", 20)
    assert await jobs.duty().sweep() == 20
    assert not alerts_of(told.of(EventKind.ALERT)), "not yet"
    await jobs.end("2d", 21)
    assert await jobs.duty().sweep() == 21
    [alert] = [event for event in told.of(EventKind.ALERT) if event.alert != "store_slow"]
    assert (alert.alert, alert.detail.partition(": ")[2][:28]) == (Alert.MANY_DELETED, "21 records were deleted in o")


async def test_for_ever_is_a_rule_like_any_other(jobs: Jobs) -> None:
    await jobs.end("3650d", 5)
    await jobs.app.janitor.keep("forever")
    assert (await jobs.app.janitor.run()).deleted == 0
    assert await jobs.duty().sweep() == 0
    assert {(rule.age, rule.count, rule.bytes) for rule in await jobs.app.janitor.rules()} == {("for ever", None, None)}


async def test_what_a_queue_or_task_keeps_for_ever_no_bound_removes(store: Store) -> None:
    jobs = await make(store, completed={"age": "1d", "count": 20, "bytes": None})
    await jobs.end("10m", 30, task="charge")
    await jobs.app.janitor.keep("forever", states="completed", task="charge")
    await jobs.end("2d", 25, task="send")
    await jobs.end("5m", 25, task="send")
    assert (await jobs.app.janitor.preview()).deleted == 25
    assert await jobs.duty().sweep() == 25
    assert (await jobs.app.janitor.run()).deleted == 0
    assert await jobs.left() == {"q/charge": 30, "q/send": 25}
    rules = {(one.state, one.task): (one.age, one.count) for one in await jobs.app.janitor.rules()}
    assert rules["completed", None] == ("1d", None)
    assert rules["completed", "charge"] == ("for ever", None)
    with pytest.raises(ConfigError, match=r"count, bytes: .*completed jobs of task 'charge': for ever.*forget that"):
        await jobs.app.janitor.keep("1d", states="completed", count=20)
    await jobs.app.janitor.keep("1d")
    assert (await jobs.app.janitor.run()).deleted == 0, "bounds of the settings stay lifted"
    await jobs.app.janitor.forget(states="completed", task="charge")
    assert (await jobs.app.janitor.run()).deleted == 35


async def test_bounds_of_count_and_bytes_hold_whatever_the_age(store: Store) -> None:
    jobs = await make(store, completed={"age": None, "count": 4, "bytes": None})
    await jobs.end("10s", 3)
    await jobs.end("9s", 3)
    plan = await jobs.app.janitor.preview()
    assert (plan.deleted, (await jobs.app.janitor.run()).deleted) == (2, 2)
    await jobs.app.janitor.keep("7d", states="completed", count=1_000, bytes=0)
    plan = await jobs.app.janitor.preview()
    assert (plan.deleted, (await jobs.app.janitor.run()).deleted) == (4, 4)


@pytest.mark.parametrize("bound", [{"count": 30}, {"bytes": 60_000}])
async def test_a_preview_takes_dead_letters_from_those_who_have_most_as_a_run_does(
    store: Store, bound: dict[str, int]
) -> None:
    jobs = await make(store, failed={"age": "7d", "count": None, "bytes": None} | bound)
    await jobs.end("8d", 2, JobState.FAILED, tenant="small")
    await jobs.end("5h", 21, JobState.FAILED, tenant="small", cells={"blob": bytes(1_000)})
    await jobs.end("4h", 30, JobState.FAILED, tenant="large", cells={"blob": bytes(3_000)})
    await jobs.end("3h", 5, JobState.FAILED, tenant="few")
    plan = {step.target: step for step in (await jobs.app.janitor.preview()).steps}["failed"]
    done = {step.target: step for step in (await jobs.app.janitor.run()).steps}["failed"]
    assert plan.deleted > 20
    assert plan == done


# -- safety


async def expect_stop(jobs: Jobs, deleted: int, words: str) -> None:
    """A run is stopped, and says what it would have deleted; workers do not delete either."""
    before = await jobs.kept()
    with pytest.raises(SafetyStop, match=words) as stop:
        await jobs.app.janitor.run()
    assert stop.value.plan.deleted == deleted
    assert stop.value.plan.stopped
    alerts: list[Event] = []
    jobs.app.observe(alerts.append)
    assert await jobs.duty().sweep() == 0
    assert alerts_of(alerts) == ["safety_stop"]
    assert await jobs.kept() == before
    assert (await jobs.app.janitor.log())[0].stopped


async def test_a_clock_that_is_far_ahead_deletes_nothing(jobs: Jobs) -> None:
    await jobs.end("2d", 2)
    await jobs.end("1h", 7, JobState.FAILED)
    assert await jobs.duty().sweep() == 2
    jobs.clock.advance("3650d")
    await expect_stop(jobs, 7, "3650d ahead of the last run")
    assert (await jobs.app.janitor.run(force=True)).deleted == 7
    assert (await jobs.app.janitor.log())[0].forced
    await jobs.end("2d", 2)
    assert await jobs.duty().sweep() == 2, "the clock was confirmed"


@pytest.mark.parametrize("young", [0, 1])
async def test_a_first_run_that_would_delete_nearly_all_is_stopped(store: Store, young: int) -> None:
    jobs = await make(store, safety={"floor": 10, "share": 0.05})
    await jobs.end("2d", 11)
    await jobs.end("1h", young)
    await expect_stop(jobs, 11, "more than 10 of")
    assert (await jobs.app.janitor.run(force=True)).deleted == 11
    await jobs.end("2d", 11)
    assert (await jobs.app.janitor.run()).deleted == 11, "by rules that were confirmed"


async def test_a_share_may_always_go(store: Store) -> None:
    jobs = await make(store, safety={"floor": 0, "share": 0.5})
    await jobs.end("2d", 10)
    await jobs.end("1h", 10)
    assert (await jobs.app.janitor.run()).deleted == 10


async def test_a_shorter_rule_is_looked_at_again_and_a_longer_one_is_not(store: Store) -> None:
    jobs = await make(store, safety={"floor": 1})
    assert await jobs.duty().sweep() == 0
    await jobs.end("12h", 5)
    await jobs.app.janitor.keep("6h", states="completed")
    await expect_stop(jobs, 5, "rules that are new")
    await jobs.app.janitor.keep("30d", states="completed")
    await jobs.end("40d", 5)
    assert (await jobs.app.janitor.run()).deleted == 5


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"age": "soon"}, "age: expected a duration"),
        ({"age": -1}, "age: expected between 0 and ten years"),
        ({"age": "36500d"}, "age: expected between 0 and ten years, got '36500d'; or \"forever\""),
        ({"age": "1d", "states": "running"}, "states: expected some of completed"),
        ({"age": "1d", "states": ["failed", 7]}, "states: expected some of"),
        ({"age": "1d", "count": -1}, "count"),
        ({"age": "1d", "queue": "q", "count": 5}, "count: expected none with queue or task"),
        ({"age": "1d", "task": "\0"}, "task: .* NUL"),
    ],
)
async def test_a_bad_rule_is_refused(memory: Store, rule: dict[str, Any], words: str) -> None:
    jobs = await make(memory)
    with pytest.raises((ConfigError, InvalidJob), match=words):
        await jobs.app.janitor.keep(**rule)
    with pytest.raises((ConfigError, InvalidJob), match=words):
        jobs.app.keep(**rule)
    assert not any(rule.stored for rule in await jobs.app.janitor.rules())


async def test_no_live_job_is_ever_deleted(jobs: Jobs) -> None:
    backend = await jobs.app.client.backend()
    long_ago = jobs.clock.now() - 100 * _DAY
    rows = [Row(id=bytes([n]) * 16, queue="q", task="t", cells={}, run_at=long_ago) for n in range(1, 7)]
    await backend.insert(rows, long_ago)
    await backend.claim(Claim("h", ("q",), 2, _LEASE), long_ago)
    await jobs.app.janitor.keep(0, count=0, bytes=0)
    assert (await jobs.app.janitor.run(force=True)).deleted == 0
    assert await jobs.duty().sweep() == 0
    [queue] = (await jobs.app.client.stats()).queues
    assert (queue.available, queue.running) == (4, 2)


async def test_rules_that_an_app_declares_are_stored_by_its_worker(store: Store) -> None:
    app = store.app()

    @app.task(queue="mail")
    async def send() -> None: ...

    app.keep("7d", states="completed")
    app.keep("forever", queue="mail")
    async with app:
        await app.drain()
        rules = {(rule.state, rule.queue): rule.age for rule in await app.janitor.rules() if rule.stored}
    forever = {(state.value, "mail"): "for ever" for state in _ENDS}
    assert rules == {("completed", None): "7d"} | forever
