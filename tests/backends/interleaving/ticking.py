"""Schedules whose last jobs are in every kind of state, and what happens to them: plans, changes, notes and sweeps."""

from __future__ import annotations

from typing import Any

from headrace.seam.protocol import Backend, TickStore
from headrace.seam.records import Cancel, Claim, Pause, Selector, Settlement, SweepClause, SweepTarget
from headrace.seam.ticks import Drop, NewTick, Overlap, Plan, Save, Schedule, TickNote
from headrace.testing.conformance.ticks import uid
from headrace.types import JobState
from tests.backends.interleaving.scenes import (
    HOUR,
    INBOX,
    NEWCOMER,
    NOW,
    SECOND,
    START,
    WORKER,
    Scene,
    Strand,
    job_id,
    row,
)
from tests.backends.interleaving.statements import STATEMENTS, Facts, Run, Statement

_LATER = START + 500 * SECOND
_OVER = 100 * SECOND
_GOOD = 2_000 * SECOND


def ticks_of(store: Backend) -> TickStore:
    """The capability."""
    assert store.ticks is not None
    return store.ticks


def schedule(number: int, **changes: Any) -> Schedule:
    """The schedule of a strand."""
    given = {"slot": NOW, "look_at": NOW} | changes
    return Schedule(name=f"s{number}", uid=uid(number), queue="q", definition=b"d", **given)


def version(strand: Strand) -> int:
    """The one that a scene begins with: a schedule that has fired has been planned."""
    return 2 if strand.jobs else 1


# -- scenes


async def _unfired(store: Backend, number: int) -> None:
    assert await ticks_of(store).save([Save(schedule(number), 0)], START) == [True]


async def fired(store: Backend, number: int, run_at: int = START, **changes: Any) -> None:
    """A schedule with its job, which somebody waits for."""
    await _unfired(store, number)
    job = row(number, **({"key": None, "run_at": run_at, "reply_to": INBOX} | changes))
    plan = Plan(f"s{number}", uid(number), 1, [NewTick(START, run_at, job)], NOW, NOW)
    await ticks_of(store).plan([plan], START)


async def _waiting(store: Backend, number: int) -> None:
    await fired(store, number, _LATER)


async def _paused(store: Backend, number: int) -> None:
    await fired(store, number, _LATER)
    await store.alter(Selector(ids=[job_id(number)]), Pause(), START)


async def _running(store: Backend, number: int) -> None:
    await fired(store, number)
    await store.claim(Claim(WORKER, ("q",), 1, _GOOD), START)


async def _overdue(store: Backend, number: int) -> None:
    await fired(store, number)
    await store.claim(Claim(WORKER, ("q",), 1, _OVER), START)


async def _failed(store: Backend, number: int) -> None:
    await _overdue(store, number)
    await store.finish([Settlement(job_id(number), START, WORKER, JobState.FAILED)], START)


async def _nothing(store: Backend, number: int) -> None:
    pass


_ALL = (
    Strand(21, "its last job failed", _failed, (21,)),
    Strand(22, "its last job runs", _running, (22,)),
    Strand(23, "its last job runs, the lease over", _overdue, (23,)),
    Strand(24, "its last job is paused", _paused, (24,)),
    Strand(25, "its last job waits", _waiting, (25,), holder=NEWCOMER),
    Strand(26, "has not fired", _unfired, ()),
    Strand(27, "is not there", _nothing, ()),
)

_LAST_RUNS = (22, 23)
_LAST_WAITS = (24, 25)
"""Their last jobs do not run: who has one in hand may start it, and a plan that would cancel it comes another time."""

SCHEDULES = Scene("schedules, all together", _ALL)
SINGLE_SCHEDULES = tuple(Scene(f"a schedule: {strand.name}", (strand,)) for strand in _ALL)


# -- statements


def _plan(overlap: Overlap, offset: int, passed_over: tuple[int, ...] = ()) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        plans = [
            Plan(
                f"s{strand.number}",
                uid(strand.number),
                version(strand),
                [NewTick(NOW, NOW, row(strand.number + offset, key=None, run_at=NOW), overlap=overlap)],
                NOW + HOUR,
                NOW + HOUR,
            )
            for strand in scene.strands
            if strand.number not in passed_over
        ]
        answers = iter(await ticks_of(store).plan(plans, NOW))
        return [(number, None if number in passed_over else next(answers)) for number in scene.numbers]

    return run


async def _cancel_asked(store: Backend, scene: Scene) -> Facts:
    asked = [job_id(number) for number in scene.numbers if number in _LAST_RUNS]
    await store.alter(Selector(ids=asked), Cancel("superseded"), NOW)
    return []


async def _out_of_turn(store: Backend, scene: Scene) -> Facts:
    plans = [
        Plan(
            f"s{number}",
            uid(number),
            None,
            [NewTick(NOW, NOW, row(number + 400, key=None)), NewTick(NOW - 1, NOW - 1, count=3)],
        )
        for number in scene.numbers[::-1]
    ]
    answers = await ticks_of(store).plan(plans, NOW)
    return list(zip(scene.numbers[::-1], answers, strict=True))


def _save(*, new: bool) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        changes = [
            Save(schedule(strand.number, tenant="new", last_job=job_id(strand.number)), 0 if new else version(strand))
            for strand in scene.strands[::-1]
        ]
        return list(zip(scene.numbers[::-1], await ticks_of(store).save(changes, NOW), strict=True))

    return run


async def _drop(store: Backend, scene: Scene) -> Facts:
    changes = [Drop(f"s{strand.number}", version(strand)) for strand in scene.strands]
    return list(zip(scene.numbers, await ticks_of(store).save(changes, NOW), strict=True))


async def _note(store: Backend, scene: Scene) -> Facts:
    notes = [TickNote(uid(number), slot, "completed", 1, 2) for number in scene.numbers[::-1] for slot in (NOW, START)]
    await ticks_of(store).note(notes, NOW)
    return []


def _sweep(**bounds: Any) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        swept = await store.sweep(SweepClause(target=SweepTarget.TICKS, **bounds), NOW)
        return [(scene.numbers[0], swept.removed)] if len(scene.strands) == 1 else []

    return run


async def _swept_nothing(store: Backend, scene: Scene) -> Facts:
    return [(scene.numbers[0], 0)] if len(scene.strands) == 1 else []


PLANS = (
    Statement("plan", _plan(Overlap.ALLOW, 100)),
    Statement("plan, skipping", _plan(Overlap.SKIP, 200)),
    Statement(
        "plan, cancelling",
        _plan(Overlap.CANCEL, 300),
        passing=_plan(Overlap.CANCEL, 300, _LAST_WAITS),
        asking=(_plan(Overlap.ALLOW, 300), _cancel_asked),
    ),
    Statement("plan out of turn", _out_of_turn),
)
TICKING = (
    *PLANS,
    Statement("save schedules", _save(new=False)),
    Statement("make schedules", _save(new=True)),
    Statement("drop schedules", _drop),
    Statement("note ticks", _note),
    Statement("sweep ticks by age", _sweep(older_than=SECOND), passing=_swept_nothing),
    Statement("sweep ticks by count", _sweep(max_count=0), passing=_swept_nothing),
)
_MEETING = (
    "insert", "claim", "turn", "complete", "retry", "fail", "reap", "cancel", "resume", "requeue", "delete",
    "sweep failed by age", "fold deltas",
)  # fmt: skip
MEETING = tuple(statement for statement in STATEMENTS if statement.name in _MEETING)
"""What happens to the jobs of schedules, and to what they share with others."""
