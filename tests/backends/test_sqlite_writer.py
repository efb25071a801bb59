"""The two lanes of the SQLite backend: group commit, waiting, cancelling, and letting go."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest
import pytest_asyncio

from headrace.backends.sqlite import SqliteBackend, connection_thread, schema, selection
from headrace.backends.sqlite.writer import Writer
from headrace.errors import InvalidJob, Unavailable
from headrace.seam.records import (
    Cancel,
    Claim,
    InsertStatus,
    Reap,
    Requeue,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
)
from headrace.seam.ticks import Look, Plan, Save, ScheduleSelector, TickOutcome
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, job_id, row
from headrace.testing.conformance.ticks import fires, moved, schedule
from headrace.types import JobState

PATIENCE = 60.0
CLAIM = Claim("w", ("q",), 10, LEASE)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "jobs.db", now=lambda: T0)
    await backend.open()
    yield backend
    await backend.close()


@contextmanager
def turn_taken(store: SqliteBackend) -> Iterator[None]:
    """Somebody else's turn to write."""
    fd = os.open(f"{store.path}-latch", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def database_locked(store: SqliteBackend) -> Iterator[None]:
    """Another program writes, past the latch."""
    with closing(apsw.Connection(store.path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def test_commands_that_wait_share_a_transaction(store: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    transact = Writer._transact

    def counted(self: Writer, commands: list[connection_thread.Command[object]]) -> object:
        sizes.append(len(commands))
        return transact(self, commands)  # type: ignore[arg-type]

    monkeypatch.setattr(Writer, "_transact", counted)
    with turn_taken(store):
        calls = asyncio.gather(*(store.insert([row(n)]) for n in range(50)))
        await asyncio.sleep(0)
    assert [a.status for [a] in await calls] == [InsertStatus.NEW] * 50
    assert sum(sizes) == 50
    assert len(sizes) <= 3


async def test_a_command_that_fails_fails_alone(store: SqliteBackend) -> None:
    bad = Row(id=job_id(2), queue="q", task="t", cells={"nonsense": b""})
    with turn_taken(store):
        first = asyncio.ensure_future(store.insert([row(0)]))
        await asyncio.sleep(0)
        calls = asyncio.gather(
            store.insert([row(1)]), store.insert([row(3), bad]), store.claim(CLAIM), return_exceptions=True
        )
        await asyncio.sleep(0)
    await first
    one, two, claimed = await calls
    assert isinstance(two, InvalidJob)
    assert not isinstance(one, BaseException)
    assert not isinstance(claimed, BaseException)
    assert {job.id for job in claimed.jobs} <= {job_id(0), job_id(1)}
    assert await store.fetch([job_id(2), job_id(3)]) == [None, None]
    assert (await store.stats()).queues[0].available + (await store.stats()).queues[0].running == 2


async def test_a_plan_that_fails_fails_alone_and_leaves_nothing_by_halves(store: SqliteBackend) -> None:
    ticks = store.ticks
    await ticks.save([Save(schedule(n), 0) for n in range(3)])
    one, two, three = before = await ticks.find(ScheduleSelector())
    good, bad = fires(T0, 1), fires(T0 + 1, 2, cells={"nonsense": b""})
    with turn_taken(store):
        first = asyncio.ensure_future(store.insert([row(0)]))
        await asyncio.sleep(0)
        calls = asyncio.gather(
            ticks.plan([moved(one, fires(T0, 3))]),
            ticks.plan([moved(two, good, bad), moved(three, fires(T0, 4))]),
            store.claim(CLAIM),
            return_exceptions=True,
        )
        await asyncio.sleep(0)
    await first
    planned, failed, claimed = await calls
    assert planned == [[TickOutcome.FIRED]]
    assert isinstance(failed, InvalidJob)
    assert not isinstance(claimed, BaseException)
    assert (await ticks.find(ScheduleSelector()))[1:] == before[1:]
    assert [len(await ticks.history(known.uid)) for known in before] == [1, 0, 0]
    assert await store.fetch([job_id(1), job_id(2), job_id(4)]) == [None] * 3
    assert [place.count for place in (await store.stats()).kept if place.target == SweepTarget.TICKS] == [1]


async def test_callers_that_give_up_break_nothing(store: SqliteBackend) -> None:
    with turn_taken(store):
        tasks = [asyncio.ensure_future(store.insert([row(n)])) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        answers = asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
    assert sum(isinstance(answer, asyncio.CancelledError) for answer in await answers) == 10
    assert [a.status for a in await store.insert([row(99)])] == [InsertStatus.NEW]
    found = await store.fetch([job_id(n) for n in range(0, 20, 2)])
    assert None not in found


@pytest.mark.parametrize("obstacle", [turn_taken, database_locked])
async def test_what_finds_nothing_to_write_needs_no_lock(store: SqliteBackend, obstacle: object) -> None:
    await store.insert([row(1, delay=SECOND), row(2, queue="other", reply_to="me")])
    with obstacle(store):  # type: ignore[operator]
        async with asyncio.timeout(PATIENCE):
            claimed = await store.claim(CLAIM)
            assert (claimed.jobs, claimed.next_in) == ([], SECOND)
            assert (await store.finish_and_claim([], CLAIM))[1] == claimed
            assert await store.reap(Reap()) == []
            for place in SweepTarget:
                assert (await store.sweep(SweepClause(target=place, older_than=0, max_count=5))).removed == 0
            assert await store.fetch([job_id(1)]) != [None]
            assert len((await store.scan(Selector())).records) == 2
            assert len((await store.stats()).queues) == 2
            assert await store.alter(Selector(states=frozenset({JobState.FAILED})), Requeue()) == []
            assert await store.insert([]) == await store.finish([]) == []


@pytest.mark.parametrize("obstacle", [turn_taken, database_locked])
async def test_looks_at_schedules_and_plans_that_come_too_late_need_no_lock(
    store: SqliteBackend, obstacle: object
) -> None:
    ticks = store.ticks
    await ticks.save([Save(schedule(1), 0)])
    [before] = await ticks.find(ScheduleSelector())
    plan = moved(before, fires(T0, 1), slot=T0 + SECOND)
    gone = Plan("gone", before.uid, None, [fires(T0, 2)])
    assert await ticks.plan([plan]) == [[TickOutcome.FIRED]]
    with obstacle(store):  # type: ignore[operator]
        async with asyncio.timeout(PATIENCE):
            assert await ticks.plan([plan, gone]) == [None, None]
            assert (await ticks.due(Look())).next_in == SECOND
            assert len(await ticks.find(ScheduleSelector())) == len(await ticks.history(before.uid)) == 1
            assert await ticks.save([]) == await ticks.plan([]) == []
            await ticks.note([])


async def test_a_turn_that_does_not_come_is_told_and_passes(
    store: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_thread, "PATIENCE", 0.2)
    with turn_taken(store), pytest.raises(Unavailable, match="-latch"):
        await store.insert([row(1)])
    monkeypatch.setattr(connection_thread, "PATIENCE", PATIENCE)
    await store.insert([row(2)])
    assert (await store.fetch([job_id(2)])) != [None]


async def test_a_database_that_stays_locked_is_unavailable_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_TIMEOUT", 100)
    store = SqliteBackend(tmp_path / "jobs.db")
    await store.open()
    try:
        with database_locked(store), pytest.raises(Unavailable, match="stayed locked"):
            await store.insert([row(1)])
        await store.insert([row(1)])
    finally:
        await store.close()


async def test_closing_waits_for_what_is_queued(tmp_path: Path) -> None:
    store = SqliteBackend(tmp_path / "jobs.db")
    await store.open()
    with turn_taken(store):
        calls = [asyncio.ensure_future(store.insert([row(n)])) for n in range(10)]
        await asyncio.sleep(0)
        closing_ = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
    await closing_
    assert [a.status for [a] in await asyncio.gather(*calls)] == [InsertStatus.NEW] * 10
    with pytest.raises(Unavailable, match="not open"):
        await store.insert([row(11)])
    with pytest.raises(Unavailable, match="not open"):
        await store.fetch([job_id(1)])
    await store.open()
    assert None not in await store.fetch([job_id(n) for n in range(10)])
    await store.close()


async def test_no_thread_and_no_file_is_left_behind(tmp_path: Path) -> None:
    def files() -> list[str]:
        opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return [file for file in opened if str(tmp_path) in file]

    before = {*threading.enumerate()}  # some of them may end meanwhile
    for _ in range(3):
        store = SqliteBackend(tmp_path / "jobs.db")
        sibling = store.sibling()
        await store.open()
        await sibling.open()
        assert store.hints is not None
        async with store.hints.listen(["queue:q"]) as hints:
            await sibling.insert([row(1)])
            await store.insert([row(2)])
            assert hints is not None
        await store.close()
        await sibling.close()
    with pytest.raises(Unavailable):
        await SqliteBackend(tmp_path / "no" / "jobs.db").open()
    assert {*threading.enumerate()} <= before
    assert files() == []


async def test_the_clock_given_is_the_clock_used(tmp_path: Path) -> None:
    store = SqliteBackend(tmp_path / "jobs.db", now=lambda: T0 + 7)
    await store.open()
    try:
        await store.insert([row(1)])
        [record] = await store.fetch([job_id(1)])
        assert record is not None
        assert (record.enqueued_at, record.run_at) == (T0 + 7, T0 + 7)
    finally:
        await store.close()


# -- big stores, made small


@pytest.fixture
def _walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as many."""
    monkeypatch.setattr(selection, "_FEW", -1)
    monkeypatch.setattr(selection, "_STEP", 7)


@pytest.mark.usefixtures("_walked")
async def test_a_scan_walks_in_bounded_steps(store: SqliteBackend) -> None:
    await store.insert([row(n, queue="ab"[n % 2], tenant="xyz"[n % 3]) for n in range(100)])
    seen: list[bytes] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        page = await store.scan(Selector(queue="a", tenant="y"), after, 5)
        seen += [record.id for record in page.records]
        after, pages = page.after, pages + 1
    assert seen == [job_id(n) for n in reversed(range(100)) if n % 2 == 0 and n % 3 == 1]
    assert pages >= 100 // 7


@pytest.mark.usefixtures("_walked")
async def test_a_mass_change_walks_the_ids(store: SqliteBackend) -> None:
    await store.insert([row(n) for n in range(50)])
    first = await store.alter(Selector(queue="q", limit=20), Cancel())
    assert [a.id for a in first] == [job_id(n) for n in range(20)]
    rest = await store.alter(Selector(queue="q", above=job_id(29), limit=50), Cancel())
    assert [a.id for a in rest] == [job_id(n) for n in range(30, 50)]
    assert await store.alter(Selector(queue="q", limit=0), Cancel()) == []


@pytest.mark.usefixtures("_walked")
async def test_a_refused_change_is_answered_once(store: SqliteBackend) -> None:
    await store.insert([row(n, key=f"k{n}") for n in range(30)], T0)
    jobs = (await store.claim(Claim("w", ("q",), 30, LEASE), T0)).jobs
    await store.finish([Settlement(j.id, j.epoch, "w", JobState.FAILED) for j in jobs], T0)
    await store.insert([row(100 + n, key=f"k{n}") for n in range(30)], T0 + HOUR)
    answers = await store.alter(Selector(queue="q", limit=100), Requeue(), T0 + HOUR)
    assert [(a.id, a.changed) for a in answers] == [(job_id(n), False) for n in range(30)]
