"""Ways into and out of the four places that a job can lie in."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import apsw

from headrace.backends.sqlite.entry import Entry
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, CANCELLED, PAUSED, RUNNING
from headrace.backends.sqlite.transaction import Stored, Transaction
from headrace.records import JobId, Reaped
from headrace.types import JobState

_SQL = load("place")
_INSERT = load("insert")

EndedRow = tuple[int, int, int, int, int, int, int, int, str, Stored]
"""seq, state, finished_at, held_until, epoch, attempt, lost, size, reason, result."""

ReadyRow = tuple[int, int, int, JobId, int, int, int, int, int, int | None]
"""qid, priority, run_at, id, seq, epoch, attempt, lost, size, dies_at."""


def release(tx: Transaction, row: ReadyRow) -> None:
    """A job that lies nowhere becomes AVAILABLE."""
    tx.execute(_SQL["to_ready"], row)
    tx.count(row[0], AVAILABLE, 1)
    tx.wake_queue(row[0])


def release_new(tx: Transaction, rows: Sequence[ReadyRow]) -> None:
    """New jobs become AVAILABLE."""
    tx.executemany(_SQL["to_ready"], rows)
    for qid, number in Counter([row[0] for row in rows]).items():
        tx.count(qid, AVAILABLE, number)
        tx.wake_queue(qid)


def park(tx: Transaction, seq: int, qid: int, epoch: int, attempt: int, lost: int, size: int) -> None:
    """A job that lies nowhere becomes PAUSED."""
    tx.execute(_SQL["to_paused"], (seq, qid, epoch, attempt, lost, size))
    tx.count(qid, PAUSED, 1)


def end(tx: Transaction, code: int, rows: Sequence[EndedRow], seqs: array[int]) -> None:
    """Jobs that lie nowhere end in one state, and those who wait for them are told; the caller counts them."""
    tx.executemany(_SQL["to_ended"], rows)
    tx.fill(code, len(rows), sum([row[7] for row in rows]))
    tell_waiters(tx, seqs)


DyingRow = tuple[int, int, int, JobId, int, int, int, int, int, str, str, str | None]
"""A row of ``ready`` without ``dies_at``; the queue's name, task and key."""


def expire(tx: Transaction, rows: Sequence[DyingRow], now: int) -> list[Reaped]:
    """AVAILABLE jobs are cancelled because they have expired."""
    if not rows:
        return []
    tx.executemany(_SQL["from_ready"], [row[:4] for row in rows])
    ended: list[EndedRow] = [
        (seq, CANCELLED, now, 0, epoch, attempt, lost, size, "expired", None)
        for _, _, _, _, seq, epoch, attempt, lost, size, *_ in rows
    ]
    end(tx, CANCELLED, ended, array("q", [row[0] for row in ended]))
    for row in rows:
        tx.count(row[0], AVAILABLE, -1)
        tx.count(row[0], CANCELLED, 1)
    return [
        Reaped(job_id, queue, task, JobState.CANCELLED, lost, "expired", key)
        for _, _, _, job_id, _, _, _, lost, _, queue, task, key in rows
    ]


def leave_running(tx: Transaction, seqs: array[int]) -> None:
    """The leases of these jobs are gone; the caller counts them."""
    if seqs:
        tx.execute(_SQL["from_running"], (apsw.carray(seqs),))


def leave(tx: Transaction, entry: Entry) -> None:
    """The job lies nowhere now; its result, if it had one, goes."""
    if entry.code == AVAILABLE:
        tx.execute(_SQL["from_ready"], (entry.qid, entry.priority, entry.run_at, entry.id))
    elif entry.code == RUNNING:
        leave_running(tx, array("q", [entry.seq]))
    elif entry.code == PAUSED:
        tx.execute(_SQL["from_paused"], (entry.seq,))
    else:
        tx.drop(entry.result)
        tx.execute(_SQL["from_ended"], (apsw.carray(array("q", [entry.seq])),))
        tx.fill(entry.code, -1, -entry.size)
    tx.count(entry.qid, entry.code, -1)


def tell_waiters(tx: Transaction, seqs: array[int]) -> None:
    """The jobs have ended: a hint to every inbox that waits for one of them."""
    if not seqs:
        return
    waiting = tx.rows(_SQL["waiters"], (apsw.carray(seqs),))
    if waiting:
        tx.execute(_SQL["drop_waiters"], (apsw.carray(seqs),))
        for inbox, job_id in waiting:
            tx.wake_inbox(inbox, job_id)


def forget(tx: Transaction, seqs: array[int]) -> None:
    """Nothing is left of these jobs but their counts and what of them lies in ``ready``, ``running`` or ``paused``."""
    if not seqs:
        return
    bound = (apsw.carray(seqs),)
    for seq, qid, key, far, *cells in tx.rows(_SQL["belongings"], bound):
        if key is not None:
            tx.execute(_INSERT["drop_key"], (qid, key, seq))
        if far:
            tx.drop(*cells)
    for [result] in tx.rows(_SQL["far_results"], bound):
        tx.drop(result)
    tx.execute(_SQL["drop_waiters"], bound)
    tx.execute(_SQL["from_ended"], bound)
    tx.execute(_SQL["forget"], bound)
