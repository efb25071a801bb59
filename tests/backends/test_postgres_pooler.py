"""Behind a pooler in transaction mode PostgreSQL keeps the contract too: no call leaves anything in a session."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from servers.pooler import Pooler

from headrace import App, Client, EventKind, Settings
from headrace.api.connection import open_backend
from headrace.seam.protocol import Backend
from headrace.testing.conformance import BackendConformance
from tests.ending import over
from tests.postgres import SCHEMA, server, stores
from tests.worker.conftest import FAST, Told, working

STATEFUL = (
    "LISTEN somewhere",
    "SET work_mem = '4MB'",
    "SELECT set_config('work_mem', '5MB', false)",
    "SELECT pg_advisory_lock(7)",
    "CREATE TEMPORARY TABLE mine (id integer)",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
)


@functools.cache
def pooler() -> Pooler:
    """The pooler of this process, before the server of this process."""
    found = Pooler(server().port)
    over.callback(found.close)
    return found


def connect(place: Path) -> Backend:
    """A backend behind the pooler, on the store that belongs to ``place``."""
    stores.connect(place)
    return open_backend(f"{pooler().url()}?pooled=yes&schema={SCHEMA}")


async def _prepare() -> None:
    backend = stores.connect(Path("pooler"))
    await backend.open()
    await backend.close()


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """The schema is there; in the end, no session has anything of ours in it."""
    asyncio.run(_prepare())
    yield
    assert pooler().session_state == []
    assert pooler().residue() == []
    assert pooler().loans > 0


class TestPooledPostgres(BackendConformance):
    capabilities = (
        "durable", "policies", "store_depth", "ticks", "references", "documents", "archive", "tracks", "tables",
        "finish_and_claim", "journal", "parts", "usage", "reserve", "transfers", "strict_order", "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> Backend:
        return connect(place)


async def test_a_worker_finds_its_jobs_by_looking(tmp_path: Path) -> None:
    """C18: without LISTEN, claims, heartbeats, reaps and results all go through the pooler."""
    backend = connect(tmp_path)
    app = App(Client(backend, Settings.load({"worker": FAST | {"name": "random", "lease": "4s"}}, env={}, toml={})))
    told = Told()
    app.observe(told)

    @app.task(name="double", queue="pooled")
    async def double(number: int) -> int:
        await asyncio.sleep(0.03 * (number % 100))  # some outlast half a lease, and are renewed
        return 2 * number

    async with working(app):
        answers = await app.enqueue_many(double.job(number) for number in range(100))
        assert await double.options(wait="20s").call(21) == 42
        await told.wait_for(EventKind.COMPLETED, 101)
        [queue] = (await app.client.stats()).queues
    assert len(answers) == 100
    assert (queue.completed, queue.failed) == (101, 0)
    assert backend.hints is None
    assert EventKind.LEASE_LOST not in told.kinds()


async def test_a_store_is_made_and_found_through_it() -> None:
    """Migrations lock each other out without a session either."""
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS made_through_a_pooler CASCADE")
    for _ in range(2):
        backend = open_backend(f"{pooler().url()}?pooled=yes&schema=made_through_a_pooler")
        await backend.open()
        assert (await backend.stats()).queues == []
        await backend.close()


def test_the_pooler_sees_whatever_needs_a_session_of_its_own() -> None:
    """Else what the others show would be worth nothing."""
    strict = Pooler(server().port)
    try:
        with psycopg.connect(strict.url(), autocommit=True) as connection:
            for statement in STATEFUL:
                connection.execute(statement)
            with pytest.raises(psycopg.errors.InvalidSqlStatementName):
                connection.execute("SELECT 1", prepare=True)
        assert len(strict.session_state) == len(STATEFUL) + 1
        assert {text.rpartition(" ")[0] for text in strict.residue()} >= {
            "LISTEN", "setting", "advisory lock", "temporary table", "cursor",
        }  # fmt: skip
    finally:
        strict.close()


def test_two_transactions_of_one_client_meet_different_sessions() -> None:
    with psycopg.connect(pooler().url(), autocommit=True, prepare_threshold=None) as connection:
        pids = [connection.execute("SELECT pg_backend_pid()").fetchone() for _ in range(6)]
        assert len(set(pids)) == 2
        with connection.transaction():
            assert len({connection.execute("SELECT pg_backend_pid()").fetchone() for _ in range(6)}) == 1
