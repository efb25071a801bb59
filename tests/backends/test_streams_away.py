"""Valkey is away, hangs, or is set up in a way that loses what it gave out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from servers.valkey import Valkey

from headrace.backends.streams import StreamsBackend
from headrace.errors import ConfigError, Unavailable
from headrace.seam.records import Beat, Cancel, Claim, Delete, KeyUntil, Leased, Reap, Replaces, Selector, Settlement
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row
from headrace.types import JobState
from tests import postgres
from tests.streams import Stores

SHORT = 2 * SECOND
"""A lease, by the real clock."""


@pytest.fixture
def server() -> Iterator[Valkey]:
    """A server that the test may treat as it likes."""
    valkey = Valkey()
    valkey.start()
    try:
        yield valkey
    finally:
        valkey.close()


@pytest_asyncio.fixture
async def store(server: Valkey, tmp_path: Path) -> AsyncIterator[StreamsBackend]:
    """An opened store."""
    backend = Stores(server=lambda: server).connect(tmp_path)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def take(store: StreamsBackend, limit: int = 10, lease: int = LEASE, at: int | None = T0) -> list[Leased]:
    return (await store.claim(Claim("w1", ("q",), limit, lease), at)).jobs


def done(job: Leased) -> Settlement:
    return Settlement(job.id, job.epoch, "w1", JobState.COMPLETED)


def written() -> int:
    """How many leases PostgreSQL has."""
    with psycopg.connect(postgres.server().url()) as connection:
        found = connection.execute(f"SELECT count(*) FROM {postgres.SCHEMA}.leased").fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_valkey_that_evicts_is_refused(server: Valkey, tmp_path: Path, policy: str) -> None:
    server.call("CONFIG", "SET", "maxmemory-policy", policy)
    backend = Stores(server=lambda: server).connect(tmp_path)
    with pytest.raises(ConfigError, match=f"expected maxmemory-policy noeviction, got {policy}"):
        await backend.open()


async def test_operators_are_told_that_it_evicts_by_now(store: StreamsBackend, server: Valkey) -> None:
    assert not [check for level, check, *_ in await store.checks() if level == "fail"]
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert [(level, check) for level, check, *_ in await store.checks() if level == "fail"] == [("fail", "windows")]


async def test_what_needs_no_valkey_goes_on_without_it(store: StreamsBackend, server: Valkey, tmp_path: Path) -> None:
    await store.insert([row(1), row(2), row(3, key="k"), row(4, queue="other")], T0)
    [one, *_] = await take(store)
    server.kill()
    assert await store.finish([done(one)], T0) == [JobState.COMPLETED]
    beginner = store.sibling()
    await beginner.open()
    try:
        await beginner.insert([row(5), row(6, key="new", key_until=KeyUntil.STARTED)], T0)
        await beginner.insert([row(7, key="other", replaces=Replaces.BOTH)], T0)
        assert [one and one.id for one in await beginner.fetch([job_id(5), job_id(1)], at=T0)] == [job_id(5), job_id(1)]
        assert len((await beginner.scan(Selector(queue="q"), at=T0)).records) == 6
        assert sum(one.available for one in (await beginner.stats(T0)).queues) == 6
        [gone] = await beginner.alter(Selector(ids=[job_id(1)]), Delete(), T0)
        assert gone.id == job_id(1)
        with pytest.raises(Unavailable):  # it may be given out at this moment, with what it had
            await beginner.insert([row(8, key="k", replaces=Replaces.BOTH)], T0)
        with pytest.raises(Unavailable):
            await beginner.alter(Selector(ids=[job_id(2)]), Cancel(), T0)
    finally:
        await beginner.close()


async def test_reads_write_nothing(store: StreamsBackend) -> None:
    await store.insert([row(n) for n in range(5)], T0)
    jobs = await take(store, 2)
    await store.renew(Beat("w1", "worker", ("q",), LEASE, [(job.id, job.epoch) for job in jobs]), T0)
    [queue] = (await store.stats(T0 + SECOND)).queues
    assert (queue.available, queue.running, queue.oldest_due_age) == (3, 2, SECOND)
    [told] = await store.fetch([jobs[0].id], at=T0)
    assert told is not None
    assert (told.state, told.epoch, told.worker) == (JobState.RUNNING, jobs[0].epoch, "worker")
    assert told.lease_until == T0 + LEASE
    page = await store.scan(Selector(queue="q"), at=T0)
    assert sorted(one.state.value for one in page.records) == ["available"] * 3 + ["running"] * 2
    page = await store.scan(Selector(states=frozenset([JobState.AVAILABLE])), at=T0)
    assert len(page.records) == 3
    assert written() == 0


async def test_queues_that_nobody_uses_are_forgotten(store: StreamsBackend, server: Valkey) -> None:
    await store.insert([row(1), row(2, queue="kept")], T0)
    assert len(await take(store)) == 1
    assert len((await store.claim(Claim("w1", ("kept",), 10, LEASE), T0)).jobs) == 1
    await store.finish([Settlement(job_id(1), T0, "w1", JobState.COMPLETED)], T0)
    assert {one.queue for one in await store.windows.look(at=T0)} == {"q", "kept"}
    for queue in ("q", "kept"):
        server.call("HSET", f"{store._windows.base}:m:{queue}", "looked", 0)
    await store.reap(Reap(), T0)
    assert {one.queue for one in await store.windows.look(at=T0)} == {"kept"}
    await store.insert([row(3)], T0)
    assert [job.id for job in await take(store)] == [job_id(3)]


async def test_beats_reach_postgresql_while_valkey_hangs(store: StreamsBackend, server: Valkey) -> None:
    await store.insert([row(1), row(2)])
    jobs = await take(store, lease=SHORT, at=None)
    await store.alter(Selector(ids=[jobs[0].id]), Cancel())  # a lease of PostgreSQL from now on
    leases = [(job.id, job.epoch) for job in jobs]
    server.freeze()
    try:
        async with asyncio.timeout(60):
            beats = [await store.renew(Beat("w1", "w1", ("q",), SHORT, leases)) for _ in range(8)]
    finally:
        server.thaw()
    assert [beat.lost for beat in beats] == [[]] * 8
    assert all(beat.cancels == [jobs[0].id] for beat in beats)


async def test_after_a_hang_living_workers_have_time_to_beat(store: StreamsBackend) -> None:
    """The one that reaps was steady by PostgreSQL's account all the while."""
    await store.insert([row(1)], T0)
    [job] = await take(store)
    gap, steady = LEASE // 3, LEASE // 2

    async def beat(at: int, *leases: tuple[bytes, int], holder: str = "w2") -> None:
        await store.renew(Beat(holder, holder, ("q",), LEASE, leases, gap=gap), at)

    async def reaped(at: int) -> int:
        return len(await store.reap(Reap(holder="w2", gap=gap, steady=steady), at))

    late = T0 + 3 * LEASE
    await beat(T0)
    for at in range(T0 + gap, late, gap):  # PostgreSQL hears of these, and Valkey hangs
        await store.truth.renew(Beat("w2", "w2", ("q",), LEASE, gap=gap), at)
    await beat(late)
    assert await reaped(late) == 0
    await beat(late + gap)
    assert await reaped(late + gap) == 0
    await beat(late + 2 * gap)
    assert await reaped(late + 2 * gap) == 1
    assert job.epoch == T0


async def test_a_hang_within_a_reap_takes_nothing_from_living_workers(store: StreamsBackend, server: Valkey) -> None:
    """Valkey was asked whether it is steady, and stands still before it reads what it is asked then."""
    gap, steady = SECOND, SECOND // 2
    await store.insert([row(1)])
    [job] = await take(store, lease=SHORT, at=None)
    leases = [(job.id, job.epoch)]
    script, loop = store._windows.connections.script, asyncio.get_running_loop()

    async def beat(backend: Any) -> None:
        await backend.renew(Beat("w2", "w2", ("q",), SHORT, gap=gap))

    async def late(name: str, *given: Any) -> Any:
        if name != "overdue":
            return await script(name, *given)
        server.freeze()
        asked = asyncio.create_task(script(name, *given))
        until = loop.time() + 1.4 * SHORT / SECOND
        while loop.time() < until:
            await beat(store.truth)
        server.thaw()
        return await asked

    until = loop.time() + 2 * steady / SECOND
    while loop.time() < until:
        await beat(store)
        await store.renew(Beat("w1", "w1", ("q",), SHORT, leases, gap=gap))
    store._windows.connections.script = late  # type: ignore[method-assign]
    assert await store.reap(Reap(holder="w2", gap=gap, steady=steady)) == []
    store._windows.connections.script = script  # type: ignore[method-assign]
    assert (await store.renew(Beat("w1", "w1", ("q",), SHORT, leases, gap=gap))).lost == []
    assert await store.finish([done(job)]) == [JobState.COMPLETED]
