"""alter: changes from outside, each in one step. Jobs that are not named are found while others write."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import partial

from headrace.backends.sqlite.connection_thread import Read, Write
from headrace.backends.sqlite.entry import Entry, entries, named
from headrace.backends.sqlite.finishing import move
from headrace.backends.sqlite.insertion import key_taken
from headrace.backends.sqlite.selection import FIRST, candidates
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import ASKED, AVAILABLE, CANCELLED, PAUSED, RUNNING, STATES
from headrace.backends.sqlite.transaction import Transaction
from headrace.backends.sqlite.transitions import Waiting, end, forget, leave, park, release, reprioritise, reschedule
from headrace.seam import records as r

_SQL = load("alter")
_FINISH = load("finish")
_INSERT = load("insert")

CHANGED_AT_ONCE = 250
"""Jobs that one transaction changes or takes back."""


async def alter_many(sel: r.Selector, change: r.Change, now: int, read: Read, write: Write) -> list[r.Altered]:
    """Change up to ``sel.limit`` jobs in the order of their ids; fewer answers mean that none is left."""
    answers: list[r.Altered] = []
    here: r.JobId | None = FIRST if sel.above is None else sel.above
    while here is not None and len(answers) < sel.limit:
        look = partial(candidates, sel, change, here, sel.limit - len(answers))
        seqs, here = await read(look, now)
        for start in range(0, len(seqs), CHANGED_AT_ONCE):
            some = seqs[start : start + CHANGED_AT_ONCE]
            answers += await write(partial(_alter_matching, sel, change, some), now)
    return answers


def alter_named(tx: Transaction, sel: r.Selector, change: r.Change, now: int) -> list[r.Altered]:
    """Change the jobs that the selector names; answer for each that exists, in the order named."""
    return [_alter(tx, entry, change, now) for entry in entries(tx, named(tx, sel)) if entry.matches(sel, now)]


def _alter_matching(
    sel: r.Selector, change: r.Change, seqs: Iterable[int], tx: Transaction, now: int
) -> list[r.Altered]:
    """Change those of the jobs that still match and that the change still applies to."""
    fit = (entry for entry in entries(tx, seqs) if STATES[entry.code] in change.applies and entry.matches(sel, now))
    return [_alter(tx, entry, change, now) for entry in fit if not (isinstance(change, r.Cancel) and entry.cancel)]


def _alter(tx: Transaction, entry: Entry, change: r.Change, now: int) -> r.Altered:
    if entry.gid:  # a change of another job may have called this one
        [entry] = entries(tx, [entry.seq])
    before = STATES[entry.code]
    after = _apply(tx, entry, change, now) if before in change.applies else _REFUSED
    if after == _REFUSED:
        return r.Altered(entry.id, before, before, False, entry.queue, entry.key)
    queue = change.queue if isinstance(change, r.Move) else entry.queue
    return r.Altered(entry.id, before, None if after is None else STATES[after], True, queue, entry.key)


_REFUSED = -1


def _apply(tx: Transaction, entry: Entry, change: r.Change, now: int) -> int | None:
    """The code of the state that the job is in now; None: it is gone."""
    match change:
        case r.Cancel(reason):
            return _cancel(tx, entry, reason, now)
        case r.Pause():
            leave(tx, entry, now)
            park(tx, entry.seq, entry.qid, entry.epoch, entry.attempt, entry.lost, entry.size)
            return PAUSED
        case r.Resume():
            leave(tx, entry, now)
            _release(tx, entry, now)
            return AVAILABLE
        case r.Requeue():
            return _requeue(tx, entry, now)
        case r.Move(queue):
            return _move(tx, entry, queue, now)
        case r.Reprioritise(priority):
            tx.execute(_SQL["relocate"], (entry.seq, entry.qid, priority))
            if entry.code == AVAILABLE:
                reprioritise(tx, entry, priority, now)
        case r.Reschedule(delay, run_at):
            due = now + delay if run_at is None else run_at
            tx.execute(_FINISH["reschedule"], (entry.seq, due))
            if entry.code == AVAILABLE:
                reschedule(tx, entry, due, now)
        case r.Watch(inbox):
            tx.execute(_INSERT["wait"], (entry.seq, inbox, now))
            tx.execute(_INSERT["make_room"], (entry.seq, r.WATCHERS))
        case r.Hold(result_ttl):
            if (entry.held_until or 0) <= now:
                return _REFUSED
            tx.execute(_SQL["hold"], (entry.seq, now + result_ttl))
        case r.Delete():
            leave(tx, entry, now)
            forget(tx, array("q", [entry.seq]))
            return None
    return entry.code


def _release(tx: Transaction, entry: Entry, now: int) -> None:
    waiting = Waiting(
        entry.qid, entry.lane, entry.priority, entry.run_at, entry.id, entry.seq, entry.epoch, entry.attempt,
        entry.lost, entry.size, entry.expires_at, entry.task, entry.tenant, entry.group,
    )  # fmt: skip
    release(tx, waiting, now)


def _cancel(tx: Transaction, entry: Entry, reason: str, now: int) -> int:
    if entry.code == RUNNING:
        tx.execute(_SQL["request_cancel"], (entry.seq, 2 if reason == ASKED[2] else 1))
        tx.hint_holder(entry.holder or "")
        return RUNNING
    leave(tx, entry, now)
    row = (entry.seq, CANCELLED, now, 0, entry.epoch, entry.attempt, entry.lost, entry.size, reason, None)
    end(tx, CANCELLED, [row], [entry.qid])
    return CANCELLED


def _requeue(tx: Transaction, entry: Entry, now: int) -> int:
    if entry.key is not None:
        if key_taken(tx, entry.qid, entry.key, now, but=entry.seq):
            return _REFUSED
        tx.execute(_INSERT["take_key"], (entry.qid, entry.key, entry.seq))
    size = entry.size - tx.weigh(entry.result) - tx.weigh(entry.error)
    leave(tx, entry, now)
    tx.drop(entry.error)
    tx.execute(_SQL["renewed"], (entry.seq, now))
    _release(tx, entry._replace(run_at=now, expires_at=None, attempt=0, lost=0, size=size), now)
    return AVAILABLE


def _move(tx: Transaction, entry: Entry, queue: str, now: int) -> int:
    if queue == entry.queue:
        return _REFUSED
    there = tx.find_queue(queue)
    if there is not None and entry.key is not None and key_taken(tx, there, entry.key, now):
        return _REFUSED
    qid, _ = move(tx, entry.seq, entry.qid, entry.key, queue, now)
    leave(tx, entry, now)
    tx.execute(_SQL["relocate"], (entry.seq, qid, entry.priority))
    if entry.code == AVAILABLE:
        _release(tx, entry._replace(qid=qid), now)
    else:
        park(tx, entry.seq, qid, entry.epoch, entry.attempt, entry.lost, entry.size)
    tx.hint_queue(qid)
    return entry.code
