"""Jobs lie in PostgreSQL by the day of their making, and a day that is over goes as a whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, date, datetime
from random import Random
from uuid import UUID

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.core.clock import ManualClock
from headrace.core.config import RetentionSettings
from headrace.core.events import Observers
from headrace.errors import SchemaMismatch, Unavailable
from headrace.keeping.retention import Retention
from headrace.seam.archive import HOUR
from headrace.seam.policy import Policy
from headrace.seam.records import (
    Claim,
    InsertStatus,
    JobId,
    JobKey,
    Pause,
    Requeue,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.types import JobState
from tests.postgres import server

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_THEN = date(2026, 3, 1)
_NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * _SECOND
_AFTER = _NOON + 8 * _DAY
"""When a week has passed since the last job of that day can have ended."""


@pytest.fixture
def connection() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=days") as connection:
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS days CASCADE")


@pytest.fixture
async def store(connection: psycopg.Connection[tuple[object, ...]]) -> AsyncIterator[PostgresBackend]:
    backend = PostgresBackend(server().url(), schema="days")
    await backend.open()
    connection.execute("SELECT make_day(%s)", (_THEN,))
    yield backend
    await backend.close()


def id_of(number: int, at: int = _NOON) -> JobId:
    """The id of a job made at this instant."""
    return (at // 1_000).to_bytes(6, "big") + bytes.fromhex(f"7000800000{number:010x}")


def row(number: int, **changes: object) -> Row:
    """A job of that day."""
    return Row(id=id_of(number), **({"queue": "q", "task": "t", "cells": {"parameters": b"{}"}} | changes))  # type: ignore[arg-type]


async def end(store: PostgresBackend, count: int, state: JobState = JobState.COMPLETED, ttl: int = 0) -> None:
    """Claim so many jobs and end them, a second past noon."""
    claimed = await store.claim(Claim("h", ("q",), count, _DAY), _NOON + _SECOND)
    assert len(claimed.jobs) == count
    batch = [Settlement(job.id, job.epoch, "h", state, result=b"r", result_ttl=ttl) for job in claimed.jobs]
    assert await store.finish(batch, _NOON + _SECOND) == [state] * count


async def sweep(
    store: PostgresBackend, place: SweepTarget = SweepTarget.COMPLETED, limit: int = 10, at: int = _AFTER
) -> Swept:
    return await store.sweep(SweepClause(target=place, older_than=7 * _DAY, limit=limit), at)


async def tidy(
    store: PostgresBackend, place: SweepTarget = SweepTarget.COMPLETED, at: int = _AFTER, age: int = 7 * _DAY
) -> int:
    """Do it now, whenever it was done last; how many jobs went with their days."""
    await store._connections.rows("UPDATE days.duties SET next_at = 0")
    return (await store.tidy([SweepClause(target=place, older_than=age)], at)).get(place, 0)


def days(connection: psycopg.Connection[tuple[object, ...]]) -> set[str]:
    """The days that have partitions."""
    found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'days' AND tablename ~ '_[0-9]{8}$'")
    return {str(name) for (name,) in found}


def test_there_is_a_place_for_today_and_tomorrow(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    found = connection.execute(
        "SELECT to_char(now() AT TIME ZONE 'UTC', '\"jobs_\"YYYYMMDD'),"
        " to_char(now() AT TIME ZONE 'UTC' + interval '1 day', '\"ended_\"YYYYMMDD')"
    ).fetchone()
    assert found is not None
    assert set(found) <= days(connection)


async def test_a_day_goes_whole(store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]) -> None:
    await store.insert([row(n) for n in range(100)], _NOON)
    await end(store, 100)
    assert (await sweep(store)).removed == 0, "which is left to the day"
    assert "jobs_20260301" in days(connection)
    assert await tidy(store) == 100
    assert not {"jobs_20260301", "ended_20260301", "gone_jobs_20260301", "gone_ended_20260301"} & days(connection)
    assert await tidy(store) == 0
    assert (await sweep(store)).kept == 0
    assert (await store.stats(_AFTER)).queues == []
    assert await store.fetch([id_of(1)]) == [None]


async def test_a_day_that_goes_is_counted(store: PostgresBackend) -> None:
    await store.insert([row(n, task=f"t{n % 2}", tenant=f"u{n % 4}") for n in range(100)], _NOON)
    await end(store, 100)
    assert await tidy(store) == 100
    found = await store.archive.removals()
    assert {(one.state, one.task, one.tenant): one.jobs for one in found} == {
        ("completed", f"t{n % 2}", f"u{n}"): 25 for n in range(4)
    }
    assert {one.hour for one in found} == {_NOON // HOUR}
    assert all(one.bytes > 0 for one in found)


async def test_a_day_is_kept_until_all_of_it_is_old_enough(store: PostgresBackend) -> None:
    await store.insert([row(1)], _NOON)
    await end(store, 1)
    assert await tidy(store, at=_NOON + 7 * _DAY + 2 * _SECOND) == 0
    assert await tidy(store, at=_NOON + 8 * _DAY) == 1


async def test_a_day_that_could_not_go_for_a_day_is_swept(store: PostgresBackend) -> None:
    await store.insert([row(1)], _NOON)
    await end(store, 1)
    assert (await sweep(store, at=_AFTER)).removed == 0
    assert (await sweep(store, at=_AFTER + _DAY)).removed == 1


async def test_what_is_shorter_than_a_day_is_not_kept_for_one(store: PostgresBackend) -> None:
    await store.insert([row(1)], _NOON)
    await end(store, 1)
    clause = SweepClause(target=SweepTarget.COMPLETED, older_than=_SECOND)
    assert (await store.sweep(clause, _NOON + 2 * _SECOND)).removed == 1


async def test_the_few_that_stay_are_kept_as_they_are(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(n, key=f"k{n}") for n in range(20)], _NOON)
    await end(store, 20)
    await store.insert([row(100, cells={"blob": b"\0", "vm_state": b""})], _NOON)
    await store.insert([row(101, key="held")], _NOON)
    await store.alter(Selector(ids=[id_of(100)]), Pause(), _NOON)
    await end(store, 1, ttl=30 * _DAY)
    await store.insert([row(102)], _NOON)
    await end(store, 1, JobState.FAILED)
    await store.insert([row(103), row(104, delay=30 * _DAY)], _NOON)
    [running] = (await store.claim(Claim("h", ("q",), 1, 60 * _DAY), _NOON)).jobs
    await store.alter(Selector(ids=[id_of(3)]), Requeue(), _AFTER)

    assert await tidy(store) == 19
    assert "jobs_20260301" not in days(connection)
    found = await store.fetch(
        [id_of(n) for n in (1, 3, 100, 101, 102, 103, 104)], frozenset({"vm_state", "blob", "result"}), _AFTER
    )
    assert [record and record.state for record in found] == [
        None,
        JobState.AVAILABLE,
        JobState.PAUSED,
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.RUNNING,
        JobState.AVAILABLE,
    ]
    paused, held = found[2], found[3]
    assert paused is not None
    assert held is not None
    assert paused.cells == {"blob": b"\0", "vm_state": b""}
    assert held.result == b"r"
    done = Settlement(running.id, running.epoch, "h", JobState.COMPLETED)
    assert await store.finish([done], _AFTER) == [JobState.COMPLETED]
    [again] = (await store.claim(Claim("h", ("q",), 10, _DAY), _AFTER)).jobs
    assert again.id == id_of(3)
    [free, taken] = await store.insert(
        [
            Row(id=id_of(201, _AFTER), queue="q", task="t", cells={}, key="k1"),
            Row(id=id_of(202, _AFTER), queue="q", task="t", cells={}, key="held"),
        ],
        _AFTER,
    )
    assert (free.status, taken.status) == (InsertStatus.NEW, InsertStatus.DONE)
    [stats] = (await store.stats(_AFTER)).queues
    assert (stats.available, stats.running, stats.jobs_paused, stats.completed, stats.failed) == (2, 1, 1, 2, 1)
    assert await store.fetch([JobKey("q", "k2")]) == [None]


async def test_what_changes_while_a_day_is_copied_is_kept_as_it_is(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """A cell that is sealed again after the first copy and before the tables are locked."""
    await store.insert([row(1), row(2)], _NOON)
    with connection.transaction():
        connection.execute("SET LOCAL search_path = days")
        connection.execute("CREATE TABLE kept_jobs (LIKE jobs INCLUDING ALL)")
        copy = "SELECT copy_kept('jobs', '20260301', ARRAY(SELECT id FROM jobs_20260301))"
        connection.execute(copy)
        connection.execute("UPDATE jobs SET parameters = 'sealed' WHERE id = %s", (UUID(bytes=id_of(1)),))
        connection.execute(copy)
        kept = connection.execute("SELECT parameters FROM kept_jobs ORDER BY id").fetchall()
        connection.execute("DROP TABLE kept_jobs")
    assert kept == [(b"sealed",), (b"{}",)]


async def test_a_day_of_which_too_much_stays_loses_jobs_one_by_one(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(n) for n in range(30)], _NOON)
    await end(store, 10)
    connection.execute(
        "INSERT INTO paused (run_at, id, qid, epoch, attempt, lost, size, priority, keyed)"
        " SELECT 0, (%s || lpad(to_hex(n), 8, '0'))::uuid, 1, 0, 0, 0, 0, 0, false"
        " FROM generate_series(1, 100001) AS n",
        (id_of(0).hex()[:20] + "ffff",),
    )
    assert await tidy(store) == 0
    assert "jobs_20260301" in days(connection)
    assert (await sweep(store, limit=4, at=_AFTER + _DAY)).removed == 4
    assert [r is not None for r in await store.fetch([id_of(20)])] == [True]


async def test_dead_letters_do_not_keep_their_day_from_being_dropped(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """Not even where there are more of them than of those that go."""
    for start in range(0, 5_000, 1_000):
        await store.insert([row(n, cells={"blob": b"x" * (n % 100)}) for n in range(start, start + 1_000)], _NOON)
    for state in (JobState.FAILED, JobState.FAILED, JobState.FAILED, JobState.COMPLETED, JobState.COMPLETED):
        jobs = (await store.claim(Claim("h", ("q",), 1_000, _DAY), _NOON)).jobs
        await store.finish([Settlement(job.id, job.epoch, "h", state, error=b"e") for job in jobs], _NOON)
    assert await tidy(store) == 2_000
    assert connection.execute("SELECT count(*) FROM jobs_20260301").fetchone() == (3_000,)
    assert await tidy(store) == 0
    found = await store.fetch([id_of(n) for n in range(3_000)], frozenset(("blob", "error")))
    assert [one.cells["blob"] for one in found if one is not None] == [b"x" * (n % 100) for n in range(3_000)]
    kept = {one.target: one.count for one in (await store.stats(_AFTER)).kept}
    assert (kept["completed"], kept["failed"]) == (0, 3_000)
    assert (await store.sweep(SweepClause(target=SweepTarget.FAILED, max_count=10, limit=5_000), _AFTER)).kept == 10


async def test_those_that_stay_take_the_place_of_their_day(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """If they are more than a few: so it takes nobody long to move them."""
    for start in range(0, 4_000, 1_000):
        await store.insert([row(n, key=f"k{n}") for n in range(start, start + 1_000)], _NOON)
    for _ in range(3):
        await end(store, 900)
    assert await tidy(store) == 2_700
    assert "jobs_20260301" in days(connection)
    assert connection.execute("SELECT count(*) FROM jobs_20260301").fetchone() == (1_300,)
    assert await tidy(store) == 0, "nothing is left to go"
    assert await store.fetch([id_of(2_699)]) == [None]
    jobs = (await store.claim(Claim("h", ("q",), 2_000, _DAY), _AFTER)).jobs
    assert {job.id for job in jobs} == {id_of(n) for n in range(2_700, 4_000)}
    done = [Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs]
    assert await store.finish(done, _AFTER) == [JobState.COMPLETED] * 1_300
    [stats] = (await store.stats(_AFTER)).queues
    assert (stats.available, stats.running, stats.completed) == (0, 0, 1_300)
    assert connection.execute("SELECT count(*) FROM keys").fetchone() == (1_300,)
    assert await tidy(store, at=_AFTER + 8 * _DAY) == 1_300
    assert not {name for name in days(connection) if "20260301" in name}
    assert connection.execute("SELECT count(*) FROM keys").fetchone() == (0,)


async def test_a_late_job_of_that_day_is_not_lost(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(n) for n in range(5)], _NOON)
    await end(store, 5)
    await tidy(store)
    assert "jobs_20260301" not in days(connection)
    await store.insert([row(7)], _AFTER)
    [job] = (await store.claim(Claim("h", ("q",), 10, _DAY), _AFTER)).jobs
    assert job.id == id_of(7)
    connection.execute("SELECT make_day(%s)", (_THEN,))
    assert await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED)], _AFTER) == [JobState.COMPLETED]


# -- those that are made


async def test_two_weeks_are_made_ahead(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await tidy(store, at=_AFTER)
    made = {f"{table}_202603{day:02}" for table in ("jobs", "ended") for day in range(9, 24)}
    assert made <= days(connection)
    assert not {"jobs_20260324", "ended_20260324"} & days(connection)


async def test_a_worker_does_it_on_its_beat(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(n) for n in range(5)], _NOON)
    await end(store, 5)
    swept: list[str] = []
    observers = Observers()
    observers.add(lambda event: swept.append(event.detail))
    janitor = Retention(store, ManualClock(_AFTER), Random(1), observers, RetentionSettings())
    assert await janitor.sweep() == 5
    assert swept == ["5 from completed"]
    assert "jobs_20260301" not in days(connection)
    assert "jobs_20260323" in days(connection)


async def test_a_day_is_made_where_jobs_of_it_are_stored_already(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """As by a client whose clock is ahead: they move to their day, whatever state they are in."""
    ahead = _NOON + 5 * _DAY
    rows = [Row(id=id_of(n, ahead), queue="q", task="t", cells={"parameters": b"%d" % n}) for n in range(30)]
    await store.insert(rows, _NOON)
    await end(store, 10)
    [job] = (await store.claim(Claim("h", ("q",), 1, _DAY), _NOON)).jobs
    assert tables_of(connection, 30) == {"jobs_other", "ended_other"}
    await tidy(store, at=_NOON)
    assert tables_of(connection, 30) == {"jobs_20260306", "ended_20260306"}
    found = await store.fetch([id_of(n, ahead) for n in range(30)], frozenset({"parameters", "result"}), _NOON)
    assert [one and one.cells["parameters"] for one in found] == [b"%d" % n for n in range(30)]
    states = [one.state for one in found if one is not None]
    assert states == [JobState.COMPLETED] * 10 + [JobState.RUNNING] + [JobState.AVAILABLE] * 19
    done = Settlement(job.id, job.epoch, "h", JobState.COMPLETED)
    assert await store.finish([done], _NOON) == [JobState.COMPLETED]
    assert len((await store.claim(Claim("h", ("q",), 100, _DAY), _NOON)).jobs) == 19


async def test_ids_of_ten_years_ahead_work_and_hinder_no_day(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    every = [_NOON + n * _DAY for n in range(3_650)]
    for start in range(0, len(every), 1_000):
        batch = [Row(id=id_of(1, at), queue="q", task="t", cells={}) for at in every[start : start + 1_000]]
        await store.insert(batch, _NOON)
    await tidy(store, at=_NOON)
    assert {f"jobs_202603{day:02}" for day in range(1, 16)} <= days(connection)
    far = id_of(1, every[-1])
    [record] = await store.fetch([far], at=_NOON)
    assert record is not None
    assert record.state is JobState.AVAILABLE
    claimed = [await store.claim(Claim("h", ("q",), 1_000, _DAY), _NOON) for _ in range(4)]
    jobs = [job for one in claimed for job in one.jobs]
    assert {job.id for job in jobs} == {id_of(1, at) for at in every}
    for start in range(0, len(jobs), 1_000):
        batch = [Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs[start : start + 1_000]]
        await store.finish(batch, _NOON)
    swept = await store.sweep(
        SweepClause(target=SweepTarget.COMPLETED, older_than=_DAY, limit=10_000), _NOON + 2 * _DAY
    )
    assert swept.removed >= 3_640, "all but those of the last days and the next"
    assert await store.fetch([far], at=_NOON) == [None]


async def test_a_crowded_day_is_made_in_parts(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """So nobody waits until all of its jobs have moved; other days come first."""
    prefix = id_of(0, _NOON + 5 * _DAY).hex()[:20]
    connection.execute(
        "INSERT INTO jobs (id, enqueued_at, task, tenant)"
        " SELECT (%s || lpad(to_hex(n), 12, '0'))::uuid, 0, 't', '' FROM generate_series(1, 25001) AS n",
        (prefix,),
    )
    left = []
    while connection.execute("SELECT make_day_v1(%s)", (_NOON,)).fetchone() == (True,):
        [[there]] = connection.execute("SELECT count(*) FROM jobs_other")
        left.append(there)
    assert [there for there in left if there] == [25_001] * 13 + [15_001, 5_001]
    assert left[-1] == 0
    assert {f"jobs_202603{day:02}" for day in range(1, 16)} <= days(connection)
    assert tables_of(connection, 25_001) == {"jobs_20260306"}
    assert connection.execute("SELECT * FROM days_of('jobs_default')").fetchall() == []


async def test_jobs_of_a_day_that_is_made_in_parts_go_on(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """Those that have moved, those that have not, and those that come meanwhile, before and after the place."""
    ahead = _NOON + 5 * _DAY
    ids = [id_of(n, ahead) for n in range(1, 90, 3)]
    for start in range(3):
        await store.insert([Row(id=one, queue="q", task="t", cells={"blob": one}) for one in ids[start::3]], _NOON)
    ended: set[JobId] = set()
    steps = 0
    while not connection.execute("SELECT 1 FROM days_of('jobs') WHERE days_of = '2026-03-06'").fetchall():
        [[done]] = connection.execute("SELECT make_day('2026-03-06', 10)")
        assert done
        late = [id_of(n + steps, ahead) for n in (1, 89)] if steps in (1, 2) else []
        await store.insert([Row(id=one, queue="q", task="t", cells={"blob": one}) for one in late], _NOON)
        ids += late
        jobs = (await store.claim(Claim("h", ("q",), 7, _DAY), _NOON)).jobs
        assert [job.cells["blob"] for job in jobs] == [job.id for job in jobs]
        done = [Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs[:5]]
        assert await store.finish(done, _NOON) == [JobState.COMPLETED] * len(done)
        ended |= {one.id for one in done}
        found = await store.fetch(ids, frozenset({"blob"}), _NOON)
        assert [one and one.cells["blob"] for one in found] == ids
        assert {one.id for one in found if one and one.state is JobState.COMPLETED} == ended
        steps += 1
    assert steps == 4
    assert tables_of(connection, len(ids)) == {"jobs_20260306", "ended_20260306"}


@pytest.mark.parametrize("limit", [3, 100], ids=["in parts", "at once"])
@pytest.mark.parametrize("call", ["insert", "finish"])
async def test_who_waits_for_a_day_that_is_made_is_not_refused(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]], call: str, limit: int
) -> None:
    """What a job needs to be stored is there a moment later."""
    ahead = _NOON + 5 * _DAY
    rows = [Row(id=id_of(n, ahead), queue="q", task="t", cells={}) for n in range(10)]
    await store.insert(rows[:8], _NOON)
    jobs = (await store.claim(Claim("h", ("q",), 8, _DAY), _NOON)).jobs
    done = [Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs]
    with psycopg.connect(server().url(), options="-c search_path=days") as making:
        making.execute("SELECT make_day('2026-03-06', %s)", (limit,))
        trip = asyncio.create_task(repeated(store, rows[8:] if call == "insert" else done))
        while not connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
            await asyncio.sleep(0.005)
        making.commit()
    await trip
    states = {one and one.state for one in await store.fetch([one.id for one in rows[:8]], at=_NOON)}
    assert states == {JobState.RUNNING if call == "insert" else JobState.COMPLETED}
    assert None not in await store.fetch([one.id for one in (rows if call == "insert" else rows[:8])], at=_NOON)


async def repeated(store: PostgresBackend, batch: Sequence[Row] | Sequence[Settlement]) -> None:
    """Insert or finish these; if the store cannot just now, once more."""
    for last in (False, True):
        try:
            if isinstance(batch[0], Row):
                await store.insert(batch, _NOON)
            else:
                await store.finish(batch, _NOON)
        except Unavailable:
            assert not last
        else:
            return


async def test_a_day_that_is_half_made_when_it_is_over_is_made_all_the_same(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    ahead = _NOON + 5 * _DAY
    await store.insert([Row(id=id_of(n, ahead), queue="q", task="t", cells={}) for n in range(5)], _NOON)
    connection.execute("SELECT make_day('2026-03-06', 2)")
    await end(store, 5)
    assert tables_of(connection, 5) == {"jobs_other", "ended_other", "jobs_20260306", "ended_20260306"}
    await tidy(store, at=_AFTER)
    assert tables_of(connection, 5) == {"jobs_20260306", "ended_20260306"}
    assert await tidy(store, at=_AFTER + 6 * _DAY) == 5
    assert not {name for name in days(connection) if "20260306" in name}


def tables_of(connection: psycopg.Connection[tuple[object, ...]], count: int) -> set[str]:
    """Where so many jobs lie, and what has ended of them."""
    found = connection.execute("SELECT id, tableoid::regclass::text FROM jobs").fetchall()
    assert len(found) == count
    ended = connection.execute("SELECT tableoid::regclass::text FROM ended").fetchall()
    return {str(table) for _, table in found} | {str(table) for (table,) in ended}


# -- others


async def test_only_one_process_at_a_time_does_it(store: PostgresBackend) -> None:
    clause = [SweepClause(target=SweepTarget.COMPLETED, older_than=7 * _DAY)]
    await store.insert([row(1)], _NOON)
    await end(store, 1)
    others = [store.sibling() for _ in range(3)]
    for other in others:
        await other.open()
    gone = await asyncio.gather(*(one.tidy(clause, _AFTER) for one in (store, *others)))
    assert sorted(sum(one.values()) for one in gone) == [0, 0, 0, 1]
    assert await store.tidy(clause, _AFTER + 59 * _SECOND) == {}
    [[before]] = await store._connections.rows("SELECT next_at FROM days.duties")
    await store.tidy(clause, _AFTER + 61 * _SECOND)
    [[after]] = await store._connections.rows("SELECT next_at FROM days.duties")
    assert (before, after) == (_AFTER + 60 * _SECOND, _AFTER + 121 * _SECOND)
    for other in others:
        await other.close()


async def test_one_who_died_over_it_is_followed_by_another(store: PostgresBackend) -> None:
    assert await store._call("begin_duty", _AFTER, "days") == [(True,)]
    assert await store._call("begin_duty", _AFTER + 119 * _SECOND, "days") == [(False,)]
    assert await store._call("begin_duty", _AFTER + 120 * _SECOND, "days") == [(True,)]


async def test_nobody_waits_behind_it_while_a_transaction_lasts(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """The day stays, and is tried more and more seldom; the days to come are there for two weeks."""
    await tidy(store, at=_NOON)
    await store.insert([row(n) for n in range(5)], _NOON)
    await end(store, 5)
    with psycopg.connect(server().url(), options="-c search_path=days") as reader:
        reader.execute("SELECT count(*) FROM jobs")
        connection.execute("CREATE TABLE asked AS SELECT pid, mode FROM pg_locks LIMIT 0")
        tries = []
        at = _AFTER
        for _ in range(9):
            waiting = asyncio.create_task(tidy(store, at=at))
            while not waiting.done():
                connection.execute(
                    "INSERT INTO asked SELECT l.pid, l.mode FROM pg_locks AS l WHERE NOT l.granted"
                    " AND l.relation IN ('jobs'::regclass, 'ended'::regclass)"
                )
                await asyncio.sleep(0.005)
            assert await waiting == 0
            [[next_at]] = await store._connections.rows("SELECT next_at FROM days.duties")
            tries.append((next_at - at) // (60 * _SECOND))
            at = next_at
        assert tries == [1, 2, 4, 8, 16, 32, 64, 64, 64]
        assert connection.execute("SELECT * FROM asked").fetchall() == []
        assert "jobs_20260301" in days(connection)
    connection.execute("DROP TABLE asked")
    assert await tidy(store, at=at) == 5
    assert "jobs_20260301" not in days(connection)


@pytest.mark.parametrize("table", ["jobs_20260301", "ended_20260301"])
async def test_a_day_that_is_vacuumed_is_left_alone(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]], table: str
) -> None:
    """All would wait for whoever has locked everything but that day."""
    await store.insert([row(n) for n in range(10)], _NOON)
    await end(store, 10)
    query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT drop_day_v1(%s, 3::smallint, %s)"
    pages = []
    with psycopg.connect(server().url(), options="-c search_path=days") as vacuum:
        vacuum.execute(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE".encode())
        for _ in range(2):
            [[told]] = connection.execute(query, (_AFTER, 7 * _DAY))
            pages.append(told[0]["Plan"]["Shared Hit Blocks"])  # type: ignore[index]
        assert table in days(connection)
    assert pages[1] < 1_000, f"pages of two tries: {pages}"
    assert await tidy(store) == 10


async def test_a_run_that_fails_in_one_step_does_the_others(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(1)], _NOON)
    await end(store, 1)
    connection.execute("ALTER FUNCTION make_day_v1 RENAME TO make_day_v0")
    with pytest.raises(SchemaMismatch, match="make_day_v1"):
        await tidy(store)
    assert "jobs_20260301" not in days(connection)
    connection.execute("ALTER FUNCTION make_day_v0 RENAME TO make_day_v1")
    await tidy(store)
    assert "jobs_20260310" in days(connection)


# -- what a dropped day costs


async def test_a_day_is_counted_off_in_steps_by_whoever_comes(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """One who stops in the middle leaves nothing uncounted; meanwhile nothing else goes for a bound that only the gone
    ones break."""
    await store.insert([row(n, key=f"k{n}") for n in range(25)], _NOON)
    await end(store, 25)
    late = Row(id=id_of(1, _AFTER), queue="q", task="t", cells={})
    await store.insert([late], _AFTER)
    [job] = (await store.claim(Claim("h", ("q",), 1, _DAY), _AFTER)).jobs
    await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED)], _AFTER)
    assert await store._call("drop_day", _AFTER, 3, 7 * _DAY) == [(True,)]
    assert await store.fetch([id_of(3)]) == [None]
    assert await store._call("settle_day", 10) == [(3, 10)]
    few = SweepClause(target=SweepTarget.COMPLETED, max_count=1)
    assert (await store.sweep(few, _AFTER)).removed == 0
    assert [place.count for place in (await store.stats(_AFTER)).kept if place.target == "completed"] == [16]
    assert await tidy(store) == 15
    assert [place.count for place in (await store.stats(_AFTER)).kept if place.target == "completed"] == [1]
    assert (await store.sweep(few, _AFTER)).removed == 0
    assert connection.execute("SELECT * FROM keys").fetchall() == []
    assert connection.execute("SELECT * FROM gone_days").fetchall() == []


async def test_no_more_of_a_day_is_read_than_stays(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(n) for n in range(20)], _NOON)
    await end(store, 20)
    connection.execute(
        "INSERT INTO ended"
        " (finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason)"
        " SELECT %s, 0, 0, (%s || lpad(to_hex(n), 8, '0'))::uuid, 1, 0, 0, 0, 0, 3, 0, false, ''"
        " FROM generate_series(1, 20000) AS n",
        (_NOON, id_of(0).hex()[:20] + "ffff"),
    )
    connection.execute("ANALYZE ended_20260301")
    with psycopg.connect(server().url(), options="-c search_path=days") as dropping:
        read = (
            "SELECT sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid)) FROM pg_class"
            " WHERE relname ~ '20260301'"
        )
        assert dropping.execute("SELECT drop_day_v1(%s, 3::smallint, %s)", (_AFTER, 7 * _DAY)).fetchone() == (True,)
        [touched] = dropping.execute(read).fetchone() or [None]
        assert touched < 100


# -- what others notice of them


@pytest.mark.parametrize("governed", [False, True], ids=["plain", "governed"])
async def test_a_claim_locks_the_days_of_its_jobs_and_no_others(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]], governed: bool
) -> None:
    """However many there are: beyond a few locks PostgreSQL has to take them where all processes look."""
    if governed:
        await store.policies.save(Policy(queue="q", tenant_running=1_000))
    await store.insert([row(n) for n in range(40)], _NOON)
    locked = [await locks_of_a_claim(store, connection)]
    connection.execute(
        "SELECT make_day(day::date) FROM generate_series(date '2026-03-02', '2026-04-01', '1 day') AS day"
    )
    locked.append(await locks_of_a_claim(store, connection))
    assert locked[0] == locked[1]
    assert {name for name in locked[1] if name.startswith("jobs")} == {
        "jobs", "jobs_pkey", "jobs_objects", "jobs_20260301", "jobs_20260301_pkey", "jobs_20260301_oldest_hour_id_idx"
    }  # fmt: skip
    assert not {name for name in locked[1] if name.startswith("ended")}


async def test_a_claim_of_many_locks_no_day_between_theirs(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """As where a job that was delayed for a month comes with new ones."""
    connection.execute(
        "SELECT make_day(day::date) FROM generate_series(date '2026-03-02', '2026-04-01', '1 day') AS day"
    )
    late = _NOON + 30 * _DAY
    for few, many in ((20, 100), (60, 60)):
        for n in range(7):
            ids = [id_of(1_000 * many + 200 * n + i) for i in range(few)]
            ids += [id_of(1_000 * many + 200 * n + i, late) for i in range(many)]
            await store.insert([Row(id=one, queue="q", task="t", cells={}, priority=n) for one in ids], _NOON)
        locked = await locks_of_a_claim(store, connection, few + many)
        assert {name for name in locked if re.fullmatch(r"jobs_\d+", name)} == {"jobs_20260301", "jobs_20260331"}


async def locks_of_a_claim(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]], limit: int = 2
) -> list[str]:
    """Which tables and indexes a claim has locked when plans are kept."""
    claim = (
        "SELECT id FROM claim_v1(%s, 'h', '{q}', %s, 1000000, 15::smallint, NULL, 1000000, true) WHERE walked IS NULL"
    )
    with psycopg.connect(server().url(), options="-c search_path=days") as claiming:
        for _ in range(6):
            assert len(claiming.execute(claim, (_NOON, limit)).fetchall()) == limit
            claiming.commit()
        claiming.execute(claim, (_NOON, limit))
        found = connection.execute(
            "SELECT DISTINCT relation::regclass::text FROM pg_locks"
            " WHERE locktype = 'relation' AND pid = %s ORDER BY 1",
            (claiming.info.backend_pid,),
        )
        return [str(name) for (name,) in found]


async def test_claims_and_inserts_go_on_while_a_day_is_made_or_dropped(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    """And while the one who does it waits for somebody: it takes what it needs of the default partition only."""
    await store.insert([row(n) for n in range(40)], _NOON)
    with psycopg.connect(server().url(), options="-c search_path=days") as making:
        making.execute("SELECT make_day(%s)", (date(2026, 3, 7),))
        await asyncio.wait_for(store.insert([row(50)], _NOON), 30)
        jobs = (await asyncio.wait_for(store.claim(Claim("h", ("q",), 10, _DAY), _NOON), 30)).jobs
        done = [Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs]
        answers, claimed = await asyncio.wait_for(store.finish_and_claim(done, Claim("h", ("q",), 10, _DAY), _NOON), 30)
        assert (answers, len(claimed.jobs)) == ([JobState.COMPLETED] * 10, 10)
