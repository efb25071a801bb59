"""Servers, databases and roles that are set up in other ways than ours: Headrace works there, or says what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql
from servers.postgres import Postgres

from headrace.backends.postgres import PostgresBackend
from headrace.errors import ConfigError, Unavailable
from headrace.seam.policy import QueuePause
from headrace.seam.records import Claim, SweepClause, SweepTarget
from headrace.testing.conformance.base import LEASE, row, settle
from headrace.types import JobState
from tests.postgres import server

_DAY = 86_400_000_000


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """A blank database; the parameter says how it is made."""
    name = "other"
    how = sql.SQL(getattr(request, "param", ""))
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} {}").format(sql.Identifier(name), how))
        yield name
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresBackend]:
    backend = PostgresBackend(url, listen=False, **options)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


SETTINGS = {
    "default_transaction_isolation": "serializable",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "IntervalStyle": "sql_standard",
    "DateStyle": "German, DMY",
    "TimeZone": "Asia/Kolkata",
    "search_path": "public",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "client_encoding": "LATIN1",
    "idle_session_timeout": "1s",
}


@pytest.mark.parametrize("prepare", [True, False], ids=["plain", "pooled"])
async def test_a_database_may_have_settings_of_its_own(database: str, *, prepare: bool) -> None:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        for name, value in SETTINGS.items():
            if not (name == "default_transaction_isolation" and not prepare):
                alter = sql.SQL("ALTER DATABASE {} SET {} TO {}")
                connection.execute(alter.format(sql.Identifier(database), sql.Identifier(name), sql.Literal(value)))
    async with opened(server().url(database), prepare=prepare) as store, opened(server().url(database)) as other:
        rows = [row(n, queue="café", task="tâche", cells={"blob": bytes(range(256))}) for n in range(100)]
        await store.insert(rows)
        claims = [Claim("w1", ("café",), 10, LEASE) for _ in range(5)]
        taken = await asyncio.gather(*(backend.claim(claim) for claim in claims for backend in (store, other)))
        jobs = [job for claimed in taken for job in claimed.jobs]
        assert {(job.queue, job.task, job.cells["blob"]) for job in jobs} == {("café", "tâche", bytes(range(256)))}
        assert await store.finish([settle(job) for job in jobs]) == [JobState.COMPLETED] * len(jobs)
        await store.policies.pause(QueuePause("café"))
        [queue] = (await store.stats()).queues
        assert (queue.queue, queue.paused, queue.completed) == ("café", True, len(jobs))
        assert (await store.sweep(SweepClause(target=SweepTarget.COMPLETED, older_than=2 * _DAY))).removed == 0
        assert await store.tidy([SweepClause(target=SweepTarget.COMPLETED, older_than=2 * _DAY)]) == {}


async def test_a_day_is_dropped_only_where_that_is_safe(database: str) -> None:
    """Under another isolation level it would not see what is stored while it waits: each step says which one it needs,
    also behind a pooler, and what is called without is refused."""
    with psycopg.connect(server().url(database), autocommit=True) as connection:
        connection.execute("ALTER DATABASE other SET default_transaction_isolation TO 'repeatable read'")
    async with opened(server().url(database), prepare=False) as store:
        assert await store.tidy([SweepClause(target=SweepTarget.COMPLETED, older_than=2 * _DAY)]) == {}
        with pytest.raises(ConfigError, match=r"read committed, not repeatable read"):
            await store._call("drop_day", None, 3, 2 * _DAY)


@pytest.mark.parametrize("database", ["TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"], indirect=True)
async def test_a_database_that_cannot_hold_every_name_is_refused(database: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a database in UTF8, got one in LATIN1.*CREATE DATABASE"):
        await PostgresBackend(server().url(database)).open()


async def test_locks_of_the_application_are_its_own(database: str) -> None:
    """Row numbers make popular advisory locks; the numbers of our tables look just like them."""
    async with opened(server().url(database)) as store:
        with psycopg.connect(server().url(database), autocommit=True) as connection:
            ours = "SELECT c.oid::bigint FROM pg_class AS c WHERE c.relnamespace = 'headrace'::regnamespace"
            connection.execute(f"SELECT pg_advisory_lock(n), pg_advisory_lock(n * 8 + 3) FROM ({ours}) AS x (n)")
            await asyncio.wait_for(store.insert([row(1)]), 60)
            await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0))


async def test_too_many_days_for_the_servers_locks() -> None:
    """What to do is told: nothing in the server's words points to it."""
    small = Postgres(None, {"max_locks_per_transaction": "10", "max_connections": "10"})
    small.start()
    try:
        async with opened(small.url()) as store:
            await store.insert([row(1)])
            with psycopg.connect(small.url(), autocommit=True) as connection:
                for ahead in range(3, 150):
                    connection.execute("SELECT headrace.make_day(current_date + %s)", (ahead,))
            with pytest.raises(Unavailable, match="raise max_locks_per_transaction on the server, or keep fewer days"):
                await store._connections.rows("SELECT count(*) FROM headrace.entries")
    finally:
        small.stop("immediate")
        small.close()
