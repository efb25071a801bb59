"""Commands that wait for the SQLite writer share one transaction, a turn: what each does is what it would do alone."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.backends.memory import MemoryBackend
from headrace.backends.sqlite import SqliteBackend
from headrace.backends.sqlite.transaction import INLINE
from headrace.backends.sqlite.writer import Writer
from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend, TickStore
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Claimed,
    Delete,
    JobKey,
    KeptStats,
    Move,
    Pause,
    Reap,
    Renewed,
    Requeue,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.seam.ticks import Drop, Look, NewTick, Overlap, Plan, Save, ScheduleSelector, TickNote
from headrace.testing.conformance.base import HOUR, LEASE, MINUTE, SECOND, T0, job_id, row
from headrace.testing.conformance.ticks import fires, schedule, uid
from headrace.types import JobState

A, C, X, F = JobState.AVAILABLE, JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED
NOW = T0 + HOUR
BIG = b"x" * (INLINE + 1)
WANT = frozenset({"parameters", "result", "error"})
QUEUES = ("q", "lone", "done", "stopped", "fresh", "idle")
Operation = Callable[[Backend], Awaitable[object]]


def rows(*numbers: int, **changes: Any) -> list[Row]:
    return [row(number, **changes) for number in numbers]


async def prepare(store: Backend) -> None:
    """Jobs in all states; leases that have expired; a queue with one ended job only, and one with none at all;
    schedules whose last jobs are among these jobs, and ticks."""
    await _end(store, 40, key="ended", result=BIG, result_ttl=2 * HOUR)
    await _end(store, 41, result=BIG, result_ttl=SECOND)
    await _end(store, 42)
    await _end(store, 43, state=X)
    await _end(store, 44, state=F, key="failed", error=b"{}")
    await _end(store, 45, queue="lone", key="lone", result=b"45", result_ttl=SECOND)
    await _end(store, 46, queue="done")
    await _end(store, 47, queue="idle")
    await _alter(store, Delete(), 47)
    await store.insert(rows(20, 21, 22, 23, 24, cells={"parameters": BIG}), T0)
    await store.claim(Claim("w", ("q",), 5, 2 * HOUR), T0)
    for first, holder in ((10, "gone"), (12, "lost")):
        await store.insert(rows(first, first + 1), T0)
        await store.claim(Claim(holder, ("q",), 2, LEASE), T0)
    await store.renew(Beat("w", "worker", ("q",), 2 * HOUR, ttl=2 * HOUR), T0)
    await _alter(store, Cancel(), 12, 24)
    await store.insert([row(30), row(31, key="paused")], T0)
    await _alter(store, Pause(), 30, 31)
    await store.insert([row(1, key="waiting"), row(2, priority=-1), row(3), row(4, expires=MINUTE)], T0)
    await store.insert([row(5, delay=2 * HOUR, key="later"), row(6, queue="stopped")], T0)
    await store.policies.pause(QueuePause("stopped"), T0)
    waiting, running = job_id(1), job_id(20)
    kept = (schedule(1), schedule(2, last_job=running), schedule(3, last_job=waiting, definition=BIG), schedule(4))
    await ticks(store).save([Save(one, 0) for one in kept], T0)
    for at, slot in ((T0, T0), (NOW - SECOND, T0 + SECOND)):
        plans = [Plan(one.name, one.uid, None, [NewTick(slot, slot)]) for one in kept]
        await ticks(store).plan(plans, at)


VERSION = 3
"""Of the schedules that were prepared: saved once, and planned twice."""


def ticks(store: Backend) -> TickStore:
    assert store.ticks is not None
    return store.ticks


async def _end(
    store: Backend, number: int, *, state: JobState = C, queue: str = "q", key: str | None = None, **changes: Any
) -> None:
    at = T0 + number
    await store.insert([row(number, queue=queue, key=key)], at)
    [job] = (await store.claim(Claim("w", (queue,), 1, LEASE), at)).jobs
    assert await store.finish([Settlement(job.id, job.epoch, "w", state, **changes)], at) == [state]


async def _alter(store: Backend, change: Change, *numbers: int) -> None:
    await store.alter(Selector(ids=[job_id(number) for number in numbers]), change, T0)


# -- the operations: each has something to do, whichever came before it


def settled(number: int, state: JobState, holder: str = "w", **changes: Any) -> Settlement:
    return Settlement(job_id(number), T0, holder, state, **changes)


def insert(*given: Row) -> Operation:
    return lambda store: store.insert(given, NOW)


def finish(*given: Settlement) -> Operation:
    return lambda store: store.finish(given, NOW)


def alter(change: Change, *numbers: int) -> Operation:
    ids = [job_id(number) for number in numbers]
    return lambda store: store.alter(Selector(ids=ids), change, NOW)


def configure(queue: str, *, paused: bool) -> Operation:
    return lambda store: store.policies.pause(QueuePause(queue, paused=paused), NOW)


def sweep(place: SweepTarget, max_count: int | None = None) -> Operation:
    return lambda store: store.sweep(SweepClause(target=place, max_count=max_count), NOW)


def save(*given: Save | Drop) -> Operation:
    return lambda store: ticks(store).save(given, NOW)


def plan(*given: Plan) -> Operation:
    return lambda store: ticks(store).plan(given, NOW)


def planned(number: int, *given: NewTick, version: int | None = VERSION) -> Plan:
    return Plan(f"s{number:06d}", uid(number), version, given, NOW + HOUR, NOW + MINUTE)


def note(*given: TickNote) -> Operation:
    return lambda store: ticks(store).note(given, NOW)


async def finish_and_claim(store: Backend) -> object:
    assert store.finish_and_claim is not None
    return await store.finish_and_claim([settled(22, F, error=BIG)], Claim("w3", ("fresh", "q"), 2, LEASE), NOW)


BEAT = Beat("w", "worker", QUEUES, 3 * HOUR, leases=[(job_id(number), T0) for number in (20, 21, 10)], ttl=2 * HOUR)
REAP = Reap(max_lost=0, spread=MINUTE)

OPERATIONS: dict[str, Operation] = {
    "insert into a new queue": insert(row(100, queue="fresh", cells={"parameters": BIG}), row(101, queue="fresh")),
    "insert into known queues": insert(
        row(102, key="free", cells={"parameters": BIG}),
        row(103, key="waiting", reply_to="inbox"),
        row(104, key="ended"),
        row(105, key="failed"),
        row(106, queue="lone", key="lone"),
        row(107, queue="idle", priority=1),
    ),
    "claim": lambda store: store.claim(Claim("w2", QUEUES, 3, LEASE), NOW),
    "complete": finish(
        settled(20, C, result=BIG, result_ttl=HOUR), settled(21, C, queue="lone"), settled(10, C, holder="gone")
    ),
    "complete and keep nothing": finish(settled(20, C, keep=False), settled(22, C, keep=False)),
    "again, with spawned jobs": finish(
        settled(23, A, delay=SECOND, spawn=rows(110, queue="fresh", key="spawned")),
        settled(24, A, spawn=rows(111, queue="lone", cells={"parameters": BIG})),
    ),
    "fail, and claim": finish_and_claim,
    "renew": lambda store: store.renew(BEAT, NOW),
    "reap": lambda store: store.reap(REAP, NOW),
    "sweep completed": sweep(SweepTarget.COMPLETED, max_count=0),
    "sweep results": sweep(SweepTarget.RESULTS),
    "cancel": alter(Cancel(), 1, 20, 30, 11, 40),
    "move to a new queue": alter(Move("fresh"), 2, 31, 1, 20),
    "requeue": alter(Requeue(), 40, 41, 43, 44, 45),
    "delete": alter(Delete(), 1, 30, 42, 44, 45, 46),
    "pause": configure("q", paused=True),
    "pause a new queue": configure("fresh", paused=True),
    "unpause": configure("stopped", paused=False),
    "save schedules": save(
        Save(schedule(1, queue="lone", definition=BIG, look_at=NOW + 1), VERSION),
        Save(schedule(9, definition=BIG), 0),
        Save(schedule(3, definition=b"small", last_job=job_id(31)), VERSION),
        Save(schedule(4, definition=BIG), 7),
    ),
    "remove schedules": save(Drop("s000002", VERSION), Drop("s000003", VERSION), Drop("s000009", 1)),
    "plan": plan(
        planned(1, NewTick(NOW - HOUR, NOW - HOUR, count=9), fires(NOW, 112, queue="fresh", cells={"parameters": BIG})),
        planned(2, fires(NOW, 113, Overlap.SKIP), fires(NOW + 1, 114, Overlap.SKIP)),
        planned(3, fires(NOW, 115, Overlap.CANCEL, key="waiting"), fires(NOW + 1, 116, Overlap.CANCEL, key="waiting")),
        planned(4, fires(NOW, 100)),
    ),
    "plan out of turn": plan(
        planned(1, fires(T0, 117), fires(NOW, 118, queue="idle"), version=None),
        planned(2, fires(NOW + 2, 119, Overlap.SKIP, queue="lone", key="lone"), version=None),
        planned(4, fires(NOW, 100, queue="fresh"), version=None),
    ),
    "note": note(TickNote(uid(1), T0, "completed", 1, 2), TickNote(uid(1), NOW, "failed", 3, 4)),
    "sweep ticks": lambda store: store.sweep(SweepClause(target=SweepTarget.TICKS, older_than=MINUTE), NOW),
}
ADDING = (
    "insert into a new queue", "insert into known queues", "again, with spawned jobs", "move to a new queue",
    "plan out of turn",
)  # fmt: skip
SWEEPS = ("sweep completed", "sweep results", "sweep ticks")
PAIRS = [(first, second) for first in OPERATIONS for second in OPERATIONS]
TRIPLES = [(first, between, last) for first in ADDING for between in SWEEPS for last in ADDING]

IDS = [job_id(number) for number in range(120)]
KEYS = [
    JobKey(queue, key)
    for queue in QUEUES
    for key in ("waiting", "paused", "later", "ended", "failed", "lone", "free", "spawned")
]


# -- running them


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed file with the prepared store; tests work on copies of it."""
    path = tmp_path_factory.mktemp("prepared") / "jobs.db"

    async def make() -> None:
        async with opened(SqliteBackend(path, durability="normal")) as store:
            await prepare(store)

    asyncio.run(make())
    return path


@asynccontextmanager
async def opened(store: SqliteBackend) -> AsyncIterator[SqliteBackend]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def copied(prepared: Path, path: Path) -> AsyncIterator[SqliteBackend]:
    shutil.copy(prepared, path)
    async with opened(SqliteBackend(path, durability="normal")) as store:
        yield store


async def one_turn(store: SqliteBackend, names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """All of them wait while the writer is held up, and so share the turn that comes next."""
    reached, gate = threading.Event(), threading.Event()
    turns: list[int] = []
    transact = Writer._transact

    def counted(self: Writer, commands: list[Any]) -> Any:
        turns.append(len(commands))
        return transact(self, commands)

    def hold_up(*_: object) -> None:
        reached.set()
        gate.wait()

    monkeypatch.setattr(Writer, "_transact", counted)
    held_up = store._write(hold_up, None)
    try:
        await asyncio.to_thread(reached.wait)
        calls = asyncio.gather(*(OPERATIONS[name](store) for name in names))
        await asyncio.sleep(0)  # each call hands its command over in its first step
    finally:
        gate.set()
    await held_up
    answers = await calls
    assert turns == [1, len(names)]
    return list(answers)


async def one_by_one(store: Backend, names: Sequence[str]) -> list[object]:
    return [await OPERATIONS[name](store) for name in names]


async def told(store: Backend, answers: Sequence[object]) -> dict[str, object]:
    """The answers; every record, by id and by key; schedules and ticks; the numbers; and what later looks and claims
    find in the indexes."""
    stats = await store.stats(NOW)
    found: dict[str, object] = {f"answer {number}": _plain(answer) for number, answer in enumerate(answers)}
    found |= {f"job {n}": record for n, record in enumerate(await store.fetch(IDS, WANT, NOW))}
    found |= {f"{k.queue}/{k.key}": r for k, r in zip(KEYS, await store.fetch(KEYS, WANT, NOW), strict=True)}
    found |= {f"queue {queue.queue}": queue for queue in stats.queues}
    found |= {f"place {place.target}": place for place in stats.kept}
    found |= {f"schedule {one.name}": one for one in await ticks(store).find(ScheduleSelector())}
    found |= {f"ticks of {number}": await ticks(store).history(uid(number)) for number in range(10)}
    for later in (0, HOUR):
        found[f"due {later} from now"] = await ticks(store).due(Look(), NOW + later)
    for queue in QUEUES:
        found[f"claim from {queue}"] = _plain(await store.claim(Claim("last", (queue,), 100, LEASE), NOW + 3 * HOUR))
    return found


def _plain(answer: object) -> object:
    """Lists as lists, and in one order where the protocol leaves it open."""
    match answer:
        case Renewed():
            return replace(answer, cancels=sorted(answer.cancels), held=list(answer.held))
        case Claimed():
            return replace(answer, expired=list(answer.expired))
        case [list(), Claimed()]:
            return [_plain(part) for part in answer]
    return answer


def differences(ours: dict[str, object], theirs: dict[str, object], *, bytes_too: bool) -> dict[str, object]:
    """What one store tells and the other does not. How many bytes something takes is each kind of store's own."""
    if not bytes_too:
        ours, theirs = ({name: _weightless(what) for name, what in told.items()} for told in (ours, theirs))
    names = ours.keys() | theirs.keys()
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


def _weightless(what: object) -> object:
    return replace(what, bytes=0) if isinstance(what, Swept | KeptStats) else what


async def check(names: Sequence[str], prepared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with copied(prepared, folder / "turn.db") as store:
        together = await told(store, await one_turn(store, names, monkeypatch))
    async with copied(prepared, folder / "alone.db") as store:
        alone = await told(store, await one_by_one(store, names))
    assert differences(together, alone, bytes_too=True) == {}
    model = MemoryBackend()
    await prepare(model)
    assert differences(together, await told(model, await one_by_one(model, names)), bytes_too=False) == {}


# -- the tests


@pytest.mark.parametrize("names", PAIRS, ids=" + ".join)
async def test_two_in_one_turn_do_what_they_do_one_after_the_other(
    names: Sequence[str], prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check(names, prepared, tmp_path, monkeypatch)


@pytest.mark.parametrize("names", TRIPLES, ids=" + ".join)
async def test_a_sweep_between_two_that_add_jobs_takes_no_queue_from_them(
    names: Sequence[str], prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check(names, prepared, tmp_path, monkeypatch)


async def test_the_prepared_store_has_work_for_every_operation(prepared: Path, tmp_path: Path) -> None:
    """Otherwise a pair would show nothing."""
    untouched = MemoryBackend()
    await prepare(untouched)
    before = await told(untouched, [])
    for name in OPERATIONS:
        model = MemoryBackend()
        await prepare(model)
        await one_by_one(model, [name])
        assert differences(await told(model, []), before, bytes_too=True) != {}, name
