"""Every statement that changes something, sent as in production; what each tells is sorted by strand."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol, runtime_checkable

from msgspec.structs import replace

from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Altered,
    Beat,
    Cancel,
    Change,
    Claim,
    Claimed,
    Delete,
    Hold,
    Inserted,
    JobId,
    JobKey,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Watch,
)
from headrace.types import JobState
from tests.backends.interleaving.scenes import (
    HOUR,
    IDLE,
    NEWCOMER,
    NEXT_DAY,
    NOW,
    QUEUES,
    SECOND,
    WORKER,
    Scene,
    job_id,
    key_of,
    row,
    strand_of,
)

Facts = list[tuple[int, Any]]
"""What a statement told, each fact with the strand that it is about; 0 is what belongs to none."""
Run = Callable[[Backend, Scene], Awaitable[Facts]]


@runtime_checkable
class Spoken(Protocol):
    """A store that can be spoken to behind the waist."""

    async def say(self, sql: str) -> None:
        """One statement; ``{schema}`` is where its tables are."""
        ...

    async def drop_day(self, at: int, age: int) -> int:
        """Drop the oldest day whose jobs have all but a few completed so long before; how many went with it."""
        ...

    async def enqueue(self, rows: Sequence[Row]) -> list[Inserted]:
        """Insert as a caller does in a transaction of its own; the server's clock is the one that counts."""
        ...


class Statement(NamedTuple):
    """One statement on all jobs of a scene, as far as it applies to them."""

    name: str
    run: Run
    passing: Run | None = None
    """What is left of it where it passes over whatever another transaction has in hand, as if that were not there."""
    upon: Callable[[tuple[JobId, ...]], Run] | None = None
    """The same on given jobs, as far as it still applies to them: it meets each in a step of its own, and has found out
    before which they are."""
    asking: tuple[Run, Run] | None = None
    """Where it only asks for the end of jobs that run: what is left of it if they run no more by then, and what a reap
    does for it later."""


async def _nothing(store: Backend, scene: Scene) -> Facts:
    return []


# -- insert


def _insert(make: Callable[[int], Sequence[Row]]) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        rows = [made for number in scene.numbers for made in make(number)]
        answers = await store.insert(rows, NOW)
        return [(strand_of(given.id), answer) for given, answer in zip(rows, answers, strict=True)]

    return run


def _plain(number: int) -> list[Row]:
    return [row(number + 100, key=None), row(number + 200, key=None, queue=IDLE, reply_to="in:2")]


def _keyed(number: int) -> list[Row]:
    return [row(number + 300, reply_to="in:3", expires=HOUR)]


def _keyed_too(number: int) -> list[Row]:
    return [row(number + 400, reply_to="in:4", hold_failed=True)]


def _keyed_elsewhere(number: int) -> list[Row]:
    return [row(number + 500, queue="other")]


def _again(number: int) -> list[Row]:
    return [row(number)]


def _again_under_another_key(number: int) -> list[Row]:
    return [row(number, key=key_of(number) + "'")]


def _again_and_keyed(number: int) -> list[Row]:
    return [row(number, key=None), row(number + 600)]


# -- claim and finish


async def _claim(store: Backend, scene: Scene) -> Facts:
    return _claimed(await store.claim(Claim(NEWCOMER, QUEUES, 100, HOUR), NOW))


def _claimed(answer: Claimed) -> Facts:
    return [(strand_of(job.id), job) for job in answer.jobs] + [(strand_of(job.id), job) for job in answer.expired]


def _settlements(scene: Scene, **fields: Any) -> list[Settlement]:
    return [
        Settlement(job_id(number), strand.epoch, strand.holder, **fields)
        for strand in scene.strands
        for number in strand.jobs
    ]


def _settled(batch: Sequence[Settlement], answers: Sequence[JobState | None]) -> Facts:
    return [(strand_of(settlement.id), answer) for settlement, answer in zip(batch, answers, strict=True)]


def _finish(state: JobState, **fields: Any) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        batch = _settlements(scene, state=state, **fields)
        return _settled(batch, await store.finish(batch, NOW))

    return run


def _complete(**fields: Any) -> Run:
    """The leases of one holder, which takes another way than the rest."""

    async def run(store: Backend, scene: Scene) -> Facts:
        batch = _of_one_holder(scene, **fields)
        return _settled(batch, await store.finish(batch, NOW))

    return run


def _of_one_holder(scene: Scene, **fields: Any) -> list[Settlement]:
    batch = _settlements(scene, state=JobState.COMPLETED, **fields)
    return [settlement for settlement in batch if settlement.holder == batch[0].holder]


async def _complete_late(store: Backend, scene: Scene) -> Facts:
    batch = [replace(late, epoch=late.epoch - 1) for late in _of_one_holder(scene)]
    return _settled(batch, await store.finish(batch, NOW))


_TURNED: dict[str, Any] = {"result": b"turned", "result_ttl": HOUR}


async def _turn(store: Backend, scene: Scene) -> Facts:
    assert store.finish_and_claim is not None
    batch = _of_one_holder(scene, **_TURNED)
    holder = batch[0].holder if batch else NEWCOMER
    answers, claimed = await store.finish_and_claim(batch, Claim(holder, QUEUES, 100, HOUR), NOW)
    return _settled(batch, answers) + _claimed(claimed)


async def _spawn(store: Backend, scene: Scene) -> Facts:
    batch = [
        Settlement(
            job_id(number), strand.epoch, strand.holder, JobState.COMPLETED,
            spawn=[row(number % 100 + 700), row(number % 100 + 800, key=None)],
        )
        for strand in scene.strands
        for number in strand.jobs
    ]  # fmt: skip
    return _settled(batch, await store.finish(batch, NOW))


# -- leases


async def _renew(store: Backend, scene: Scene) -> Facts:
    leases = [(settlement.id, settlement.epoch) for settlement in _settlements(scene, state=JobState.COMPLETED)]
    renewed = await store.renew(Beat(WORKER, WORKER, QUEUES, HOUR, leases), NOW)
    lost = [(strand_of(name), ("lost", name, epoch)) for name, epoch in renewed.lost]
    cancels = [(strand_of(name), ("cancel", name)) for name in sorted(renewed.cancels)]
    return [*lost, *cancels, (0, sorted(renewed.paused))]


async def _beat(store: Backend, scene: Scene) -> Facts:
    """What is left of it where every lease is in somebody's hands."""
    renewed = await store.renew(Beat(WORKER, WORKER, QUEUES, HOUR), NOW)
    return [*((strand_of(name), ("cancel", name)) for name in sorted(renewed.cancels)), (0, sorted(renewed.paused))]


async def _reap(store: Backend, scene: Scene) -> Facts:
    return [(strand_of(told.id), told) for told in await store.reap(Reap(max_lost=2), NOW)]


# -- alter


def _alter(change: Change) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        return _altered(await store.alter(Selector(ids=scene.jobs), change, NOW))

    return run


def _alter_by_key(change: Change) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        return _altered(await store.alter(Selector(keys=_keys(scene)), change, NOW))

    return run


def _alter_given(change: Change) -> Callable[[tuple[JobId, ...]], Run]:
    @functools.cache
    def upon(names: tuple[JobId, ...]) -> Run:
        async def run(store: Backend, scene: Scene) -> Facts:
            return _altered(await store.alter(Selector(ids=names), change, NOW))

        return run

    return upon


def _keys(scene: Scene) -> list[JobKey]:
    return [JobKey(queue, key_of(number)) for number in scene.numbers for queue in QUEUES]


def _alter_all(change: Change, **narrow: Any) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        return _altered(await store.alter(Selector(**narrow), change, NOW))

    return run


def _alter_fitting(change: Change, **narrow: Any) -> Callable[[tuple[JobId, ...]], Run]:
    @functools.cache
    def upon(names: tuple[JobId, ...]) -> Run:
        async def run(store: Backend, scene: Scene) -> Facts:
            answers = await store.alter(Selector(ids=names, **narrow), change, NOW)
            return _altered([told for told in answers if told.before in change.applies])

        return run

    return upon


def _altered(answers: Sequence[Altered]) -> Facts:
    return [(strand_of(told.id), told) for told in answers]


def _configure(paused: bool) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        await store.policies.pause(QueuePause("q", paused=paused), NOW)
        return []

    return run


# -- upkeep


def _sweep(place: SweepTarget, **bounds: Any) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        swept = await store.sweep(SweepClause(target=place, **bounds), NOW)
        return [(scene.numbers[0], swept.removed)] if len(scene.strands) == 1 else []

    return run


async def _swept_nothing(store: Backend, scene: Scene) -> Facts:
    return [(scene.numbers[0], 0)] if len(scene.strands) == 1 else []


async def _drop_day(store: Backend, scene: Scene) -> Facts:
    if isinstance(store, Spoken):
        removed = await store.drop_day(NOW + 72 * HOUR, 24 * HOUR)
    else:
        clause = SweepClause(target=SweepTarget.COMPLETED, older_than=24 * HOUR)
        removed = (await store.sweep(clause, NOW + 72 * HOUR)).removed
    return [(scene.numbers[0], removed)] if len(scene.strands) == 1 else []


def _inner(sql: str) -> Run:
    """What a store does for itself; a model that has no such need does nothing."""

    async def run(store: Backend, scene: Scene) -> Facts:
        if isinstance(store, Spoken):
            await store.say(sql)
        return []

    return run


_FAILED = frozenset({JobState.FAILED})
_WAITING = frozenset({JobState.AVAILABLE})


def _of_many(name: str, change: Change, **narrow: Any) -> Statement:
    return Statement(name, _alter_all(change, **narrow), upon=_alter_fitting(change, **narrow))


STATEMENTS = (
    Statement("insert", _insert(_plain)),
    Statement("insert with a key", _insert(_keyed)),
    Statement("insert with a key that a failed job holds", _insert(_keyed_too)),
    Statement("insert with a key elsewhere", _insert(_keyed_elsewhere)),
    Statement("insert again", _insert(_again)),
    Statement("insert again under another key", _insert(_again_under_another_key)),
    Statement("insert again and with a key", _insert(_again_and_keyed)),
    Statement("claim", _claim, passing=_nothing),
    Statement("turn", _turn, passing=_complete(**_TURNED)),
    Statement("complete", _complete(result=b"done", result_ttl=HOUR)),
    Statement("complete and forget", _complete(keep=False)),
    Statement("complete under the lease before", _complete_late),
    Statement("complete with a word and forget", _finish(JobState.COMPLETED, reason="for nobody", keep=False)),
    Statement(
        "retry",
        _finish(
            JobState.AVAILABLE,
            delay=SECOND,
            failed_attempt=True,
            error=b"boom",
            priority=3,
            cells={"vm_state": b"2", "parameters": None},
        ),
    ),
    Statement("finish as paused", _finish(JobState.PAUSED, run_at=NOW - SECOND)),
    Statement("fail", _finish(JobState.FAILED, error=b"boom", reason="boom", failed_attempt=True)),
    Statement("finish elsewhere", _finish(JobState.AVAILABLE, queue="other")),
    Statement("complete and spawn", _spawn),
    Statement("renew", _renew, passing=_beat),
    Statement("reap", _reap, passing=_nothing),
    Statement("cancel", _alter(Cancel())),
    Statement("cancel by key", _alter_by_key(Cancel()), upon=_alter_given(Cancel())),
    _of_many("cancel those of a queue", Cancel(), queue="q"),
    Statement("pause", _alter(Pause())),
    Statement("resume", _alter(Resume())),
    Statement("requeue", _alter(Requeue())),
    _of_many("requeue the failed", Requeue(), states=_FAILED, reason=""),
    Statement("move", _alter(Move("other"))),
    _of_many("move those of a queue", Move(IDLE), queue="q"),
    Statement("reprioritise", _alter(Reprioritise(7))),
    Statement("reschedule", _alter(Reschedule(SECOND))),
    Statement("watch", _alter(Watch("in:9"))),
    Statement("hold", _alter(Hold(HOUR))),
    Statement("delete", _alter(Delete())),
    _of_many("delete the failed", Delete(), states=_FAILED),
    _of_many("delete the waiting", Delete(), states=_WAITING),
    Statement("pause the queue", _configure(True)),
    Statement("resume the queue", _configure(False)),
    Statement("sweep completed by age", _sweep(SweepTarget.COMPLETED, older_than=SECOND), passing=_swept_nothing),
    Statement("sweep failed by age", _sweep(SweepTarget.FAILED, older_than=SECOND), passing=_swept_nothing),
    Statement("sweep failed by count", _sweep(SweepTarget.FAILED, max_count=0), passing=_swept_nothing),
    Statement("sweep completed by bytes", _sweep(SweepTarget.COMPLETED, max_bytes=0), passing=_swept_nothing),
    Statement("sweep results", _sweep(SweepTarget.RESULTS), passing=_swept_nothing),
    Statement("drop the completed of a day", _drop_day, passing=_swept_nothing),
    Statement("make a day", _inner(f"SELECT {{schema}}.make_day('{NEXT_DAY}')")),
    Statement("fold deltas", _inner("SELECT {schema}.fold_deltas()")),
)

_NAMED = {statement.name: statement for statement in STATEMENTS}
INSERTS = [_NAMED[name] for name in ("insert", "insert with a key", "insert with a key elsewhere", "insert again")]
"""What a caller may send in a transaction of its own."""
SERVING = [
    statement
    for name, statement in _NAMED.items()
    if name in ("claim", "reap", "fold deltas") or name.startswith("sweep")
]
"""What everybody depends on."""
JOINING = [_NAMED[name] for name in ("insert with a key", "insert with a key that a failed job holds")]
"""What makes somebody wait for a job, which then must not end unseen. Nobody sends it in a transaction of its own."""
LOCKING = [_NAMED[name] for name in ("make a day", "drop the completed of a day")]
"""What takes whole tables, for a moment."""


async def _enqueue(store: Backend, scene: Scene) -> Facts:
    assert isinstance(store, Spoken)
    rows = [made for number in scene.numbers for made in (row(number + 300), row(number + 100, key=None))]
    answers = await store.enqueue(rows)
    return [(strand_of(given.id), answer) for given, answer in zip(rows, answers, strict=True)]


BOUND = Statement("enqueue in a transaction of one's own", _enqueue)


async def _look(store: Backend, scene: Scene) -> Facts:
    page = await store.scan(Selector(), None, 1_000, NOW)
    records = await store.fetch([record.id for record in page.records], frozenset({"parameters", "result"}), NOW)
    return [(strand_of(record.id), record) for record in sorted(filter(None, records), key=lambda record: record.id)]


LOOKING = Statement("look", _look)
"""Everything, page by page; changes nothing."""


def _alter_one(change: Change) -> Run:
    async def run(store: Backend, scene: Scene) -> Facts:
        return _altered(await store.alter(Selector(ids=scene.jobs[:1]), change, NOW))

    return run


THINNING = (
    Statement("sweep five", _sweep(SweepTarget.FAILED, max_count=25), passing=_nothing),
    Statement("sweep one", _sweep(SweepTarget.FAILED, older_than=SECOND, limit=1), passing=_nothing),
    Statement("delete one", _alter_one(Delete())),
    Statement("requeue one", _alter_one(Requeue())),
)
"""On thirty failed jobs: how many are left depends on what others have removed."""


_columns = count()


def migration() -> Statement:
    """A step that adds a column to every table and brings new versions of all functions."""
    return Statement("migrate", _inner(f"SELECT {{schema}}_scenes.migrate('c{next(_columns)}')"))
