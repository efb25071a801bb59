"""Stories for a referee: what happens to one queue under all kinds of rules at once, drawn and played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Struct
from msgspec.structs import replace

from headrace.seam.policy import Policy, QueuePause, Rate, TenantLimit
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Cancel,
    Change,
    Claim,
    Delete,
    JobId,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Row,
    Selector,
    Settlement,
)
from headrace.testing.referee.referee import Referee
from headrace.types import JobState

T = TypeVar("T")

TICK = 1_000
"""Every store can tell two instants apart that are this far from each other."""
T0 = 1_800_000_000_000_000

TENANTS = ("a", "b", "c")
TASKS = ("t", "t", "u")
RATES = (Rate(3 * TICK), Rate(2 * TICK, 3), Rate(10 * TICK, 4))
CHANGES: Sequence[Change] = (
    Cancel(), Pause(), Resume(), Resume(), Requeue(), Reprioritise(-1), Reschedule(), Reschedule(5 * TICK),
    Reschedule(run_at=T0), Delete(),
)  # fmt: skip


class Plant(Struct, frozen=True):
    """Rows are inserted, their ids yet to be given."""

    rows: tuple[Row, ...]


class Take(Struct, frozen=True):
    """A holder claims."""

    holder: str
    limit: int
    lost_below: int | None = None


class End(Struct, frozen=True):
    """Some leases end, named by their position among the current ones."""

    places: tuple[int, ...]
    state: JobState
    delay: int | None = 0
    spawn: tuple[Row, ...] = ()


class Wait(Struct, frozen=True):
    """Time passes."""

    ticks: int


class Recall(Struct, frozen=True):
    """Expired leases are taken back."""

    max_lost: int


class Alter(Struct, frozen=True):
    """A job is changed from outside, named by its position among all."""

    place: int
    change: Change


Step = Plant | Take | End | Wait | Recall | Alter | QueuePause | Policy | TenantLimit


class Story(Struct, frozen=True):
    """What happens, one thing after the other, beginning with rules."""

    policy: Policy
    steps: tuple[Step, ...]


class _Dice:
    """A handful of bytes, spent choice by choice: drawing is what a story spends most of its time on."""

    def __init__(self, thrown: bytes) -> None:
        self._left = int.from_bytes(thrown)

    def pick(self, pool: Sequence[T]) -> T:
        self._left, index = divmod(self._left, len(pool))
        return pool[index]


def _rows(dice: _Dice, *counts: int) -> tuple[Row, ...]:
    return tuple(_row(dice) for _ in range(dice.pick(counts)))


def _row(dice: _Dice) -> Row:
    return Row(
        b"",
        "",
        dice.pick(TASKS),
        {},
        dice.pick(("a", *TENANTS)),
        priority=dice.pick((0, 0, 0, -1, 1)),
        delay=dice.pick((0, 0, 0, 1, 5, 20)) * TICK,
        expires=dice.pick((None, None, None, None, None, None, 0, 3 * TICK, 20 * TICK)),
        group=dice.pick((None, None, "g", "h")),
    )


def _crowd(dice: _Dice) -> tuple[Row, ...]:
    """Many jobs of one tenant."""
    row = Row(b"", "", dice.pick(TASKS), {}, dice.pick(TENANTS), group=dice.pick((None, None, None, "g")))
    return (row,) * dice.pick((5, 10))


def _policy(dice: _Dice) -> Policy:
    """Few rules, or all kinds of them."""
    none = (None,) * dice.pick((2, 10))
    return Policy(
        queue="",
        running=dice.pick((*none, 1, 3, 6)),
        rate=dice.pick((*none, *RATES)),
        tenant_running=dice.pick((*none, 1, 2, 4)),
        tenant_rate=dice.pick((*none, *RATES)),
        task_rates=dice.pick((*({} for _ in none), {"t": RATES[0]}, {"t": RATES[1], "u": RATES[2]})),
        tenant_workers=dice.pick((*none, 1, 2, 3)),
        tenant_batch=dice.pick((1, 1, 1, 2, 3)),
        ageing=dice.pick((*none, TICK, 3 * TICK)),
        group_running=dice.pick((1, 1, 1, 2, 3)),
        depth=dice.pick((*none, 6, 20)),
    )


def _governs(thrown: bytes) -> Policy:
    """Rules, or at least turns."""
    policy = _policy(_Dice(thrown))
    return policy if policy.governs else replace(policy, tenant_workers=1_000)


def _end(dice: _Dice) -> End:
    state = dice.pick((*[JobState.COMPLETED] * 5, *[JobState.AVAILABLE] * 3, JobState.PAUSED, JobState.FAILED))
    places = tuple(dice.pick(range(20)) for _ in range(dice.pick((1, 2, 3, 5))))
    delay = dice.pick((0, None, TICK, 5 * TICK))
    return End(places, state, delay, _rows(dice, 1, 2) if dice.pick((False, False, False, True)) else ())


def _pause(dice: _Dice) -> QueuePause:
    paused = dice.pick((True, False))
    lasts = dice.pick((None, 2 * TICK, 10 * TICK)) if paused else None
    names: Sequence[tuple[str | None, str | None]] = (
        *((name, None) for name in TENANTS), *((None, name) for name in TASKS), (None, None),
    )  # fmt: skip
    return QueuePause("", *dice.pick(names), paused, lasts)


def _step(thrown: bytes) -> Step:
    dice = _Dice(thrown)
    kind = dice.pick("ppppccttttttttttteeeeewwwwrrahhlP")
    match kind:
        case "p":
            return Plant(_rows(dice, 1, 1, 2, 3, 5))
        case "c":
            return Plant(_crowd(dice))
        case "t":
            limit = dice.pick((1, 1, 2, 3, 5, 30))
            return Take(f"h{dice.pick(range(3))}", limit, dice.pick((None, None, None, 1)))
        case "e":
            return _end(dice)
        case "w":
            return Wait(dice.pick((1, 1, 2, 3, 5, 10, 50)))
        case "r":
            return Recall(dice.pick((0, 1, 5)))
        case "a":
            return Alter(dice.pick(range(64)), dice.pick(CHANGES))
        case "h":
            return _pause(dice)
        case "l":
            rate = dice.pick((None, None, *RATES))
            return TenantLimit("", dice.pick(TENANTS), dice.pick((None, 1, 2, 5)), rate)
    return _policy(dice)


def stories(length: int = 60) -> SearchStrategy[Story]:
    """Stories of up to this many steps."""
    dice = st.binary(min_size=14, max_size=14)
    begin = st.binary(min_size=24, max_size=24).map(lambda thrown: Plant(_rows(_Dice(thrown), 1, 4, 8)))
    steps = st.lists(dice.map(_step), min_size=length // 2, max_size=length)
    return st.tuples(dice, begin, steps).map(lambda drawn: Story(_governs(drawn[0]), (drawn[1], *drawn[2])))


async def play(story: Story, store: Backend, queue: str = "q", first: int = 0) -> None:
    """Carry out a story in a queue that nobody has used yet, with ids that count from ``first``."""
    await _Player(store, queue, first).play(story)


class _Player:
    def __init__(self, store: Backend, queue: str, first: int) -> None:
        self._store = store
        self._queue = queue
        self._ids = first
        self._referee = Referee(queue)
        self._now = T0
        self._version = 0

    async def play(self, story: Story) -> None:
        await self._step(story.policy)
        for step in story.steps:
            await self._step(step)

    async def _step(self, step: Step) -> None:
        match step:
            case Plant(rows):
                rows = self._named(rows)
                self._referee.insert(rows, await self._store.insert(rows, self._now), self._now)
            case Take(holder, limit, lost_below):
                claim = Claim(f"{self._queue}/{holder}", (self._queue,), limit, 10 * TICK, lost_below=lost_below)
                self._referee.claim(claim, await self._store.claim(claim, self._now), self._now)
            case End():
                await self._end(step)
            case Wait(ticks):
                self._now += ticks * TICK
            case Recall(max_lost):
                self._referee.reap(await self._store.reap(Reap(max_lost=max_lost), self._now), self._now)
            case Alter(place, change):
                known = sorted(self._referee.book.jobs)
                ids = known[place % len(known) :][:1] if known else []
                await self._store.alter(Selector(ids=ids), change, self._now)
                self._referee.alter(ids, change, self._now)
            case QueuePause():
                pause = replace(step, queue=self._queue)
                assert self._store.policies is not None
                await self._store.policies.pause(pause, self._now)
                self._referee.pause(pause, self._now)
            case Policy():
                await self._save(step)
            case TenantLimit(_, tenant, running, rate):
                own = TenantLimit(self._queue, tenant, running, rate)
                assert self._store.policies is not None
                await self._store.policies.limit(own, self._now)
                self._referee.limit(own)

    async def _save(self, rules: Policy) -> None:
        assert self._store.policies is not None
        policy = replace(rules, queue=self._queue, version=self._version)
        assert await self._store.policies.save(policy, self._now), "the policy was changed by somebody else"
        self._version += 1
        self._referee.save(policy)

    async def _end(self, step: End) -> None:
        held = sorted(self._referee.book.running(), key=lambda job: job.id)
        ended = {held[place % len(held)].id: held[place % len(held)] for place in step.places if held}
        batch = [
            Settlement(job.id, job.epoch, job.holder, step.state, delay=step.delay, spawn=self._named(step.spawn))
            for job in ended.values()
        ]
        self._referee.finish(batch, await self._store.finish(batch, self._now), self._now)

    def _named(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        self._ids += len(rows)
        return tuple(replace(row, id=_job_id(self._ids - i), queue=self._queue) for i, row in enumerate(reversed(rows)))


def _job_id(number: int) -> JobId:
    return bytes.fromhex(f"0190{number:08x}70008000000000000000")
