"""Rows that cannot be read, as an edit past the API or a damaged file leaves them: none holds up those behind it, and
each can be listed and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
import pytest
import redis

from headrace.backends.redis.job_layout import JOB
from headrace.backends.sqlite import SqliteBackend
from headrace.seam.policy import Policy
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Claim, Delete, JobKey, Reap, Record, Requeue, Selector, SweepClause, SweepTarget
from headrace.testing.conformance.base import HOUR, LEASE, T0, job_id, row, settle
from headrace.types import JobState
from tests import postgres, valkey

WANT = frozenset(("parameters", "blob", "error", "result"))


class Poison(NamedTuple):
    """What is done to the first job of several."""

    store: str
    name: str
    plant: Callable[[Path], None]
    listed: bool = True
    """Whether anything is left that has an id, and a state."""

    @property
    def told_by_lane(self) -> bool:
        """Whether a claim of a governed queue never meets it: the lane tells tenant and task."""
        return self.store == "sqlite" and self.name.startswith(("a task", "a tenant"))


def sqlite(name: str, *statements: str, listed: bool = True) -> Poison:
    def plant(place: Path) -> None:
        connection = apsw.Connection(str(place / "jobs.db"))
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return Poison("sqlite", name, plant, listed)


def pg(name: str, *statements: str, listed: bool = True) -> Poison:
    def plant(_place: Path) -> None:
        with psycopg.connect(postgres.server().url(), autocommit=True) as connection:
            connection.execute(f"SET search_path TO {postgres.SCHEMA}")
            for statement in statements:
                connection.execute(statement)

    return Poison("postgres", name, plant, listed)


def on_valkey(name: str, change: Callable[[Any], None], listed: bool = True) -> Poison:
    def plant(_place: Path) -> None:
        with redis.Redis.from_url(valkey.server().url()) as client:
            change(client)

    return Poison("valkey", name, plant, listed)


BASE = "headrace{jobs}"
JOBS, STATES, LEASES, LINE = f"{BASE}:j", f"{BASE}:s", f"{BASE}:l", f"{BASE}:r:1:0"


def unreadable_head(client: Any) -> bytes:
    job: bytes = client.hget(JOBS, job_id(1))
    length = int.from_bytes(job[JOB.size - 4 : JOB.size])
    return job[: JOB.size] + b"\xc1" * length + job[JOB.size + length :]


def unknown_queue(client: Any) -> bytes:
    job: bytes = client.hget(JOBS, job_id(1))
    return job[:12] + b"\x00\x00\xff\xff" + job[16:]


FIRST = f"x'{job_id(1).hex()}'"
HIGHEST = 2**63 - 1

WAITING = [
    sqlite("a task that is no UTF-8", f"UPDATE jobs SET task = CAST(x'74ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("a tenant that is no UTF-8", f"UPDATE jobs SET tenant = CAST(x'ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("a key that is no UTF-8", f"UPDATE jobs SET key = CAST(x'ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("a group that is no UTF-8", f"UPDATE jobs SET grp = CAST(x'ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("headers that are no bytes", f"UPDATE jobs SET headers = CAST(x'ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("parameters that are no bytes", f"UPDATE jobs SET parameters = CAST(x'ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("an error that is no bytes", f"UPDATE jobs SET error = CAST(x'ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("the last epoch", f"UPDATE ready SET epoch = {HIGHEST} WHERE id = {FIRST}"),
    sqlite("a job without its row", f"DELETE FROM jobs WHERE id = {FIRST}"),
    sqlite(
        "a job without its row, whose number is a running job's",
        "INSERT INTO running (seq, qid, epoch, attempt, lost, size, lease_until, cancel, holder, gid, tid)"
        f" SELECT seq, lane, 1, 0, 0, 200, {T0 + HOUR}, 0, 'w0', 0, 0 FROM ready WHERE id = {FIRST}",
        f"DELETE FROM jobs WHERE id = {FIRST}",
    ),
]
WAITING += [
    on_valkey("a job cut off", lambda client: client.hset(JOBS, job_id(1), client.hget(JOBS, job_id(1))[:20])),
    on_valkey(
        "a job cut off in its cells", lambda client: client.hset(JOBS, job_id(1), client.hget(JOBS, job_id(1))[:40])
    ),
    on_valkey("an empty job", lambda client: client.hset(JOBS, job_id(1), b"")),
    on_valkey("other bytes", lambda client: client.hset(JOBS, job_id(1), b"\xff" * 200)),
    on_valkey("a head that is no MessagePack", lambda client: client.hset(JOBS, job_id(1), unreadable_head(client))),
    on_valkey("a queue that there is not", lambda client: client.hset(JOBS, job_id(1), unknown_queue(client))),
    on_valkey("no job", lambda client: client.hdel(JOBS, job_id(1))),
    on_valkey("a state cut off", lambda client: client.hset(STATES, job_id(1), b"\x00\x00")),
    on_valkey("an empty state", lambda client: client.hset(STATES, job_id(1), b"")),
    on_valkey("a state that there is not", lambda client: client.hset(STATES, job_id(1), b"\xc8" * 80)),
    on_valkey("the name of no job", lambda client: client.zadd(LINE, {b"ab": 1}), listed=False),
]
WAITING += [
    pg(
        "the last epoch",
        f"UPDATE ready SET epoch = CASE pg_typeof(epoch)::text WHEN 'bigint' THEN {HIGHEST} ELSE 2147483647 END"
        f" WHERE id = '{job_id(1).hex()}'",
    ),
]
RUNNING = [
    sqlite("a task that is no UTF-8", f"UPDATE jobs SET task = CAST(x'74ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("a key that is no UTF-8", f"UPDATE jobs SET key = CAST(x'ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite(
        "a holder that is no UTF-8",
        f"UPDATE running SET holder = CAST(x'ff' AS TEXT) WHERE seq = (SELECT seq FROM jobs WHERE id = {FIRST})",
    ),
    sqlite(
        "lost as often as can be",
        f"UPDATE running SET lost = {HIGHEST} WHERE seq = (SELECT seq FROM jobs WHERE id = {FIRST})",
    ),
    sqlite("a job without its row", f"DELETE FROM jobs WHERE id = {FIRST}", listed=False),
]
RUNNING += [
    pg("lost as often as can be", f"UPDATE leased SET lost = 2147483647 WHERE id = '{job_id(1).hex()}'"),
    on_valkey("a job cut off", lambda client: client.hset(JOBS, job_id(1), client.hget(JOBS, job_id(1))[:20])),
    on_valkey("no job", lambda client: client.hdel(JOBS, job_id(1))),
    on_valkey("a state cut off", lambda client: client.hset(STATES, job_id(1), b"\x01\x00")),
    on_valkey("no state", lambda client: client.hdel(STATES, job_id(1))),
    on_valkey("neither", lambda client: (client.hdel(STATES, job_id(1)), client.hdel(JOBS, job_id(1)))),
    on_valkey("the name of no job", lambda client: client.zadd(LEASES, {b"ab": 1}), listed=False),
]
ENDED = [
    sqlite("a task that is no UTF-8", f"UPDATE jobs SET task = CAST(x'74ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("a key that is no UTF-8", f"UPDATE jobs SET key = CAST(x'ff' AS TEXT) WHERE id = {FIRST}"),
    sqlite("a reason that is no UTF-8", "UPDATE ended SET reason = CAST(x'ff' AS TEXT)"),
    sqlite("a job that lies nowhere", "DELETE FROM ended", listed=False),
]


ENDED += [
    on_valkey("a job cut off", lambda client: client.hset(JOBS, job_id(1), client.hget(JOBS, job_id(1))[:20])),
    on_valkey("no job", lambda client: client.hdel(JOBS, job_id(1))),
    on_valkey("a state cut off", lambda client: client.hset(STATES, job_id(1), b"\x05\x00")),
    on_valkey("no state", lambda client: client.hdel(STATES, job_id(1))),
]


TWICE = [
    pg(
        "a job that lies in two places",
        "INSERT INTO leased (lease_until, run_at, id, qid, epoch, attempt, lost, size, priority, keyed, holder)"
        f" SELECT {T0 + HOUR}, run_at, id, qid, 1, 0, 0, size, priority, keyed, 'w0' FROM ready"
        f" WHERE id = '{job_id(1).hex()}'",
        listed=False,
    ),
    sqlite(
        "a job that lies in two places",
        "INSERT INTO running (seq, qid, epoch, attempt, lost, size, lease_until, cancel, holder, gid, tid)"
        f" SELECT seq, lane, 1, 0, 0, size, {T0 + HOUR}, 0, 'w0', 0, 0 FROM ready WHERE id = {FIRST}",
    ),
]


def each(poisons: list[Poison]) -> Any:
    return pytest.mark.parametrize("poison", poisons, ids=lambda poison: f"{poison.store}: {poison.name}")


@asynccontextmanager
async def opened(poison: Poison, place: Path) -> AsyncIterator[Backend]:
    store: Backend
    match poison.store:
        case "sqlite":
            store = SqliteBackend(place / "jobs.db", durability="normal")
        case "postgres":
            store = postgres.stores.connect(place)
        case _:
            store = valkey.stores.connect(place)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=["plain", "governed"])
def governed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "governed")


async def govern(store: Backend, queue: str = "q") -> None:
    assert store.policies is not None
    assert await store.policies.save(Policy(queue=queue, tenant_batch=2), T0)


def numbers(jobs: Any) -> Iterator[int]:
    return (int.from_bytes(job.id[2:8]) for job in jobs)


async def found(store: Backend, at: int = T0) -> Record | None:
    """The first job, as ``fetch`` and ``scan`` tell it."""
    [record] = await store.fetch([job_id(1)], WANT, at)
    page = await store.scan(Selector(), at=at)
    assert [one.id for one in page.records if one.id == job_id(1)] == ([] if record is None else [job_id(1)])
    if record is not None and (record.finished_at is not None or record.state is not JobState.FAILED):
        filtered = await store.scan(Selector(states=frozenset((record.state,)), queue=record.queue), at=at)
        assert job_id(1) in [one.id for one in filtered.records]
    return record


async def gone(store: Backend, at: int = T0) -> None:
    """It can be deleted, and nothing is left of it."""
    [answer] = await store.alter(Selector(ids=[job_id(1)]), Delete(), at)
    assert answer.after is None
    assert await found(store, at) is None
    [queue] = (await store.stats(at)).queues
    assert queue.failed == 0
    assert {place.count for place in (await store.stats(at)).kept if place.target == "failed"} <= {0}


@each(WAITING)
async def test_a_claim_sets_it_aside_and_takes_those_behind_it(poison: Poison, governed: bool, tmp_path: Path) -> None:
    async with opened(poison, tmp_path) as store:
        if governed:
            await govern(store)
        await store.insert([row(1, key="k"), *(row(n) for n in range(2, 6))], T0)
        poison.plant(tmp_path)
        claimed = await store.claim(Claim("w1", ("q",), 100, LEASE), T0)
        expected = [2, 3, 4, 5] if poison.listed else [1, 2, 3, 4, 5]
        assert list(numbers(claimed.jobs))[-len(expected) :] == expected
        states = await store.finish([settle(job) for job in claimed.jobs], T0)
        assert states == [JobState.COMPLETED] * len(claimed.jobs)
        record = await found(store)
        if poison.listed and not (governed and poison.told_by_lane):
            assert record is not None
            assert (record.state, record.reason) == (JobState.FAILED, "corrupt")
            assert [q.failed for q in (await store.stats(T0)).queues] == [1]
            await gone(store)
        assert [q.available for q in (await store.stats(T0)).queues] == [0]
        [again] = await store.insert([row(6, key="k")], T0)
        assert again.id == job_id(6)


@each(WAITING)
async def test_one_among_others_does_not_keep_a_turn_from_ending_jobs(poison: Poison, tmp_path: Path) -> None:
    async with opened(poison, tmp_path) as store:
        assert store.finish_and_claim is not None
        await store.insert([row(7, priority=-1)], T0)
        claimed = await store.claim(Claim("w1", ("q",), 1, LEASE), T0)
        await store.insert([row(1), row(2)], T0)
        poison.plant(tmp_path)
        states, claimed = await store.finish_and_claim(
            [settle(job) for job in claimed.jobs], Claim("w1", ("q",), 9, LEASE), T0
        )
        assert states == [JobState.COMPLETED]
        assert list(numbers(claimed.jobs)) == ([2] if poison.listed else [1, 2])


@each(WAITING)
async def test_before_it_is_due_it_can_be_listed_and_deleted(poison: Poison, governed: bool, tmp_path: Path) -> None:
    async with opened(poison, tmp_path) as store:
        if governed:
            await govern(store)
        await store.insert([row(1, delay=HOUR), row(2, delay=HOUR)], T0)
        poison.plant(tmp_path)
        record = await found(store)
        await store.fetch([JobKey("q", "k")], WANT, T0)
        if record is not None:
            await gone(store)
        claimed = await store.claim(Claim("w1", ("q",), 100, LEASE), T0 + 2 * HOUR)
        assert list(numbers(claimed.jobs)) == [2]


@each(RUNNING)
async def test_a_reap_takes_back_the_others(poison: Poison, tmp_path: Path) -> None:
    later = T0 + 2 * LEASE
    async with opened(poison, tmp_path) as store:
        await store.insert([row(1, key="k"), row(2), row(3)], T0)
        await store.claim(Claim("w1", ("q",), 100, LEASE), T0)
        poison.plant(tmp_path)
        reaped = await store.reap(Reap(), later)
        assert set(numbers(one for one in reaped if one.state is JobState.AVAILABLE)) >= {2, 3}
        claimed = await store.claim(Claim("w1", ("q",), 100, LEASE), later)
        assert set(numbers(claimed.jobs)) >= {2, 3}
        await store.finish([settle(job) for job in claimed.jobs], later)
        record = await found(store, later)
        if poison.listed:
            assert record is not None
            assert (record.state, record.reason) == (
                JobState.FAILED,
                "lost" if poison.store == "postgres" else "corrupt",
            )
            await gone(store, later)
        if poison.name != "neither":
            assert [q.running for q in (await store.stats(later)).queues] == [0]


@each(RUNNING)
async def test_jobs_that_run_beside_it_are_renewed_and_end(poison: Poison, tmp_path: Path) -> None:
    async with opened(poison, tmp_path) as store:
        await store.insert([row(1, key="k"), row(2), row(3)], T0)
        jobs = (await store.claim(Claim("w1", ("q",), 100, LEASE), T0)).jobs
        poison.plant(tmp_path)
        beat = Beat("w1", "worker", ("q",), LEASE, [(job.id, job.epoch) for job in jobs], census=True)
        renewed = await store.renew(beat, T0)
        assert {job for job, _ in renewed.lost} <= {job_id(1)}
        assert {job_id(2), job_id(3)} <= {job for job, _, _ in renewed.held}
        assert await store.finish([settle(job) for job in jobs[1:]], T0) == [JobState.COMPLETED] * 2


@each(ENDED)
async def test_it_is_swept_with_the_others(poison: Poison, tmp_path: Path) -> None:
    later = T0 + 2 * HOUR
    async with opened(poison, tmp_path) as store:
        await store.insert([row(1, key="k"), row(2)], T0)
        jobs = (await store.claim(Claim("w1", ("q",), 100, LEASE), T0)).jobs
        await store.finish([settle(job, JobState.FAILED, reason="failed") for job in jobs], T0)
        poison.plant(tmp_path)
        record = await found(store, later)
        assert record is not None
        assert record.state is JobState.FAILED
        await store.sweep(SweepClause(target=SweepTarget.FAILED, older_than=HOUR), later)
        if poison.listed:
            assert await found(store, later) is None
        else:
            await store.alter(Selector(ids=[job_id(1)]), Delete(), later)
            assert await found(store, later) is None


@each([poison for poison in WAITING if poison.listed and "row" not in poison.name])
async def test_a_dead_letter_that_was_set_aside_can_be_tried_again(poison: Poison, tmp_path: Path) -> None:
    async with opened(poison, tmp_path) as store:
        await store.insert([row(1)], T0)
        poison.plant(tmp_path)
        await store.claim(Claim("w1", ("q",), 100, LEASE), T0)
        [answer] = await store.alter(Selector(ids=[job_id(1)]), Requeue(), T0)
        assert answer.after is JobState.AVAILABLE
        for _ in range(2):
            await store.claim(Claim("w1", ("q",), 100, LEASE), T0)
            assert (await found(store)) is not None


@each([poison for poison in WAITING if poison.listed])
async def test_one_that_is_alone_does_not_keep_a_claim_busy(poison: Poison, tmp_path: Path) -> None:
    async with opened(poison, tmp_path) as store:
        await store.insert([row(1)], T0)
        poison.plant(tmp_path)
        for _ in range(2):
            claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
            assert claimed.jobs == []
        assert claimed.next_in is None


@each([poison for poison in WAITING if poison.listed and "group" not in poison.name])
async def test_of_a_group_the_next_is_called(poison: Poison, tmp_path: Path) -> None:
    async with opened(poison, tmp_path) as store:
        await store.insert([row(3, group="g"), row(1, group="g"), row(2, group="g")], T0)
        poison.plant(tmp_path)
        for _ in range(3):
            claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
            await store.finish([settle(job) for job in claimed.jobs], T0)
        records = await store.fetch([job_id(2), job_id(3)], at=T0)
        assert [record and record.state for record in records] == [JobState.COMPLETED] * 2


@each(TWICE)
async def test_one_that_lies_in_two_places_stays_with_its_holder(poison: Poison, tmp_path: Path) -> None:
    async with opened(poison, tmp_path) as store:
        await store.insert([row(1), row(2)], T0)
        poison.plant(tmp_path)
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
        assert list(numbers(claimed.jobs)) == [2]
        [record] = await store.fetch([job_id(1)], at=T0)
        assert record is not None
        assert record.state is JobState.RUNNING
