"""What PostgreSQL counts of each tenant's dead letters is what there is of them, however they come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg.rows import dict_row

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Claim, Delete, Reap, Requeue, Selector, Settlement, SweepClause, SweepTarget
from headrace.types import JobState
from tests.backends.test_postgres_days import _AFTER, _NOON, _SECOND, _THEN, days, id_of, row, tidy
from tests.postgres import server

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def connection() -> Iterator[Connection]:
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=days") as connection:
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS days CASCADE")


@pytest.fixture
async def store(connection: Connection) -> AsyncIterator[PostgresBackend]:
    backend = PostgresBackend(server().url(), schema="days")
    await backend.open()
    connection.execute("SELECT make_day(%s)", (_THEN,))
    yield backend
    await backend.close()


def audit(connection: Connection) -> dict[str, int]:
    """How many dead letters each tenant has: as counted, with what they weigh, before that is added up and after."""
    found = connection.execute(
        "SELECT tenant, count(*), sum(size) FROM ended WHERE state = 5 GROUP BY tenant ORDER BY tenant"
    ).fetchall()
    counted = connection.execute(
        "SELECT tenant, sum(jobs), sum(bytes) FROM ("
        " SELECT * FROM shares UNION ALL SELECT tenant, jobs, bytes FROM deltas WHERE tenant IS NOT NULL"
        ") AS c GROUP BY tenant HAVING (sum(jobs), sum(bytes)) <> (0, 0) ORDER BY tenant"
    ).fetchall()
    assert counted == found
    connection.execute("SELECT fold_deltas()")
    assert connection.execute("SELECT * FROM shares ORDER BY tenant").fetchall() == found
    places = connection.execute("SELECT jobs, bytes FROM places_v1() WHERE state = 5").fetchone()
    assert places == connection.execute("SELECT count(*), coalesce(sum(size), 0) FROM ended WHERE state = 5").fetchone()
    return {str(tenant): int(str(jobs)) for tenant, jobs, _ in found}


async def end(store: PostgresBackend, tenant: str, first: int, count: int, state: JobState = JobState.FAILED) -> None:
    """So many jobs of a tenant end, a second past noon."""
    jobs = [row(n, tenant=tenant) for n in range(first, first + count)]
    await store.insert(jobs, _NOON)
    claimed = await store.claim(Claim("h", ("q",), count, 60 * _SECOND), _NOON + _SECOND)
    batch = [Settlement(job.id, job.epoch, "h", state, error=b"no") for job in claimed.jobs]
    assert await store.finish(batch, _NOON + _SECOND) == [state] * count


async def test_each_way_in_and_out_is_counted(store: PostgresBackend, connection: Connection) -> None:
    await end(store, "a", 0, 5)
    await end(store, "b", 10, 20)
    await end(store, "", 40, 2)
    assert audit(connection) == {"": 2, "a": 5, "b": 20}
    await store.insert([row(50, tenant="c")], _NOON)
    await store.claim(Claim("h", ("q",), 1, _SECOND), _NOON)
    await store.reap(Reap(max_lost=0), _NOON + 60 * _SECOND)
    assert audit(connection) == {"": 2, "a": 5, "b": 20, "c": 1}
    await store.alter(Selector(ids=[id_of(10)]), Delete(), _NOON)
    await store.alter(Selector(ids=[id_of(11), id_of(50)]), Requeue(), _NOON)
    assert audit(connection) == {"": 2, "a": 5, "b": 18}
    for bound, left in (("max_count", 15), ("max_bytes", 1_000)):
        more = True
        while more:
            more = (await store.sweep(SweepClause(target=SweepTarget.FAILED, limit=3, **{bound: left}), _AFTER)).more  # type: ignore[arg-type]
            audit(connection)
    assert set(audit(connection)) == {"", "a", "b"}
    await store.sweep(SweepClause(target=SweepTarget.FAILED, older_than=0), _AFTER)
    assert audit(connection) == {}


async def test_a_day_of_dead_letters_is_counted_off(store: PostgresBackend, connection: Connection) -> None:
    await end(store, "a", 0, 500)
    await end(store, "b", 500, 30)
    await end(store, "b", 600, 20, JobState.COMPLETED)
    assert await tidy(store, SweepTarget.FAILED) == 530
    assert "ended_20260301" not in days(connection)
    assert audit(connection) == {}


@pytest.mark.parametrize("dead", [40, 1_300])
async def test_dead_letters_that_stay_when_their_day_goes_are_counted_once(
    store: PostgresBackend, connection: Connection, dead: int
) -> None:
    for first in range(0, 3_000, 500):
        await end(store, "a", first, 500, JobState.COMPLETED)
    await end(store, "a", 3_000, 10)
    await end(store, "b", 4_000, dead)
    assert await tidy(store) == 3_000
    assert ("ended_20260301" in days(connection)) == (dead > 1_000)
    assert audit(connection) == {"a": 10, "b": dead}
    assert (await store.sweep(SweepClause(target=SweepTarget.FAILED, max_count=dead), _AFTER)).removed == 10
    assert audit(connection) == {"a": 10, "b": dead - 10}


_DEAD = """
    INSERT INTO ended (
        finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, tenant
    ) SELECT n, 0, 0, ('018d0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 0, 1, 1, 0, 100, 5, 0,
        false, '', 't' || n / %(each)s
    FROM generate_series(0, %(tenants)s * %(each)s - 1) AS n;
    INSERT INTO deltas (qid, state, jobs, bytes, tenant)
    SELECT 0, 5, %(each)s, 100 * %(each)s, 't' || n FROM generate_series(0, %(tenants)s - 1) AS n;
    SELECT fold_deltas()
"""


@pytest.mark.parametrize("bound", ["max_count", "max_bytes"])
@pytest.mark.parametrize("each", [1, 2])
async def test_a_sweep_costs_the_same_however_many_tenants_there_are(
    store: PostgresBackend, connection: Connection, each: int, bound: str
) -> None:
    touched = []
    for tenants in (100, 20_000):
        connection.execute("TRUNCATE ended, shares, deltas, totals")
        with psycopg.ClientCursor(connection) as cursor:
            cursor.execute(_DEAD, {"tenants": tenants, "each": each})
        connection.execute("VACUUM ANALYZE shares, ended, deltas")
        left = tenants * each - 10
        bounds = (left, None) if bound == "max_count" else (None, 100 * left)
        with connection.cursor(row_factory=dict_row) as rows:
            explain = (
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
                " SELECT * FROM sweep_v1(1000000000, 5::smallint, NULL, %s, %s, 10, false, 0)"
            )
            for _ in range(2):  # the first one plans
                connection.execute("BEGIN")
                [told] = rows.execute(explain, bounds).fetchall()
                connection.execute("ROLLBACK")
        touched.append(told["QUERY PLAN"][0]["Plan"]["Shared Hit Blocks"])
    few, many = touched
    assert many < 1.5 * few, touched
