"""Transactions that a role leaves open which is confined to one tenant: nobody else waits for them, and no worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import UUID

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Beat, Cancel, Claim, Reap, Selector, Settlement, SweepClause, SweepTarget, Watch
from headrace.seam.ticks import NewTick, Overlap, Plan, Save, Schedule
from headrace.testing.conformance.base import LEASE, job_id, row
from headrace.types import JobState
from tests.backends.test_postgres_hostile import ONCE_AN_HOUR, Call, backend, call, make, url

RUNNING = range(1_000, 1_004)
WAITING = 1_020
FAR = 2**50


def ids(*numbers: int) -> str:
    return f"ARRAY{[str(UUID(bytes=job_id(number))) for number in numbers]}::uuid[]"


LEFT_OPEN: dict[str, list[Call]] = {
    "watch running": [call("ask_v1", p_ids=ids(n), p_kind="7", p_text="'inbox'") for n in RUNNING],
    "watch waiting": [call("ask_v1", p_ids=ids(WAITING), p_kind="7", p_text="'inbox'")],
    "cancel running": [call("ask_v1", p_ids=ids(n)) for n in RUNNING],
    "cancel waiting": [call("ask_v1", p_ids=ids(WAITING))],
    "cancel all": [call("ask_v1", p_named="false")],
    "insert": [call("own_insert_v1", p_names="'{open}'", key=f"'k{n}'", reply_to="'inbox'") for n in RUNNING],
    "plan": [
        call("own_plan_v1", p_names=f"'{{{name}}}'", p_uids=ids(uid), t_overlaps="'{2}'")
        for name, uid in (("one", 920), ("two", 921))
    ],
    "save": [call("own_save_v1", name="'one'", version="1", p_drops="'{true}'")],
}


@pytest.fixture
async def store() -> AsyncIterator[PostgresBackend]:
    """Jobs of two tenants that run, and schedules of both."""
    await make()
    owned = backend()
    await owned.open()
    mine = [row(n, queue="open", tenant="acme", key=f"acme/k{n}") for n in RUNNING]
    theirs = [row(n, queue="open", tenant="other") for n in range(1_010, 1_014)]
    await owned.insert([*mine, *theirs, row(WAITING, queue="later", tenant="acme", run_at=FAR)])
    schedules = (("acme/one", "acme", 920, RUNNING[0]), ("acme/two", "acme", 921, WAITING), ("z", "other", 922, 1_010))
    for name, tenant, uid, last in schedules:
        schedule = Schedule(
            name=name, uid=job_id(uid), queue="open", tenant=tenant, definition=ONCE_AN_HOUR, last_job=job_id(last)
        )
        assert await owned.ticks.save([Save(schedule, 0)]) == [True]
    yield owned
    await owned.close()


@pytest.fixture
async def tenant() -> AsyncIterator[PostgresBackend]:
    """What the confined role has."""
    confined = PostgresBackend(url("hostile acme"), schema="hostile", listen=False, migrate=False)
    await confined.open()
    yield confined
    await confined.close()


@pytest.mark.parametrize("what", LEFT_OPEN)
async def test_nobody_waits(store: PostgresBackend, what: str) -> None:
    jobs = (await store.claim(Claim("w", ("open",), 8, LEASE))).jobs
    assert len(jobs) == 8
    leases = [(job.id, job.epoch) for job in jobs]
    async with AsyncExitStack() as stack:
        for one in LEFT_OPEN[what]:
            connection = await psycopg.AsyncConnection.connect(url("hostile acme"))
            stack.push_async_callback(connection.close)
            assert (await connection.execute(one.text.encode())).rowcount >= 0
        async with asyncio.timeout(60):
            renewed = await store.renew(Beat("w", "w", ("open",), LEASE, leases, ttl=LEASE))
            assert (renewed.lost, renewed.busy) == ([], [])
            await store.reap(Reap())
            ticks = [
                Plan(name, job_id(uid), 1, [NewTick(2, 2, row(uid + 100), overlap=Overlap.CANCEL)], 3, 3)
                for name, uid in (("acme/one", 920), ("acme/two", 921), ("z", 922))
            ]
            assert (await store.ticks.plan(ticks))[2] is not None
            done = [Settlement(job.id, job.epoch, "w", JobState.COMPLETED) for job in jobs]
            assert await store.finish(done[2:]) == [JobState.COMPLETED] * 6
            failed = [Settlement(job.id, job.epoch, "w", JobState.FAILED, reason="x") for job in jobs[:2]]
            assert await store.finish(failed) == [JobState.FAILED] * 2
            assert len((await store.scan(Selector(queue="open"), None, 100)).records) == 8
            await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0))


async def test_a_job_that_runs_is_cancelled_by_word_alone(store: PostgresBackend, tenant: PostgresBackend) -> None:
    """As it is for everybody else: its holder hears of it, and it does not come back."""
    jobs = {job.id: job for job in (await store.claim(Claim("w", ("open",), 8, LEASE))).jobs}
    names = [job_id(n) for n in RUNNING]
    told = await tenant.alter(Selector(ids=names), Cancel("enough"))
    assert [(one.before, one.after, one.changed) for one in told] == [(JobState.RUNNING, JobState.RUNNING, True)] * 4
    assert await tenant.alter(Selector(queue="open"), Cancel("enough")) == []
    assert all(record is not None and record.cancel_requested for record in await tenant.fetch(names))
    renewed = await store.renew(Beat("w", "w", ("open",), LEASE, [(job.id, job.epoch) for job in jobs.values()]))
    assert sorted(renewed.cancels) == names
    retried, paused, completed, vanished = (jobs[name] for name in names)
    batch = [
        Settlement(retried.id, retried.epoch, "w", JobState.AVAILABLE, delay=0),
        Settlement(paused.id, paused.epoch, "w", JobState.PAUSED),
        Settlement(completed.id, completed.epoch, "w", JobState.COMPLETED),
    ]
    assert await store.finish(batch) == [JobState.CANCELLED, JobState.CANCELLED, JobState.COMPLETED]
    with psycopg.connect(url("hostile owner"), autocommit=True) as connection:
        connection.execute("UPDATE hostile.leased SET lease_until = 0 WHERE id = %s", (UUID(bytes=vanished.id),))
        [reaped] = await store.reap(Reap())
        assert (reaped.id, reaped.state) == (vanished.id, JobState.CANCELLED)
        assert connection.execute("SELECT count(*) FROM hostile.asks").fetchall() == [(0,)]


@pytest.mark.parametrize("state", [JobState.AVAILABLE, JobState.PAUSED])
async def test_a_word_that_comes_late_still_counts(store: PostgresBackend, state: JobState) -> None:
    """The job waits again when the transaction that cancels it commits."""
    jobs = (await store.claim(Claim("w", ("open",), 8, LEASE))).jobs
    [late] = [job for job in jobs if job.id == job_id(RUNNING[0])]
    async with await psycopg.AsyncConnection.connect(url("hostile acme")) as connection:
        await connection.execute(call("ask_v1", p_ids=ids(RUNNING[0])).text.encode())
        assert await store.finish([Settlement(late.id, late.epoch, "w", state, delay=0)]) == [state]
        await store.reap(Reap())
        await connection.commit()
    await store.reap(Reap())
    [record] = await store.fetch([late.id])
    assert record is not None
    assert (record.state, record.reason) == (JobState.CANCELLED, "cancelled")


async def test_a_watch_waits_for_the_transaction_that_ends_the_job(
    store: PostgresBackend, tenant: PostgresBackend
) -> None:
    """It may have been too late to be seen: then it is answered when the end can be read."""
    await store.claim(Claim("w", ("open",), 8, LEASE))
    name = job_id(RUNNING[0])
    async with await psycopg.AsyncConnection.connect(url("hostile owner")) as connection:
        query = "SELECT id, epoch, holder FROM hostile.leased WHERE id = %s"
        cursor = await connection.execute(query, (UUID(bytes=name),))
        [(uuid, epoch, holder)] = await cursor.fetchall()
        ending = "SELECT hostile.complete_v1(NULL, %s, %s::uuid[], %s::bigint[], %s::bytea[], %s::bigint[], true)"
        await connection.execute(ending, (holder, [uuid], [epoch], [None], [0]))
        watching = asyncio.ensure_future(tenant.alter(Selector(ids=[name]), Watch("inbox")))
        with psycopg.connect(url("hostile owner"), autocommit=True) as onlooker:
            query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while onlooker.execute(query.encode()).fetchall() != [(1,)]:
                assert not watching.done()
                await asyncio.sleep(0.01)
        await connection.commit()
    [told] = await watching
    assert (told.before, told.changed) == (JobState.COMPLETED, False)
