"""While somebody holds an old snapshot, PostgreSQL keeps what has been claimed in its indexes: claims must not walk
over all of it again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend, marks
from headrace.backends.postgres import rows as shapes
from headrace.backends.postgres.marks import NOTHING, Way
from headrace.seam.policy import Policy
from headrace.seam.records import Claim, Claimed, JobId, Leased, Row, Settlement
from headrace.types import JobState
from tests.postgres import server

_JOBS = 10_000
_BATCH = 100


class Walking(PostgresBackend):
    """A store that notes how many entries of the index its claims read."""

    walked = 0

    async def _call(self, name: str, *params: Any) -> list[Any]:
        rows = await super()._call(name, *params)
        if name in ("claim", "complete_and_claim"):
            self.walked += shapes.rest(rows).walked
        return rows


@pytest.fixture
async def store() -> AsyncIterator[Walking]:
    backend = Walking(server().url(), schema="snapshot", listen=False)
    await backend.open()
    yield backend
    await backend.close()
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA snapshot CASCADE")


@pytest.fixture
def snapshot(store: Walking) -> Iterator[None]:
    """Somebody who looks at the past."""
    with psycopg.connect(server().url()) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM snapshot.ready")
        yield


def id_of(number: int) -> JobId:
    return bytes.fromhex(f"0190{number:012x}70008000{0:08x}")


async def fill(store: PostgresBackend, first: int, count: int, **more: Any) -> None:
    rows = [Row(id=id_of(n), queue="q", task="t", cells={}, **more) for n in range(first, first + count)]
    for start in range(0, count, 1_000):
        await store.insert(rows[start : start + 1_000])


async def work(store: PostgresBackend) -> list[Leased]:
    """Claim a batch and complete it."""
    jobs = list((await store.claim(Claim("h", ("q",), _BATCH, 60_000_000))).jobs)
    await store.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs])
    return jobs


@pytest.mark.usefixtures("snapshot")
async def test_the_way_to_the_next_job_does_not_grow(store: Walking) -> None:
    await fill(store, 0, _JOBS)
    seen = [job.id for _ in range(_JOBS // _BATCH) for job in await work(store)]
    assert seen == [id_of(n) for n in range(_JOBS)]
    assert store.walked <= 20 * _JOBS, "from the beginning it would be a hundred times as many"
    store.walked = 0
    await fill(store, _JOBS, 3_000)
    for _ in range(30):
        await work(store)
    assert store.walked <= 20 * _JOBS, "from the beginning it would be nearly twice as many"


@pytest.mark.usefixtures("snapshot")
@pytest.mark.parametrize("queues", [("q",), ("q", "r")], ids=["one queue", "two queues"])
async def test_the_way_to_what_becomes_due_does_not_grow(
    store: Walking, monkeypatch: pytest.MonkeyPatch, queues: tuple[str, ...]
) -> None:
    """What was promoted stays in the index of what is not due, too."""
    await fill(store, 0, _JOBS // 2, delay=1_000)
    request = Claim("h", queues, _BATCH, 60_000_000)
    async with asyncio.timeout(60):
        taken = 0
        while taken < _JOBS // 2:
            taken += len((await store.claim(request)).jobs)
    monkeypatch.setattr(marks, "_EVERY", 600.0)
    store._way._look_at = 0.0
    await store.claim(request)
    store.walked = 0
    for n in range(10):
        await fill(store, _JOBS + n, 1, delay=1)
        await fill(store, 2 * _JOBS + n, 1)
        async with asyncio.timeout(60):
            taken = 0
            while taken < 2:
                taken += len((await store.claim(request)).jobs)
    assert store.walked <= _JOBS // 2, "from the beginning it would be a hundred times as many"


@pytest.mark.usefixtures("snapshot")
@pytest.mark.parametrize("more", [{"run_at": 1}, {"priority": -5}, {"priority": 5}], ids=["earlier", "higher", "lower"])
async def test_what_was_put_in_before_the_mark_is_found(store: Walking, more: dict[str, Any]) -> None:
    await fill(store, 0, _JOBS // 2)
    for _ in range(_JOBS // 2 // _BATCH - 2):
        await work(store)
    await fill(store, _JOBS, 1, **more)
    async with asyncio.timeout(60):
        while id_of(_JOBS) not in [job.id for job in await work(store)]:
            pass


@pytest.mark.usefixtures("snapshot")
async def test_an_idle_worker_looks_again_soon(store: Walking) -> None:
    await fill(store, 0, _JOBS // 2)
    longest, jobs = 0.0, True
    while jobs:
        began = time.perf_counter()
        jobs = bool(await work(store))
        longest = max(longest, time.perf_counter() - began)
    claimed = await store.claim(Claim("h", ("q",), _BATCH, 60_000_000))
    assert claimed.next_in is not None
    assert claimed.next_in <= max(1.0, 10 * longest) * 1e6


async def blocks(store: PostgresBackend) -> int:
    """That a claim looks at."""
    _, given = store._set_out()
    request = store._claim_params(Claim("h", ("q",), _BATCH, 60_000_000))
    statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {store._sql['claim']}"
    [[[explained]]] = await store._connections.rows(statement, (None, *request, *given))
    return int(explained["Plan"]["Shared Hit Blocks"])


@pytest.mark.usefixtures("snapshot")
async def test_the_way_to_the_next_tenant_does_not_grow(store: Walking) -> None:
    """Each that has come and gone has left entries behind."""
    assert await store.policies.save(Policy(queue="q", tenant_batch=10))
    found = []
    for round_ in range(20):
        rows = [
            Row(id=id_of(1_000 * round_ + n), queue="q", task="t", cells={}, tenant=f"{round_}-{n}")
            for n in range(2 * _BATCH)
        ]
        await store.insert(rows)
        found.append(await blocks(store))
        while await work(store):
            pass
    assert found[-1] < 1.1 * found[len(found) // 2]


def claimed(count: int) -> Claimed:
    return Claimed([Leased(id_of(n), "q", "t", {}, 1, run_at=n) for n in range(count)], None, (), False)


def test_a_clean_way_has_no_marks() -> None:
    way = Way()
    way.walked(300, claimed(100), 1, NOTHING, 0.0, 0.001)
    assert way.marks(0.002) is NOTHING
    assert way.patience(None, 0.002) is None


def test_a_littered_way_is_marked_and_looked_at_from_the_beginning_now_and_then() -> None:
    way = Way()
    way.walked(50_000, claimed(100), 1, NOTHING, 0.0, 0.05)
    assert way.marks(0.06) is not NOTHING
    assert way.marks(0.56) is NOTHING, "ten times as long as the last look took"
    way.walked(100, claimed(100), 1, NOTHING, 0.56, 0.57)
    assert way.marks(0.58) is NOTHING, "it is clean again"
