"""claim: the head of the claimable jobs becomes RUNNING."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import apsw

from headrace.backends.sqlite import visits
from headrace.backends.sqlite.basket import EXPIRED_AT_ONCE, Basket
from headrace.backends.sqlite.entry import read_cells
from headrace.backends.sqlite.places import Dying, expire, next_epoch
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, RUNNING
from headrace.backends.sqlite.transaction import Damaged, Session, Transaction
from headrace.policy import FOREVER
from headrace.records import Claim, Claimed, JobId, Leased, Reaped

_SQL = load("claim")

Head = tuple[int, int, str, int]
"""priority, qid, name, run_at: the first job of one queue and priority."""

_BEYOND = b"\xff" * 17
"""Sorts after every id."""


class _Room:
    """What a claim may still take from some queues."""

    def __init__(self, jobs: int, size: int) -> None:
        self.jobs = jobs
        self.bytes = size

    @property
    def full(self) -> bool:
        return self.jobs <= 0 or self.bytes <= 0

    def fit(self, sizes: Iterable[int]) -> int:
        """How many jobs of these sizes it takes, from the first on; they are taken."""
        count = 0
        for size in sizes:
            if self.full:
                break
            self.jobs -= 1
            self.bytes -= size
            count += 1
        return count


class Heads:
    """What a claim finds in front of its queues."""

    def __init__(self, session: Session, queues: Sequence[str], now: int) -> None:
        names = tuple(dict.fromkeys(queues))
        found: list[Any] = session.rows(_SQL["heads"], (apsw.carray(names), now)) if names else []
        self.plain: list[Head] = found
        """The first job of each priority in use of those queues that are neither paused nor governed, by priority."""
        self.governed: dict[str, int] = {}
        self.pauses: dict[str, int] = {}
        """Until when queues are paused."""
        if any(head[0] is None for head in found):
            self.plain = [head for head in found if head[0] is not None]
            special = [head for head in found if head[0] is None]
            self.governed = {name: qid for _, qid, name, until in special if until is None}
            self.pauses = {name: until for _, _, name, until in special if until is not None}
        self.plain.sort(key=itemgetter(0))

    def coming(self, now: int) -> list[int]:
        """How long until jobs are due, or pauses end."""
        found = [max(0, run_at - now) for _, _, _, run_at in self.plain]
        return found + [until - now for until in self.pauses.values() if until < FOREVER]

    def parts(self, queues: Sequence[str]) -> list[int | None]:
        """Each governed queue, and the others together (None), in the order of the first that is named."""
        named = (self.governed.get(name) for name in queues if name not in self.pauses)
        return list(dict.fromkeys(named))


def nothing_due(session: Session, req: Claim, now: int) -> Claimed | None:
    """The answer to a claim that finds nothing due, without a lock; None if something is due."""
    if req.limit <= 0:
        return Claimed([])
    found = Heads(session, req.queues, now)
    if any(run_at <= now for _, _, _, run_at in found.plain):
        return None
    coming = found.coming(now)
    for qid in found.governed.values():
        if visits.has_turn(session, qid, req.holder, now):
            return None
        coming += visits.coming(session, qid, now)
    return Claimed([], min(coming, default=None))


def claim(tx: Transaction, req: Claim, now: int) -> Claimed:
    """Lease up to ``req.limit`` claimable jobs: of each part of the queues, first an even share, then what is left."""
    if req.limit <= 0:
        return Claimed([])
    found = Heads(tx, req.queues, now)
    basket = Basket(req)
    if not found.governed:
        _take_plain(tx, found, basket, req.limit, now)
    else:
        _share_out(tx, found, basket, now)
    next_in = None
    if basket.unfinished or (not basket.left and len(basket.jobs) < req.limit):
        next_in = 0
    elif basket.left:
        after = Heads(tx, req.queues, now)
        coming = after.coming(now)
        for qid in after.governed.values():
            coming += visits.coming(tx, qid, now)
        next_in = min(coming, default=None)
    return Claimed(basket.jobs, next_in, basket.expired, basket.passed_over)


def _share_out(tx: Transaction, found: Heads, basket: Basket, now: int) -> None:
    parts = found.parts(basket.req.queues)
    plenty: list[int | None] = []
    for index, part in enumerate(parts):
        share = -(-basket.left // (len(parts) - index))
        if share and _take_part(tx, part, found, basket, share, now) == share:
            plenty.append(part)
    for part in plenty:
        if basket.left:
            _take_part(tx, part, Heads(tx, basket.req.queues, now), basket, basket.left, now)
    visits.put_back(tx, basket)


def _take_part(tx: Transaction, part: int | None, found: Heads, basket: Basket, most: int, now: int) -> int:
    before = len(basket.jobs)
    if part is None:
        _take_plain(tx, found, basket, most, now)
    else:
        visits.Visits(tx, part, basket, now).take(most)
    return len(basket.jobs) - before


def _take_plain(tx: Transaction, found: Heads, basket: Basket, most: int, now: int) -> None:
    """The first jobs by (priority, run_at, id) of the queues that are not governed."""
    due = [head for head in found.plain if head[3] <= now]
    dying = bool(due) and tx.first(_SQL["any_dying"], (now,)) is not None
    room = _Room(most, basket.bytes)
    for _, level in groupby(due, key=itemgetter(0)):
        queues = list(level)
        taken = _take_level(tx, queues, basket, room, now)
        basket.jobs += taken
        last = (taken[-1].run_at, taken[-1].id) if room.full else (now, _BEYOND)
        basket.passed_over = basket.passed_over or _passed_over(tx, queues, last, basket.req, now)
        if dying:
            basket.expired += _expire(tx, queues, last, now, EXPIRED_AT_ONCE - len(basket.expired))
        if room.full:
            break
    basket.bytes = room.bytes


def _take_level(tx: Transaction, queues: Sequence[Head], basket: Basket, room: _Room, now: int) -> list[Leased]:
    """The first jobs of one priority."""
    if len(queues) == 1:
        return _take(tx, queues[0], basket, room.jobs, now, room)
    first: list[Any] = []
    for priority, qid, _, _ in queues:
        first += tx.rows(_SQL["order"], (qid, priority, now, room.jobs, basket.lost_bound))
    first.sort()
    shares = Counter(qid for _, _, qid, _ in first[: room.fit(size for *_, size in first)])
    jobs = [job for head in queues if shares[head[1]] for job in _take(tx, head, basket, shares[head[1]], now)]
    jobs.sort(key=lambda job: (job.run_at, job.id))
    return jobs


def _take(tx: Transaction, head: Head, basket: Basket, limit: int, now: int, room: _Room | None = None) -> list[Leased]:
    """The first jobs of one queue and priority, those that there is room for."""
    priority, qid, queue, _ = head
    req = basket.req
    rows = tx.rows(_SQL["take"], (qid, priority, now, limit, basket.lost_bound))
    if room is not None:
        rows = rows[: room.fit(row[-1] for row in rows)]
    if not rows:
        return []
    taken = (qid, priority, now, rows[-1][0], rows[-1][1], basket.lost_bound)
    tx.execute(_SQL["lease"], (*taken, now + req.lease_for, req.holder))
    tx.execute(_SQL["leave"], taken)
    tx.count(qid, AVAILABLE, -len(rows))
    tx.count(qid, RUNNING, len(rows))
    want = req.want
    jobs = []
    for (
        run_at, job_id, epoch, attempt, lost, task, tenant, key, enqueued_at, max_attempts, timeout, result_ttl,
        far, headers, error, parameters, vm_state, metadata, blob, group, _,
    ) in rows:  # fmt: skip
        if far or want is not None or vm_state is not None or metadata is not None or blob is not None:
            cells = read_cells(tx, (parameters, vm_state, metadata, blob), want)
            if far:
                headers, error = tx.read(headers), tx.read(error)
        else:
            cells = {} if parameters is None else {"parameters": parameters}
        if far is None:  # there is no such job
            raise Damaged
        jobs.append(Leased(
            job_id, queue, task, cells, next_epoch(epoch, now), tenant, key, priority, run_at, enqueued_at, attempt,
            lost, max_attempts, timeout, result_ttl, headers, error, group, epoch > 0,
        ))  # fmt: skip
    return jobs


def _passed_over(tx: Transaction, queues: Sequence[Head], last: tuple[int, JobId], req: Claim, now: int) -> bool:
    """Whether jobs before ``last`` were left out for having been lost too often."""
    if req.lost_below is None:
        return False
    ranges = [(qid, priority, now, *last, req.lost_below) for priority, qid, _, _ in queues]
    return any(tx.first(_SQL["passed_over"], one) is not None for one in ranges)


def _expire(tx: Transaction, queues: Sequence[Head], last: tuple[int, JobId], now: int, limit: int) -> list[Reaped]:
    """Cancel the expired jobs that this claim met on its way to ``last``."""
    met: list[Dying] = []
    for priority, qid, _, _ in queues:
        met += map(Dying._make, tx.rows(_SQL["dying"], (qid, priority, now, *last, limit - len(met))))
    return expire(tx, met, now)
