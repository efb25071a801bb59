"""What a store on PostgreSQL takes up: room that new rows will fill does not count, all else does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Delete, JobId, Row, Selector
from headrace.seam.usage import Usage
from headrace.types import JobState
from tests.postgres import server, stores, vacuum

_JOBS = 3_000
_AHEAD = 256 * 1024
"""Bytes. The server makes its files some pages longer than it needs at the moment."""


class Visits:
    """A client for each thing to do: what it did is in the server's statistics once it has gone."""

    def __init__(self, place: Path) -> None:
        self._place = place

    @asynccontextmanager
    async def store(self) -> AsyncIterator[PostgresBackend]:
        store = stores.connect(self._place)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    async def usage(self) -> Usage:
        async with self.store() as store:
            return await store.usage()

    async def fill(self, first: int, weight: int, days: int = 0) -> list[JobId]:
        """Store jobs of one day; their ids."""
        ids = [id_of(number, days_ago(days)) for number in range(first, first + _JOBS)]
        rows = [Row(one, "q", "t", {"blob": one * (weight // 16)}) for one in ids]
        async with self.store() as store:
            for start in range(0, _JOBS, 500):
                await store.insert(rows[start : start + 500])
        return ids

    async def purge(self, ids: list[JobId]) -> None:
        waiting = frozenset((JobState.AVAILABLE,))
        async with self.store() as store:
            for start in range(0, len(ids), 500):
                few = Selector(ids=ids[start : start + 500], states=waiting)
                assert len(await store.alter(few, Delete())) == len(few.ids)


@pytest.fixture
def visits(tmp_path: Path) -> Visits:
    return Visits(tmp_path)


def days_ago(days: int) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def id_of(number: int, at: datetime) -> JobId:
    return int(at.timestamp() * 1000).to_bytes(6) + b"\x70\x00" + number.to_bytes(8)


def execute(statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        done = connection.execute(statement.encode())
        return done.fetchall() if done.description else []


def size() -> int:
    """The bytes of all files."""
    [[found]] = execute(
        "SELECT sum(pg_total_relation_size(c.oid))::text FROM pg_class AS c"
        " WHERE c.relnamespace = 'headrace'::regnamespace AND c.relkind = 'r'"
    )
    return int(str(found))


@pytest.mark.parametrize("weight", [320, 4_000, 20_000])
async def test_what_was_deleted_and_vacuumed_does_not_count(visits: Visits, weight: int) -> None:
    empty = (await visits.usage()).used
    ids = await visits.fill(0, weight)
    vacuum()
    full = await visits.usage()
    grown = full.used - empty
    assert grown > _JOBS * weight
    assert full.parts["free"] < grown / 20 + _AHEAD, "nothing was deleted"
    await visits.purge(ids[: _JOBS * 9 // 10])  # the end of the table is in use, so its file stays as it is
    dead = await visits.usage()
    assert dead.used > full.used - grown / 20, "a transaction may still see what is dead"
    vacuum()
    swept = await visits.usage()
    assert swept.used - empty < grown / 3
    assert swept.parts["free"] > grown / 2
    before = size()
    await visits.fill(_JOBS, weight)
    again = await visits.usage()
    assert size() - before < grown / 2, "the new ones went where there was room"
    assert again.used > empty + grown * 0.8, "and are counted there"


async def test_what_the_server_has_no_statistics_of_counts(visits: Visits) -> None:
    ids = await visits.fill(0, 4_000)
    vacuum()
    full = (await visits.usage()).used
    await visits.purge(ids[:-100])
    vacuum()
    assert (await visits.usage()).used < full * 0.6
    execute("SELECT pg_stat_reset()")  # as after a crash
    assert (await visits.usage()).used > full * 0.9


async def test_room_in_a_day_that_is_over_counts(visits: Visits) -> None:
    await visits.usage()
    execute(f"SELECT headrace.make_day('{days_ago(3):%Y-%m-%d}')")
    ids = await visits.fill(0, 4_000, days=3)
    vacuum()
    full = (await visits.usage()).used
    await visits.purge(ids[:-100])
    vacuum()
    assert (await visits.usage()).used > full * 0.8, "no new job goes there"
