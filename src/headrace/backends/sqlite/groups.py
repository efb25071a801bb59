"""Groups: which of their jobs are called. The others wait in the group's line, where no claim looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.backends.sqlite import tenants
from headrace.backends.sqlite.delayed import position
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.policy import GroupState
from headrace.seam.records import JobId

_SQL = load("group")
_QUEUE = load("queue")
_TRANSITION = load("transition")

_AT_ONCE = 250
"""One step calls at most this many jobs of a group, if no more have come or left, or sends so many back. The next one
goes on."""


class _Called(NamedTuple):
    """A called job, in the order in which jobs are called."""

    run_at: int
    id: JobId
    seq: int
    lane: int
    priority: int
    tenant: str
    epoch: int | None
    """None: it is RUNNING."""


def find(tx: Transaction, qid: int, name: str) -> tuple[int, bool]:
    """The number of a group, which is added if it is unknown, and whether it is new."""
    known = tx.first(_SQL["find"], (qid, name))
    if known is not None:
        return known[0], False
    [gid] = tx.one(_SQL["add"], (qid, name))
    return gid, True


def is_called(tx: Transaction, gid: int, seq: int) -> bool:
    """Whether the job is called."""
    return tx.first(_SQL["is_called"], (gid, seq)) is not None


def displaces(tx: Transaction, qid: int, name: str, place: tuple[int, JobId]) -> bool:
    """Whether a new job at this place would take the call of another."""
    known = tx.first(_SQL["find"], (qid, name))
    if known is None or _room(tx, qid, known[0]) > 0:
        return False
    first = tx.first(_SQL["first"], (known[0],))
    if first is not None and first[:2] < place:  # what is called comes before it
        return False
    last = _last(_called(tx, known[0]), tx.rules(qid).group_running)
    return last is not None and place < last[:2]


def set_called(tx: Transaction, jobs: Iterable[tuple[int, int]]) -> None:
    """Jobs are called: their group and number."""
    tx.executemany(_SQL["call"], jobs)


def ask_again(tx: Transaction, qid: int, gid: int, seq: int) -> None:
    """A lease of the job has ended, and it will be AVAILABLE again. Where only one is called, it stays called."""
    if tx.rules(qid).group_running > 1:
        tx.execute(_SQL["leave"], (gid, seq))


def leave(tx: Transaction, jobs: Iterable[tuple[int, int, int]], now: int) -> None:
    """Jobs leave their group, and others are called: their queue, group and number."""
    left: Counter[tuple[int, int]] = Counter()
    for qid, gid, seq in jobs:
        tx.execute(_SQL["leave"], (gid, seq))
        left[qid, gid] += 1
    for (qid, gid), number in left.items():
        if _room(tx, qid, gid) < 0:
            call(tx, qid, gid, now)
        else:
            _fill(tx, qid, gid, number, now)


def come_back(tx: Transaction, qid: int, gid: int, now: int) -> None:
    """A job of the group is AVAILABLE again."""
    if _room(tx, qid, gid) > 0:
        _fill(tx, qid, gid, 1, now)  # so nobody else waited, and nobody has to give up a call
    else:
        call(tx, qid, gid, now)


def call_new(tx: Transaction, qid: int, gid: int, new: range, now: int) -> None:
    """Jobs have come to the line of the group; among them are all with these numbers."""
    first = tx.first(_SQL["first"], (gid,))
    if first is None or first[2] in new or _room(tx, qid, gid):
        call(tx, qid, gid, now, len(new))


def call(tx: Transaction, qid: int, gid: int, now: int, new: int = 1) -> bool:
    """Call the first jobs of a group, and send back others that came before them or are too many; a group that has no
    jobs is forgotten. Return whether this has to go on."""
    number = tx.rules(qid).group_running
    called = _called(tx, gid)
    first = tx.first(_SQL["first"], (gid,))
    for _ in range(_AT_ONCE):
        if (last := _last(called, number)) is None:
            break
        if len(called) <= number and (first is None or last[:2] < first[:2]):
            break
        called.remove(last)
        _send_back(tx, qid, gid, last, now)
        first = tx.first(_SQL["first"], (gid,))
    return _fill(tx, qid, gid, new, now) or (len(called) > number and _last(called, number) is not None)


def _room(tx: Transaction, qid: int, gid: int) -> int:
    """How many more jobs of the group may be called; below 0: too many are."""
    row = tx.first(_SQL["number_called"], (gid,))
    return tx.rules(qid).group_running - (0 if row is None else int(row[0]))


def _fill(tx: Transaction, qid: int, gid: int, changed: int, now: int) -> bool:
    """So many jobs have come or left: call the first ones, as far as there is room. Return whether there is more to
    call."""
    room, most = _room(tx, qid, gid), max(changed, _AT_ONCE)
    first = tx.first(_SQL["first"], (gid,))
    for _ in range(min(room, most)):
        if first is None:
            break
        run_at, job_id, seq, priority, tenant, task, _ = first
        lane, ready_priority = position(tenants.put_one(tx, qid, tenant, task, run_at), priority, run_at, now)
        tx.execute(_TRANSITION["shift"], (-gid, 0, run_at, job_id, lane, ready_priority))
        tx.execute(_TRANSITION["set_lane"], (seq, lane))
        tx.execute(_SQL["call"], (gid, seq))
        tx.hint_queue(qid)
        first = tx.first(_SQL["first"], (gid,))
    if first is None and room == tx.rules(qid).group_running:
        tx.execute(_SQL["forget"], (gid,))
    return first is not None and room > most


def _called(session: Session, gid: int) -> list[_Called]:
    return [_Called._make(row) for row in session.rows(_SQL["called"], (gid,))]


def _last(called: Sequence[_Called], number: int) -> _Called | None:
    """The last of the called jobs that may lose their call. Where only one may be called, a job that was leased keeps
    its call, unless several have one."""
    waiting = [one for one in called if one.epoch is not None]
    free = [one for one in waiting if number > 1 or one.epoch == 0] or (waiting if len(called) > number else [])
    return max(free, default=None)


def _send_back(tx: Transaction, qid: int, gid: int, job: _Called, now: int) -> None:
    priority = 0 if job.lane < 0 else job.priority
    tx.execute(_TRANSITION["shift"], (job.lane, priority, job.run_at, job.id, -gid, 0))
    tx.execute(_TRANSITION["set_lane"], (job.seq, -gid))
    tx.execute(_SQL["leave"], (gid, job.seq))
    tenants.drop(tx, qid, job.lane, job.tenant, now)


def call_some(tx: Transaction, qid: int, place: str, most: int, now: int) -> str | None:
    """The number of jobs that may be called has changed: so many groups from this name on learn of it. Return the name
    of the next one."""
    found = tx.rows(_SQL["some"], (qid, place, most + 1))
    for gid, name in found[:most]:
        if call(tx, qid, gid, now):
            return str(name)
    return found[most][1] if len(found) > most else None


def state(session: Session, queue: str, name: str, count_cap: int) -> GroupState:
    """Which jobs of a group are called, and how many wait."""
    row = session.first(_QUEUE["find"], (queue,))
    known = None if row is None else session.first(_SQL["find"], (row[0], name))
    if known is None:
        return GroupState(queue, name)
    called = sorted(job.id for job in _called(session, known[0]))
    [waiting] = session.one(_SQL["waiting"], (known[0], count_cap))
    return GroupState(queue, name, tuple(called), waiting)
