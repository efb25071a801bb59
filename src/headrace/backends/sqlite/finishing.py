"""finish: the fenced end of leases."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import apsw

from headrace.backends.sqlite import dead_letters, groups, tenants
from headrace.backends.sqlite.insertion import insert, key_taken
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import ASKED, CANCELLED, CODES, COMPLETED, ENDED, FAILED, PAUSED, RUNNING, STATES
from headrace.backends.sqlite.transaction import INLINE, Stored, Transaction
from headrace.backends.sqlite.transitions import (
    EndedRow,
    Waiting,
    end,
    forget,
    leave_running,
    park,
    release,
    tell_waiters,
)
from headrace.errors import InvalidJob
from headrace.seam.records import JobId, Row, Settlement
from headrace.seam.references import oldest_hour
from headrace.types import SECTIONS, JobState

_SQL = load("finish")
_INSERT = load("insert")
_COMPLETED = JobState.COMPLETED

Lease = tuple[JobId, int, int, str, int, int, int, int, int, int, int]
"""id, seq, epoch, holder, qid, cancel, attempt, lost, size, gid, tid."""
_QUEUE = itemgetter(4)
_GROUP = itemgetter(9)
_TENANT = itemgetter(10)
_STOPPED = itemgetter(10, 3)


def leases(tx: Transaction, ids: tuple[JobId, ...]) -> dict[JobId, Lease]:
    """The leases of those jobs that are RUNNING."""
    if not ids:
        return {}
    rows: list[Any] = tx.rows(_SQL["leases"], (apsw.carray(ids),))
    return {row[0]: row for row in rows}


def finish(tx: Transaction, batch: Sequence[Settlement], now: int) -> list[JobState | None]:
    """End leases; answer each settlement, in order, with the state that the job is in now, or None: fenced off."""
    held = leases(tx, tuple([s.id for s in batch]))
    answers: list[JobState | None] = []
    ends = _Ends(tx)
    spawned: list[Row] = []
    for s in batch:
        lease = held.get(s.id)
        if lease is None or lease[2] != s.epoch or lease[3] != s.holder:
            answers.append(None)
            continue
        del held[s.id]
        spawned += s.spawn
        state = s.state
        code = COMPLETED if state is _COMPLETED else CODES[state]
        if (
            code >= COMPLETED and s.error is None and s.cells is None and s.queue is None and s.priority is None
        ):  # fmt: skip
            if not s.keep and code == COMPLETED:
                ends.gone.append(lease)
            elif s.failed_attempt or s.keep_lost or lease[5] or (s.result is not None and len(s.result) > INLINE):
                ends.records[code].append(_ended(tx, s, code, lease, s.reason, now))
                ends.leases[code].append(lease)
            else:
                ends.add_alike(code, s, lease)
            answers.append(state)
        else:
            ends.write(now)
            answers.append(_settle(tx, s, lease, now))
    ends.write(now)
    if spawned:
        insert(tx, spawned, now)
    return answers


class _Ends:
    """Plain ends, which change nothing of the job itself, until they are written together."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.records: dict[int, list[EndedRow]] = {code: [] for code in ENDED}
        self.leases: dict[int, list[Lease]] = {code: [] for code in ENDED}
        self.gone: list[Lease] = []
        """Jobs that leave no record."""
        self._alike: dict[tuple[int, int, str, bytes | None], list[Lease]] = {}
        """By state, ttl, reason and result: jobs whose record follows from their lease and from these."""

    def add_alike(self, code: int, s: Settlement, lease: Lease) -> None:
        """A job that ends as most do: no attempt failed, no loss is remembered, the result is small or none."""
        ttl, result = 0, None
        if code == COMPLETED:
            ttl = s.result_ttl
            result = s.result if ttl > 0 else None
        self._alike.setdefault((code, ttl, s.reason, result), []).append(lease)

    def write(self, now: int) -> None:
        """One statement per table and state."""
        tx = self._tx
        for (code, ttl, reason, result), leases in self._alike.items():
            seqs = _seqs(leases)
            more = 0 if result is None else len(result)
            held_until = now + ttl if code == COMPLETED else 0
            tx.execute(_SQL["end_alike"], (apsw.carray(seqs), code, now, held_until, reason, result, more))
            ended = self._leave(seqs, leases, now)
            tx.fill(code, len(leases), sum([lease[8] for lease in leases]) + more * len(leases))
            tell_waiters(tx, seqs)
            if code == FAILED:
                dead_letters.add(tx, seqs)
            for qid, number in ended.items():
                tx.count(qid, code, number)
        self._alike.clear()
        for code, rows in self.records.items():
            if rows:
                leases = self.leases[code]
                self._leave(_seqs(leases), leases, now)
                end(tx, code, rows, list(map(_QUEUE, leases)))
                rows.clear()
                leases.clear()
        if self.gone:
            seqs = _seqs(self.gone)
            self._leave(seqs, self.gone, now)
            tell_waiters(tx, seqs)
            forget(tx, seqs)
            self.gone.clear()

    def _leave(self, seqs: array[int], leases: Sequence[Lease], now: int) -> Counter[int]:
        """These jobs no longer run; returns how many of each queue."""
        tx = self._tx
        leave_running(tx, seqs)
        left = Counter([lease[4] for lease in leases])
        for qid, number in left.items():
            tx.count(qid, RUNNING, -number)
        if any(map(_TENANT, leases)):
            tenants.stop(tx, map(_STOPPED, [lease for lease in leases if lease[10]]), now)
        if any(map(_GROUP, leases)):
            groups.leave(tx, [(lease[4], lease[9], lease[1]) for lease in leases if lease[9]], now)
        return left


def _seqs(leases: Sequence[Lease]) -> array[int]:
    return array("q", [lease[1] for lease in leases])


def _ended(tx: Transaction, s: Settlement, code: int, lease: Lease, reason: str, now: int) -> EndedRow:
    """The record of an ended job whose cells stay as they are."""
    _, seq, epoch, _, _, cancel, attempt, lost, size, _, _ = lease
    if cancel and code == CANCELLED and reason == ASKED[1]:
        reason = ASKED[cancel]
    if s.failed_attempt:
        attempt += 1
    if not s.keep_lost:
        lost = 0
    if code != COMPLETED:
        return seq, code, now, 0, epoch, attempt, lost, size, reason, None
    result = s.result
    stored: Stored = None
    if result is not None and s.result_ttl > 0:
        size += len(result)
        stored = result if len(result) <= INLINE else tx.put(result)
    return seq, code, now, now + s.result_ttl, epoch, attempt, lost, size, reason, stored


class _Draft(NamedTuple):
    """What a settlement may change of a job."""

    id: JobId
    qid: int
    lane: int
    key: str | None
    priority: int
    run_at: int
    expires_at: int | None
    task: str
    tenant: str
    group: str | None
    error: Stored
    headers: Stored
    parameters: Stored
    vm_state: Stored
    metadata: Stored
    blob: Stored


def _settle(tx: Transaction, s: Settlement, lease: Lease, now: int) -> JobState:
    """Any settlement, on its own."""
    _, seq, epoch, holder, qid, cancel, attempt, lost, size, gid, tid = lease
    seqs = array("q", [seq])
    leave_running(tx, seqs)
    tx.count(qid, RUNNING, -1)
    if tid:
        tenants.stop(tx, [(tid, holder)], now)
    state, reason = s.state, s.reason
    if cancel and not state.terminal:
        state, reason = JobState.CANCELLED, ASKED[cancel]
    draft, size = _rewrite(tx, s, seq, size, now, state)
    code = CODES[state]
    if draft.qid != qid and tx.rules(draft.qid).governed:
        tenants.pass_through(tx, draft.qid, draft.tenant, now)
    if gid and state is JobState.AVAILABLE and draft.qid == qid:
        groups.ask_again(tx, qid, gid, seq)
    elif gid:
        groups.leave(tx, [(qid, gid, seq)], now)
    if state.terminal:
        patched = (s.id, seq, epoch, holder, draft.qid, cancel, attempt, lost, size, 0, 0)
        if code == COMPLETED and not s.keep:
            tell_waiters(tx, seqs)
            forget(tx, seqs)
        else:
            end(tx, code, [_ended(tx, s, code, patched, reason, now)], [draft.qid])
    else:
        attempt += s.failed_attempt
        lost = lost if s.keep_lost else 0
        epoch = -epoch if s.unbegun else epoch
        if code == PAUSED:
            park(tx, seq, draft.qid, epoch, attempt, lost, size)
        else:
            waiting = Waiting(
                draft.qid, draft.lane, draft.priority, draft.run_at, draft.id, seq, epoch, attempt, lost, size,
                draft.expires_at, draft.task, draft.tenant, draft.group,
            )  # fmt: skip
            release(tx, waiting, now)
    return STATES[code]


def _rewrite(tx: Transaction, s: Settlement, seq: int, size: int, now: int, state: JobState) -> tuple[_Draft, int]:
    """Apply what the settlement changes of the job itself: the job as it is now, and its size."""
    draft = _Draft._make(tx.one(_SQL["draft"], (seq,)))
    run_at = draft.run_at
    if not state.terminal and s.run_at is not None:
        run_at = s.run_at
    elif not state.terminal and s.delay is not None:
        run_at = now + s.delay
    if s.error is None and s.cells is None and s.queue is None and s.priority is None:
        if run_at != draft.run_at:
            tx.execute(_SQL["reschedule"], (seq, run_at))
        return draft._replace(run_at=run_at), size
    error = draft.error
    if s.error is not None:
        size += len(s.error) - tx.weigh(error)
        tx.drop(error)
        error = tx.put(s.error)
    cells = dict(zip(SECTIONS, draft[-4:], strict=True))
    for name, cell in (s.cells or {}).items():
        if name not in cells:
            raise InvalidJob(f"the sections are {SECTIONS}, but a settlement came with {name!r}; nothing was settled")
        size += len(cell or b"") - tx.weigh(cells[name])
        tx.drop(cells[name])
        cells[name] = tx.put(cell)
    qid, key = draft.qid, draft.key
    if s.queue is not None:
        qid, key = move(tx, seq, qid, key, s.queue, now)
    priority = draft.priority if s.priority is None else s.priority
    parameters, vm_state, metadata, blob = cells.values()
    draft = draft._replace(
        qid=qid, key=key, priority=priority, run_at=run_at, error=error, parameters=parameters, vm_state=vm_state,
        metadata=metadata, blob=blob,
    )  # fmt: skip
    far = any(isinstance(cell, int) for cell in (error, draft.headers, *cells.values()))
    hour = oldest_hour({name: cell for name, cell in cells.items() if isinstance(cell, bytes)})
    tx.execute(_SQL["rewrite"], (seq, qid, key, priority, run_at, far, error, *cells.values(), hour))
    return draft, size


def move(tx: Transaction, seq: int, qid: int, key: str | None, queue: str, now: int) -> tuple[int, str | None]:
    """The job's key goes over to another queue, or is given up where it is taken there: the new qid and key."""
    there = tx.queue(queue)
    if key is not None and there != qid:
        taken = key_taken(tx, there, key, now)
        tx.execute(_INSERT["drop_key"], (qid, key, seq))
        if taken:
            key = None
        else:
            tx.execute(_INSERT["take_key"], (there, key, seq))
    return there, key
