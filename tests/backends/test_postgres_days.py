"""Jobs lie in PostgreSQL by the day of their making, and a day that is over goes as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.records import (
    Claim,
    InsertStatus,
    JobId,
    JobKey,
    Pause,
    Place,
    Requeue,
    Row,
    Selector,
    Settlement,
    SweepClause,
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


async def sweep(store: PostgresBackend, place: Place = Place.COMPLETED, limit: int = 10) -> Swept:
    return await store.sweep(SweepClause(place=place, older_than=7 * _DAY, limit=limit), _AFTER)


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
    assert "jobs_20260301" in days(connection)
    told = await store.sweep(SweepClause(place=Place.COMPLETED, older_than=7 * _DAY, limit=10, dry_run=True), _AFTER)
    assert "jobs_20260301" in days(connection)
    swept = await sweep(store)
    assert (swept.removed, swept.kept, swept.more) == (100, 0, True)
    assert told == swept
    assert not {"jobs_20260301", "ended_20260301"} & days(connection)
    assert (await sweep(store)).removed == 0
    assert (await store.stats(_AFTER)).queues == []
    assert await store.fetch([id_of(1)]) == [None]


async def test_a_day_is_kept_until_all_of_it_is_old_enough(store: PostgresBackend) -> None:
    await store.insert([row(1)], _NOON)
    await end(store, 1)
    clause = SweepClause(place=Place.COMPLETED, older_than=7 * _DAY)
    assert (await store.sweep(clause, _NOON + 7 * _DAY + 2 * _SECOND)).removed == 0
    assert (await store.sweep(clause, _NOON + 8 * _DAY)).removed == 1


async def test_what_is_shorter_than_a_day_is_not_kept_for_one(store: PostgresBackend) -> None:
    await store.insert([row(1)], _NOON)
    await end(store, 1)
    clause = SweepClause(place=Place.COMPLETED, older_than=_SECOND)
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

    assert (await sweep(store)).removed == 19
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


async def test_a_day_of_which_too_much_stays_loses_jobs_one_by_one(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(n) for n in range(30)], _NOON)
    await end(store, 10)
    assert (await sweep(store, limit=4)).removed == 4
    assert "jobs_20260301" in days(connection)
    assert [r is not None for r in await store.fetch([id_of(20)])] == [True]


async def test_whoever_has_the_day_in_hand_is_not_waited_for(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(n) for n in range(5)], _NOON)
    await end(store, 5)
    with psycopg.connect(server().url(), options="-c search_path=days") as reader:
        reader.execute("SELECT count(*) FROM jobs")
        assert (await sweep(store)).removed == 5
        assert "jobs_20260301" in days(connection)
    await sweep(store)
    assert "jobs_20260301" not in days(connection)


async def test_a_late_job_of_that_day_is_not_lost(
    store: PostgresBackend, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    await store.insert([row(n) for n in range(5)], _NOON)
    await end(store, 5)
    await sweep(store)
    assert "jobs_20260301" not in days(connection)
    await store.insert([row(7)], _AFTER)
    [job] = (await store.claim(Claim("h", ("q",), 10, _DAY), _AFTER)).jobs
    assert job.id == id_of(7)
    connection.execute("SELECT make_day(%s)", (_THEN,))
    assert await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED)], _AFTER) == [JobState.COMPLETED]
