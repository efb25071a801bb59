"""alter: changes from outside, each in one step."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from headrace.backends.sqlite.entry import Entry, entries, named
from headrace.backends.sqlite.finishing import move
from headrace.backends.sqlite.insertion import key_taken
from headrace.backends.sqlite.places import end, forget, leave, park, release
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import (
    AVAILABLE,
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    LIVE,
    PAUSED,
    RUNNING,
    STATES,
)
from headrace.backends.sqlite.transaction import Transaction, dies_at
from headrace.records import (
    Altered,
    Cancel,
    Change,
    Configure,
    Delete,
    Hold,
    Move,
    Pause,
    Reprioritise,
    Requeue,
    Resume,
    Selector,
    Watch,
)

_SQL = load("alter")
_INSERT = load("insert")
_QUEUE = load("queue")

APPLIES: dict[type[Change], frozenset[int]] = {
    Cancel: LIVE,
    Pause: frozenset((AVAILABLE,)),
    Resume: frozenset((PAUSED,)),
    Requeue: frozenset(ENDED),
    Move: frozenset((AVAILABLE, PAUSED)),
    Reprioritise: frozenset((AVAILABLE, PAUSED)),
    Watch: LIVE,
    Hold: frozenset((COMPLETED,)),
    Delete: frozenset((AVAILABLE, PAUSED, COMPLETED, CANCELLED, FAILED)),
}
"""The states that each change applies to."""


def configure(tx: Transaction, sel: Selector, change: Configure) -> None:
    """Change the queue that the selector names."""
    if sel.queue is None:
        raise ValueError("Configure needs a selector with a queue")
    qid = tx.queue(sel.queue)
    tx.execute(_QUEUE["configure"], (qid, int(change.paused)))
    if not change.paused:
        tx.wake_queue(qid)


def alter_named(tx: Transaction, sel: Selector, change: Change, now: int) -> list[Altered]:
    """Change the jobs that the selector names; answer for each that exists, in the order named."""
    return [_alter(tx, entry, change, now) for entry in entries(tx, named(tx, sel)) if entry.matches(sel, now)]


def alter_matching(sel: Selector, change: Change, seqs: Iterable[int], tx: Transaction, now: int) -> list[Altered]:
    """Change those of the jobs that still match and that the change still applies to."""
    fit = (entry for entry in entries(tx, seqs) if entry.code in APPLIES[type(change)] and entry.matches(sel, now))
    return [_alter(tx, entry, change, now) for entry in fit if not (isinstance(change, Cancel) and entry.cancel)]


def _alter(tx: Transaction, entry: Entry, change: Change, now: int) -> Altered:
    before = STATES[entry.code]
    if entry.code not in APPLIES[type(change)]:
        return Altered(entry.id, before, before, False, entry.queue, entry.key)
    after = _apply(tx, entry, change, now)
    if after is _REFUSED:
        return Altered(entry.id, before, before, False, entry.queue, entry.key)
    queue = change.queue if isinstance(change, Move) else entry.queue
    return Altered(entry.id, before, None if after is None else STATES[after], True, queue, entry.key)


_REFUSED = -1


def _apply(tx: Transaction, entry: Entry, change: Change, now: int) -> int | None:
    """The code of the state that the job is in now; None: it is gone."""
    match change:
        case Cancel(reason):
            return _cancel(tx, entry, reason, now)
        case Pause():
            leave(tx, entry)
            park(tx, entry.seq, entry.qid, entry.epoch, entry.attempt, entry.lost, entry.size)
            return PAUSED
        case Resume():
            leave(tx, entry)
            _release(tx, entry)
            return AVAILABLE
        case Requeue():
            return _requeue(tx, entry, now)
        case Move(queue):
            return _move(tx, entry, queue, now)
        case Reprioritise(priority):
            _put(tx, entry, entry._replace(priority=priority))
        case Watch(inbox):
            tx.execute(_INSERT["wait"], (entry.seq, inbox))
        case Hold(result_ttl):
            if (entry.held_until or 0) <= now:
                return _REFUSED
            tx.execute(_SQL["hold"], (entry.seq, now + result_ttl))
        case Delete():
            leave(tx, entry)
            forget(tx, array("q", [entry.seq]))
            return None
    return entry.code


def _release(tx: Transaction, entry: Entry) -> None:
    dies = dies_at(entry.expires_at, entry.run_at)
    release(
        tx,
        (
            entry.qid, entry.priority, entry.run_at, entry.id, entry.seq, entry.epoch, entry.attempt, entry.lost,
            entry.size, dies,
        ),
    )  # fmt: skip


def _cancel(tx: Transaction, entry: Entry, reason: str, now: int) -> int:
    if entry.code == RUNNING:
        tx.execute(_SQL["request_cancel"], (entry.seq,))
        tx.wake_holder(entry.holder or "")
        return RUNNING
    leave(tx, entry)
    row = (entry.seq, CANCELLED, now, 0, entry.epoch, entry.attempt, entry.lost, entry.size, reason, None)
    end(tx, CANCELLED, [row], array("q", [entry.seq]))
    tx.count(entry.qid, CANCELLED, 1)
    return CANCELLED


def _requeue(tx: Transaction, entry: Entry, now: int) -> int:
    if entry.key is not None:
        if key_taken(tx, entry.qid, entry.key, now, but=entry.seq):
            return _REFUSED
        tx.execute(_INSERT["take_key"], (entry.qid, entry.key, entry.seq))
    size = entry.size - tx.weigh(entry.result) - tx.weigh(entry.error)
    leave(tx, entry)
    tx.drop(entry.error)
    tx.execute(_SQL["renewed"], (entry.seq, now))
    _release(tx, entry._replace(run_at=now, expires_at=None, attempt=0, lost=0, size=size))
    return AVAILABLE


def _move(tx: Transaction, entry: Entry, queue: str, now: int) -> int:
    if queue == entry.queue:
        return _REFUSED
    there = tx.find_queue(queue)
    if there is not None and entry.key is not None and key_taken(tx, there, entry.key, now):
        return _REFUSED
    qid, _ = move(tx, entry.seq, entry.qid, entry.key, queue, now)
    _put(tx, entry, entry._replace(qid=qid))
    tx.wake_queue(qid)
    return entry.code


def _put(tx: Transaction, entry: Entry, changed: Entry) -> None:
    """An AVAILABLE or PAUSED job gets another queue or priority."""
    leave(tx, entry)
    tx.execute(_SQL["relocate"], (entry.seq, changed.qid, changed.priority))
    if entry.code == AVAILABLE:
        _release(tx, changed)
    else:
        park(tx, changed.seq, changed.qid, changed.epoch, changed.attempt, changed.lost, changed.size)
