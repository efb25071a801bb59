"""What jobs take of a Valkey server's memory, and that they give it back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from servers.valkey import Valkey

from headrace.api.connection import open_backend
from headrace.core.clock import ManualClock
from headrace.core.config import RetentionSettings
from headrace.core.events import Observers
from headrace.keeping.retention import Retention
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Claim, InsertStatus, Reap, Row, Settlement, SweepClause, SweepTarget
from headrace.seam.ticks import Drop, NewTick, Plan, Save, ScheduleSelector, TickNote
from headrace.testing.conformance.base import HOUR, LEASE, T0, row
from headrace.testing.conformance.ticks import schedule, uid
from headrace.types import JobState

JOBS = 5_000
MANY = 20_000
PAYLOAD = 100
RESULT = 50
ERROR = 200
SLACK = 128 * 1024
"""Bytes that a server may have more or less of with the same in it."""
STAYS = {":q", ":qn", ":qi", ":b", ":v", ":Wa", ":K", ":E", ":Ej", ":Eb"}
"""Keys of an empty store: its layout, the numbers of its queues, the bytes of what has ended, which are none, since
when workers have been at work, what the janitor did, and how much was removed."""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    """A server that keeps no log of slow requests, as that holds some of them."""
    valkey = Valkey(settings={"slowlog-log-slower-than": "-1"})
    valkey.start()
    asyncio.run(warm_up(valkey))
    yield valkey
    valkey.close()


async def warm_up(valkey: Valkey) -> None:
    """Have every script used once: what they take is not that of jobs."""
    backend = open_backend(valkey.url())
    await backend.open()
    for end in (kept, failed, forgotten):
        await insert(backend, 1_000, keyed=True)
        await finish(backend, end)
        await sweep(backend, T0 + 2 * HOUR)
    await keep_schedules(backend, 1_000)
    await fill_ledger(backend, 1, 1_000)
    await sweep(backend, T0 + 2 * HOUR)
    await drop_schedules(backend, 1_000)
    await backend.reap(Reap(), T0)
    await backend.renew(Beat("w1", "w1", ("q",), LEASE, leaving=True), T0)
    await backend.stats(T0)
    await backend.fetch([bytes(16)])
    await Retention(backend, ManualClock(T0), Random(1), Observers(), RetentionSettings()).sweep()
    await backend.close()


@pytest_asyncio.fixture
async def store(valkey: Valkey) -> AsyncIterator[Backend]:
    valkey.call("FLUSHALL", "SYNC")
    backend = open_backend(valkey.url())
    await backend.open()
    yield backend
    await backend.close()


def used(valkey: Valkey) -> int:
    return int(valkey.info("memory")["used_memory"])


async def at_rest(store: Backend, valkey: Valkey) -> int:
    """The same while nobody is connected: the buffers of clients are not those of jobs."""
    await store.close()
    while valkey.call("CLIENT", "LIST").count(b"\n") > 1:
        await asyncio.sleep(0.01)
    found = used(valkey)
    await store.open()
    return found


def left(valkey: Valkey) -> set[str]:
    """The keys that do not go by themselves, as the scripts' header names them."""
    keys = [key.decode() for key in valkey.call("KEYS", "*") if valkey.call("PTTL", key) < 0]
    return {key.partition("}")[2] for key in keys}


async def insert(store: Backend, count: int, *, keyed: bool, at: int = T0, **more: Any) -> None:
    def made(number: int) -> Row:
        key = f"order:{number}" if keyed else None
        return row(number, task="mail.welcome", cells={"parameters": b"x" * PAYLOAD}, key=key, **more)

    for first in range(0, count, 1_000):
        await store.insert([made(number) for number in range(first, min(count, first + 1_000))], at)


End = Callable[[bytes, int], Settlement]


def kept(job: bytes, epoch: int) -> Settlement:
    return Settlement(job, epoch, "w1", JobState.COMPLETED, result=b"r" * RESULT, result_ttl=HOUR)


def forgotten(job: bytes, epoch: int) -> Settlement:
    return Settlement(job, epoch, "w1", JobState.COMPLETED, keep=False)


def failed(job: bytes, epoch: int) -> Settlement:
    return Settlement(job, epoch, "w1", JobState.FAILED, error=b"e" * ERROR, reason="no")


async def finish(store: Backend, end: End, at: int = T0) -> None:
    """Run all that is due."""
    while jobs := (await store.claim(Claim("w1", ("q",), 500, LEASE), at)).jobs:
        await store.finish([end(job.id, job.epoch) for job in jobs], at)


async def sweep(store: Backend, at: int) -> None:
    """Remove all that has ended."""
    for place in SweepTarget:
        while (await store.sweep(SweepClause(target=place, older_than=0), at)).more:
            pass


@pytest.mark.parametrize(("keyed", "bound"), [(False, 400), (True, 500)])
async def test_a_queued_job_takes_less_than_half_a_kilobyte_beside_its_payload(
    keyed: bool, bound: int, store: Backend, valkey: Valkey
) -> None:
    """Measured: 300 bytes, and 380 with a key of ten."""
    before = used(valkey)
    await insert(store, JOBS, keyed=keyed)
    assert (used(valkey) - before) / JOBS < PAYLOAD + bound


async def test_a_running_job_takes_little_more(store: Backend, valkey: Valkey) -> None:
    """Measured: 120 bytes."""
    await insert(store, JOBS, keyed=False)
    before = used(valkey)
    for _ in range(JOBS // 500):
        await store.claim(Claim("w1", ("q",), 500, LEASE), T0)
    assert (used(valkey) - before) / JOBS < 200


@pytest.mark.parametrize(
    ("end", "beside"), [(kept, RESULT), (failed, ERROR)], ids=["completed, with a result", "failed, with an error"]
)
async def test_an_ended_job_takes_less_than_a_kilobyte_beside_what_it_brought_and_left(
    end: End, beside: int, store: Backend, valkey: Valkey
) -> None:
    """Measured: 610 bytes with a key and a result, 490 with an error."""
    before = used(valkey)
    await insert(store, JOBS, keyed=end is kept)
    await finish(store, end)
    assert (used(valkey) - before) / JOBS < PAYLOAD + beside + 800


@pytest.mark.parametrize(("end", "count"), [(forgotten, MANY), (kept, JOBS), (failed, JOBS)])
async def test_jobs_that_are_gone_leave_nothing_behind(end: End, count: int, store: Backend, valkey: Valkey) -> None:
    """Whether no record of them was to be kept, or it was swept."""
    before = await at_rest(store, valkey)
    await insert(store, count, keyed=True, expires=HOUR, reply_to="inbox")
    assert used(valkey) - before > count * PAYLOAD
    await finish(store, end)
    await sweep(store, T0 + 2 * HOUR)
    assert left(valkey) <= STAYS
    assert abs(await at_rest(store, valkey) - before) < SLACK


async def test_results_and_keys_go_by_themselves(store: Backend, valkey: Valkey) -> None:
    """First the results, when their time is over, and with them the hold on the keys; the records when theirs is."""
    clock = ManualClock(T0)
    janitor = Retention(store, clock, Random(1), Observers(), RetentionSettings())
    before = await at_rest(store, valkey)
    await insert(store, JOBS, keyed=True)
    await finish(store, kept)
    full = used(valkey)
    assert await janitor.sweep() == 0
    clock.advance("61m")
    assert await janitor.sweep() == JOBS
    assert used(valkey) < full - JOBS * RESULT
    assert {":h", ":hx"} & left(valkey) == set()
    [answer] = await store.insert([row(MANY, key="order:7")], clock.stamp())
    assert answer.status is InsertStatus.NEW
    await finish(store, forgotten, clock.stamp())
    clock.advance("1d")
    assert await janitor.sweep() == JOBS
    assert left(valkey) <= STAYS
    assert abs(await at_rest(store, valkey) - before) < SLACK


async def test_workers_that_vanish_are_forgotten(store: Backend, valkey: Valkey) -> None:
    """And what they were asked to stop."""
    before = await at_rest(store, valkey)
    for number in range(1_000):
        await store.renew(Beat(f"holder {number}", f"worker {number}", ("q",), LEASE), T0)
    assert len((await store.stats(T0)).workers) == 1_000
    await store.reap(Reap(), T0 + HOUR)
    assert left(valkey) <= STAYS
    assert abs(await at_rest(store, valkey) - before) < SLACK


async def keep_schedules(store: Backend, count: int) -> None:
    assert store.ticks is not None
    for first in range(0, count, 1_000):
        numbers = range(first, first + 1_000)
        saves = [Save(schedule(n, definition=b"d" * PAYLOAD, bucket=n % 1_024, look_at=T0 + n), 0) for n in numbers]
        assert all(await store.ticks.save(saves, T0))


async def drop_schedules(store: Backend, count: int) -> None:
    assert store.ticks is not None
    left = await store.ticks.find(ScheduleSelector(), None, count)
    assert all(await store.ticks.save([Drop(one.name, one.version) for one in left], T0))


async def fill_ledger(store: Backend, schedules: int, each: int) -> None:
    """Ticks of some schedules that are there, with what was noted of them."""
    assert store.ticks is not None
    for n in range(schedules):
        for first in range(0, each, 500):
            ticks = [NewTick(T0 + slot, T0) for slot in range(first, min(each, first + 500))]
            await store.ticks.plan([Plan(f"s{n:06d}", uid(n), None, ticks)], T0)
            await store.ticks.note([TickNote(uid(n), tick.slot, "completed", 1, 2) for tick in ticks], T0)


async def test_a_schedule_takes_less_than_half_a_kilobyte_beside_its_definition(store: Backend, valkey: Valkey) -> None:
    """Measured: 320 bytes."""
    before = used(valkey)
    await keep_schedules(store, JOBS)
    assert (used(valkey) - before) / JOBS < PAYLOAD + 500


@pytest.mark.parametrize(("schedules", "each"), [(5, 2_000), (500, 20)], ids=["many of few", "few of many"])
async def test_a_tick_takes_less_than_a_quarter_of_a_kilobyte(
    schedules: int, each: int, store: Backend, valkey: Valkey
) -> None:
    """Measured: 220 bytes, and 170 while a schedule has few."""
    await keep_schedules(store, 1_000)
    before = used(valkey)
    await fill_ledger(store, schedules, each)
    assert (used(valkey) - before) / (schedules * each) < 250


async def test_schedules_and_ticks_that_are_gone_leave_nothing_behind(store: Backend, valkey: Valkey) -> None:
    before = await at_rest(store, valkey)
    await keep_schedules(store, 1_000)
    await fill_ledger(store, 50, 100)
    assert used(valkey) - before > 5_000 * 50
    await sweep(store, T0 + 2 * HOUR)
    await drop_schedules(store, 1_000)
    assert left(valkey) <= STAYS
    assert abs(await at_rest(store, valkey) - before) < SLACK
