"""What somebody has edited in either server stops nothing else: it is set aside, or made anew from PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
import redis

from headrace.backends.streams import StreamsBackend
from headrace.seam.records import Beat, Claim, Leased, Reap, Reschedule, Selector, Settlement
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row
from headrace.types import JobState
from tests import postgres, valkey
from tests.streams import stores

HIGHEST = 2**63 - 1
Damage = Callable[["redis.Redis[bytes]", str], Any]


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[StreamsBackend]:
    """An opened store."""
    backend = stores.connect(tmp_path)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def take(store: StreamsBackend, at: int = T0, limit: int = 10) -> list[Leased]:
    return (await store.claim(Claim("w1", ("q",), limit, LEASE), at)).jobs


def done(job: Leased) -> Settlement:
    return Settlement(job.id, job.epoch, "w1", JobState.COMPLETED)


def edit(statement: str) -> None:
    with psycopg.connect(postgres.server().url()) as connection:
        connection.execute(f"SET search_path = {postgres.SCHEMA}")
        connection.execute(statement)  # type: ignore[call-overload]


def damage(store: StreamsBackend, how: Damage) -> None:
    with redis.Redis.from_url(valkey.server().url()) as client:
        how(client, store._windows.base)


def give_out_with(epoch: int) -> str:
    return f"UPDATE ready SET epoch = {epoch} WHERE id = '{job_id(1).hex()}'"


@pytest.mark.parametrize("epoch", [HIGHEST, -HIGHEST - 1])
async def test_a_job_with_an_epoch_beyond_all_clocks_is_set_aside(store: StreamsBackend, epoch: int) -> None:
    await store.insert([row(1), row(2), row(3)], T0)
    edit(give_out_with(epoch))
    jobs = await take(store)
    assert [job.id for job in jobs] == [job_id(2), job_id(3)]
    assert await store.finish([done(job) for job in jobs], T0) == [JobState.COMPLETED] * 2
    [record] = await store.fetch([job_id(1)], at=T0)
    assert record is not None
    assert (record.state, record.reason) == (JobState.FAILED, "corrupt")


async def test_an_epoch_that_scripts_cannot_count_is_counted_by_postgresql(store: StreamsBackend) -> None:
    await store.insert([row(1)], T0)
    edit(give_out_with(2**60))
    [job] = await take(store)
    assert job.epoch == 2**60 + 1
    assert await store.finish([done(job)], T0) == [JobState.COMPLETED]


@pytest.mark.parametrize("epoch", [HIGHEST, -HIGHEST - 1])
async def test_one_that_is_edited_while_it_is_out_keeps_no_other_from_coming_back(
    store: StreamsBackend, epoch: int
) -> None:
    await store.insert([row(1), row(2)], T0)
    assert len(await take(store)) == 2
    edit(give_out_with(epoch))
    reaped = await store.reap(Reap(), T0 + LEASE)
    assert [one.id for one in reaped] == [job_id(2)]
    await take(store, T0 + LEASE)
    [record] = await store.fetch([job_id(1)], at=T0 + LEASE)
    assert record is not None
    assert (record.state, record.reason) == (JobState.FAILED, "corrupt")


async def test_one_that_lies_in_two_places_keeps_no_other_from_coming_back(store: StreamsBackend) -> None:
    await store.insert([row(1), row(2)], T0)
    assert len(await take(store)) == 2
    edit(
        "INSERT INTO leased (lease_until, run_at, id, qid, epoch, attempt, lost, size, priority, keyed, holder)"
        f" SELECT {T0 + 1}, run_at, id, qid, 1, 0, 0, size, priority, keyed, 'w0' FROM ready"
        f" WHERE id = '{job_id(1).hex()}'"
    )
    reaped = await store.reap(Reap(), T0 + LEASE)
    assert sorted(one.id for one in reaped) == [job_id(1), job_id(2)]


def stream(base: str) -> str:
    return f"{base}:s:0:q"


def spoil_entry(client: redis.Redis[bytes], base: str) -> None:
    """The first of the stream has other fields."""
    [_, *rest] = client.xrange(stream(base))
    client.xtrim(stream(base), maxlen=0)
    client.xadd(stream(base), {"x": "y"})
    for _, fields in rest:
        client.xadd(stream(base), fields)


DAMAGES: dict[str, Damage] = {
    "a delayed job that is not there": lambda client, base: client.hdel(f"{base}:e:q", job_id(4)),
    "a delayed job that is garbage": lambda client, base: client.hset(f"{base}:e:q", job_id(4), b"\xc1"),
    "a delayed job that is cut off": lambda client, base: client.hset(f"{base}:e:q", job_id(4), b"\x91\x01"),
    "an entry with other fields": spoil_entry,
    "a stream without its group": lambda client, base: client.xgroup_destroy(stream(base), "headrace"),
    "a stream that is none": lambda client, base: (client.delete(stream(base)), client.set(stream(base), "x")),
    "a band that is none": lambda client, base: client.zadd(f"{base}:b:q", {"abc": 1}),
    "a delayed job that is due never": lambda client, base: client.zadd(f"{base}:d:q", {job_id(9): float("inf")}),
    "an epoch that is none": lambda client, base: client.xadd(
        stream(base), {"i": job_id(9), "a": 1, "w": 1, "e": "x", "b": 0, "d": b"\x90"}
    ),
}


@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES)
async def test_a_window_that_cannot_be_read_is_made_anew(store: StreamsBackend, how: Damage) -> None:
    await store.insert([row(0)], T0)
    [out] = await take(store)
    await store.insert([*(row(n) for n in range(1, 4)), row(4, delay=SECOND), row(5, queue="other")], T0)
    damage(store, how)
    claimed = await store.claim(Claim("w1", ("q", "other"), 10, LEASE), T0 + SECOND)
    found = {job.id: job for job in claimed.jobs}
    async with asyncio.timeout(60):
        while len(found) < 5:
            found |= {job.id: job for job in await take(store, T0 + SECOND)}
    assert sorted(found) == [job_id(n) for n in range(1, 6)]
    assert not any(job.begun for job in found.values())
    states = await store.finish([done(job) for job in (out, *found.values())], T0 + SECOND)
    assert states == [JobState.COMPLETED] * 6


SPOILT: dict[str, bytes] = {
    "garbage": b"\xc1",
    "another thing": b"\x91\x01",
    "an epoch beyond all": b"\x95\xb39223372036854775808\xa2w1\xa10\xa30-1\xa10",
}


@pytest.mark.parametrize("value", SPOILT.values(), ids=SPOILT)
async def test_a_delivery_that_cannot_be_read_is_taken_back_at_once(store: StreamsBackend, value: bytes) -> None:
    """Under an epoch above the one that it had, so that the outcome of the run of before counts no more."""
    await store.insert([row(1), row(2), row(3)], T0)
    [one, two, three] = await take(store)
    damage(store, lambda client, base: client.hset(f"{base}:h:q", one.id, value))
    leases = [(job.id, job.epoch) for job in (one, two)]
    assert (await store.renew(Beat("w1", "w1", ("q",), LEASE, leases, census=True), T0 + 1)).lost == leases[:1]
    [reaped] = await store.reap(Reap(), T0 + 1)
    assert (reaped.id, reaped.lost) == (one.id, 1)
    [again] = await take(store, T0 + 1)
    assert again.begun
    assert again.epoch > one.epoch
    assert await store.finish([done(one), done(two), done(again)], T0 + 1) == [None, *[JobState.COMPLETED] * 2]
    assert len(await store.reap(Reap(), T0 + LEASE)) == 1
    assert three.id


@pytest.mark.parametrize("value", SPOILT.values(), ids=SPOILT)
async def test_the_outcome_of_one_that_cannot_be_read_counts_and_it_goes(store: StreamsBackend, value: bytes) -> None:
    await store.insert([row(1), row(2)], T0)
    jobs = await take(store)
    damage(store, lambda client, base: client.hset(f"{base}:h:q", jobs[0].id, value))
    assert await store.finish([done(job) for job in jobs], T0) == [JobState.COMPLETED] * 2
    [state] = await store.windows.look(["q"], at=T0)
    assert state.pending == 0


@pytest.mark.parametrize("job", [b"\xc1", b"\x90", b"\x01"])
async def test_a_job_that_cannot_be_read_when_it_is_given_out_is_given_back(store: StreamsBackend, job: bytes) -> None:
    await store.insert([row(0)], T0)
    await take(store)
    await store.insert([row(1), row(2)], T0)

    def spoil(client: redis.Redis[bytes], base: str) -> None:
        [*_, (first, fields), (second, kept)] = client.xrange(stream(base))
        client.xdel(stream(base), first, second)
        client.xadd(stream(base), {**fields, b"d": job})
        client.xadd(stream(base), kept)

    damage(store, spoil)
    claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
    assert [job.id for job in claimed.jobs] == [job_id(2)]
    assert claimed.doubtful
    held = (await store.renew(Beat("w1", "w1", ("q",), LEASE, census=True), T0)).held
    [(_, epoch, begun)] = [one for one in held if one[0] == job_id(1)]
    assert not begun
    back = Settlement(job_id(1), epoch, "w1", JobState.AVAILABLE, delay=None, unbegun=True)
    assert await store.finish([back], T0) == [JobState.AVAILABLE]
    [again] = await take(store)
    assert (again.id, again.begun, again.lost) == (job_id(1), False, 0)


async def test_a_job_whose_place_cannot_be_read_can_be_put_off(store: StreamsBackend) -> None:
    await store.insert([row(1)], T0)
    await take(store, limit=1)
    await store.insert([row(2), row(3)], T0)
    damage(store, lambda client, base: client.hset(f"{base}:k:q", job_id(2), "x"))
    await store.alter(Selector(ids=[job_id(2)]), Reschedule(delay=SECOND), T0)
    assert [job.id for job in await take(store)] == [job_id(3)]
    assert [job.id for job in await take(store, T0 + SECOND)] == [job_id(2)]
