"""The plans of the hot statements on PostgreSQL: with ten thousand jobs or a million, the same few rows are touched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres.connections import Session
from headrace.records import Beat, Cancel, Claim, Place, Reap, Row, Selector, Settlement, SweepClause
from headrace.types import JobState
from tests.postgres import server

BATCH = 100
BIG = {"ready", "leased", "paused", "ended", "jobs", "keys", "waiters"}
_FILL = """
    INSERT INTO queues (name) VALUES ('q') ON CONFLICT DO NOTHING;
    INSERT INTO jobs (id, enqueued_at, task, tenant, parameters)
    SELECT plans_id(n), n, 't', '', '{}' FROM generate_series(1, %(depth)s) AS n;
    INSERT INTO ready (run_at, id, qid, epoch, attempt, lost, size, priority, keyed)
    SELECT n, plans_id(n), (SELECT qid FROM queues), 0, 0, 0, 200, n %% 3, false
    FROM generate_series(1, %(depth)s) AS n;
    INSERT INTO deltas (qid, state, jobs) SELECT qid, 0, %(depth)s FROM queues;
"""
_IDS = """
    CREATE FUNCTION plans_id(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS
    $$SELECT ('01900000' || '00007000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid$$
"""


class Plans:
    """What the server says it did, statement by statement."""

    def __init__(self) -> None:
        self.scans: list[dict[str, Any]] = []

    def hear(self, notice: psycopg.errors.Diagnostic) -> None:
        message = notice.message_primary or ""
        if "plan:" in message:
            self._walk(json.loads(message.split("plan:", 1)[1])["Plan"])

    def _walk(self, node: dict[str, Any]) -> None:
        if "Relation Name" in node and node["Node Type"] != "ModifyTable" and node["Actual Loops"]:
            self.scans.append(node)
        for child in node.get("Plans", ()):
            self._walk(child)

    def touched(self) -> int:
        """Rows of the tables that grow, counted once for every time that one is looked at."""
        return sum(
            int(node["Actual Rows"] * node["Actual Loops"]) + int(node.get("Rows Removed by Filter", 0))
            for node in self.scans
            if _table(node) in BIG
        )

    def ways(self) -> set[tuple[str, str]]:
        """Which index led to which of the tables that grow."""
        return {
            (_table(node), _table({"Relation Name": _index(node) or node["Node Type"]}))
            for node in self.scans
            if _table(node) in BIG
        }


def _index(node: dict[str, Any]) -> str | None:
    name: str | None = (node["Plans"][0] if node["Node Type"] == "Bitmap Heap Scan" else node).get("Index Name")
    return name


def _table(node: dict[str, Any]) -> str:
    """The name without that of the partition."""
    name = str(node["Relation Name"])
    for partitioned in ("jobs", "ended"):
        if name.startswith(f"{partitioned}_"):
            kind = name.rsplit("_", 1)[-1] if "pkey" in name or "idx" in name else ""
            return f"{partitioned}_{kind}" if kind else partitioned
    return name


def fill(connection: psycopg.Connection[tuple[object, ...]], count: int) -> None:
    """So many waiting jobs."""
    connection.execute(_IDS)
    for statement in _FILL.split(";")[:-1]:
        connection.execute(statement, {"depth": count} if "%" in statement else None)


@pytest.fixture(scope="module", params=[10_000, 1_000_000], ids=["ten thousand", "a million"])
def depth(request: pytest.FixtureRequest) -> Iterator[int]:
    count: int = request.param

    async def install() -> None:
        backend = PostgresBackend(server().url(), schema="plans")
        await backend.open()
        await backend.close()

    asyncio.run(install())
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=plans") as connection:
        fill(connection, count)
        yield count
        connection.execute("DROP SCHEMA plans CASCADE")


@asynccontextmanager
async def explained(schema: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[PostgresBackend, Plans]]:
    """A store whose every statement explains itself."""
    plans = Plans()
    connect = Session.connect

    async def explaining(*args: Any, **kwargs: Any) -> Session:
        session = await connect(*args, **kwargs)
        for setting in ("log_min_duration=0", "log_analyze=on", "log_timing=off", "log_nested_statements=on"):
            await session.execute(f"LOAD 'auto_explain'; SET auto_explain.{setting}")
        await session.execute("SET auto_explain.log_format=json; SET client_min_messages=log")
        session.add_notice_handler(plans.hear)
        return session

    monkeypatch.setattr(Session, "connect", explaining)
    backend = PostgresBackend(server().url(), schema=schema, listen=False)
    await backend.open()
    plans.scans.clear()
    yield backend, plans
    await backend.close()


@pytest.fixture
async def seen(depth: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[PostgresBackend, Plans]]:
    async with explained("plans", monkeypatch) as store:
        yield store


async def test_a_claim_touches_what_it_takes(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    claimed = await store.claim(Claim("h", ("q",), BATCH, 60_000_000))
    assert len(claimed.jobs) == BATCH
    assert plans.ways() == {("ready", "ready_pkey"), ("ready", "Tid Scan"), ("jobs", "jobs_pkey")} | _empty(plans)
    assert plans.touched() <= 4 * BATCH


def _scans(plans: Plans) -> set[tuple[str, str]]:
    """Looks without an index."""
    return {(table, way) for table, way in plans.ways() if "Scan" in way}


def _empty(plans: Plans) -> set[tuple[str, str]]:
    """Looks into small partial indexes that had nothing to say."""
    return {way for way in plans.ways() if way[1] in ("ready_dying", "ready_lost")}


async def test_ending_touches_what_it_ends(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    claimed = await store.claim(Claim("h", ("q",), BATCH, 60_000_000))
    plans.scans.clear()
    await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in claimed.jobs])
    assert plans.ways() <= {("leased", "leased_pkey"), ("waiters", "waiters_pkey")}
    assert plans.touched() <= 4 * BATCH


async def test_failing_touches_what_fails(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    claimed = await store.claim(Claim("h", ("q",), 10, 60_000_000))
    plans.scans.clear()
    batch = [
        Settlement(job.id, job.epoch, "h", JobState.AVAILABLE, delay=10**15, failed_attempt=True, error=b"e")
        for job in claimed.jobs
    ]
    await store.finish(batch)
    assert not _scans(plans)
    assert plans.touched() <= 8 * 10


async def test_storing_touches_what_it_stores(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    ids = [bytes.fromhex(f"0191{n:028x}") for n in range(10)]
    rows = [Row(id=job_id, queue="q", task="t", cells={}, key=job_id.hex()) for job_id in ids]
    await store.insert(rows)
    await store.insert(rows)
    assert not _scans(plans)
    assert plans.touched() <= 12 * 10


async def test_keeping_house_touches_what_there_is_to_do(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    await store.renew(Beat("h", "w", ("q",), 60_000_000, leases=[]))
    await store.reap(Reap(limit=100, max_lost=3))
    await store.sweep(SweepClause(place=Place.FAILED, older_than=1))
    assert _scans(plans) <= {("ready", "Tid Scan")}
    assert plans.touched() <= 2 * BATCH


async def test_what_expired_elsewhere_costs_a_claim_nothing(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    ids = [bytes.fromhex(f"0192{n:028x}") for n in range(1_000)]
    rows = [
        Row(id=job_id, queue="other", task="t", cells={}, priority=n % 3, expires=1) for n, job_id in enumerate(ids)
    ]
    await store.insert([*rows, Row(id=bytes.fromhex(f"0193{0:028x}"), queue="mine", task="t", cells={})])
    plans.scans.clear()
    assert len((await store.claim(Claim("h", ("mine",), 1, 60_000_000))).jobs) == 1
    assert plans.touched() <= 10
    plans.scans.clear()
    assert len((await store.claim(Claim("h", ("other",), 1, 60_000_000))).expired) == 1_000
    assert plans.touched() <= 20 * 1_000


async def test_one_job_is_found_by_its_id(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    job_id = bytes.fromhex(f"0190000000007000 8000{depth - 1:012x}".replace(" ", ""))
    assert (await store.fetch([job_id]))[0] is not None
    await store.alter(Selector(ids=[job_id]), Cancel())
    assert not _scans(plans)
    assert plans.touched() <= 20


async def test_how_it_stands_is_not_counted_out(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    [stats] = [queue for queue in (await store.stats()).queues if queue.queue == "q"]
    assert depth - 1_000 <= stats.available <= depth + 10
    assert plans.touched() <= 20 + store.limits.count_cap


async def test_a_plan_that_was_made_for_an_empty_store_serves_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session keeps its plans, and statistics say what was true when they were made."""
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=kept_plans") as connection:
        async with explained("kept_plans", monkeypatch) as (store, plans):
            for table in ("ready", "leased", "keys", "waiters", "queues"):
                connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            connection.execute("VACUUM ANALYZE")
            for _ in range(3):
                await _live_once(store, 1)
            fill(connection, 20_000)
            plans.scans.clear()
            await _live_once(store, BATCH)
            assert not _scans(plans) - {("ready", "Tid Scan")}
            assert plans.touched() <= 40 * BATCH
        connection.execute("DROP SCHEMA kept_plans CASCADE")


async def _live_once(store: PostgresBackend, count: int) -> None:
    """Everything that happens to jobs, to so many of them."""
    ids = [bytes.fromhex(f"0191{n:028x}") for n in range(count)]
    await store.insert([Row(id=job_id, queue="q", task="t", cells={}, key=job_id.hex(), priority=-1) for job_id in ids])
    jobs = (await store.claim(Claim("h", ("q",), count, 60_000_000))).jobs
    assert len(jobs) == count
    await store.renew(Beat("h", "w", ("q",), 60_000_000, leases=[(job.id, job.epoch) for job in jobs]))
    await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs])
    await store.fetch(ids)
    await store.sweep(SweepClause(place=Place.COMPLETED, max_count=0))
