"""Jobs change their state: into and out of ``ready``, ``running``, ``paused`` and ``ended``."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import apsw

from headrace.backends.sqlite import dead_letters, groups, tenants
from headrace.backends.sqlite.delayed import lane_of, position
from headrace.backends.sqlite.entry import Entry
from headrace.backends.sqlite.readable_text import readable
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, CANCELLED, FAILED, KEYS, PAUSED
from headrace.backends.sqlite.transaction import Stored, Transaction, dies_at
from headrace.seam.records import JobId, Reaped
from headrace.types import JobState

_SQL = load("transition")
_INSERT = load("insert")

_NOWHERE = 0
"""No lane."""

EndedRow = tuple[int, int, int, int, int, int, int, int, str, Stored]
"""seq, state, finished_at, held_until, epoch, attempt, lost, size, reason, result."""

ReadyRow = tuple[int, int, int, JobId, int, int, int, int, int, int | None, int]
"""lane, priority, run_at, id, seq, epoch, attempt, lost, size, dies_at, gid."""

ExpiredRow = tuple[int, int, int, JobId, int, int, int, int, int, int, int, str, str, str, str | None]
"""lane, priority, run_at, id, seq, epoch, attempt, lost, size, gid, qid, queue, task, tenant, key."""


def next_epoch(epoch: int, now: int) -> int:
    """The epoch of the next lease, as ``lease`` writes it. Below 0: no lease ever began the job."""
    return max(abs(epoch) + 1, now)


class Waiting(NamedTuple):
    """A job that is to wait for a worker."""

    qid: int
    lane: int
    """The one that it was in last."""
    priority: int
    run_at: int
    id: JobId
    seq: int
    epoch: int
    attempt: int
    lost: int
    size: int
    expires_at: int | None
    task: str
    tenant: str
    group: str | None


def release(tx: Transaction, job: Waiting, now: int) -> None:
    """A job that is in no table becomes AVAILABLE. If it has a group and is not called, it waits in line."""
    lane, priority, gid = job.qid, job.priority, 0
    if job.group is not None:
        gid, new = groups.find(tx, job.qid, job.group)
        if new or not groups.is_called(tx, gid, job.seq):
            lane, priority = -gid, 0
    if lane > 0:
        lane = tenants.put_one(tx, job.qid, job.tenant, job.task, job.run_at)
        lane, priority = position(lane, priority, job.run_at, now)
    if lane != job.lane:
        tx.execute(_SQL["set_lane"], (job.seq, lane))
    dies = dies_at(job.expires_at, job.run_at)
    tx.execute(
        _SQL["to_ready"],
        (lane, priority, job.run_at, job.id, job.seq, job.epoch, job.attempt, job.lost, job.size, dies, gid),
    )
    tx.count(job.qid, AVAILABLE, 1)
    tx.hint_queue(job.qid)
    if gid:
        groups.come_back(tx, job.qid, gid, now)


def release_new(tx: Transaction, rows: Sequence[ReadyRow], qids: Sequence[int]) -> None:
    """New jobs of these queues become AVAILABLE."""
    tx.executemany(_SQL["to_ready"], rows)
    tx.count_all(qids, AVAILABLE, 1)
    for qid in set(qids):
        tx.hint_queue(qid)


def release_one(tx: Transaction, row: ReadyRow, qid: int, queue: str) -> None:
    """A new job of this queue becomes AVAILABLE."""
    tx.execute(_SQL["to_ready"], row)
    tx.count(qid, AVAILABLE, 1)
    tx.hint_queue_named(queue)


def park(tx: Transaction, seq: int, qid: int, epoch: int, attempt: int, lost: int, size: int) -> None:
    """A job that is in no table becomes PAUSED."""
    tx.execute(_SQL["to_paused"], (seq, qid, epoch, attempt, lost, size))
    tx.count(qid, PAUSED, 1)


def end(tx: Transaction, code: int, rows: Sequence[EndedRow], qids: Sequence[int]) -> None:
    """Jobs of these queues that are in no table end in one state, and their waiters get a hint."""
    tx.executemany(_SQL["to_ended"], rows)
    tx.fill(code, len(rows), sum([row[7] for row in rows]))
    tx.count_all(qids, code, 1)
    seqs = array("q", [row[0] for row in rows])
    if code == FAILED:
        dead_letters.add(tx, seqs)
    tell_waiters(tx, seqs)


def expire(tx: Transaction, rows: Sequence[ExpiredRow], now: int) -> list[Reaped]:
    """AVAILABLE jobs are cancelled because they have expired."""
    if not rows:
        return []
    tx.executemany(_SQL["from_ready"], [row[:4] for row in rows])
    ended: list[EndedRow] = []
    answers = []
    for _, _, _, job_id, seq, epoch, attempt, lost, size, _, _, queue, task, _, key in rows:
        ended.append((seq, CANCELLED, now, 0, epoch, attempt, lost, size, "expired", None))
        answers.append(Reaped(job_id, queue, task, JobState.CANCELLED, lost, "expired", key))
    qids = [row[10] for row in rows]
    end(tx, CANCELLED, ended, qids)
    tx.count_all(qids, AVAILABLE, -1)
    for lane, *_, qid, _, _, tenant, _ in rows:
        tenants.drop(tx, qid, lane, tenant, now)
    groups.leave(tx, [(row[10], row[9], row[4]) for row in rows if row[9]], now)
    return answers


def leave_running(tx: Transaction, seqs: array[int]) -> None:
    """The leases of these jobs are gone; the caller counts them."""
    if seqs:
        tx.execute(_SQL["from_running"], (apsw.carray(seqs),))


def leave(tx: Transaction, entry: Entry, now: int) -> None:
    """A job that does not run leaves its table, and its group; its result is dropped."""
    if entry.code == AVAILABLE:
        priority = 0 if entry.lane < 0 else entry.priority
        tx.execute(_SQL["from_ready"], (entry.lane, priority, entry.run_at, entry.id))
        tenants.drop(tx, entry.qid, entry.lane, entry.tenant, now)
        if entry.gid:
            groups.leave(tx, [(entry.qid, entry.gid, entry.seq)], now)
    elif entry.code == PAUSED:
        tx.execute(_SQL["from_paused"], (entry.seq,))
    elif entry.finished_at is not None:
        tx.drop(entry.result)
        if entry.code == FAILED:
            dead_letters.remove(tx, array("q", [entry.seq]))
        tx.execute(_SQL["from_ended"], (apsw.carray(array("q", [entry.seq])),))
        tx.fill(entry.code, -1, -entry.size)
    else:  # it is in no table, and nothing counts it
        return
    tx.count(entry.qid, entry.code, -1)


def reprioritise(tx: Transaction, entry: Entry, priority: int, now: int) -> None:
    """An AVAILABLE job gets another priority. It stays called, or keeps its place in the line of its group, or among
    the delayed jobs."""
    if entry.lane < 0:
        return
    tx.execute(_SQL["shift"], (entry.lane, entry.priority, entry.run_at, entry.id, _NOWHERE, priority))
    tenants.drop(tx, entry.qid, entry.lane, entry.tenant, now)
    lane = tenants.put_one(tx, entry.qid, entry.tenant, entry.task, entry.run_at)
    tx.execute(_SQL["shift"], (_NOWHERE, priority, entry.run_at, entry.id, lane, priority))
    if lane != entry.lane:
        tx.execute(_SQL["set_lane"], (entry.seq, lane))
    tx.hint_queue(entry.qid)


def reschedule(tx: Transaction, entry: Entry, run_at: int, now: int) -> None:
    """An AVAILABLE job is due at another time, which its row says already; the jobs of its group are called again."""
    dies = dies_at(entry.expires_at, run_at)
    ready_priority = 0 if entry.lane < 0 else entry.priority
    in_line = lane_of(entry.lane) < 0
    lane = entry.lane if in_line else _NOWHERE
    tx.execute(_SQL["postpone"], (entry.lane, ready_priority, entry.run_at, entry.id, lane, run_at, dies))
    if not in_line:
        tenants.drop(tx, entry.qid, entry.lane, entry.tenant, now)
        lane = tenants.put_one(tx, entry.qid, entry.tenant, entry.task, run_at)
        lane, priority = position(lane, entry.priority, run_at, now)
        tx.execute(_SQL["shift"], (_NOWHERE, ready_priority, run_at, entry.id, lane, priority))
        if lane != entry.lane:
            tx.execute(_SQL["set_lane"], (entry.seq, lane))
    tx.hint_queue(entry.qid)
    if entry.gid:
        groups.call(tx, entry.qid, entry.gid, now)


def tell_waiters(tx: Transaction, seqs: array[int]) -> None:
    """The jobs have ended: send a hint to every inbox that waits for one of them."""
    if not seqs:
        return
    waiting = tx.rows(_SQL["waiters"], (apsw.carray(seqs),))
    if waiting:
        tx.execute(_SQL["drop_waiters"], (apsw.carray(seqs),))
        for inbox, job_id in waiting:
            tx.hint_inbox(readable(inbox), job_id)


def outlive(tx: Transaction, seqs: array[int], now: int) -> None:
    """Completed jobs are about to be forgotten; keys that they still hold outlive them."""
    held = tx.rows(_INSERT["outlived"], (apsw.carray(seqs), now))
    if held:
        tx.executemany(_INSERT["outlive"], [(seq, job_id, held_until) for seq, _, job_id, held_until in held])
        tx.fill(KEYS, len(held), 0)
        tx.count_all([qid for _, qid, _, _ in held], KEYS, 1)


def forget(tx: Transaction, seqs: array[int]) -> None:
    """Remove all of these jobs but their counts, and their rows in ``ready``, ``running`` or ``paused``."""
    if not seqs:
        return
    bound = (apsw.carray(seqs),)
    for seq, keyed, far, *cells in tx.rows(_SQL["belongings"], bound):
        if keyed:
            tx.execute(_INSERT["drop_key_of"], (seq,))
        if far:
            tx.drop(*cells)
    for [result] in tx.rows(_SQL["far_results"], bound):
        tx.drop(result)
    tx.execute(_SQL["drop_waiters"], bound)
    tx.execute(_SQL["from_ended"], bound)
    tx.execute(_SQL["forget"], bound)
