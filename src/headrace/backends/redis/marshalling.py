"""Records as arguments of scripts, and answers of scripts as records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, TypeVar

import msgspec

from headrace.backends.redis.job_layout import (
    BEGUN,
    JOB,
    JOB_OF_CLAIM,
    KEYED,
    STATE_OF_CLAIM,
    Job,
    State,
    body,
    contents,
    encode,
    head_of,
    large_body,
)
from headrace.backends.redis.requests import Argument, Joined
from headrace.backends.settlement_checks import check_settled
from headrace.backends.states import CODES, STATES
from headrace.errors import InvalidJob
from headrace.seam import records as r
from headrace.seam.references import RESULT, Referrer, Swap, oldest_hour
from headrace.types import SECTIONS, JobState

log = logging.getLogger("headrace")

_SECTIONS = frozenset(SECTIONS)
_ASKED = frozenset((1, 3))
"""Values of ``cancel`` while a cancellation is requested, by a client or by a plan; see ``jobs.lua``."""
_SECTION_NUMBERS = {name: number for number, name in enumerate(SECTIONS, start=1)}

_SWAPPED = _SECTION_NUMBERS | {RESULT: len(SECTIONS) + 1}
_CELL = Struct(">BI")
_ROW = Struct(">16sHhqqqI")
_LEASE = Struct(">16sQ")
_PROGRESS = Struct(">II")
_pack_epoch = Struct(">Q").pack
_pack_long = Struct(">I").pack
_FAILED_ATTEMPT, _KEEP_LOST, _KEEP, _RESULT, _UNBEGUN = 1, 2, 4, 8, 16

T = TypeVar("T")
ALL_SECTIONS = 15
Away = Callable[[str], int | None]
"""Returns the shard of a queue if that is another one, else None."""


def at_arg(at: r.Stamp) -> int | str:
    """A time as scripts take it."""
    return "" if at is None else at


def or_false(value: T | None) -> T | bool:
    """An optional value as scripts take it in msgpack."""
    return False if value is None else value


def checked(rows: Iterable[r.Row]) -> None:
    """Refuse rows with an unknown section."""
    for row in rows:
        if not row.cells.keys() <= _SECTIONS:
            raise InvalidJob(f"the sections are {SECTIONS}, but a row came with {tuple(row.cells)}; nothing was stored")


def weight(row: r.Row) -> int:
    """Bytes that a job takes up, as retention counts them."""
    names = len(row.task) + len(row.tenant) + len(row.key or "") + len(row.group or "")
    return 200 + names + len(row.headers or b"") + sum(map(len, row.cells.values()))


def insert_args(rows: Sequence[r.Row]) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, list[bytes | Joined]]:
    """Queue names, heads, keys, inboxes, tenants and hours of references, groups, and the body of each row."""
    checked(rows)
    names = list(dict.fromkeys(row.queue for row in rows))
    numbers = {name: number for number, name in enumerate(names, start=1)}
    heads = b"".join(
        [
            _ROW.pack(
                row.id, numbers[row.queue], row.priority, row.delay, -1 if row.run_at is None else max(0, row.run_at),
                -1 if row.expires is None else row.expires, weight(row),
            )
            for row in rows
        ]
    )  # fmt: skip
    keys = [(i, row.key, _rule(row)) for i, row in enumerate(rows, start=1) if row.key is not None]
    inboxes = [(i, row.reply_to) for i, row in enumerate(rows, start=1) if row.reply_to is not None]
    hours = [oldest_hour(row.cells) for row in rows]
    owned = [
        (i, row.tenant, or_false(hour))
        for i, (row, hour) in enumerate(zip(rows, hours, strict=True), start=1)
        if row.tenant or hour is not None
    ]
    groups = [(i, row.group) for i, row in enumerate(rows, start=1) if row.group is not None]
    bodies = [large_body(row) for row in rows]
    return encode(names), heads, encode(keys), encode(inboxes), encode(owned), encode(groups), bodies


def is_alone(row: r.Row) -> bool:
    """Whether the script ``insert_one`` may take the row, as far as the row tells."""
    return (
        row.key is None
        and row.group is None
        and not row.delay
        and row.run_at is None
        and not row.tenant
        and oldest_hour(row.cells) is None
    )


def one_args(row: r.Row) -> tuple[Argument, ...]:
    """The arguments of ``insert_one`` after the time."""
    expires = -1 if row.expires is None else row.expires
    return row.queue, row.id, row.priority, expires, weight(row), row.reply_to or "", large_body(row)


def tuples(flat: Sequence[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """The values of a flat answer, in tuples of that size."""
    return zip(*[iter(flat)] * size, strict=True)


def names(flat: Sequence[Any]) -> dict[int, str]:
    """Queue names by their numbers."""
    return {number: name.decode("utf-8", "backslashreplace") for number, name in tuples(flat, 2)}


UNREADABLE = (StructError, ValueError, LookupError, TypeError, msgspec.MsgspecError)
"""What reading a job raises if its bytes are not as we wrote them."""


def claimed(answer: Sequence[Any]) -> tuple[r.Claimed, list[r.JobId]]:
    """The answer of a claim, and the ids of jobs that cannot be read."""
    ids, jobs, states, patched, errors, flat, next_in, passed, over, _ = answer
    queues = names(flat)
    found: list[r.Leased] = []
    unreadable: list[r.JobId] = []
    for i, job_id in enumerate(ids):
        job = jobs[i]
        try:
            enqueued_at, length = JOB_OF_CLAIM.unpack_from(job)
            lost, attempt, qid, priority, flags, run_at, epoch = STATE_OF_CLAIM.unpack_from(states[i])
            key, task, tenant, group, carried = head_of(job, flags & ~BEGUN, length)
            headers, cells, left = contents(job, JOB.size + length, patched[i] if patched else None)
            queue = queues[qid]
        except UNREADABLE:
            unreadable.append(job_id)
            continue
        found.append(
            r.Leased(
                job_id, queue, task, cells, epoch, tenant, key if flags & KEYED else None, priority, run_at,
                enqueued_at, attempt, lost, *carried, headers, errors[i] if errors else None, group,
                bool(flags & BEGUN), left,
            )
        )  # fmt: skip
    due = int(next_in)
    return r.Claimed(found, None if due < 0 else due, reaped(over, queues), passed > 0, passed > 1), unreadable


def reaped(flat: Sequence[Any], queues: Mapping[int, str]) -> list[r.Reaped]:
    """Jobs that were taken back, ended or cancelled."""
    found = []
    for job_id, packed_job, packed in tuples(flat, 3):
        state = State(packed)
        text = state.text.decode() if state.state > 2 else ""
        task, key = "", None
        try:
            job = Job(packed_job)
            task, key = job.task, job.key if state.flags & KEYED else None
        except UNREADABLE:
            log.warning("job %s, which was taken back, cannot be read", job_id.hex())
        found.append(r.Reaped(job_id, queues[state.qid], task, STATES[state.state], state.lost, text, key))
    return found


def entries(rows: Sequence[r.Row], away: Away, blobs: list[bytes]) -> list[tuple[int, int]]:
    """The rows that go to another shard: its number, and the row's number among the blobs."""
    found = []
    for row in rows:
        target = away(row.queue)
        if target is not None:
            _, head, *_ = insert_args([row])
            optional = or_false(row.key), _rule(row), or_false(row.reply_to), row.tenant, or_false(row.group)
            names = encode((row.queue, *optional, or_false(oldest_hour(row.cells))))
            blobs.append(head + _pack_long(len(names)) + names + body(row))
            found.append((target, len(blobs)))
    return found


def _rule(row: r.Row) -> int:
    """How the row treats another job that has its key; see ``key_owner`` in ``lua/keys.lua``."""
    return int(row.hold_failed) + 2 * row.key_until + 8 * row.replaces


def nowhere(_queue: str) -> int | None:
    """For a store with one shard."""
    return None


def finish_args(batch: Sequence[r.Settlement], away: Away = nowhere) -> list[Any]:
    """The arguments of a finish."""
    check_settled(batch)
    kinds: dict[tuple[int, int, int, int, int], int] = {}
    kind_of = []
    leases = []
    results = []
    more = []
    blobs: list[bytes] = []
    spawned: list[r.Row] = []
    counts = []
    for i, s in enumerate(batch, start=1):
        flags = s.failed_attempt * _FAILED_ATTEMPT + s.keep_lost * _KEEP_LOST + s.keep * _KEEP + s.unbegun * _UNBEGUN
        if s.result is not None:
            flags += _RESULT
            results.append(s.result)
        delay, run_at = -1 if s.delay is None else s.delay, -1 if s.run_at is None else max(0, s.run_at)
        kind = (CODES[s.state], flags, delay, s.result_ttl, run_at)
        kind_of.append(kinds.setdefault(kind, len(kinds) + 1))
        leases.append(_pack_epoch(s.epoch) + s.holder.encode())
        rows_away = entries(s.spawn, away, blobs) if s.spawn else ()
        if s.reason or s.error is not None or s.cells or s.queue is not None or s.priority is not None or rows_away:
            if s.cells and not s.cells.keys() <= _SECTIONS:
                raise InvalidJob(f"the sections are {SECTIONS}, but a settlement came with {tuple(s.cells)}")
            cells = [(_SECTION_NUMBERS[name], _blob(blobs, cell)) for name, cell in (s.cells or {}).items()]
            target = None if s.queue is None else away(s.queue)
            more.append(
                (
                    i, s.reason, _blob(blobs, s.error), cells or False, or_false(s.queue), or_false(s.priority),
                    or_false(target), rows_away,
                )
            )  # fmt: skip
        rows_here = s.spawn if not rows_away else [row for row in s.spawn if away(row.queue) is None]
        spawned += rows_here
        counts.append(len(rows_here))
    queues, heads, keys, inboxes, owned, groups, bodies = insert_args(spawned)
    names = b"\x95" + queues + keys + inboxes + owned + groups
    return [
        len(batch), encode(list(kinds)), encode(kind_of), encode(more), encode(counts), names, heads, len(bodies),
        *[s.id for s in batch], *leases, *results, *bodies, *blobs,
    ]  # fmt: skip


def _blob(blobs: list[bytes], blob: bytes | None) -> int | bool:
    """Add a blob, and return its number; False for none."""
    if blob is None:
        return False
    blobs.append(blob)
    return len(blobs)


def referrer(answer: Sequence[Any]) -> Referrer:
    """A job that refers to old objects."""
    job_id, hour, *cells = answer
    return Referrer(job_id, hour, {SECTIONS[cells[i] - 1]: cells[i + 1] for i in range(0, len(cells), 2)})


def swap_args(batch: Sequence[Swap]) -> list[bytes]:
    """The arguments of a swap."""
    return [arg for one in batch for arg in (one.id, _flat(one.seen), _flat(one.cells))]


def _flat(cells: r.Cells) -> bytes:
    return b"".join([_CELL.pack(_SWAPPED[name], len(cell)) + cell for name, cell in cells.items()])


def wanted(sections: frozenset[str]) -> int:
    """Sections as scripts take them: a bit for each."""
    return sum(1 << number for number, name in enumerate(SECTIONS) if name in sections)


def leases_arg(leases: Sequence[tuple[r.JobId, int]]) -> bytes:
    """The leases of a beat."""
    return b"".join([_LEASE.pack(job_id, epoch) for job_id, epoch in leases])


def progress_arg(beat: r.Beat) -> bytes:
    """The progress that a beat brings."""
    told = [(i, beat.progress.get(job_id)) for i, (job_id, _) in enumerate(beat.leases, start=1)]
    return b"".join([_PROGRESS.pack(i, len(text)) + text for i, text in told if text is not None])


def record(answer: Sequence[Any], queues: Mapping[int, str], now: int, want: frozenset[str]) -> r.Record:
    """One job of a fetch or scan, as far as it can be read."""
    try:
        return _record(answer, queues, now, want)
    except UNREADABLE:
        return _remains(answer, queues)


def _remains(answer: Sequence[Any], queues: Mapping[int, str]) -> r.Record:
    """What is known of a job that cannot be read."""
    job_id, _, packed, *_ = answer
    queue, state = "", JobState.FAILED
    try:
        known = State(packed)
        queue, state = queues[known.qid], STATES[known.state]
    except UNREADABLE:
        pass
    return r.Record(job_id, queue, "", state, reason=r.CORRUPT if state is JobState.FAILED else "")


def _record(answer: Sequence[Any], queues: Mapping[int, str], now: int, want: frozenset[str]) -> r.Record:
    job_id, packed_job, packed, patched, error, result, worker, run_at, progress = answer
    job = Job(packed_job)
    headers, cells = job.contents(patched)
    state = State(packed) if packed else None
    code = 0 if state is None else state.state
    held = state is not None and code == 3 and state.held_until > now
    flags = job.flags if state is None else state.flags
    expires_at = job.expires_at if state is None else state.expires_at
    return r.Record(
        id=job_id,
        queue=queues[job.qid if state is None else state.qid],
        task=job.task,
        state=STATES[code],
        tenant=job.tenant,
        key=job.key if flags & KEYED else None,
        priority=job.priority if state is None else state.priority,
        run_at=int(run_at) if state is None else state.run_at,
        enqueued_at=job.enqueued_at,
        expires_at=expires_at or None,
        finished_at=state.instant if state is not None and code > 2 else None,
        epoch=0 if state is None else state.epoch,
        attempt=0 if state is None else state.attempt,
        lost=0 if state is None else state.lost,
        headers=headers,
        worker=worker.decode() if worker else "",
        lease_until=state.instant if state is not None and code == 1 else None,
        cancel_requested=state is not None and state.cancel in _ASKED,
        reason=state.text.decode() if state is not None and code > 2 else "",
        cells=cells,
        error=error if "error" in want else None,
        result=result if held and "result" in want else None,
        held=held,
        group=job.group,
        progress=progress,
        **r.carried_by_name(job.carried),
    )


def altered(answer: Sequence[Any], queues: Mapping[int, str]) -> r.Altered:
    """What became of one job."""
    job_id, before, after, changed, qid, key = answer
    state = None if after < 0 else STATES[after]
    name = None if key is None else key.decode("utf-8", "backslashreplace")
    return r.Altered(job_id, STATES[before], state, bool(changed), queues[qid], name)
