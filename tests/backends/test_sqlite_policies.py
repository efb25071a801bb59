"""Groups and governed queues in a SQLite file: what they leave behind, what they cost, and how a queue becomes one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace.backends import claims
from headrace.backends.sqlite import SqliteBackend, governing, tenant_jobs
from headrace.backends.sqlite.transaction import Session
from headrace.seam.policy import Policy, QueuePause, Rate, TenantLimit
from headrace.seam.records import (
    Cancel,
    Claim,
    Claimed,
    Delete,
    Leased,
    Move,
    Reap,
    Reprioritise,
    Row,
    Selector,
    SweepClause,
    SweepTarget,
)
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, job_id, number, row, settle
from headrace.types import JobState

TABLES = ("jobs", "ready", "running", "ended", "groups", "called", "tenants", "lanes", "holdings", "limits", "tasks")


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "jobs.db", durability="normal")
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def put(store: SqliteBackend, rows: Sequence[Row], at: int = T0) -> None:
    for first in range(0, len(rows), 1_000):
        await store.insert(rows[first : first + 1_000], at)


async def claim(store: SqliteBackend, limit: int = 1_000, at: int = T0, queue: str = "q", **changes: Any) -> Claimed:
    return await store.claim(Claim("w1", (queue,), limit, LEASE, **changes), at)


async def take(store: SqliteBackend, limit: int = 1_000, at: int = T0, queue: str = "q") -> list[Leased]:
    return (await claim(store, limit, at, queue)).jobs


async def counts(store: SqliteBackend) -> dict[str, int]:
    """How many rows lie in which table."""

    def look(session: Session, _: int) -> dict[str, int]:
        return {table: session.one(f"SELECT count(*) FROM {table}")[0] for table in TABLES}

    found: dict[str, int] = await store._read(look, T0)
    return found


async def sweep_all(store: SqliteBackend, at: int) -> None:
    for place in (SweepTarget.COMPLETED, SweepTarget.CANCELLED, SweepTarget.FAILED, SweepTarget.TENANTS):
        await store.sweep(SweepClause(target=place, max_count=0), at)


# -- what is left behind


async def test_nothing_is_left_of_groups_when_their_jobs_are_gone(store: SqliteBackend) -> None:
    await put(store, [row(n, group=f"g{n % 7}", expires=HOUR if n % 5 == 0 else None) for n in range(70)])
    await store.alter(Selector(ids=[job_id(n) for n in range(10, 20)]), Cancel(), T0)
    await store.alter(Selector(ids=[job_id(n) for n in range(20, 30)]), Delete(), T0)
    await store.alter(Selector(ids=[job_id(n) for n in range(30, 40)]), Move("r"), T0)
    await store.claim(Claim("gone", ("q",), 3, LEASE), T0)
    await store.reap(Reap(max_lost=0), T0 + LEASE)
    await store.reap(Reap(), T0 + HOUR)
    for queue in ("q", "r"):
        while jobs := await take(store, at=T0 + HOUR, queue=queue):
            await store.finish([settle(job) for job in jobs], T0 + HOUR)
    await sweep_all(store, T0 + HOUR)
    assert set((await counts(store)).values()) == {0}


async def test_nothing_is_left_of_tenants_when_their_jobs_are_gone(store: SqliteBackend) -> None:
    rules = Policy(
        queue="q",
        tenant_workers=3,
        tenant_rate=Rate(SECOND, 100),
        task_rates={"slow": Rate(SECOND, 100)},
        group_running=2,
    )
    assert await store.policies.save(rules, T0)
    await store.policies.limit(TenantLimit("q", "t1", 5), T0)
    await store.policies.pause(QueuePause("q", tenant="t2", lasts=SECOND), T0)
    await store.policies.pause(QueuePause("q", task="late", lasts=SECOND), T0)
    tasks = ("t", "slow", "late")
    await put(
        store,
        [row(n, tenant=f"t{n % 10}", task=tasks[n % 3], group=f"g{n % 4}" if n % 5 else None) for n in range(100)],
    )
    await store.alter(Selector(ids=[job_id(n) for n in range(10)]), Cancel(), T0)
    await store.alter(Selector(ids=[job_id(n) for n in range(10, 20)]), Reprioritise(3), T0)
    await store.alter(Selector(ids=[job_id(n) for n in range(20, 30)]), Delete(), T0)
    await store.claim(Claim("gone", ("q",), 5, LEASE), T0)
    await store.reap(Reap(), T0 + LEASE)
    at = T0 + LEASE
    while jobs := await take(store, 9, at):
        await store.finish([settle(job) for job in jobs], at)
    await store.policies.limit(TenantLimit("q", "t1"), at)
    assert (await store.stats(at)).queues[0].available == 0
    await take(store, at=at)
    await sweep_all(store, at + HOUR)
    assert set((await counts(store)).values()) == {0}


async def test_a_pause_that_is_over_holds_no_queue(store: SqliteBackend) -> None:
    await store.policies.pause(QueuePause("q", lasts=SECOND), T0)
    await sweep_all(store, T0)
    assert [queue.queue for queue in (await store.stats(T0)).queues] == ["q"]
    await sweep_all(store, T0 + SECOND)
    found = await store._read(lambda session, _: session.rows("SELECT name FROM queues"), T0)
    assert found == []


# -- groups


async def test_a_whole_group_is_changed_at_once(store: SqliteBackend) -> None:
    await put(store, [row(n, group="g") for n in range(6)])
    altered = await store.alter(Selector(ids=[job_id(n) for n in range(5)]), Cancel(), T0)
    assert {one.after for one in altered} == {JobState.CANCELLED}
    assert [number(job) for job in await take(store)] == [5]


async def test_jobs_of_a_governed_queue_are_found_wherever_they_lie(store: SqliteBackend) -> None:
    assert await store.policies.save(Policy(queue="q", running=1), T0)
    await put(store, [row(n, tenant="ab"[n % 2], group="g" if n < 3 else None) for n in range(6)])
    found = (await store.scan(Selector(queue="q", states=frozenset({JobState.AVAILABLE})), at=T0)).records
    assert [record.id for record in found] == [job_id(n) for n in reversed(range(6))]
    assert len(await store.alter(Selector(queue="q", tenant="a"), Cancel(), T0)) == 3


# -- becoming governed


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governing, "_AT_ONCE", 10)


@pytest.mark.usefixtures("small_steps")
async def test_many_waiting_jobs_are_brought_into_turns_bit_by_bit(store: SqliteBackend) -> None:
    await put(store, [row(n, delay=HOUR) for n in range(100, 150)])
    await put(store, [row(n, tenant="ab"[n % 2], priority=1) for n in range(40)])
    assert await store.policies.save(Policy(queue="q", running=1_000, tenant_batch=1), T0)
    assert (await counts(store))["lanes"] == 2
    seen: list[int] = []
    for _ in range(4):
        claimed = await claim(store, 100)
        seen += [number(job) for job in claimed.jobs]
        assert claimed.next_in == 0
    assert seen == list(range(40))
    while (claimed := await claim(store)).next_in == 0:
        assert claimed.jobs == []
    assert claimed.next_in == HOUR
    assert len(await take(store, at=T0 + HOUR)) == 50


@pytest.mark.usefixtures("small_steps")
async def test_jobs_that_are_not_in_turns_yet_can_be_changed(store: SqliteBackend) -> None:
    await put(store, [row(n, group="g" if n > 95 else None) for n in range(100)])
    assert await store.policies.save(Policy(queue="q", running=1_000), T0)
    await store.alter(Selector(ids=[job_id(n) for n in range(50, 60)]), Cancel(), T0)
    await store.alter(Selector(ids=[job_id(n) for n in range(60, 70)]), Move("r"), T0)
    await store.alter(Selector(ids=[job_id(n) for n in range(70, 80)]), Reprioritise(-1), T0)
    [queue, _] = (await store.stats(T0)).queues
    assert queue.available == 80
    seen: list[int] = []
    while (claimed := await claim(store)).jobs or claimed.next_in == 0:
        seen += [number(job) for job in claimed.jobs]
    assert sorted(seen) == [*range(50), *range(70, 97)]


async def test_all_that_could_be_visited_is_visited_in_the_end(
    store: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_VISITS", 9)
    assert await store.policies.save(Policy(queue="q", running=1_000), T0)
    await put(store, [row(n, tenant=f"t{n:02}", task="u") for n in range(20)])
    await store.policies.pause(QueuePause("q", task="u"), T0)
    await put(store, [row(20, tenant="z", delay=1)], T0)
    answers = [await claim(store, at=T0 + 1) for _ in range(3)]
    assert [(len(claimed.jobs), claimed.next_in) for claimed in answers] == [(0, 0)] * 2 + [(1, None)]


# -- what it costs


class Steps:
    """Counts the steps of SQLite's machine."""

    def __init__(self, store: SqliteBackend) -> None:
        assert store._writer is not None
        self._steps = 0
        store._writer._connection.set_progress_handler(self._step, 1)

    def _step(self) -> bool:
        self._steps += 1
        return False

    async def taken(self, work: Awaitable[object]) -> int:
        self._steps = 0
        await work
        return self._steps


async def _steps(path: Path, *, waiting: int, held_back: int) -> dict[str, int]:
    """How many steps operations take where so many jobs wait in turns, and so many may not run."""
    store = SqliteBackend(path, durability="normal")
    await store.open()
    try:
        assert await store.policies.save(Policy(queue="q", tenant_running=2, tenant_batch=2), T0)
        await store.policies.pause(QueuePause("q", task="stopped"), T0)
        for name in ("paused", "late"):
            await store.policies.pause(QueuePause("q", tenant=name), T0)
        await put(store, [row(n, tenant="full") for n in range(2 + held_back)])
        assert len(await take(store)) == 2
        await put(store, [row(10_000 + n, tenant="paused") for n in range(held_back)])
        await put(store, [row(20_000 + n, tenant=f"a{n % 5}", task="stopped") for n in range(held_back)])
        await put(store, [row(30_000 + n, tenant=f"a{n % 5}", delay=HOUR) for n in range(held_back)])
        await put(store, [row(40_000 + n, tenant=f"sleeper{n}", delay=HOUR) for n in range(held_back)])
        await put(store, [row(50_000 + n, tenant="grouped", group="g") for n in range(1 + held_back)])
        await take(store)
        await put(store, [row(60_000 + n, tenant=f"a{n % 5}") for n in range(waiting)])
        steps = Steps(store)
        jobs: list[Leased] = []

        async def work() -> None:
            jobs.extend(await take(store, 10))

        return {
            "claim": await steps.taken(work()),
            "finish": await steps.taken(store.finish([settle(job) for job in jobs], T0)),
            "claim nothing": await steps.taken(store.claim(Claim("w1", ("q",), 0, LEASE), T0)),
            "insert": await steps.taken(store.insert([row(70_000 + n, tenant=f"a{n}") for n in range(5)], T0)),
            "end of a turn": await steps.taken(store.alter(Selector(ids=[job_id(50_000)]), Cancel(), T0)),
        }
    finally:
        await store.close()


async def test_a_claim_from_a_governed_queue_costs_the_same_in_a_big_store(tmp_path: Path) -> None:
    small = await _steps(tmp_path / "small.db", waiting=20, held_back=10)
    deep = await _steps(tmp_path / "deep.db", waiting=1_000, held_back=10)
    stuck = await _steps(tmp_path / "stuck.db", waiting=20, held_back=300)
    for other in (deep, stuck):
        assert {name: count for name, count in other.items() if count > small[name] * 1.15 + 20} == {}


async def _steps_with_ageing(path: Path, priorities: int) -> int:
    """How many steps a claim of ten takes where jobs of one tenant have so many priorities."""
    store = SqliteBackend(path, durability="normal")
    await store.open()
    try:
        assert await store.policies.save(Policy(queue="q", ageing=SECOND), T0)
        await put(store, [row(n, priority=n) for n in range(priorities)])
        steps = Steps(store)
        jobs: list[Leased] = []

        async def work() -> None:
            jobs.extend(await take(store, 10))

        taken = await steps.taken(work())
        assert [number(job) for job in jobs] == list(range(10))
        return taken
    finally:
        await store.close()


async def test_with_ageing_a_claim_costs_the_same_whatever_priorities_users_choose(tmp_path: Path) -> None:
    few = await _steps_with_ageing(tmp_path / "few.db", 1_500)
    many = await _steps_with_ageing(tmp_path / "many.db", 60_000)
    assert many <= few * 1.1


async def test_with_ageing_every_priority_is_served_in_the_end(
    store: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant with more priorities than a claim looks at stays awake, and none of its lanes is forgotten."""
    monkeypatch.setattr(tenant_jobs, "_LEVELS", 3)
    assert await store.policies.save(Policy(queue="q", ageing=SECOND, tenant_batch=100), T0)
    await put(store, [row(n, priority=n // 2, task="ab"[n % 2]) for n in range(20)])
    claims = [await claim(store) for _ in range(6)]
    assert sorted(number(job) for claimed in claims for job in claimed.jobs) == list(range(20))
    assert [claimed.next_in for claimed in claims[:3]] == [0, 0, 0]
    assert claims[-1].next_in is None


async def test_a_claim_that_may_have_nothing_needs_no_lock(store: SqliteBackend) -> None:
    """A queue at its limit, tenants that are full, asleep or another's: whoever asks again writes nothing."""
    assert await store.policies.save(Policy(queue="q", running=1), T0)
    assert await store.policies.save(Policy(queue="r", tenant_running=1, tenant_workers=1), T0)
    await put(store, [row(1), row(2), row(3, queue="r", tenant="a"), row(4, queue="r", tenant="a")])
    await put(store, [row(5, queue="r", tenant="b", delay=SECOND)])
    assert len(await take(store)) + len(await take(store, queue="r")) == 2
    await take(store, queue="r")
    before = await store._read(lambda session, _: session.one("PRAGMA data_version")[0], T0)
    for holder in ("w1", "w2"):
        claimed = await store.claim(Claim(holder, ("q", "r"), 5, LEASE), T0)
        assert (claimed.jobs, claimed.next_in) == ([], SECOND)
    assert await store._read(lambda session, _: session.one("PRAGMA data_version")[0], T0) == before
