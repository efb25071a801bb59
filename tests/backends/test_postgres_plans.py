"""The plans of the hot statements on PostgreSQL: with ten thousand jobs or a million, the same few rows are touched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres import rows as shapes
from headrace.backends.postgres.connections import Session
from headrace.backends.postgres.marks import NOTHING
from headrace.seam.policy import STORE, Policy, QueuePause, TenantLimit
from headrace.seam.records import Beat, Cancel, Claim, Delete, Reap, Row, Selector, Settlement, SweepClause, SweepTarget
from headrace.seam.references import Swap
from headrace.seam.ticks import Look, NewTick, Overlap, Plan, Save, Schedule, ScheduleSelector, TickNote, TickOutcome
from headrace.types import JobState
from tests.postgres import server

pytestmark = pytest.mark.timeout(900)  # filling a store counts too

BATCH = 100
LEASE = 60_000_000
BIG = {"ready", "leased", "paused", "ended", "jobs", "keys", "waiters", "schedules", "agenda", "ticks"}
_FILL = """
    INSERT INTO queues (qid, name) VALUES (1, 'q') ON CONFLICT DO NOTHING;
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

    def touched_of(self, tables: set[str]) -> int:
        """The same of these tables."""
        return sum(
            int(node["Actual Rows"] * node["Actual Loops"]) + int(node.get("Rows Removed by Filter", 0))
            for node in self.scans
            if _table(node) in tables
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


B = TypeVar("B", bound=PostgresBackend)


@asynccontextmanager
async def explained(
    schema: str, monkeypatch: pytest.MonkeyPatch, kind: type[B] = PostgresBackend
) -> AsyncIterator[tuple[B, Plans]]:
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
    backend = kind(server().url(), schema=schema, listen=False)
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
    assert plans.ways() == {("ready", "ready_line"), ("ready", "Tid Scan"), ("jobs", "jobs_pkey")} | _empty(plans)
    assert plans.touched() <= 4 * BATCH


def _scans(plans: Plans) -> set[tuple[str, str]]:
    """Looks without an index."""
    return {(table, way) for table, way in plans.ways() if "Scan" in way}


def _empty(plans: Plans) -> set[tuple[str, str]]:
    """Looks into small partial indexes that had nothing to say."""
    return {way for way in plans.ways() if way[1] in ("ready_dying", "ready_worst", "ready_later")}


_PRIORITIES = """
    INSERT INTO queues (qid, name) VALUES (1, 'q');
    INSERT INTO jobs (id, enqueued_at, task, tenant, parameters)
    SELECT plans_id(n), n, 't', '', '{}' FROM generate_series(1, 60000) AS n;
    INSERT INTO ready (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed)
    SELECT CASE WHEN x.due THEN n ELSE 9000000000000000 - n END, CASE WHEN NOT x.due THEN 0 END,
        plans_id(n), q.qid, 0, 0, 0, 200, n %% %(priorities)s - 30000, false
    FROM generate_series(1, 60000) AS n
    CROSS JOIN LATERAL (SELECT %(all_due)s OR n %% 100 = 0 AS due) AS x CROSS JOIN queues AS q;
    INSERT INTO deltas (qid, state, jobs) SELECT qid, 0, 60000 FROM queues;
"""


@pytest.mark.parametrize("all_due", [True, False], ids=["all due", "most not due"])
@pytest.mark.parametrize("priorities", [1, 1_000, 60_000])
async def test_a_claim_walks_over_what_it_takes_whatever_the_priorities(
    priorities: int, all_due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = f"priorities_{priorities}_{all_due}".lower()
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            connection.execute(_IDS)
            for statement in _PRIORITIES.split(";")[:-1]:
                given = {"priorities": priorities, "all_due": all_due}
                connection.execute(statement, given if "%(" in statement else None)
            for limit in (1, BATCH):
                rows = await store._call(
                    "claim", None, *store._claim_params(Claim("h", ("q", "r"), limit, 60_000_000)), *NOTHING
                )
                assert len(rows) == limit + 1
                assert shapes.rest(rows).walked <= 2 * limit + 10
            assert plans.touched() <= 6 * BATCH
            plans.scans.clear()
            if not all_due:
                claimed = await store.claim(Claim("h", ("q",), 1_000, 60_000_000))
                assert len(claimed.jobs) == 600 - BATCH - 1
                assert claimed.next_in is not None
                plans.scans.clear()
                claimed = await store.claim(Claim("h", ("q",), 1_000, 60_000_000))
                assert (claimed.jobs, claimed.next_in is not None) == ([], True)
                assert plans.touched() <= 10
            await store.stats()
            assert plans.touched() <= 10 + store.limits.count_cap
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


async def test_queues_that_are_empty_cost_a_claim_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many it names: those that have something are walked."""
    names = [f"queue{n}" for n in range(10_000)]
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=many_queues") as connection:
        async with explained("many_queues", monkeypatch) as (store, plans):
            connection.execute(
                "INSERT INTO queues (qid, name) SELECT n + 1, 'queue' || n FROM generate_series(0, 9999) AS n"
            )
            in_use = ("queue77", "queue9999", "queue123", "queue500", "elsewhere")
            rows = [
                Row(id=bytes.fromhex(f"0190{n:028x}"), queue=name, task="t", cells={}) for n, name in enumerate(in_use)
            ]
            later = msgspec.structs.replace(rows[2], delay=LEASE)
            waiting = msgspec.structs.replace(rows[3], group="g")
            await store.insert([rows[0], rows[1], later, waiting, rows[4]])
            await store.policies.pause(QueuePause("queue8", lasts=LEASE))
            plans.scans.clear()
            found: list[str] = []
            claims = 0
            while claims < 10:  # a claim looks at some thousand names, and the next one goes on
                claims += 1
                claimed = await store.claim(Claim("h", tuple(names), 10, LEASE))
                found += [job.queue for job in claimed.jobs]
                if claimed.next_in != 0:
                    break
            assert sorted(found) == ["queue500", "queue77", "queue9999"]
            assert 0 < (claimed.next_in or 0) <= LEASE
            assert plans.touched() <= 50 * claims
            assert plans.touched_of({"queues", "looks"}) <= 100 * claims
            await store.insert(
                [Row(id=bytes.fromhex(f"0191{n:028x}"), queue=names[n], task="t", cells={}) for n in range(60)]
            )
            claimed = await store.claim(Claim("h", tuple(names[20:80]), 100, LEASE))
            assert len(claimed.jobs) == 40
        connection.execute("DROP SCHEMA many_queues CASCADE")


async def test_promoting_touches_what_it_promotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number at a time, in the order of run_at."""
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=promoting") as connection:
        async with explained("promoting", monkeypatch) as (store, plans):
            connection.execute(_IDS)
            for statement in _PRIORITIES.split(";")[:-1]:
                given = {"priorities": 60_000, "all_due": False}
                connection.execute(statement, given if "%(" in statement else None)
            connection.execute("UPDATE ready SET run_at = run_at - 8999999999000000 WHERE lane = 0")
            plans.scans.clear()
            assert len((await store.claim(Claim("h", ("q",), 1, 60_000_000))).jobs) == 1
            assert plans.touched() <= 4 * 1_000
            [[promoted, last]] = connection.execute(
                "SELECT count(*), max(run_at) FROM ready WHERE lane IS NULL AND run_at > 60000"
            ).fetchall()
            [[later]] = connection.execute("SELECT min(run_at) FROM ready WHERE lane = 0").fetchall()
            assert promoted == 1_000
            assert last < later
        connection.execute("DROP SCHEMA promoting CASCADE")


@pytest.mark.parametrize("order", ["n", "n % 20"], ids=["mixed", "queue by queue"])
async def test_promoting_from_many_queues_locks_what_it_promotes(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty queues with a thousand due jobs each, the first thousand of all, however they lie."""
    names = [f"q{n}" for n in range(20)]
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=promoting_many") as connection:
        async with explained("promoting_many", monkeypatch) as (store, plans):
            connection.execute(_IDS)
            connection.execute("INSERT INTO queues (qid, name) SELECT n + 1, 'q' || n FROM generate_series(0, 19) AS n")
            connection.execute(
                f"""
                INSERT INTO jobs (id, enqueued_at, task, tenant)
                SELECT plans_id(n), n, 't', '' FROM generate_series(1, 20000) AS n;
                INSERT INTO ready (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed)
                SELECT {order}, 0, plans_id(n), n % 20 + 1, 0, 0, 0, 0, 0, false FROM generate_series(1, 20000) AS n;
                """.encode()
            )
            plans.scans.clear()
            claimed = await store.claim(Claim("h", tuple(names), 10, LEASE))
            assert (len(claimed.jobs), claimed.next_in) == (10, None)
            rows = connection.execute("SELECT run_at, lane FROM ready ORDER BY run_at, id").fetchall()
            promoted = [run_at for run_at, lane in rows if lane is None]
            assert 300 <= len(promoted) + 10 <= 1_000
            assert all(lane is None for _, lane in rows[: len(promoted)])
            [[locked]] = connection.execute("SELECT count(*) FROM ready WHERE lane = 0 AND xmax <> 0").fetchall()
            assert locked == 0
            assert plans.touched() <= 30_000
        connection.execute("DROP SCHEMA promoting_many CASCADE")


@pytest.mark.parametrize("delayed", [False, True], ids=["urgent", "due"])
async def test_a_claim_reads_on_where_the_first_jobs_are(delayed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand queues with twenty jobs each, the first thousand jobs of all lie in one, and are taken with few
    looks into the others."""
    names = tuple(f"q{n}" for n in range(1, 1_001))
    lane = "0" if delayed else "NULL"
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=reading_on") as connection:
        async with explained("reading_on", monkeypatch) as (store, plans):
            connection.execute(_IDS)
            connection.execute("INSERT INTO queues (qid, name) SELECT n, 'q' || n FROM generate_series(1, 1000) AS n")
            connection.execute(
                f"""
                INSERT INTO jobs (id, enqueued_at, task, tenant)
                SELECT plans_id(n), n, 't', '' FROM generate_series(1, 21000) AS n;
                INSERT INTO ready (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed)
                SELECT n, {lane}, plans_id(n), CASE WHEN n <= 1000 THEN 7 ELSE n % 1000 + 1 END, 0, 0, 0, 0, 0, false
                FROM generate_series(1, 21000) AS n;
                """.encode()
            )
            plans.scans.clear()
            claimed = await store.claim(Claim("h", names, 1_000, LEASE))
            found = sorted(job.run_at for job in claimed.jobs)
            assert found == list(range(1, len(found) + 1))
            assert len(found) > 900
            assert plans.touched() <= 100_000
        connection.execute("DROP SCHEMA reading_on CASCADE")


async def test_ending_touches_what_it_ends(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    claimed = await store.claim(Claim("h", ("q",), BATCH, 60_000_000))
    plans.scans.clear()
    await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in claimed.jobs])
    assert plans.ways() <= {("leased", "leased_pkey"), ("waiters", "waiters_pkey")}
    assert plans.touched() <= 4 * BATCH


async def test_a_sweep_by_name_touches_what_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the server has counted nothing yet, and many others ended in the same state and as long ago."""
    with psycopg.connect(server().url(), autocommit=True) as connection:
        async with explained("plans_named", monkeypatch) as (store, plans):
            for part in range(5):
                ids = [bytes.fromhex(f"0191{part * 1_000 + n:028x}") for n in range(1_000)]
                await store.insert([Row(id=job_id, queue="q", task="t", cells={}) for job_id in ids])
                jobs = (await store.claim(Claim("h", ("q",), 1_000, 60_000_000))).jobs
                await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs])
            named = [(job.id, job.epoch) for job in jobs[:BATCH]]
            plans.scans.clear()
            swept = await store.sweep(SweepClause(target=SweepTarget.COMPLETED, older_than=0, jobs=named))
            assert swept.removed == BATCH
            assert plans.touched() <= 20 * BATCH
        connection.execute("DROP SCHEMA plans_named CASCADE")


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
    await store.sweep(SweepClause(target=SweepTarget.FAILED, older_than=1))
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
    expired = [len((await store.claim(Claim("h", ("other",), 1, 60_000_000))).expired) for _ in range(4)]
    assert expired == [250] * 4
    assert plans.touched() <= 20 * 1_000


@pytest.mark.parametrize("queues", [("q",), ("q", "r")])
async def test_expired_jobs_in_front_are_not_walked_by_every_claim(
    queues: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bounded number goes at once; a transaction that has them in hand keeps nobody from what lies behind."""
    schema = f"in_front_{len(queues)}"
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            fill(connection, 5_000)
            connection.execute("UPDATE ready SET priority = -1, dies_at = 9")
            await store.insert([_lost(n, "q") for n in range(3)])
            expired = 0
            for _ in range(2):
                plans.scans.clear()
                claimed = await store.claim(Claim("h", queues, 2, LEASE))
                expired += len(claimed.expired)
                assert plans.touched() <= 12 * 250
                assert (claimed.jobs, claimed.next_in) == ([], 0)
            with connection.transaction():
                connection.execute("SELECT 1 FROM ready WHERE dies_at = 9 FOR UPDATE")
                plans.scans.clear()
                claimed = await store.claim(Claim("h", queues, 2, LEASE))
                assert (len(claimed.jobs), len(claimed.expired)) == (2, 0)
            jobs = 2
            while claimed.next_in == 0 or claimed.jobs:
                claimed = await store.claim(Claim("h", queues, 2, LEASE))
                expired += len(claimed.expired)
                jobs += len(claimed.jobs)
            assert (jobs, expired) == (3, 5_000)
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.mark.parametrize("governed", [False, True])
async def test_jobs_that_were_lost_once_cost_a_claim_nothing(governed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that one more loss would end are found among them."""
    schema = f"lost_once_{governed}".lower()
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            if governed:
                await store.policies.save(Policy(queue="q", running=100_000))
            rows = [_lost(n, "q" if n % 2 else "other") for n in range(2_000)]
            for part in range(0, 2_000, 500):
                await store.insert(rows[part : part + 500])
            connection.execute("UPDATE ready SET lost = 1")
            connection.execute("VACUUM ANALYZE ready")
            plans.scans.clear()
            assert len((await store.claim(Claim("h", ("q",), 1, LEASE, lost_below=2))).jobs) == 1
            few = plans.touched()
            assert few <= 40
            await store.insert([_lost(9_999, "q")])
            connection.execute("UPDATE ready SET lost = 2 WHERE id = %s::uuid", (rows[-1].id.hex(),))
            plans.scans.clear()
            claimed = await store.claim(Claim("h", ("q",), 1, LEASE, lost_below=2))
            assert (len(claimed.jobs), claimed.passed_over) == (1, 0)
            assert plans.touched() <= few + 10
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def _lost(number: int, queue: str) -> Row:
    return Row(id=bytes.fromhex(f"0195{number:028x}"), queue=queue, task="t", cells={})


async def test_one_job_is_found_by_its_id(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    job_id = bytes.fromhex(f"0190000000007000 8000{depth - 1:012x}".replace(" ", ""))
    assert (await store.fetch([job_id]))[0] is not None
    await store.alter(Selector(ids=[job_id]), Cancel())
    assert not _scans(plans)
    assert plans.touched() <= 20


async def test_who_refers_to_old_objects_is_found_by_an_index(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    old = b"\x03\xff\xff" + (480_000).to_bytes(3) + bytes(19)
    new = old[:3] + (480_009).to_bytes(3) + old[6:]
    ids = [bytes.fromhex(f"0194{n:028x}") for n in range(300)]
    await store.insert([Row(id=job_id, queue="objects", task="t", cells={"blob": old}) for job_id in ids])
    plans.scans.clear()
    found = await store.references.find(480_001, (480_000, ids[99]), 100)
    assert [one.id for one in found] == ids[100:200]
    assert await store.references.swap([Swap(one.id, one.cells, {"blob": new}) for one in found[:10]]) == [True] * 10
    assert not _scans(plans)
    assert plans.touched() <= 3 * 100 + 10 * 10
    await store.alter(Selector(ids=ids), Delete())


async def test_how_it_stands_is_not_counted_out(seen: tuple[PostgresBackend, Plans], depth: int) -> None:
    store, plans = seen
    [stats] = [queue for queue in (await store.stats()).queues if queue.queue == "q"]
    assert depth - 1_000 <= stats.available <= depth + 10
    assert plans.touched() <= 20 + store.limits.count_cap


async def test_counters_are_added_up_a_bounded_number_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reap that comes after a night of producers would last too long, and so would every one that follows."""
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=counters") as connection:
        async with explained("counters", monkeypatch) as (store, plans):
            connection.execute("ALTER TABLE deltas SET (autovacuum_enabled = off)")
            connection.execute("INSERT INTO queues (qid, name) SELECT n, 'q' || n FROM generate_series(1, 10000) AS n")
            connection.execute("INSERT INTO deltas SELECT n % 10000 + 1, 0, 1 FROM generate_series(1, 150000) AS n")
            done: list[int] = []
            while len(done) < 20 and connection.execute("SELECT 1 FROM deltas LIMIT 1").fetchone():
                plans.scans.clear()
                await store.reap(Reap(limit=100, max_lost=3))
                done.append(plans.touched_of({"deltas"}))
            assert max(done) <= 40_000
            assert sum(done) == 150_000
            [queue] = (await store.stats(queues=["q77"])).queues
            assert queue.available == 15
            await store.policies.save(Policy(queue=STORE, depth=150_001))
            plans.scans.clear()
            ids = [bytes.fromhex(f"0196{n:028x}") for n in range(2)]
            stored = await store.insert([Row(id=job_id, queue="q", task="t", cells={}) for job_id in ids])
            assert [one.status.value for one in stored] == ["new", "full"]
            assert plans.touched_of({"totals"}) <= 10
        connection.execute("DROP SCHEMA counters CASCADE")


async def test_producers_add_up_counters_too() -> None:
    """One in a thousand does, by chance."""
    store = PostgresBackend(server().url(), schema="counted_alone", listen=False)
    await store.open()
    await store.insert([Row(id=bytes(16), queue="q", task="t", cells={})])
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=counted_alone") as connection:
        connection.execute(_IDS)
        connection.execute("SELECT name_queues()")
        stored = connection.execute(
            "SELECT insert_one_v1(NULL, 'q', j) FROM generate_series(1, 20000) AS n"
            " CROSS JOIN LATERAL jsonb_populate_record(NULL::job_row, jsonb_build_object('id', plans_id(n), 'queue', 1,"
            " 'priority', 0, 'task', 't', 'tenant', '', 'delay', 0)) AS j"
        ).fetchall()
        assert {one[0] for one in stored} == {0}
        [[left]] = connection.execute("SELECT count(*) FROM deltas").fetchall()
        assert left < 15_000
    [queue] = (await store.stats()).queues
    assert queue.available == 20_001
    await store.close()
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA counted_alone CASCADE")


@pytest.mark.parametrize("copied", [False, True], ids=["inserted", "copied"])
async def test_the_room_of_many_queues_is_read_at_once(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read anew for each of them."""
    schema = f"rooms_{copied}".lower()
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            for n in range(BATCH):
                await store.policies.save(Policy(queue=f"q{n}", depth=30))
            await store.policies.save(Policy(queue=STORE, depth=1_000_000))
            connection.execute("INSERT INTO deltas (qid, state, jobs) SELECT -2, 0, 1 FROM generate_series(1, 900)")
            weight = 200_000 if copied else 1
            rows = [
                Row(id=bytes.fromhex(f"0196{n:028x}"), queue=f"q{n % BATCH}", task="t", cells={"blob": bytes(weight)})
                for n in range(BATCH)
            ]
            plans.scans.clear()
            assert {one.status.name for one in await store.insert(rows)} == {"NEW"}
            assert plans.touched_of({"deltas", "totals"}) <= 1_000
            assert plans.touched_of({"policies", "locks"}) <= 4 * BATCH
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


async def test_a_rule_for_one_tenant_reads_no_rules_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=many_rules") as connection:
        async with explained("many_rules", monkeypatch) as (store, plans):
            await store.policies.save(Policy(queue="q", running=10))
            connection.execute(
                """
                INSERT INTO tenant_rules (tid, qid, tenant, running, paused_until)
                SELECT -n, q.qid, 'u' || n, CASE WHEN n % 2 = 0 THEN 1 END, n % 2 * 9007199254740991
                FROM generate_series(1, 20000) AS n CROSS JOIN queues AS q
                """
            )
            plans.scans.clear()
            await store.policies.limit(TenantLimit("q", "t", 5))
            await store.policies.limit(TenantLimit("q", "t"))
            await store.policies.pause(QueuePause("q", tenant="t", lasts=LEASE))
            await store.policies.pause(QueuePause("q", tenant="t", paused=False))
            assert plans.touched_of({"tenant_rules"}) <= 20
            assert connection.execute("SELECT count(*) FROM tenant_rules").fetchall() == [(20_000,)]
            connection.execute("UPDATE tenant_rules SET paused_until = 1 WHERE running IS NULL")
            plans.scans.clear()
            clause = SweepClause(target=SweepTarget.TENANTS, older_than=0, limit=100)
            swept = [await store.sweep(clause) for _ in range(11)]
            assert [one.more for one in swept] == [True] * 10 + [False]
            assert connection.execute("SELECT count(*) FROM tenant_rules").fetchall() == [(10_000,)]
            assert plans.touched_of({"tenant_rules"}) <= 30_000
        connection.execute("DROP SCHEMA many_rules CASCADE")


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
    await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0))


# -- turns and groups

_GOVERNED = """
    INSERT INTO queues (qid, name, governed) VALUES (1, 'q', true);
    INSERT INTO policies (queue, version, tenant_workers) VALUES ('q', 1, 1000);
    INSERT INTO turns (qid) SELECT qid FROM queues;
    INSERT INTO task_rules (qid, task, paused_until) SELECT qid, 'paused', 9007199254740991 FROM queues;
    INSERT INTO jobs (id, enqueued_at, task, tenant, group_name)
    SELECT plans_id(n), n, CASE n %% 3 WHEN 0 THEN 'paused' ELSE 't' END, 't' || n %% 100,
        CASE n %% 3 WHEN 1 THEN 'g' || n %% 10 END
    FROM generate_series(1, %(depth)s) AS n;
    INSERT INTO ready (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed, gid)
    SELECT n, CASE n %% 3 WHEN 1 THEN -q.qid WHEN 0 THEN lane_of_task(q.qid, j.tenant, j.task)
        ELSE lane_of(tid_of(q.qid, j.tenant)) END, j.id, q.qid, 0, 0, 0, 200, 0, false, gid_of(q.qid, j.group_name)
    FROM generate_series(1, %(depth)s) AS n JOIN jobs AS j ON j.id = plans_id(n) CROSS JOIN queues AS q;
    INSERT INTO lanes (lane, tid, qid, task)
    SELECT DISTINCT lane_of_task(q.qid, j.tenant, j.task), tid_of(q.qid, j.tenant), q.qid, j.task
    FROM jobs AS j CROSS JOIN queues AS q WHERE j.task = 'paused';
    INSERT INTO tenants (tid, qid, tenant, jobs, wake_at)
    SELECT tid_of(q.qid, 't' || n), q.qid, 't' || n, %(depth)s / 150, 1
    FROM generate_series(0, 99) AS n CROSS JOIN queues AS q;
    INSERT INTO tenants (tid, qid, tenant, count, wake_at)
    SELECT tid_of(q.qid, 's' || n), q.qid, 's' || n, 1, 9000000000000000
    FROM generate_series(1, %(depth)s / 10) AS n CROSS JOIN queues AS q;
    INSERT INTO deltas (qid, state, jobs) SELECT qid, 0, %(depth)s FROM queues;
"""
RULED = {"tenants", "lanes", "tenant_rules", "task_rules", "news", "looks", "holdings", "tenant_names"}


@pytest.mark.parametrize("depth", [3_000, 60_000], ids=["a few thousand", "many"])
async def test_a_claim_by_turns_touches_what_it_takes_whatever_waits_sleeps_or_is_paused(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = f"turning_{depth}"
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            connection.execute(_IDS)
            for statement in _GOVERNED.split(";")[:-1]:
                connection.execute(statement, {"depth": depth} if "%" in statement else None)
            assert len((await store.claim(Claim("h", ("q",), 1, 60_000_000))).jobs) == 1  # all wake up, once
            plans.scans.clear()
            claimed = await store.claim(Claim("h", ("q",), BATCH, 60_000_000))
            assert len(claimed.jobs) == BATCH
            assert len({job.tenant for job in claimed.jobs}) == BATCH // 10
            assert plans.touched() <= 6 * BATCH
            assert not {table for table, way in _scans(plans) if way != "Tid Scan"}
            assert plans.touched_of(RULED) <= 2 * BATCH
            plans.scans.clear()
            await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in claimed.jobs])
            await store.claim(Claim("h", ("q",), BATCH, 60_000_000))
            assert plans.touched() <= 8 * BATCH
            assert plans.touched_of(RULED) <= 3 * BATCH
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.mark.parametrize("tenants", [10, 1_000])
async def test_tenants_that_others_have_jobs_of_cost_a_claim_nothing(
    tenants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those of a holder that has very many of them cost that one more."""
    schema = f"held_{tenants}"
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            await store.policies.save(Policy(queue="q", tenant_workers=1, tenant_batch=1))
            for part in range(3):
                await store.insert([_of_tenant(3 * n + part, n) for n in range(tenants)])
            left = tenants
            while left:
                left -= len((await store.claim(Claim("first", ("q",), left, LEASE))).jobs)
            claimed = await store.claim(Claim("second", ("q",), 10, LEASE))
            while claimed.next_in == 0:
                claimed = await store.claim(Claim("second", ("q",), 10, LEASE))
            assert not claimed.jobs
            await store.insert([_of_tenant(3 * tenants + part, tenants) for part in range(3)])
            await store.claim(Claim("second", ("q",), 1, LEASE))  # so that one comes after all others
            for holder in ("second", "first"):
                plans.scans.clear()
                [job] = (await store.claim(Claim(holder, ("q",), 1, LEASE))).jobs
                assert (job.tenant == f"t{tenants}") == (holder == "second")
                assert plans.touched() + plans.touched_of(RULED) <= 60
            plans.scans.clear()
            await store.finish([Settlement(job.id, job.epoch, "first", JobState.COMPLETED)])
            assert len((await store.claim(Claim("first", ("q",), 1, LEASE))).jobs) == 1
            assert plans.touched() + plans.touched_of(RULED) <= 80
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def _of_tenant(number: int, tenant: int) -> Row:
    return Row(id=bytes.fromhex(f"0196{number:028x}"), queue="q", task="t", cells={}, tenant=f"t{tenant}")


@pytest.mark.parametrize("tenants", [100, 20_000])
async def test_a_look_at_tenants_touches_those_that_are_shown(tenants: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and however many jobs of theirs run."""
    schema = f"shown_{tenants}"
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            await store.policies.save(Policy(queue="q", tenant_batch=1_000))
            await store.insert([_of_tenant(n, 0) for n in range(1_000)])
            assert len((await store.claim(Claim("h", ("q",), 1_000, LEASE))).jobs) == 1_000
            connection.execute(
                "INSERT INTO tenants (tid, qid, tenant, jobs) SELECT tid_of(q.qid, 't' || n), q.qid, 't' || n, 1"
                " FROM generate_series(1, %s) AS n CROSS JOIN queues AS q",
                (tenants,),
            )
            known = sorted(f"t{n}" for n in range(tenants + 1))
            for names, after in ((None, None), (None, "t50"), (["t0", "t50"], None)):
                plans.scans.clear()
                found = await store.policies.tenants("q", names, after, 10)
                assert [one.tenant for one in found] == (names or [one for one in known if one > (after or "")][:10])
                assert plans.touched() + plans.touched_of(RULED) <= 80
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.mark.parametrize("batch", [1, 1_000])
async def test_a_look_at_tenants_reads_no_more_news_than_a_bounded_number(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where producers go on while no worker runs."""
    schema = f"untold_{batch}"
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            await store.policies.save(Policy(queue="q", tenant_batch=10))
            connection.execute(
                "INSERT INTO news (qid, kind, tids, jobs, ats, tenants)"
                " SELECT q.qid, 1, n.tids, n.jobs, n.jobs, n.tenants FROM queues AS q CROSS JOIN ("
                " SELECT array_agg(tid_of(1, 't' || m)) AS tids, array_agg(1::bigint) AS jobs,"
                " array_agg('t' || m) AS tenants FROM generate_series(1, 50000) AS m GROUP BY m / %s) AS n",
                (batch,),
            )
            plans.scans.clear()
            assert len(await store.policies.tenants("q", None, None, 10)) == 10
            assert plans.touched_of({"news"}) <= 11_000 // batch + 100
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


_RANKED = """
    INSERT INTO queues (qid, name, governed) VALUES (1, 'q', true);
    INSERT INTO policies (queue, version, ageing) VALUES ('q', 1, NULL);
    INSERT INTO turns (qid) SELECT qid FROM queues;
    INSERT INTO jobs (id, enqueued_at, task, tenant)
    SELECT plans_id(n), n, 't' || mod(n, 4), 'a' FROM generate_series(1, 40000) AS n;
    INSERT INTO ready (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed)
    SELECT CASE WHEN x.due THEN n ELSE 9000000000000000 - n END,
        lane_of(tid_of(q.qid, 'a')) + 1 - x.due::integer, plans_id(n), q.qid, 0, 0, 0, 200,
        n %% %(priorities)s - 20000, false
    FROM generate_series(1, 40000) AS n
    CROSS JOIN LATERAL (SELECT %(all_due)s OR n %% 101 = 0 AS due) AS x CROSS JOIN queues AS q;
    INSERT INTO tenants (tid, qid, tenant, jobs, wake_at)
    SELECT tid_of(q.qid, 'a'), q.qid, 'a', 40000, 1 FROM queues AS q;
    INSERT INTO deltas (qid, state, jobs) SELECT qid, 0, 40000 FROM queues;
"""


@pytest.mark.parametrize("all_due", [True, False], ids=["all due", "most not due"])
@pytest.mark.parametrize("priorities", [1, 40_000])
async def test_a_visit_touches_what_it_takes_whatever_the_priorities(
    priorities: int, all_due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = f"ranked_{priorities}_{all_due}".lower()
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            connection.execute(_IDS)
            for statement in _RANKED.split(";")[:-1]:
                given = {"priorities": priorities, "all_due": all_due}
                connection.execute(statement, given if "%(" in statement else None)
            claimed = await store.claim(Claim("h", ("q",), BATCH, LEASE))
            assert [job.priority for job in claimed.jobs] == sorted(job.priority for job in claimed.jobs)
            assert len(claimed.jobs) == BATCH
            assert plans.touched() <= 12 * BATCH
            assert plans.touched_of(RULED) <= BATCH
            if not all_due:
                claimed = await store.claim(Claim("h", ("q",), 1_000, LEASE))
                assert len(claimed.jobs) == 40_000 // 101 - BATCH
                assert (claimed.next_in or 0) > LEASE
                plans.scans.clear()
                assert (await store.claim(Claim("h", ("q",), 1_000, LEASE))).next_in
                assert plans.touched() <= 10
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


_TASKS = """
    INSERT INTO queues (qid, name, governed) VALUES (1, 'q', true);
    INSERT INTO policies (queue, version, tenant_batch) VALUES ('q', 1, 1000);
    INSERT INTO turns (qid) SELECT qid FROM queues;
    INSERT INTO task_rules (qid, task, paused_until, every, burst) SELECT q.qid, r.* FROM queues AS q
    CROSS JOIN (VALUES ('t0', 9007199254740991, NULL, NULL), ('t1', 0, 60000000, 5)) AS r WHERE %(ruled)s;
    INSERT INTO jobs (id, enqueued_at, task, tenant)
    SELECT plans_id(n), n, 't' || mod(n, %(tasks)s), 'a' FROM generate_series(1, 20000) AS n;
    INSERT INTO ready (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed)
    SELECT n, lane_of(tid_of(q.qid, 'a')), plans_id(n), q.qid, 0, 0, 0, 200, 0, false
    FROM generate_series(1, 20000) AS n CROSS JOIN queues AS q;
    INSERT INTO tenants (tid, qid, tenant, jobs, wake_at)
    SELECT tid_of(q.qid, 'a'), q.qid, 'a', 20000, 1 FROM queues AS q;
    INSERT INTO deltas (qid, state, jobs) SELECT qid, 0, 20000 FROM queues;
"""


@pytest.mark.parametrize("ruled", [False, True], ids=["no rules", "a pause and a rate"])
@pytest.mark.parametrize("tasks", [10, 10_000])
async def test_a_visit_touches_what_it_takes_whatever_the_tasks(
    tasks: int, ruled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = f"tasks_{tasks}_{ruled}".lower()
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            connection.execute(_IDS)
            for statement in _TASKS.split(";")[:-1]:
                connection.execute(statement, {"tasks": tasks, "ruled": ruled} if "%(" in statement else None)
            for _ in range(2):
                plans.scans.clear()
                claimed = await store.claim(Claim("h", ("q",), BATCH, LEASE))
                assert len(claimed.jobs) == BATCH
                assert plans.touched() <= (40 if ruled else 12) * BATCH
                assert plans.touched_of(RULED) <= BATCH
                assert "t0" not in {job.task for job in claimed.jobs} or not ruled
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.mark.parametrize("waiting", [100, 20_000], ids=["a hundred", "many"])
async def test_calling_the_next_of_a_group_touches_it_alone(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = f"grouped_{waiting}"
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={schema}") as connection:
        async with explained(schema, monkeypatch) as (store, plans):
            rows = [
                Row(id=bytes.fromhex(f"0195{n:028x}"), queue="q", task="t", cells={}, group="g") for n in range(waiting)
            ]
            for start in range(0, waiting, 1_000):
                await store.insert(rows[start : start + 1_000])
            [job] = (await store.claim(Claim("h", ("q",), BATCH, 60_000_000))).jobs
            plans.scans.clear()
            await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED)])
            assert len((await store.claim(Claim("h", ("q",), BATCH, 60_000_000))).jobs) == 1
            assert plans.touched() <= 20
            assert not {table for table, way in _scans(plans) if way != "Tid Scan"}
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


# -- schedules

NOW = 1_800_000_000_000_000
LATER = NOW + 1_000_000_000
"""When all have come up."""
RANKS = 3
_SCHEDULES = """
    INSERT INTO schedules (created_at, updated_at, uid, name, queue, tenant, definition)
    SELECT 0, 0, plans_id(n), 's' || lpad(n::text, 7, '0'), 'q' || n %% 10, 't' || n %% 1000, 'd'
    FROM generate_series(1, %(depth)s) AS n;
    INSERT INTO agenda (slot, look_at, runs, version, uid, plan_priority, bucket, enabled, name)
    SELECT %(now)s, %(now)s + n * 1000, 0, 1, plans_id(n), n %% 3, n %% 1024, true, 's' || lpad(n::text, 7, '0')
    FROM generate_series(1, %(depth)s) AS n;
    INSERT INTO ticks (slot, run_at, planned_at, uid, count, outcome)
    SELECT n, n, %(now)s + n, plans_id(n %% 100), 1, 2 FROM generate_series(1, %(depth)s) AS n;
    INSERT INTO deltas (qid, state, jobs, bytes) VALUES (0, 6, %(depth)s, 100 * %(depth)s);
"""


def fill_schedules(connection: psycopg.Connection[tuple[object, ...]], count: int) -> None:
    """So many schedules, one coming up every millisecond from NOW on, and so many ticks."""
    connection.execute(_IDS)
    for statement in _SCHEDULES.split(";")[:-1]:
        connection.execute(statement, {"depth": count, "now": NOW})


@pytest.fixture(scope="module", params=[10_000, 100_000], ids=["ten thousand", "a hundred thousand"])
def planned(request: pytest.FixtureRequest) -> Iterator[int]:
    count: int = request.param

    async def install() -> None:
        backend = PostgresBackend(server().url(), schema="ticking")
        await backend.open()
        await backend.close()

    asyncio.run(install())
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=ticking") as connection:
        fill_schedules(connection, count)
        yield count
        connection.execute("DROP SCHEMA ticking CASCADE")


@pytest.fixture
async def ticking(planned: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[PostgresBackend, Plans]]:
    async with explained("ticking", monkeypatch) as store:
        yield store


def _fires(one: Schedule, slot: int, number: int, overlap: Overlap = Overlap.ALLOW) -> Plan:
    fired = Row(id=bytes.fromhex(f"0194{number:028x}"), queue="q", task="t", cells={})
    return Plan(one.name, one.uid, one.version, [NewTick(slot, slot, fired, overlap=overlap)], slot + 1, 2 * NOW)


async def test_nothing_due_costs_a_look_at_each_rank(ticking: tuple[PostgresBackend, Plans], planned: int) -> None:
    store, plans = ticking
    looked = await store.ticks.due(Look(), NOW)
    assert (looked.schedules, looked.next_in) == ([], 1_000)
    assert plans.ways() == {("agenda", "agenda_due")}
    assert plans.touched() <= 2 * RANKS


@pytest.mark.parametrize(("due", "limit"), [(10, 100), (10_000, 100)], ids=["a few", "all"])
async def test_a_look_touches_what_is_due_up_to_its_limit(
    ticking: tuple[PostgresBackend, Plans], planned: int, due: int, limit: int
) -> None:
    store, plans = ticking
    looked = await store.ticks.due(Look(limit), NOW + due * 1_000)
    found = min(due, limit)
    assert len(looked.schedules) == found
    assert plans.ways() == {("agenda", "agenda_due"), ("schedules", "schedules_pkey")}
    assert plans.touched() <= 2 * found + 2 * RANKS


async def test_who_shares_the_buckets_touches_the_others_as_far_as_they_are_due(
    ticking: tuple[PostgresBackend, Plans], planned: int
) -> None:
    store, plans = ticking
    looked = await store.ticks.due(Look(share=1, shares=4), NOW + 40_000)
    assert len(looked.schedules) == 10
    assert plans.ways() == {("agenda", "agenda_due"), ("schedules", "schedules_pkey")}
    assert plans.touched() <= 40 + 10 + RANKS * (1 + 4 * 4)


@pytest.mark.parametrize("overlap", Overlap)
async def test_planning_touches_what_it_plans(
    ticking: tuple[PostgresBackend, Plans], planned: int, overlap: Overlap
) -> None:
    store, plans = ticking
    number = [*Overlap].index(overlap) + 1
    chosen = await store.ticks.find(ScheduleSelector(), f"s{number * 1_000:07d}", 50)
    await store.ticks.plan([_fires(one, NOW, 10_000 * number + n) for n, one in enumerate(chosen)], LATER)
    chosen = await store.ticks.find(ScheduleSelector(names=[one.name for one in chosen]))
    plans.scans.clear()
    again = [_fires(one, NOW + 1, 10_000 * number + 100 + n, overlap) for n, one in enumerate(chosen)]
    answers = await store.ticks.plan(again, LATER)
    assert answers == [[TickOutcome.SKIPPED if overlap is Overlap.SKIP else TickOutcome.FIRED]] * 50
    await store.ticks.note([TickNote(one.uid, NOW, "completed", 1, 1) for one in chosen])
    assert not _scans(plans)
    assert plans.touched() <= 30 * 50


async def test_saving_touches_what_it_saves(ticking: tuple[PostgresBackend, Plans], planned: int) -> None:
    store, plans = ticking
    [one] = await store.ticks.find(ScheduleSelector(names=["s0005000"]))
    new = Schedule(name="new", uid=bytes(16), queue="q", definition=b"d")
    await store.ticks.save([Save(one, one.version), Save(new, 0)])
    assert not _scans(plans)
    assert plans.touched() <= 10


async def test_schedules_and_ticks_are_found_by_what_they_are_asked_for(
    ticking: tuple[PostgresBackend, Plans], planned: int
) -> None:
    store, plans = ticking
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("ANALYZE ticking.schedules")
    plans.scans.clear()
    for sel, page in (
        (ScheduleSelector(), 10),
        (ScheduleSelector(names=["s0000007", "s0000009"]), 2),
        (ScheduleSelector(tenant="t7"), 10),
        (ScheduleSelector(queue="q7"), 10),
    ):
        assert len(await store.ticks.find(sel, None, 10)) == page
        assert await store.ticks.find(sel, "s9", 10) == []
    uid = bytes.fromhex("01900000000070008000000000000001")
    assert len(await store.ticks.history(uid, NOW, 10)) == 10
    assert not _scans(plans)
    assert plans.touched() <= 50 * 10, "a queue that has one in ten may be looked for among all"


async def test_a_sweep_of_ticks_touches_what_goes(ticking: tuple[PostgresBackend, Plans], planned: int) -> None:
    store, plans = ticking
    few = await store.sweep(SweepClause(target=SweepTarget.TICKS, older_than=0, limit=50), NOW + 40)
    assert (few.removed, few.more) == (40, False)
    much = await store.sweep(SweepClause(target=SweepTarget.TICKS, max_count=few.kept - 200, limit=100), NOW)
    assert (much.removed, much.kept, much.more) == (100, few.kept - 100, True)
    assert plans.ways() == {("ticks", "ticks_age"), ("ticks", "Tid Scan")}
    assert plans.touched() <= 3 * 150


async def test_a_plan_that_was_made_for_no_schedules_serves_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=kept_ticking") as connection:
        async with explained("kept_ticking", monkeypatch) as (store, plans):
            for table in ("schedules", "agenda", "ticks", "ready", "queues"):
                connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            connection.execute("VACUUM ANALYZE")
            for number in range(3):
                await _tick_once(store, number, 1)
            fill_schedules(connection, 20_000)
            plans.scans.clear()
            await _tick_once(store, 10, 50)
            assert not _scans(plans) - {("ticks", "Tid Scan")}
            assert plans.touched() <= 40 * 50
        connection.execute("DROP SCHEMA kept_ticking CASCADE")


async def _tick_once(store: PostgresBackend, number: int, count: int) -> None:
    """Everything that happens to schedules, to so many of them."""
    ticks = store.ticks
    names = [f"{number}-{n}" for n in range(count)]
    made = [Schedule(name=name, uid=name.encode().ljust(16), queue="q", definition=b"d", look_at=1) for name in names]
    assert await ticks.save([Save(one, 0) for one in made], 1) == [True] * count
    looked = await ticks.due(Look(count), 1)
    assert [one.name for one in looked.schedules] == sorted(names)
    found = await ticks.find(ScheduleSelector(names=names))
    await ticks.plan([_fires(one, 1, 1_000 * number + n, Overlap.SKIP) for n, one in enumerate(found)], 1)
    await ticks.note([TickNote(one.uid, 1, "completed", 1, 1) for one in made])
    assert len(await ticks.history(made[0].uid)) == 1
    assert (await store.sweep(SweepClause(target=SweepTarget.TICKS, older_than=0), 1)).removed == count
