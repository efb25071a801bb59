"""Notes for the history of schedules, beside jobs whose headers somebody has forged."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from headrace.core.clock import SystemClock
from headrace.core.headers import SLOT
from headrace.schedules.tick_notes import Notes
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Leased, Settlement
from headrace.seam.ticks import NewTick, Plan, Save, Schedule, TickNote
from headrace.testing.conformance.base import LEASE, SECOND, T0, job_id, row
from headrace.types import JobState

UID = job_id(900)
FORGED = ["00:999999999999999999999999", f"{UID.hex()}:{2**70}", f"{UID.hex()}:-1", f"{UID.hex()}00:1", "x:y"]


def done(job: Leased) -> Settlement:
    return Settlement(job.id, job.epoch, "w", JobState.COMPLETED)


async def fired(store: Backend) -> list[Leased]:
    """The jobs of two slots, and between them those with headers that nobody but a stranger writes."""
    await store.open()
    assert store.ticks is not None
    schedule = Schedule(name="hourly", uid=UID, queue="q", definition=b"d", slot=T0)
    assert await store.ticks.save([Save(schedule, 0)], T0) == [True]
    named = [*(f"{UID.hex()}:{T0 + n * SECOND}" for n in range(2))]
    rows = [
        row(n, run_at=T0 + n, headers=msgspec.msgpack.encode({SLOT: slot}))
        for n, slot in enumerate([named[0], *FORGED, named[1]])
    ]
    ticks = [NewTick(T0, T0, rows[0]), NewTick(T0 + SECOND, T0, rows[-1])]
    assert await store.ticks.plan([Plan("hourly", UID, 1, ticks, None, None)], T0) != [None]
    await store.insert(rows[1:-1], T0)
    return (await store.claim(Claim("w", ("q",), 10, LEASE), T0 + SECOND)).jobs


async def states(store: Backend) -> list[str]:
    assert store.ticks is not None
    return [tick.state for tick in await store.ticks.history(UID)]


async def test_a_forged_slot_is_not_noted(store: Backend) -> None:
    notes = Notes(store.ticks, SystemClock(), Random(1))
    jobs = await fired(store)
    assert len(jobs) == 2 + len(FORGED)
    for job in jobs:
        notes.ended(job, done(job), 0.1)
    assert len(notes.expected) == 2
    for job in jobs:
        notes.answered(done(job), JobState.COMPLETED)
    assert await notes.write()
    assert await states(store) == ["completed", "completed"]
    await store.close()


@pytest.mark.parametrize("bad", [TickNote(b"short", T0, "failed", 1, 1), TickNote(UID, 2**70, "failed", 1, 1)])
async def test_a_note_that_cannot_be_written_takes_no_other_along(store: Backend, bad: TickNote) -> None:
    notes = Notes(store.ticks, SystemClock(), Random(1))
    for job in await fired(store):
        notes.ended(job, done(job), 0.1)
        if (job.id, job.epoch) not in notes.expected:
            notes.expected[job.id, job.epoch] = bad
        notes.answered(done(job), JobState.COMPLETED)
    assert await notes.write()
    assert await states(store) == ["completed", "completed"]
    await store.close()
