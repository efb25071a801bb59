"""One Valkey is in charge of a store: what another one gives out counts for nothing; and two stores may share one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from servers.sentinel import Sentinel
from servers.valkey import Valkey

from headrace import Streams
from headrace.api.connection import open_backend
from headrace.backends.streams import StreamsBackend
from headrace.core.driving import drive
from headrace.errors import Unavailable
from headrace.seam.records import Beat, Claim, Leased, Reap, Settlement
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row
from headrace.types import JobState
from tests import postgres, valkey
from tests.streams import stores

LATER = T0 + 11 * SECOND
"""Epochs of now are above a floor that was raised at first."""
GONE = LATER + 31 * SECOND


@pytest.fixture
def other() -> Iterator[Valkey]:
    """A second Valkey, as a deployment with another URL has it, or what a failover leaves behind."""
    server = Valkey()
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[StreamsBackend]:
    """An opened store."""
    backend = stores.connect(tmp_path)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@pytest_asyncio.fixture
async def newer(store: StreamsBackend, other: Valkey, tmp_path: Path) -> AsyncIterator[StreamsBackend]:
    """The same store with the second Valkey."""
    backend = stores.beside(tmp_path, other)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def take(store: StreamsBackend, at: int, holder: str = "w1", limit: int = 10) -> list[Leased]:
    return (await store.claim(Claim(holder, ("q",), limit, LEASE), at)).jobs


def done(job: Leased, holder: str = "w1") -> Settlement:
    return Settlement(job.id, job.epoch, holder, JobState.COMPLETED)


async def test_the_valkey_that_was_replaced_gives_out_nothing_that_counts(
    store: StreamsBackend, newer: StreamsBackend
) -> None:
    await store.insert([row(n) for n in range(4)], T0)
    assert len(await take(store, T0, limit=1)) == 1
    await newer.insert([row(4)], T0)
    assert len(await take(newer, T0, "new", limit=1)) == 1
    late = await take(store, LATER, limit=2)  # its window has them yet, and it was not told
    assert await store.finish([done(job) for job in late], LATER) == [None] * len(late)
    with pytest.raises(Unavailable, match="another Valkey gives out the jobs of this store"):
        await take(store, LATER)
    rest = await take(newer, LATER, "new")
    assert await newer.finish([done(job, "new") for job in rest], LATER) == [JobState.COMPLETED] * len(rest)
    assert {job.id for job in rest} >= {job.id for job in late}


async def test_what_the_replaced_one_gave_out_is_lost_by_its_beats(
    store: StreamsBackend, newer: StreamsBackend
) -> None:
    await store.insert([row(1), row(2)], T0)
    jobs = await take(store, T0)
    await take(newer, T0, "new", limit=1)
    await store.reap(Reap(), LATER)
    leases = [(job.id, job.epoch) for job in jobs]
    assert sorted((await store.renew(Beat("w1", "w1", ("q",), LEASE, leases), LATER)).lost) == sorted(leases)


async def test_jobs_are_not_put_into_the_window_of_the_replaced_one(
    store: StreamsBackend, newer: StreamsBackend
) -> None:
    """So no job that may start only once is given out by both."""
    await store.insert([row(1)], T0)
    await take(store, T0)
    await take(newer, T0, "new")
    await store.insert([row(2)], LATER)
    [state] = await store.windows.look(["q"], at=LATER)
    assert state.waiting == 0
    assert [job.id for job in await take(newer, LATER, "new")] == [job_id(1), job_id(2)][1:]


async def test_the_first_one_takes_over_again_once_the_other_is_gone(
    store: StreamsBackend, newer: StreamsBackend
) -> None:
    await store.insert([row(1), row(2)], T0)
    await take(store, T0, limit=1)
    [one] = await take(newer, LATER, "new", limit=1)
    with pytest.raises(Unavailable):
        await take(store, LATER + SECOND)
    await newer.reap(Reap(), LATER + 5 * SECOND)
    with pytest.raises(Unavailable):
        await take(store, GONE + SECOND)  # it was seen meanwhile
    jobs = await take(store, GONE + 5 * SECOND)
    assert sorted(job.id for job in jobs) == [job_id(1), job_id(2)]
    assert await newer.finish([done(one, "new")], GONE + 5 * SECOND) == [None]
    assert await store.finish([done(job) for job in jobs], GONE + 5 * SECOND) == [JobState.COMPLETED] * 2


async def test_a_job_from_the_replaced_one_is_not_completed_in_a_transaction(
    store: StreamsBackend, newer: StreamsBackend
) -> None:
    await store.insert([row(1)], T0)
    [job] = await take(store, LATER)
    await newer.windows.look(at=T0)
    with psycopg.connect(postgres.server().url()) as connection:
        joined = store.tx.join(connection)
        assert joined.blocks
        assert not drive(joined.complete(done(job)))
        connection.rollback()
    [again] = await take(newer, LATER, "new")
    with psycopg.connect(postgres.server().url()) as connection:
        joined = newer.tx.join(connection)
        assert joined.blocks
        assert drive(joined.complete(done(again, "new")))


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "asked to"])
async def test_a_failover_of_valkey_is_a_loss_of_its_deliveries(*, kill: bool) -> None:
    """The replica may not have heard of the last of them."""
    servers = Sentinel(down_after=1_500)
    store = open_backend(Streams(pg=f"{postgres.server().url()}?schema=followed", valkey=servers.url()).url)
    try:
        await store.open()
        await store.insert([row(1), row(2)], T0)
        [before] = (await store.claim(Claim("w1", ("q",), 1, LEASE), T0)).jobs
        await asyncio.to_thread(servers.catch_up)
        await asyncio.to_thread(servers.failover, kill=kill)
        jobs: list[Leased] = []
        async with asyncio.timeout(60):
            while len(jobs) < 2:
                with suppress(Unavailable):
                    jobs += (await store.claim(Claim("w2", ("q",), 2, LEASE), T0)).jobs
                await asyncio.sleep(0.02)
        assert await store.finish([done(before)], T0) == [None]
        assert await store.finish([done(job, "w2") for job in jobs], T0) == [JobState.COMPLETED] * 2
    finally:
        await store.close()
        servers.close()
        with psycopg.connect(postgres.server().url()) as connection:
            connection.execute("DROP SCHEMA IF EXISTS followed CASCADE")


async def test_two_stores_on_one_valkey_do_not_meet(store: StreamsBackend, tmp_path: Path) -> None:
    beside = stores.beside(tmp_path, valkey.server(), schema="beside")
    await beside.open()
    try:
        await store.insert([row(1)], T0)
        await beside.insert([row(2)], T0)
        assert [job.id for job in await take(store, T0)] == [job_id(1)]
        assert [job.id for job in await take(beside, T0)] == [job_id(2)]
        await store.insert([row(3)], T0)
        await beside.insert([row(4)], T0)
        assert [job.id for job in await take(store, T0)] == [job_id(3)]
        assert [job.id for job in await take(beside, T0)] == [job_id(4)]
    finally:
        await beside.close()
        with psycopg.connect(postgres.server().url()) as connection:
            connection.execute("DROP SCHEMA beside CASCADE")
