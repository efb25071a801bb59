"""claim: the head of the claimable jobs becomes RUNNING."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

import apsw

from headrace.backends.claims import share_out
from headrace.backends.sqlite.delayed import PROMOTED_AT_ONCE, demote, promote
from headrace.backends.sqlite.governed_queue import GovernedQueue
from headrace.backends.sqlite.lease_writer import EXPIRED_AT_ONCE, SqliteTaken, leased, spared
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, RUNNING
from headrace.backends.sqlite.transaction import BEYOND, Session, Transaction
from headrace.backends.sqlite.transitions import expire
from headrace.backends.sqlite.visits import SqliteVisits, wake_passed
from headrace.backends.turns import serve
from headrace.seam.policy import FOREVER
from headrace.seam.records import Claim, Claimed, JobId, Leased

_SQL = load("claim")

_MANY = 100
"""A claim from more queues than this first looks for those that it will take from."""
_A_QUEUE = 10
"""Promoting from a queue counts as at least this many jobs."""
_LOWEST = (-(2**62), -(2**62), b"")
_HIGHEST = (2**62, 2**62, BEYOND)

Key = tuple[int, int, JobId]
"""priority, run_at, id: the order of claims."""


class Head(NamedTuple):
    """What a claim finds in front of one queue that is neither paused nor governed."""

    qid: int
    name: str
    first: Key | None
    """The first claimable job …"""
    next_due: int | None
    """… and when the first delayed job is due."""


class _Room:
    """What a claim may still take from some queues."""

    def __init__(self, jobs: int, size: int) -> None:
        self.jobs = jobs
        self.bytes = size

    @property
    def full(self) -> bool:
        return self.jobs <= 0 or self.bytes <= 0

    def fit(self, sizes: Sequence[int]) -> int:
        """Take jobs of these sizes, from the first on; return how many fit."""
        if len(sizes) <= self.jobs and (total := sum(sizes)) < self.bytes:
            self.jobs -= len(sizes)
            self.bytes -= total
            return len(sizes)
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
        self.plain: dict[str, Head] = {}
        """The queues that are neither paused nor governed and have jobs, by name."""
        self.governed: dict[str, int] = {}
        self.pauses: dict[str, int] = {}
        """Until when queues are paused."""
        self.unfinished = False
        """Whether something is due that could not be promoted."""
        self._look(session, tuple(dict.fromkeys(queues)), now)

    def _look(self, session: Session, names: tuple[str, ...], now: int) -> None:
        found: list[Any] = session.rows(_SQL["heads"], (apsw.carray(names), now)) if names else []
        for qid, name, governed, until, priority, run_at, job_id, next_due in found:
            if until is not None:
                self.pauses[name] = until
            elif governed:
                self.governed[name] = qid
            elif priority is not None:
                self.plain[name] = Head(qid, name, (priority, run_at, job_id), next_due)
            elif next_due is not None:
                self.plain[name] = Head(qid, name, None, next_due)

    def promote(self, tx: Transaction, now: int) -> None:
        """Make jobs claimable that have become due, a bounded number."""
        due = [(at, head) for head in self.plain.values() if (at := head.next_due) is not None and at <= now]
        left = PROMOTED_AT_ONCE
        for _, head in sorted(due):
            if left > 0:
                left -= max(_A_QUEUE, promote(tx, head.qid, left, now)[0])
        if due:
            self._look(tx, tuple([head.name for _, head in due]), now)
            self.unfinished = any(head.next_due is not None and head.next_due <= now for head in self.plain.values())

    def pass_over(self, tx: Transaction, lanes: Collection[int], bound: int) -> None:
        """In these lanes, jobs that were lost that often do not count."""
        for name, head in self.plain.items():
            if head.qid in lanes:
                self.plain[name] = head._replace(first=tx.first(_SQL["head_below"], (head.qid, bound)))

    def any_due(self, now: int) -> bool:
        """Whether a claim finds something to do in a queue that is not governed."""
        return any(
            head.first is not None or ((at := head.next_due) is not None and at <= now) for head in self.plain.values()
        )

    def coming(self, now: int) -> list[int]:
        """How long until jobs are due, or pauses end."""
        instants = [head.first[1] for head in self.plain.values() if head.first is not None]
        instants += [head.next_due for head in self.plain.values() if head.next_due is not None]
        instants += [until for until in self.pauses.values() if until < FOREVER]
        return [max(0, instant - now) for instant in instants]

    def parts(self, queues: Sequence[str]) -> list[int | None]:
        """Each governed queue, and the others together (None), in the order of the first that is named."""
        named = (self.governed.get(name) for name in queues if name not in self.pauses)
        return list(dict.fromkeys(named))


def nothing_due(session: Session, req: Claim, now: int) -> Claimed | None:
    """The answer to a claim that finds nothing due, without a lock; None if something is due."""
    if req.limit <= 0:
        return Claimed([])
    if len(req.queues) > _MANY and session.first(_SQL["any_due"], (_names(req), now)) is not None:
        return None
    found = Heads(session, req.queues, now)
    if found.any_due(now):
        return None
    coming = found.coming(now)
    for qid in found.governed.values():
        queue = GovernedQueue.load(session, qid)
        if queue.has_turn(session, req.holder, now):
            return None
        coming += queue.coming(now)
    return Claimed([], min(coming, default=None))


def claim(tx: Transaction, req: Claim, now: int) -> Claimed:
    """Lease up to ``req.limit`` claimable jobs: of each part of the queues, first an even share, then what is left."""
    if req.limit <= 0:
        return Claimed([])
    taken = SqliteTaken(req)
    if len(req.queues) > _MANY and (first := _first_queues(tx, req, taken, now)) is not None:
        ahead = Heads(tx, first, now)
        ahead.promote(tx, now)
        _take_plain(tx, ahead, taken, req.limit, now)
        if not taken.left:
            return _answer(tx, taken, None if len(taken.jobs) == req.limit else 0, now)
    found = Heads(tx, req.queues, now)
    found.promote(tx, now)
    if not found.governed:
        _take_plain(tx, found, taken, taken.left, now)
    else:
        _share_out(tx, found, taken, now)
    next_in = None
    if taken.unfinished or (not taken.left and len(taken.jobs) < req.limit):
        next_in = 0
    elif taken.left:
        next_in = 0 if found.unfinished else _coming(tx, taken, now)
    wake_passed(tx, taken)
    return _answer(tx, taken, next_in, now)


def _answer(tx: Transaction, taken: SqliteTaken, next_in: int | None, now: int) -> Claimed:
    """What was taken, and whether the holder is to make room for what was passed over."""
    req = taken.req
    if req.limit == 1 and req.lost_below is None and req.queues:
        tx.execute(_SQL["stay_chosen"], (_names(req), req.holder, now + req.lease_for // 3))
    chosen = [_choose(tx, qid, req, now) for qid in taken.passed_in]
    return Claimed(taken.jobs, next_in, taken.expired, bool(chosen), any(chosen))


def _choose(tx: Transaction, qid: int, req: Claim, now: int) -> bool:
    """Whether the holder is the chosen one, which makes room for jobs of the queue that were passed over."""
    tx.execute(_SQL["choose"], (qid, req.holder, now, req.lease_for))
    return tx.first(_SQL["chosen"], (qid, req.holder, now)) is not None


def _names(req: Claim) -> Any:
    return apsw.carray(tuple(dict.fromkeys(req.queues)))


def _first_queues(tx: Transaction, req: Claim, taken: SqliteTaken, now: int) -> list[str] | None:
    """If there are very many queues, those that a claim takes its jobs from; None: all may be needed."""
    rows = tx.rows(_SQL["first_queues"], (_names(req), now, taken.lost_bound, req.limit + _MANY))
    special = [name for name, _, special in rows if special]
    if len(special) > _MANY or any(governed for _, governed, _ in rows):
        return None
    return special + [name for name, _, special in rows if not special][: req.limit]


def _coming(tx: Transaction, taken: SqliteTaken, now: int) -> int | None:
    """How long until there may be more to claim, when all that is due was taken or passed over."""
    after = Heads(tx, taken.req.queues, now)
    after.pass_over(tx, taken.passed_in, taken.lost_bound)
    coming = after.coming(now)
    for qid in after.governed.values():
        coming += GovernedQueue.load(tx, qid).coming(now)
    return min(coming, default=None)


def _share_out(tx: Transaction, found: Heads, taken: SqliteTaken, now: int) -> None:
    queues = taken.req.queues
    heads = [found]

    def take(part: int | None, most: int) -> None:
        if part is None:
            _take_plain(tx, heads.pop() if heads else Heads(tx, queues, now), taken, most, now)
        else:
            visits = SqliteVisits(tx, part, taken, now)
            serve(visits.turns, visits, taken, most, now)
            visits.write()

    share_out(taken, found.parts(queues), take)


def _take_plain(tx: Transaction, found: Heads, taken: SqliteTaken, most: int, now: int) -> None:
    """The first jobs by (priority, run_at, id) of the queues that are not governed."""
    heads = [head for head in found.plain.values() if head.first is not None]
    if not heads:
        return
    lanes = array("q", [head.qid for head in heads])
    any_expired = tx.first(_SQL["any_expired"], (now,)) is not None
    upto = _reach(tx, lanes, most, now) if any_expired else _HIGHEST
    room = _Room(most, taken.bytes)
    if len(heads) == 1:
        jobs = _take(tx, heads[0], taken, most, now, upto, room)
    else:
        jobs = _merge(tx, heads, taken, room, now, upto)
    taken.jobs += jobs
    taken.bytes = room.bytes
    is_cut = room.full or taken.visits <= 0
    taken.unfinished = taken.unfinished or (upto != _HIGHEST and not is_cut)
    last = (jobs[-1].priority, jobs[-1].run_at, jobs[-1].id) if is_cut else upto
    if taken.req.lost_below is not None:
        passed_over = tx.rows(_SQL["passed_over"], (apsw.carray(lanes), now, taken.lost_bound, *last))
        taken.passed_in.update(lane for (lane,) in passed_over)
    if any_expired:
        met = tx.rows(_SQL["expired"], (apsw.carray(lanes), now, *last, EXPIRED_AT_ONCE - len(taken.expired)))
        taken.expired += expire(tx, met, now)


def _reach(tx: Transaction, lanes: array[int], most: int, now: int) -> Key:
    """How far a claim goes: up to as many expired jobs as it cancels at once."""
    [expired] = tx.one(_SQL["count_expired"], (apsw.carray(lanes), now, EXPIRED_AT_ONCE))
    if expired < EXPIRED_AT_ONCE:
        return _HIGHEST
    dying = array("q", [lane for [lane] in tx.rows(_SQL["dying"], (apsw.carray(lanes), now, 1))])
    each = max(1, EXPIRED_AT_ONCE // len(dying))
    crowded = [lane for [lane] in tx.rows(_SQL["dying"], (apsw.carray(dying), now, each))]
    ends = []
    for lane in crowded:
        rows = tx.rows(_SQL["ahead"], (lane, now, each + most // len(crowded)))
        ends.append(_nth_expired(rows, each) or tuple(rows[-1][:3]))
    return min(ends, default=_HIGHEST)


def _nth_expired(rows: Sequence[Any], number: int) -> Key | None:
    for priority, run_at, job_id, is_expired in rows:
        number -= is_expired
        if not number:
            return priority, run_at, job_id
    return None


def _merge(
    tx: Transaction, heads: Sequence[Head], taken: SqliteTaken, room: _Room, now: int, upto: Key
) -> list[Leased]:
    """The first jobs of several queues. A queue is read only when its first job comes up."""
    step = min(room.jobs, max(2, 2 * room.jobs // len(heads)))
    ahead: list[tuple[Key, int, int, Iterator[Any]]] = [
        (head.first or _LOWEST, number, -1, _read(tx, head.qid, taken, step, now, upto))
        for number, head in enumerate(heads)
    ]
    heapify(ahead)
    shares: Counter[int] = Counter()
    while ahead and not room.full:
        _, number, size, following = ahead[0]
        if size >= 0:
            if number not in shares:
                if taken.visits <= 0:
                    break
                taken.work()
            room.fit((size,))
            shares[number] += 1
        row = next(following, None)
        if row is None:
            heappop(ahead)
        else:
            heapreplace(ahead, (row[:3], number, row[3], following))
    jobs = [job for number, share in shares.items() for job in _take(tx, heads[number], taken, share, now, upto)]
    jobs.sort(key=lambda job: (job.priority, job.run_at, job.id))
    return jobs


def _read(tx: Transaction, lane: int, taken: SqliteTaken, step: int, now: int, upto: Key) -> Iterator[Any]:
    """The claimable jobs of a lane in order: priority, run_at, id and what is wanted of them weighs."""
    last, want = _LOWEST, taken.req.want
    order = _SQL["order" if want is None else "order_with_cells"]
    while True:
        rows = tx.rows(order, (lane, *last, now, taken.lost_bound, step, *upto))
        if want is None:
            yield from rows
        else:
            yield from ((*row[:3], row[3] - spared(tx, row[4:], want)) for row in rows)
        if len(rows) < step:
            return
        last = rows[-1][:3]
        step *= 2


def _any_delayed(rows: Sequence[Any], now: int) -> bool:
    """Whether one of these jobs, in their order, is not due."""
    if rows[0][0] == rows[-1][0]:  # one priority: the last is the latest
        return bool(rows[-1][1] > now)
    return any(row[1] > now for row in rows)


def _take(
    tx: Transaction, head: Head, taken: SqliteTaken, limit: int, now: int, upto: Key, room: _Room | None = None
) -> list[Leased]:
    """Lease the first jobs of one queue that there is room for."""
    qid, queue, _, _ = head
    req = taken.req
    rows = tx.rows(_SQL["take"], (qid, now, taken.lost_bound, limit, *upto))
    while rows and _any_delayed(rows, now):
        demote(tx, qid, now)
        rows = tx.rows(_SQL["take"], (qid, now, taken.lost_bound, limit, *upto))
    if room is not None:
        if req.want is None:
            sizes = [row[-1] for row in rows]
        else:
            sizes = [row[-1] - spared(tx, row[-6:-2], req.want) for row in rows]
        rows = rows[: room.fit(sizes)]
    if not rows:
        return []
    bounds = (qid, now, taken.lost_bound, *rows[-1][:3])
    alike = "_alike" if rows[0][0] == rows[-1][0] else ""
    tx.execute(_SQL["lease" + alike], (*bounds, now + req.lease_for, req.holder))
    tx.execute(_SQL["leave" + alike], bounds)
    tx.count(qid, AVAILABLE, -len(rows))
    tx.count(qid, RUNNING, len(rows))
    return leased(tx, queue, rows, req.want, now)
