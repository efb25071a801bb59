"""Valkey servers that are full, or set up in other ways than ours: Headrace works there, or says what it needs."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from servers.valkey import Valkey

from headrace import App, EventKind, Queue
from headrace.api.connection import open_backend
from headrace.errors import ConfigError, StoreFull, Unavailable
from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Beat,
    Cancel,
    Claim,
    Delete,
    InsertStatus,
    JobKey,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Selector,
    SweepClause,
    SweepTarget,
)
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row, settle
from headrace.types import JobState
from tests.valkey import every_operation
from tests.worker.conftest import FAST, Told, working

CLAIM = Claim("w1", ("q",), 10, LEASE)


@pytest.fixture(scope="module")
def shared() -> Iterator[Valkey]:
    valkey = Valkey(None, {"enable-debug-command": "local"})
    valkey.start()
    yield valkey
    valkey.close()


@pytest.fixture
def valkey(shared: Valkey) -> Iterator[Valkey]:
    """A blank server that the test may set up as it likes."""
    usual = {
        "maxmemory": 0, "maxmemory-policy": "noeviction", "maxclients": 1_000, "min-replicas-to-write": 0, "timeout": 0,
        "save": "", "stop-writes-on-bgsave-error": "yes",
    }  # fmt: skip
    for name, value in usual.items():
        shared.call("CONFIG", "SET", name, value)
    shared.call("FLUSHALL")
    yield shared
    shared.call("CONFIG", "SET", "maxmemory", 0)


@pytest_asyncio.fixture
async def store(valkey: Valkey) -> AsyncIterator[Backend]:
    backend = open_backend(valkey.url())
    await backend.open()
    yield backend
    await backend.close()


def digest(valkey: Valkey) -> bytes:
    """Of all that the server holds."""
    found: bytes = valkey.call("DEBUG", "DIGEST")
    return found


# -- eviction


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"])
async def test_a_server_that_would_throw_jobs_away_is_refused(valkey: Valkey, policy: str) -> None:
    valkey.call("CONFIG", "SET", "maxmemory-policy", policy)
    backend = open_backend(valkey.url())
    with pytest.raises(ConfigError, match=rf"noeviction, got {policy}: .*CONFIG SET maxmemory-policy noeviction"):
        await backend.open()
    await backend.close()
    assert valkey.call("DBSIZE") == 0


async def test_who_is_refused_leaves_no_connection_behind(valkey: Valkey) -> None:
    valkey.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    backend = open_backend(valkey.url())
    try:
        with pytest.raises(ConfigError):
            await backend.open()
        async with asyncio.timeout(60):
            while valkey.call("CLIENT", "LIST").count(b"\n") > 1:
                await asyncio.sleep(0.01)
    finally:
        await backend.close()


# -- a full memory


async def fill(valkey: Valkey, backend: Backend) -> int:
    """Insert jobs, and let the server have no more memory than these take: how many they are."""
    for first in range(1_000, 3_000, 500):
        await backend.insert([row(first + n, cells={"blob": b"x" * 1_000}) for n in range(500)], T0)
    full(valkey)
    return 2_000


def full(valkey: Valkey) -> None:
    valkey.call("CONFIG", "SET", "maxmemory", int(valkey.info("memory")["used_memory"]) - 300_000)


async def test_a_full_store_refuses_jobs_and_takes_nothing_by_halves(valkey: Valkey, store: Backend) -> None:
    count = await fill(valkey, store)
    before = digest(valkey)
    rows = [row(1, key="k", reply_to="me"), row(2, queue="new"), row(3, delay=SECOND, expires=LEASE), row(1_000)]
    for batch in (rows, rows[:1], rows[1:2], [row(n) for n in range(900)]):
        with pytest.raises(StoreFull, match=r"maxmemory.*Nothing was stored; work goes on by itself") as told:
            await store.insert(batch, T0)
        assert "script" not in str(told.value)
        assert digest(valkey) == before
    assert await store.fetch([job_id(1), job_id(2), job_id(3), JobKey("q", "k")], at=T0) == [None] * 4
    [queue] = (await store.stats(T0)).queues
    assert queue.available == count


async def test_a_batch_is_stored_whole_or_not_at_all(valkey: Valkey, store: Backend) -> None:
    """Around the moment in which the memory is full, too."""
    await store.insert([row(1)], T0)
    valkey.call("CONFIG", "SET", "maxmemory", int(valkey.info("memory")["used_memory"]) + 3_000_000)
    kept: dict[int, bool] = {}
    for first in range(1_000, 5_000, 100):
        batch = [row(first + n, key=f"k{first + n}", cells={"blob": bytes(2_000)}) for n in range(100)]
        try:
            kept[first] = {answer.status for answer in await store.insert(batch, T0)} == {InsertStatus.NEW}
        except StoreFull:
            kept[first] = False
    assert set(kept.values()) == {True, False}
    for first, whole in kept.items():
        records = await store.fetch([job_id(first + n) for n in range(100)], at=T0)
        assert [record is not None for record in records] == [whole] * 100
    assert (await store.stats(T0)).queues[0].available == 1 + 100 * sum(kept.values())


async def test_a_full_store_ends_jobs_and_takes_new_ones_once_there_is_room(valkey: Valkey, store: Backend) -> None:
    await store.insert([row(n, key=f"k{n}") for n in range(20)], T0)
    await fill(valkey, store)
    assert store.finish_and_claim is not None

    jobs = (await store.claim(CLAIM, T0)).jobs
    assert len(jobs) == 10
    beat = Beat("w1", "w1", ("q",), LEASE, [(job.id, job.epoch) for job in jobs])
    assert not (await store.renew(beat, T0 + SECOND)).lost
    states = await store.finish(
        [
            settle(jobs[0], result=b"r" * 1_000, result_ttl=SECOND),
            settle(jobs[1], JobState.FAILED, reason="no", error=b"e" * 1_000),
            settle(jobs[2], JobState.AVAILABLE, delay=SECOND, cells={"blob": b"y" * 2_000}, failed_attempt=True),
            settle(jobs[3], JobState.CANCELLED, reason="no"),
            settle(jobs[4], spawn=[row(500)]),
        ],
        T0,
    )
    assert states == [
        JobState.COMPLETED, JobState.FAILED, JobState.AVAILABLE, JobState.CANCELLED, JobState.COMPLETED,
    ]  # fmt: skip
    assert await store.fetch([job_id(500)], at=T0) != [None]
    _, claimed = await store.finish_and_claim([settle(jobs[5])], CLAIM, T0)
    assert len(claimed.jobs) == 10
    assert len(await store.reap(Reap(), T0 + 2 * LEASE)) == 14
    for number, change in [
        (15, Pause()), (15, Resume()), (15, Reprioritise(1)), (15, Reschedule(9)), (15, Move("other")),
        (15, Cancel()), (15, Requeue()), (16, Delete()),
    ]:  # fmt: skip
        [altered] = await store.alter(Selector(ids=[job_id(number)]), change, T0)
        assert altered.changed, change
    await store.policies.pause(QueuePause("q"))
    await store.policies.pause(QueuePause("q", paused=False))
    assert len(await store.alter(Selector(queue="q"), Cancel(), T0)) == 1_000
    full(valkey)
    with pytest.raises(StoreFull):
        await store.insert([row(7_000)], T0)

    clause = SweepClause(target=SweepTarget.CANCELLED, max_count=0)
    assert (await store.sweep(clause, T0)).removed == 1_000
    assert (await store.insert([row(7_000)], T0))[0].status is InsertStatus.NEW


async def test_a_full_server_lets_workers_in(valkey: Valkey, store: Backend) -> None:
    """Who else would empty it? Not even the scripts are known there."""
    await fill(valkey, store)
    valkey.call("SCRIPT", "FLUSH")
    other = store.sibling()
    await other.open()
    jobs = (await other.claim(CLAIM, T0)).jobs
    assert await other.finish([settle(job) for job in jobs], T0) == [JobState.COMPLETED] * 10
    await other.close()


async def test_enqueue_on_a_full_store_is_refused_at_once_until_workers_make_room(valkey: Valkey) -> None:
    """Back-pressure: no patience helps who fills the store, and nobody has to connect again."""
    keep_none = {"every": "50ms", "completed": {"count": 0}}
    app = App(valkey.url(), worker=FAST | {"name": "random"}, patience="1h", retention=keep_none)
    queue = Queue[str, None]("other", app.client)
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work(text: str) -> None: ...

    async with app:
        await app.client.insert([work.job(random.Random(n).randbytes(20_000).hex()) for n in range(200)])
        full(valkey)
        async with asyncio.timeout(60):
            for refused in (work.enqueue("x"), app.client.insert([work.job("x")]), queue.enqueue("id-1", "x")):
                with pytest.raises(StoreFull):
                    await refused
        async with working(app):
            await told.wait_for(EventKind.COMPLETED, 200)
            async with asyncio.timeout(60):
                while True:
                    try:
                        await work.enqueue("x")
                        break
                    except StoreFull:
                        await asyncio.sleep(0.05)
            await told.wait_for(EventKind.COMPLETED, 201)
    assert EventKind.FAILED not in told.kinds()


# -- other refusals


WRITES: dict[str, Callable[[Backend], Awaitable[object]]] = {
    "insert": lambda backend: backend.insert([row(2)], T0),
    "claim": lambda backend: backend.claim(CLAIM, T0),
    "renew": lambda backend: backend.renew(Beat("w1", "w1", ("q",), LEASE), T0),
    "reap": lambda backend: backend.reap(Reap(), T0 + LEASE),
    "alter": lambda backend: backend.alter(Selector(ids=[job_id(1)]), Cancel(), T0),
    "sweep": lambda backend: backend.sweep(SweepClause(target=SweepTarget.CANCELLED, max_count=0), T0),
}


async def refuses(valkey: Valkey, store: Backend, why: str, *, reads: bool = True) -> None:
    """Every write is turned down with this reason, and leaves nothing behind; reading goes on, or not."""
    before = digest(valkey)
    for name, call in WRITES.items():
        with pytest.raises(Unavailable, match=why):
            raise AssertionError(f"{name} answered {await call(store)}")
        assert digest(valkey) == before, name
    if not reads:
        with pytest.raises(Unavailable, match=why):
            await store.fetch([job_id(1)], at=T0)
        return
    assert (await store.stats(T0)).queues
    assert await store.fetch([job_id(1)], at=T0) != [None]


async def prepared(store: Backend) -> None:
    await store.insert([row(1), row(3), row(4)], T0)
    await store.claim(Claim("w0", ("q",), 1, LEASE), T0)
    await store.alter(Selector(ids=[job_id(4)]), Cancel(), T0)


async def test_a_server_that_cannot_save_is_waited_for(valkey: Valkey, store: Backend) -> None:
    await prepared(store)
    obstacle = Path(valkey.directory, "dump.rdb")
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    try:
        valkey.call("CONFIG", "SET", "save", "3600 1")
        await saved(valkey, "err")
        await refuses(valkey, store, "MISCONF")
    finally:
        obstacle.rmdir()
    await saved(valkey, "ok")
    assert (await store.insert([row(2)], T0))[0].status is InsertStatus.NEW


async def saved(valkey: Valkey, status: str) -> None:
    valkey.call("BGSAVE")
    async with asyncio.timeout(60):
        while True:
            found = valkey.info("persistence")
            if (found["rdb_bgsave_in_progress"], found["rdb_last_bgsave_status"]) == ("0", status):
                return
            await asyncio.sleep(0.01)


async def test_a_server_without_the_replicas_that_it_wants_is_waited_for(valkey: Valkey, store: Backend) -> None:
    await prepared(store)
    valkey.call("CONFIG", "SET", "min-replicas-to-write", 1)
    await refuses(valkey, store, "NOREPLICAS")
    valkey.call("CONFIG", "SET", "min-replicas-to-write", 0)
    assert (await store.insert([row(2)], T0))[0].status is InsertStatus.NEW


async def test_a_replica_decides_nothing(valkey: Valkey, store: Backend) -> None:
    """F76: it is refused when it is opened; and where it becomes one later, it is asked for nothing."""
    await prepared(store)
    other = Valkey()
    other.start()
    replica = open_backend(valkey.url())
    try:
        valkey.call("REPLICAOF", "127.0.0.1", other.port)
        await refuses(valkey, store, "READONLY|replica", reads=False)
        with pytest.raises(Unavailable, match="is a replica just now: the URL must name the primary, or its sentinels"):
            await replica.open()
        valkey.call("REPLICAOF", "NO", "ONE")
        await replica.open()
    finally:
        valkey.call("REPLICAOF", "NO", "ONE")
        await replica.close()
        other.close()


async def test_a_server_with_no_connection_to_spare(valkey: Valkey) -> None:
    backend = open_backend(valkey.url())
    valkey.call("CONFIG", "SET", "maxclients", 5)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", valkey.port)))
        with pytest.raises(Unavailable, match="max number of clients"):
            await backend.open()
    async with asyncio.timeout(60):
        while True:
            try:
                await backend.open()
                break
            except Unavailable:
                await asyncio.sleep(0.01)
    await backend.close()


async def test_a_server_that_hangs_up_on_idle_clients(valkey: Valkey, store: Backend) -> None:
    await store.insert([row(1)], T0)
    valkey.call("CONFIG", "SET", "timeout", 1)
    async with asyncio.timeout(60):
        while valkey.call("CLIENT", "LIST").count(b"\n") > 1:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.05)
    assert (await store.insert([row(2)], T0))[0].status is InsertStatus.NEW


SETTINGS = {
    "hash-max-listpack-entries": "0",
    "zset-max-listpack-entries": "0",
    "list-max-listpack-size": "1",
    "set-max-intset-entries": "0",
    "notify-keyspace-events": "KEA",
    "activerehashing": "no",
    "lazyfree-lazy-user-del": "yes",
    "lazyfree-lazy-expire": "yes",
    "acl-pubsub-default": "resetchannels",
    "appendonly": "yes",
    "appendfsync": "always",
    "io-threads": "2",
    "databases": "1",
    "slowlog-log-slower-than": "0",
    "latency-monitor-threshold": "1",
    "maxmemory-clients": "50%",
    "active-expire-effort": "10",
}


async def test_a_server_may_have_settings_of_its_own() -> None:
    other = Valkey(None, SETTINGS)
    other.start()
    backend = open_backend(other.url())
    try:
        await backend.open()
        await every_operation(backend)
    finally:
        await backend.close()
        other.close()
