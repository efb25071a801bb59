"""Valkey loses its memory, or is started again: no job is lost, and no delivery of before counts any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from msgspec.structs import replace
from servers.valkey import Valkey

from headrace.backends.streams import StreamsBackend, StreamsOptions
from headrace.errors import Unavailable
from headrace.seam.records import Beat, Cancel, Claim, Leased, Reap, Replaces, Reschedule, Selector, Settlement
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row
from headrace.types import JobState
from tests import postgres, valkey
from tests.streams import Stores

SMALL = Stores(StreamsOptions(window=100))


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[StreamsBackend]:
    """An opened backend with small windows."""
    backend = SMALL.connect(tmp_path)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def take(store: StreamsBackend, limit: int = 10, holder: str = "w1", at: int = T0) -> list[Leased]:
    return (await store.claim(Claim(holder, ("q",), limit, LEASE), at)).jobs


def done(job: Leased, holder: str = "w1") -> Settlement:
    return Settlement(job.id, job.epoch, holder, JobState.COMPLETED)


def leases() -> int:
    """How many leases PostgreSQL has."""
    with psycopg.connect(postgres.server().url()) as connection:
        found = connection.execute(f"SELECT count(*) FROM {postgres.SCHEMA}.leased").fetchone()
    assert found is not None
    return int(found[0])


async def test_a_delivery_writes_nothing_to_postgresql_and_its_end_is_one_step(store: StreamsBackend) -> None:
    await store.insert([row(n) for n in range(3)], T0)
    jobs = await take(store)
    assert (len(jobs), leases()) == (3, 0)
    assert await store.finish([done(job) for job in jobs], T0) == [JobState.COMPLETED] * 3
    assert [record and record.epoch for record in await store.fetch([job.id for job in jobs], at=T0)] == [T0] * 3


async def test_after_a_flush_every_job_is_given_out_again_under_a_higher_epoch(store: StreamsBackend) -> None:
    await store.insert([row(n) for n in range(3)], T0)
    before = await take(store, 2)
    valkey.server().call("FLUSHALL")
    after = await take(store, holder="w2")
    assert sorted(job.id for job in after) == [job_id(n) for n in range(3)]
    epochs = {job.id: job.epoch for job in before}
    assert all(job.epoch > epochs.get(job.id, 0) for job in after)
    assert await store.finish([done(job) for job in before], T0) == [None, None]
    assert await store.finish([done(job, "w2") for job in after], T0) == [JobState.COMPLETED] * 3


@pytest.mark.parametrize("by", ["window", "postgresql"])
async def test_after_a_flush_only_what_may_have_been_given_out_has_begun(store: StreamsBackend, by: str) -> None:
    """What is due later cannot have been; else slots that are planned ahead would never start, at most once."""
    await store.insert([row(1), row(2), row(3, delay=SECOND), row(4, delay=30 * SECOND)], T0)
    await take(store, 1)
    valkey.server().call("FLUSHALL")
    await store.windows.look(at=T0)
    if by == "postgresql":
        await store.insert([row(5, group="g")], T0 + SECOND)
    begun = {job.id: job.begun for job in await take(store, holder="w2", at=T0 + SECOND)}
    assert begun.pop(job_id(5), False) is False
    assert begun == {job_id(1): True, job_id(2): True, job_id(3): True}, "Valkey's clock may have been ahead"
    [later] = await take(store, holder="w2", at=T0 + 30 * SECOND)
    assert (later.id, later.begun) == (job_id(4), False)


@pytest.mark.parametrize("way", ["reschedule", "replace"])
async def test_after_a_flush_a_job_that_is_put_off_has_begun_all_the_same(store: StreamsBackend, way: str) -> None:
    await store.insert([row(1, key="k")], T0)
    await take(store)
    valkey.server().call("FLUSHALL")
    if way == "reschedule":
        await store.alter(Selector(ids=[job_id(1)]), Reschedule(delay=30 * SECOND), T0)
    else:
        await store.insert([row(2, key="k", delay=30 * SECOND, replaces=Replaces.TIME)], T0)
    assert await take(store) == []
    [again] = await take(store, holder="w2", at=T0 + 30 * SECOND)
    assert again.begun


async def test_after_a_flush_a_beat_tells_what_is_lost(store: StreamsBackend) -> None:
    await store.insert([row(1)], T0)
    [job] = await take(store)
    lease = (job.id, job.epoch)
    assert (await store.renew(Beat("w1", "w1", ("q",), LEASE, [lease]), T0)).lost == []
    valkey.server().call("FLUSHALL")
    assert (await store.renew(Beat("w1", "w1", ("q",), LEASE, [lease]), T0)).lost == [lease]


async def test_a_server_that_was_started_again_gives_out_nothing_of_before(tmp_path: Path) -> None:
    """It may have forgotten what it gave out last, even if it has kept the rest."""
    server = Valkey(settings={"appendonly": "yes"})
    server.start()
    try:
        stores = Stores(server=lambda: server)
        store = stores.connect(tmp_path)
        await store.open()
        await store.insert([row(1), row(2)], T0)
        [one] = await take(store, 1)
        server.kill()
        server.start()
        with pytest.raises(Unavailable):
            await take(store, holder="w2")
        jobs = await take(store, holder="w2")
        assert sorted(job.id for job in jobs) == [job_id(1), job_id(2)]
        assert await store.finish([done(one)], T0) == [None]
        assert await store.finish([done(job, "w2") for job in jobs], T0) == [JobState.COMPLETED] * 2
        await store.close()
    finally:
        server.close()


async def test_what_has_no_room_in_the_window_waits_in_postgresql(store: StreamsBackend) -> None:
    for first in range(0, 1_000, 100):
        await store.insert([row(n) for n in range(first, first + 100)], T0)
    seen: list[bytes] = []
    while len(seen) < 1_000:
        jobs = await take(store, 60)
        [state] = await store.windows.look(["q"], at=T0)
        assert state.waiting <= 100
        seen += [job.id for job in jobs]
        assert None not in await store.finish([done(job) for job in jobs], T0)
    assert seen == [job_id(n) for n in range(1_000)]


async def test_a_dead_workers_jobs_are_given_to_others(store: StreamsBackend) -> None:
    await store.insert([row(1)], T0)
    [job] = await take(store)
    [reaped] = await store.reap(Reap(), T0 + LEASE)
    assert (reaped.id, reaped.state, reaped.lost) == (job.id, JobState.AVAILABLE, 1)
    [again] = await take(store, holder="w2", at=T0 + LEASE)
    assert again.epoch > job.epoch
    assert await store.finish([done(job)], T0 + LEASE) == [None]


async def test_a_dead_worker_does_not_close_the_window_of_the_others(store: StreamsBackend) -> None:
    """Only what has lost several workers is PostgreSQL's to give out: it may be what kills them."""
    await store.insert([row(n) for n in range(1, 4)], T0)
    await take(store, 1)
    for turn, lost, mode in ((1, [1, 0, 0], "open"), (2, [2, 1, 1], "closed")):
        at = T0 + turn * LEASE
        await store.reap(Reap(), at)
        jobs = (await store.claim(Claim("w2", ("q",), 3, LEASE), at)).jobs
        assert sorted((job.id, job.lost) for job in jobs) == [(job_id(n), lost[n - 1]) for n in range(1, 4)]
        [state] = await store.windows.look(["q"], at=at)
        assert state.mode == mode


async def test_a_job_on_its_last_chance_leaves_the_window_unrun(store: StreamsBackend) -> None:
    await store.insert([row(1), row(2)], T0)
    await take(store, 1)
    await store.reap(Reap(), T0 + LEASE)
    careful = Claim("w2", ("q",), 10, LEASE, lost_below=1)
    claimed = await store.claim(careful, T0 + LEASE)
    assert [job.id for job in claimed.jobs] == [job_id(2)]
    [alone] = (await store.claim(replace(careful, holder="w3", lost_below=None), T0 + LEASE)).jobs
    assert (alone.id, alone.lost) == (job_id(1), 1)
    assert None not in await store.finish([done(claimed.jobs[0], "w2"), done(alone, "w3")], T0 + LEASE)


async def test_a_plain_worker_takes_nothing_that_a_window_gives_out(store: StreamsBackend) -> None:
    await store.insert([row(1), row(2)], T0)
    await take(store, 1)
    assert (await store.truth.claim(Claim("plain", ("q",), 10, LEASE), T0)).jobs == []


async def test_numbers_tell_what_a_window_has(store: StreamsBackend) -> None:
    await store.insert([row(1), row(2), row(3, delay=SECOND), row(4, delay=3600 * SECOND)], T0)
    await take(store, 1)
    [state] = await store.windows.look(at=T0)
    assert (state.queue, state.mode, state.waiting, state.pending, state.lag) == ("q", "open", 2, 1, 1)
    assert (state.consumers, state.delayed, state.next_at, state.soon) == (1, 2, T0 + SECOND, 1)
    [state] = await store.windows.look(horizon=7200 * SECOND, at=T0)
    assert (state.delayed, state.soon) == (2, 2)
    [queue] = (await store.stats(T0)).queues
    assert (queue.available, queue.running, queue.scheduled) == (3, 1, 2)


async def test_consumers_that_own_nothing_go_when_their_worker_leaves(store: StreamsBackend) -> None:
    await store.insert([row(n) for n in range(20)], T0)
    for n in range(10):
        [job] = await take(store, 1, holder=f"w{n}")
        await store.finish([done(job, f"w{n}")], T0)
        await store.renew(Beat(f"w{n}", "w", ("q",), LEASE, leaving=True), T0)
    [state] = await store.windows.look(at=T0)
    assert state.consumers == 0


async def test_of_workers_that_never_left_only_those_that_own_nothing_are_removed(store: StreamsBackend) -> None:
    await store.insert([row(1), row(2), row(3)], T0)
    [mine] = await take(store, 1, holder="owns")
    [other] = await take(store, 1, holder="killed")
    await store.finish([done(other, "killed")], T0)
    assert await store._windows.prune("q", idle=3_600_000) == 0, "they were here just now"
    assert await store._windows.prune("q", idle=0) == 1
    [state] = await store.windows.look(at=T0)
    assert (state.consumers, state.pending) == (1, 1)
    assert await store.finish([done(mine, "owns")], T0) == [JobState.COMPLETED]


async def test_a_job_that_was_given_out_can_be_cancelled(store: StreamsBackend) -> None:
    await store.insert([row(1), row(2)], T0)
    [job] = await take(store, 1)
    [running, waiting] = await store.alter(Selector(ids=[job_id(1), job_id(2)]), Cancel(), T0)
    assert (running.after, waiting.after) == (JobState.RUNNING, JobState.CANCELLED)
    assert (await store.renew(Beat("w1", "w1", ("q",), LEASE, [(job.id, job.epoch)]), T0)).cancels == [job.id]
    assert await take(store) == []


@pytest.mark.parametrize("table", ["windowed", "streams"])
async def test_several_that_wait_for_a_reader_do_not_wait_for_each_other(store: StreamsBackend, table: str) -> None:
    """Windows that open at once, or processes that see a loss, while a claim or a settlement is under way."""
    queues = ["a", "b", "c"]
    await store.insert([row(n, queue=queue) for n, queue in enumerate(queues)], T0)

    async def wait(queue: str) -> object:
        if table == "windowed":
            return await store.truth.open_queue(1, queue, T0)
        return await store.truth.take_charge("another", 0, T0)

    name = f"{postgres.SCHEMA}.{table}"
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
    for _ in range(30):  # on a busy machine a call may give up before all of them wait
        async with await psycopg.AsyncConnection.connect(postgres.server().url()) as reader:
            await reader.execute(
                f"SELECT 1 FROM {name}" if table == "windowed" else f"LOCK TABLE {name} IN ROW SHARE MODE"
            )
            calls = [asyncio.create_task(wait(queue)) for queue in queues]
            found = 0
            while found < len(queues) and not any(call.done() for call in calls):
                [found] = await anext(await reader.execute(waiting, [name]))
            await reader.rollback()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        if found == len(queues):
            break
    assert found == len(queues)
    assert not [answer for answer in answers if not answer or isinstance(answer, Exception)]


async def test_a_process_that_only_enqueues_feeds_the_window_itself(store: StreamsBackend, tmp_path: Path) -> None:
    """It never claims, so it has to ask which window there is; nobody has to look for its jobs."""
    await store.insert([row(0)], T0)
    assert len(await take(store)) == 1
    producer = SMALL.connect(tmp_path)
    await producer.open()
    try:
        await producer.insert([row(1)], T0)
        [state] = await store.windows.look(["q"], at=T0)
        assert state.waiting == 1
    finally:
        await producer.close()


async def test_it_does_so_again_after_others_have_fed_the_window(store: StreamsBackend, tmp_path: Path) -> None:
    await store.insert([row(0)], T0)
    await take(store)
    producer = SMALL.connect(tmp_path)
    await producer.open()
    try:
        await producer.insert([row(1)], T0)
        await store.truth.insert([row(2)], T0)  # in a transaction of a user's own, say: a look finds it
        assert len(await take(store)) == 2
        waiting = 0
        for number in range(3, 50):
            await producer.insert([row(number)], T0)
            [state] = await store.windows.look(["q"], at=T0)
            if (waiting := state.waiting) > 0:
                break
            assert await take(store)
            await asyncio.sleep(0.05)
        assert waiting == 1
    finally:
        await producer.close()
