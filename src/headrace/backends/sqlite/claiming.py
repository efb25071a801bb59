"""claim: the head of the claimable jobs becomes RUNNING."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import apsw

from headrace.backends.sqlite.entry import read_cells
from headrace.backends.sqlite.places import expire
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, RUNNING
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.records import Claim, Claimed, JobId, Leased, Reaped

_SQL = load("claim")

Head = tuple[int, int, str, int]
"""priority, qid, name, run_at: the first job of one queue and priority."""

_EXPIRED_AT_ONCE = 1_000
"""So many expired jobs a claim cancels at most; it passes over the others, and the reapers come for them."""
_BEYOND = b"\xff" * 17
"""Sorts after every id."""
_NEVER = 2**31
"""More losses than any job has."""


class _Room:
    """What a claim may still take."""

    def __init__(self, req: Claim) -> None:
        self.jobs = req.limit
        self._bytes = req.max_bytes

    @property
    def full(self) -> bool:
        return self.jobs <= 0 or self._bytes <= 0

    def fit(self, sizes: Iterable[int]) -> int:
        """How many jobs of these sizes it takes, from the first on; they are taken."""
        count = 0
        for size in sizes:
            if self.full:
                break
            self.jobs -= 1
            self._bytes -= size
            count += 1
        return count


def heads(session: Session, queues: Sequence[str]) -> list[Head]:
    """The first job of each priority in use, of those queues that are not paused, by priority."""
    names = tuple(dict.fromkeys(queues))
    if not names:
        return []
    found: list[Any] = session.rows(_SQL["heads"], (apsw.carray(names),))
    found.sort(key=itemgetter(0))
    return found


def nothing_due(session: Session, req: Claim, now: int) -> Claimed | None:
    """The answer to a claim that finds nothing due, without a lock; None if something is due."""
    if req.limit <= 0:
        return Claimed([])
    found = heads(session, req.queues)
    if any(run_at <= now for _, _, _, run_at in found):
        return None
    return Claimed([], _next_in(found, now))


def claim(tx: Transaction, req: Claim, now: int) -> Claimed:
    """Lease up to ``req.limit`` claimable jobs, the first by (priority, run_at, id)."""
    if req.limit <= 0:
        return Claimed([])
    due = [head for head in heads(tx, req.queues) if head[3] <= now]
    dying = bool(due) and tx.first(_SQL["any_dying"], (now,)) is not None
    jobs: list[Leased] = []
    expired: list[Reaped] = []
    passed_over = False
    room = _Room(req)
    for _, level in groupby(due, key=itemgetter(0)):
        queues = list(level)
        taken = _take_level(tx, queues, req, room, now)
        jobs += taken
        last = (taken[-1].run_at, taken[-1].id) if room.full else (now, _BEYOND)
        passed_over = passed_over or _passed_over(tx, queues, last, req, now)
        if dying:
            expired += _expire(tx, queues, last, now, _EXPIRED_AT_ONCE - len(expired))
        if room.full:
            return Claimed(jobs, 0 if room.jobs else None, expired, passed_over)
    return Claimed(jobs, _next_in(heads(tx, req.queues), now), expired, passed_over)


def _next_in(found: Sequence[Head], now: int) -> int | None:
    return max(0, min(run_at for _, _, _, run_at in found) - now) if found else None


def _take_level(tx: Transaction, queues: Sequence[Head], req: Claim, room: _Room, now: int) -> list[Leased]:
    """The first jobs of one priority."""
    if len(queues) == 1:
        return _take(tx, queues[0], req, room.jobs, now, room)
    first: list[Any] = []
    for priority, qid, _, _ in queues:
        first += tx.rows(_SQL["order"], (qid, priority, now, room.jobs, _bound(req)))
    first.sort()
    shares = Counter(qid for _, _, qid, _ in first[: room.fit(size for *_, size in first)])
    jobs = [job for head in queues if shares[head[1]] for job in _take(tx, head, req, shares[head[1]], now)]
    jobs.sort(key=lambda job: (job.run_at, job.id))
    return jobs


def _take(tx: Transaction, head: Head, req: Claim, limit: int, now: int, room: _Room | None = None) -> list[Leased]:
    """The first jobs of one queue and priority, those that there is room for."""
    priority, qid, queue, _ = head
    rows = tx.rows(_SQL["take"], (qid, priority, now, limit, _bound(req)))
    if room is not None:
        rows = rows[: room.fit(row[-1] for row in rows)]
    if not rows:
        return []
    taken = (qid, priority, now, rows[-1][0], rows[-1][1], _bound(req))
    tx.execute(_SQL["lease"], (*taken, now + req.lease_for, req.holder))
    tx.execute(_SQL["leave"], taken)
    tx.count(qid, AVAILABLE, -len(rows))
    tx.count(qid, RUNNING, len(rows))
    want = req.want
    jobs = []
    for (
        run_at, job_id, epoch, attempt, lost, task, tenant, key, enqueued_at, max_attempts, timeout, result_ttl,
        far, headers, error, parameters, vm_state, metadata, blob, _,
    ) in rows:  # fmt: skip
        if far or want is not None or vm_state is not None or metadata is not None or blob is not None:
            cells = read_cells(tx, (parameters, vm_state, metadata, blob), want)
            if far:
                headers, error = tx.read(headers), tx.read(error)
        else:
            cells = {} if parameters is None else {"parameters": parameters}
        jobs.append(Leased(
            job_id, queue, task, cells, epoch + 1, tenant, key, priority, run_at, enqueued_at, attempt, lost,
            max_attempts, timeout, result_ttl, headers, error,
        ))  # fmt: skip
    return jobs


def _bound(req: Claim) -> int:
    return _NEVER if req.lost_below is None else req.lost_below


def _passed_over(tx: Transaction, queues: Sequence[Head], last: tuple[int, JobId], req: Claim, now: int) -> bool:
    """Whether jobs before ``last`` were left out for having been lost too often."""
    if req.lost_below is None:
        return False
    ranges = [(qid, priority, now, *last, req.lost_below) for priority, qid, _, _ in queues]
    return any(tx.first(_SQL["passed_over"], one) is not None for one in ranges)


def _expire(tx: Transaction, queues: Sequence[Head], last: tuple[int, JobId], now: int, limit: int) -> list[Reaped]:
    """Cancel the expired jobs that this claim met on its way to ``last``."""
    met: list[Any] = []
    for priority, qid, _, _ in queues:
        met += tx.rows(_SQL["dying"], (qid, priority, now, *last, limit - len(met)))
    return expire(tx, met, now)
