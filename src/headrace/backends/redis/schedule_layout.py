"""How the store keeps schedules and ticks: strings of bytes, laid out in ``schedules.lua`` and ``ticks.lua``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from headrace.backends.redis import marshalling
from headrace.backends.redis.job_layout import encode
from headrace.seam.records import JobId, Row
from headrace.seam.ticks import Overlap, Plan, Schedule, Tick, TickNote, TickOutcome

TICK_BYTES = 200
"""The size of a tick, as retention counts it."""
_SCHEDULE = Struct(">16sQiHBqqQq16sQQ")
_ENABLED, _SLOT, _LOOK_AT, _LAST_SLOT, _LAST_JOB = 1, 2, 4, 8, 16
_LENGTH = Struct(">I")
_TICK = Struct(">qqBQI16s")
_NOTED = Struct(">qq")
_PLAN = Struct(">16sqBqqI")
_NEW = Struct(">qqiIB")
_NOTE = Struct(">16sqqq")
_CHANGE = Struct(">QBH")
_OUTCOMES = (None, TickOutcome.FIRED, TickOutcome.SKIPPED, TickOutcome.MISSED)
_OVERLAPS = {Overlap.ALLOW: 0, Overlap.SKIP: 1, Overlap.CANCEL: 2}
_NO_JOB = bytes(16)
_CODES = {"completed": "\1", "cancelled": "\2", "failed": "\3"}
"""The usual states as one character: small sets of entries up to 64 bytes take little memory on the server."""
_STATES = {code: state for state, code in _CODES.items()}
_DROP, _KEEP, _MOVE = range(3)

Past = tuple[int, ...]
"""The shards that have earlier ticks of a schedule."""


class Stored(NamedTuple):
    """A schedule, and where its earlier ticks are."""

    schedule: Schedule
    past: Past


class Alteration(NamedTuple):
    """A change of one schedule: it is removed, or becomes ``wanted``, here or in another shard."""

    name: str
    expect: int
    wanted: Schedule | None = None
    past: Past = ()
    to: int | None = None


class Planned(NamedTuple):
    """A tick, sorted by when it was planned."""

    planned_at: int
    name: bytes
    """Its schedule and slot."""


def pack_schedule(one: Schedule, past: Past = ()) -> bytes:
    """All but its name and definition. The store fills in its version and when it was saved."""
    flags = _ENABLED * one.enabled
    for flag, value in (
        (_SLOT, one.slot), (_LOOK_AT, one.look_at), (_LAST_SLOT, one.last_slot), (_LAST_JOB, one.last_job),
    ):  # fmt: skip
        flags += 0 if value is None else flag
    head = _SCHEDULE.pack(
        one.uid, 0, one.plan_priority, one.bucket, flags, one.slot or 0, one.look_at or 0, one.runs, one.last_slot or 0,
        one.last_job or _NO_JOB, 0, 0,
    )  # fmt: skip
    names = [name.encode() for name in (one.queue, one.tenant)]
    return head + b"".join(_LENGTH.pack(len(name)) + name for name in names) + _numbers(past).pack(*past)


def unpack_schedule(name: bytes, packed: bytes, definition: bytes) -> Stored:
    (
        uid, version, plan_priority, bucket, flags, slot, look_at, runs, last_slot, last_job, created_at, updated_at,
    ) = _SCHEDULE.unpack_from(packed)  # fmt: skip
    queue, at = _text(packed, _SCHEDULE.size)
    tenant, at = _text(packed, at)
    past = packed[at:]
    schedule = Schedule(
        name=name.decode(), uid=uid, queue=queue, definition=definition, tenant=tenant, plan_priority=plan_priority,
        bucket=bucket, enabled=bool(flags & _ENABLED), slot=slot if flags & _SLOT else None,
        look_at=look_at if flags & _LOOK_AT else None, runs=runs, last_slot=last_slot if flags & _LAST_SLOT else None,
        last_job=last_job if flags & _LAST_JOB else None, version=version, created_at=created_at, updated_at=updated_at,
    )  # fmt: skip
    return Stored(schedule, _numbers(past[::2]).unpack(past))


def _numbers(of: Sequence[Any]) -> Struct:
    return Struct(f">{len(of)}H")


def _text(packed: bytes, at: int) -> tuple[str, int]:
    [length] = _LENGTH.unpack_from(packed, at)
    at += _LENGTH.size
    return packed[at : at + length].decode(), at + length


def unpack_schedules(flat: Sequence[bytes]) -> list[Stored]:
    """Read an answer with name, schedule and definition of each."""
    return [unpack_schedule(*one) for one in marshalling.tuples(flat, 3)]


def save_args(batch: Sequence[Alteration]) -> Iterator[bytes]:
    """The arguments of a save, without the time."""
    yield encode([one.name for one in batch])
    yield b"".join(_CHANGE.pack(one.expect, _kind(one), one.to or 0) for one in batch)
    for one in batch:
        if one.wanted is not None:
            yield pack_schedule(one.wanted, one.past)
            yield one.wanted.definition


def _kind(one: Alteration) -> int:
    if one.wanted is None:
        return _DROP
    return _KEEP if one.to is None else _MOVE


def plan_args(batch: Sequence[Plan], away: marshalling.Away) -> list[Any]:
    """The arguments of a plan, without the time."""
    here: list[Row] = []
    gone: list[Row] = []
    plans: list[bytes] = []
    ticks: list[bytes] = []
    for plan in batch:
        flags = (0 if plan.slot is None else _SLOT) + (0 if plan.look_at is None else _LOOK_AT)
        version = -1 if plan.version is None else plan.version
        plans.append(_PLAN.pack(plan.uid, version, flags, plan.slot or 0, plan.look_at or 0, len(plan.ticks)))
        for tick in plan.ticks:
            number = 0
            if tick.row is not None:
                leaves = away(tick.row.queue) is not None
                rows = gone if leaves else here
                rows.append(tick.row)
                number = -len(rows) if leaves else len(rows)
            ticks.append(_NEW.pack(tick.slot, tick.run_at, number, tick.count, _OVERLAPS[tick.overlap]))
    queues, heads, keys, inboxes, owned, groups, bodies = marshalling.insert_args(here)
    entries: list[bytes] = []
    targets = marshalling.entries(gone, away, entries)
    return [
        encode([plan.name for plan in batch]), b"".join(plans), b"".join(ticks), queues, keys, inboxes, owned, groups,
        heads, encode(targets), len(bodies), *bodies, *entries,
    ]  # fmt: skip


def outcomes(answers: Sequence[Sequence[int] | None]) -> list[list[TickOutcome | None] | None]:
    """What became of the ticks of plans."""
    return [None if codes is None else [_OUTCOMES[code] for code in codes] for codes in answers]


def note_args(batch: Sequence[TickNote]) -> tuple[bytes, bytes]:
    """The arguments of a note."""
    notes = b"".join(_NOTE.pack(note.uid, note.slot, note.waited, note.ran) for note in batch)
    return notes, encode([_CODES.get(note.state, note.state) for note in batch])


def pack_tick(tick: Tick) -> bytes:
    code = _OUTCOMES.index(tick.outcome)
    packed = _TICK.pack(tick.slot, tick.run_at, code, tick.planned_at, tick.count, tick.job or _NO_JOB)
    if not tick.state:
        return packed
    return packed + _NOTED.pack(tick.waited or 0, tick.ran or 0) + _CODES.get(tick.state, tick.state).encode()


def unpack_tick(packed: bytes) -> Tick:
    slot, run_at, code, planned_at, count, job = _TICK.unpack_from(packed)
    outcome = _OUTCOMES[code]
    assert outcome is not None
    fired: JobId | None = job if outcome is TickOutcome.FIRED else None
    state, waited, ran = "", None, None
    if len(packed) > _TICK.size:
        waited, ran = _NOTED.unpack_from(packed, _TICK.size)
        said = packed[_TICK.size + _NOTED.size :].decode()
        state = _STATES.get(said, said)
    return Tick(
        slot=slot, run_at=run_at, outcome=outcome, planned_at=planned_at, count=count, job=fired, state=state,
        waited=waited, ran=ran,
    )  # fmt: skip


def unpack_planned(flat: Sequence[bytes]) -> list[Planned]:
    """Read an answer with each tick and when it was planned."""
    return [Planned(int(planned_at), name) for name, planned_at in marshalling.tuples(flat, 2)]
