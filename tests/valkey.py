"""One Valkey server per test process, and blank stores on it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import redis
from servers.valkey import Valkey

from headrace.api.connection import open_backend
from headrace.backends.redis import RedisBackend, parse
from headrace.seam.parts import Part
from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Beat,
    Cancel,
    Claim,
    Delete,
    Hold,
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
    Watch,
)
from headrace.seam.ticks import Drop, Look, NewTick, Overlap, Plan, Save, ScheduleSelector, TickNote, TickOutcome
from headrace.seam.tracks import Check, Erase, Sheet, Write
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row, settle
from headrace.testing.conformance.ticks import fires, moved, schedule, uid
from headrace.types import JobState
from tests.ending import over


@functools.cache
def server() -> Valkey:
    """The server of this process."""
    valkey = Valkey()
    over.callback(valkey.close)
    valkey.start()
    return valkey


class Stores:
    """Each place has a store of its own, which is blank at first; only that of the last place is there."""

    def __init__(self, server: Callable[[], Valkey]) -> None:
        self._server = server
        self._place: Path | None = None

    def connect(self, place: Path) -> RedisBackend:
        """A new, unopened backend on the store that belongs to ``place``."""
        if place != self._place:
            self._place = place
            with redis.Redis.from_url(self._server().url()) as client:
                client.flushall()
        return RedisBackend(parse(self._server().url(), {}, "valkey"))


stores = Stores(server)


@asynccontextmanager
async def opened(where: str) -> AsyncIterator[Backend]:
    """The store of this URL."""
    backend = open_backend(where)
    try:
        await backend.open()
        yield backend
    finally:
        await backend.close()


async def every_operation(store: Backend) -> None:
    """Every operation of the protocol on an open, blank store, each with all that it can be asked for."""
    hints, turn = store.hints, store.finish_and_claim
    assert hints is not None
    assert turn is not None
    async with hints.listen(["queue:q"]) as queue, hints.listen(["inbox:me", "holder:w1"]) as own:
        rows = [
            row(1, key="k", reply_to="me"), row(2, key="k"), row(3, expires=LEASE), row(4, priority=-1, delay=SECOND),
            row(5), row(6), row(7), row(8), row(9),
        ]  # fmt: skip
        answers = await store.insert(rows, T0)
        assert [answer.status for answer in answers].count(InsertStatus.NEW) == 8
        assert (await store.insert(rows[:1], T0))[0].status is InsertStatus.SAME
        assert (await asyncio.wait_for(anext(queue), 60)).topic == "queue:q"
        [one, three, five] = (await store.claim(Claim("w1", ("q",), 3, LEASE), T0)).jobs
        states, claimed = await turn(
            [settle(one, result=b"r", result_ttl=SECOND)], Claim("w1", ("q",), 1, LEASE), T0 + SECOND
        )
        assert (states, [job.id for job in claimed.jobs]) == ([JobState.COMPLETED], [job_id(4)])
        assert (await asyncio.wait_for(anext(own), 60)).topic == "inbox:me"
        await store.alter(Selector(ids=[three.id]), Cancel(), T0)
        assert (await asyncio.wait_for(anext(own), 60)).topic == "holder:w1"
    beat = Beat("w1", "w1", ("q",), LEASE, [(three.id, three.epoch), (five.id, five.epoch)])
    assert (await store.renew(beat, T0)).cancels == [three.id]
    moved = settle(
        five, JobState.AVAILABLE, queue="other", priority=3, cells={"parameters": b"[]"}, error=b"e",
        failed_attempt=True, spawn=[row(10, key="s")],
    )  # fmt: skip
    assert await store.finish([moved, settle(three, JobState.FAILED, reason="no")], T0) == [
        JobState.AVAILABLE, JobState.FAILED,
    ]  # fmt: skip
    assert [job.id for job in await store.reap(Reap(spread=SECOND), T0 + LEASE + SECOND)] == [job_id(4)]
    for number, change in [
        (6, Pause()), (6, Resume()), (6, Move("other")), (7, Reprioritise(5)), (7, Reschedule(SECOND)),
        (7, Watch("me")), (1, Hold(LEASE)), (7, Cancel()), (7, Requeue()), (8, Delete()),
    ]:  # fmt: skip
        [altered] = await store.alter(Selector(ids=[job_id(number)]), change, T0)
        assert altered.changed, change
    assert len(await store.alter(Selector(keys=[JobKey("q", "s")], tenant=""), Cancel(), T0)) == 1
    assert await store.alter(Selector(queue="q", states=frozenset({JobState.AVAILABLE})), Pause())
    for paused in (True, False):
        await store.policies.pause(QueuePause("q", paused=paused))
    found = await store.fetch([job_id(1), JobKey("q", "s")], frozenset({"parameters", "result", "error"}), T0)
    assert [record is not None for record in found] == [True, True]
    page = await store.scan(Selector(queue="q"), None, 2)
    assert (await store.scan(Selector(queue="q"), page.after, 2)).records
    assert len((await store.stats()).queues) == 2
    await every_operation_on_ticks(store)
    await every_operation_on_tracks(store)
    assert store.parts is not None
    await store.parts.send([Part(job_id(1), 1, 1, b"p")], T0)
    assert len(await store.parts.read(job_id(1), (0, 0))) == 1
    for place in SweepTarget:
        for dry_run in (True, False):
            await store.sweep(SweepClause(target=place, older_than=0, max_count=0, max_bytes=0, dry_run=dry_run))
    await store.renew(Beat("w1", "w1", ("q",), LEASE, leaving=True), T0)


async def every_operation_on_tracks(store: Backend) -> None:
    """Sheets of trackers that are written, read, due, changed and erased."""
    tracks = store.tracks
    assert tracks is not None
    new = [Sheet(tier="hourly", low=low, version=1, due_at=T0, subjects=1, content=b"s") for low in (0, 10)]
    assert await tracks.write("t", [Write(one, 0) for one in new], T0)
    assert (await tracks.read("t", [("hourly", 11)], T0)).sheets == new[1:]
    assert (await tracks.walk("t", "hourly", 0, 10, T0)).sheets == new
    assert len((await tracks.due("t", 10, SECOND, T0)).sheets) == 2
    assert [one.subjects for one in await tracks.tally("t")] == [2]
    assert await tracks.write("t", [Check("hourly", 0, 1), Erase("hourly", 10, 1)], T0)


async def every_operation_on_ticks(store: Backend) -> None:
    """Schedules of two queues that are made, changed, planned and removed. One is left, and some of its ticks."""
    hints, ticks = store.hints, store.ticks
    assert hints is not None
    assert ticks is not None
    async with hints.listen(["schedules:all"]) as heard:
        saves = [Save(schedule(n, tenant="t", bucket=n, plan_priority=n % 2, look_at=T0 + n), 0) for n in range(4)]
        assert await ticks.save(saves, T0) == [True] * 4
        assert (await asyncio.wait_for(anext(heard), 60)).topic == "schedules:all"
    changes = [Save(schedule(0, queue="other", look_at=T0), 1), Save(schedule(3, enabled=False), 1), Drop("s000002", 1)]
    assert await ticks.save([*changes, Drop("s000001", 9)], T0) == [True, True, True, False]
    assert [one.name for one in await ticks.find(ScheduleSelector(tenant="t"), "s000000")] == ["s000001"]
    looked = await ticks.due(Look(1, 0, 3), T0)
    assert [one.name for one in looked.schedules] == ["s000000"]
    assert (await ticks.due(Look(), T0)).next_in == 1
    for n, overlap in enumerate(Overlap):
        [one] = await ticks.find(ScheduleSelector(names=["s000000"]))
        fired = [fires(T0 + 2 * n + i, 50 + 2 * n + i, overlap, queue=one.queue) for i in range(2)]
        missed = NewTick(T0 - 1 - n, T0, count=5)
        [outcomes] = await ticks.plan([moved(one, *fired, missed, slot=T0 + SECOND)], T0)
        assert outcomes is not None
        assert len(outcomes) == 3
    [one] = await ticks.find(ScheduleSelector(names=["s000001"]))
    assert await ticks.plan([Plan(one.name, one.uid, None, [fires(T0, 60)])], T0) == [[TickOutcome.FIRED]]
    await ticks.note([TickNote(uid(0), T0, "completed", 1, 2), TickNote(uid(9), T0, "failed", 0, 0)], T0)
    assert [tick.state for tick in await ticks.history(uid(0), T0 + 1, 1)] == ["completed"]
    assert await ticks.save([Drop("s000000", 5)], T0) == [True]
    place = SweepClause(target=SweepTarget.TICKS, max_count=5)
    assert (await store.sweep(place, T0)).kept == 5
