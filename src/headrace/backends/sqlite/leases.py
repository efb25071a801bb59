"""renew and reap: leases between their claim and their end."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import apsw

from headrace.backends.sqlite import groups, marks, tenants
from headrace.backends.sqlite.finishing import leases
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import ASKED, AVAILABLE, CANCELLED, FAILED, RUNNING, STATES
from headrace.backends.sqlite.transaction import Damaged, Session, Transaction
from headrace.backends.sqlite.transitions import Waiting, end, expire, leave_running, release
from headrace.seam.records import CENSUS, Beat, Reap, Reaped, Renewed

_SQL = load("lease")
_CLAIM = load("claim")
_QUEUE = load("queue")
_FINISH = load("finish")


def renew(tx: Transaction, beat: Beat, now: int) -> Renewed:
    """List the worker, and extend its leases named in ``beat``."""
    if beat.leaving:
        tx.execute(_SQL["leave"], (beat.holder,))
    else:
        if tx.first(_SQL["listed"], (beat.holder, now)) is None:
            _note_absence(tx, beat, now)
        queues = json.dumps(beat.queues)
        tx.execute(
            _SQL["beat"], (beat.holder, beat.worker, queues, beat.slots, beat.busy, now, now + beat.ttl, beat.gap)
        )
    held = leases(tx, tuple([job_id for job_id, _ in beat.leases]))
    lost = []
    kept = array("q")
    for job_id, epoch in beat.leases:
        lease = held.get(job_id)
        if lease is None or lease[2] != epoch or lease[3] != beat.holder:
            lost.append((job_id, epoch))
        else:
            kept.append(lease[1])
    if kept:
        tx.execute(_SQL["extend"], (apsw.carray(kept), now + beat.lease_for))
    if beat.progress:
        named = {held[job_id][1]: text for job_id, text in beat.progress.items() if job_id in held}
        tx.executemany(_SQL["progress"], [(seq, named[seq]) for seq in kept if seq in named])
    cancels = [row[0] for row in tx.rows(_SQL["cancels"], (beat.holder,))]
    stopped = {row[0] for row in tx.rows(_QUEUE["stopped"], (now,))}
    paused = [queue for queue in beat.queues if queue in stopped]
    if not beat.census:
        return Renewed(lost, cancels, paused)
    census = [(row[0], row[1], bool(row[2])) for row in tx.rows(_SQL["census"], (beat.holder, CENSUS))]
    return Renewed(lost, cancels, paused, held=census, overdue=tx.first(_SQL["any_over"], (now,)) is not None)


def _note_absence(tx: Transaction, beat: Beat, now: int) -> None:
    """A worker beats that was not listed: was anybody?"""
    last = tx.rows(_SQL["last_listed"], ())
    if last and last[0][0] > now:
        return
    seen = [row[1] for row in last]
    if len(seen) > 1 and max(seen) - min(seen) <= beat.gap:
        tx.execute(_SQL["away"], (max(seen), now, beat.at_work))
    tx.execute(_SQL["at_work"], (now,))


def nothing_over(session: Session, now: int) -> list[Reaped] | None:
    """The answer to a reap that finds nothing to do, without a lock; None if there is something."""
    looks = (_SQL["any_over"], _CLAIM["any_expired"], _SQL["unlisted"])
    idle = all(session.first(look, (now,)) is None for look in looks) and marks.none_left(session, now) is False
    return [] if idle else None


def reap(tx: Transaction, req: Reap, now: int) -> list[Reaped]:
    """Take back up to ``req.limit`` jobs whose lease has expired, and cancel what has expired unclaimed."""
    marks.go_on(tx, now)
    tx.flush()
    steady = req.holder is None or tx.first(_SQL["steady"], (req.holder, now, req.gap, req.steady)) is not None
    if not steady:
        return _cancel_expired(tx, req.limit, now)
    tx.execute(_SQL["unlist"], (now,))
    [over] = tx.one(_SQL["over"], (now,))
    begins, ends = tx.one(_SQL["absence"])
    rows = tx.rows(_SQL["oldest_over"], (now, req.limit))
    if len(rows) != min(over, req.limit):  # some of them are no job's
        raise Damaged
    rows.sort(key=lambda row: (row[-1], row[1]))
    leave_running(tx, array("q", [row[0] for row in rows]))
    step = [req.spread * index // len(rows) for index in range(len(rows))]
    expired = _cancel_expired(tx, req.limit - len(rows), now)
    return [
        _take_back(tx, row, req, now, charged=not begins < row[-1] <= ends, run_at=now + step[index])
        for index, row in enumerate(rows)
    ] + expired


def _take_back(tx: Transaction, row: Sequence[Any], req: Reap, now: int, *, charged: bool, run_at: int) -> Reaped:
    (
        seq, job_id, qid, queue, task, key, epoch, attempt, lost, size, cancel, priority, expires_at,
        tenant, group, lane, gid, tid, holder, _,
    ) = row  # fmt: skip
    lost += charged and not cancel
    tx.count(qid, RUNNING, -1)
    if tid:
        tenants.stop(tx, [(tid, holder)], now)
    code, reason = AVAILABLE, ""
    if cancel:
        code, reason = CANCELLED, ASKED[cancel]
    elif charged and lost > req.max_lost:
        code, reason = FAILED, "lost"
    if gid and code == AVAILABLE:
        groups.ask_again(tx, qid, gid, seq)
    elif gid:
        groups.leave(tx, [(qid, gid, seq)], now)
    if code == AVAILABLE:
        tx.execute(_FINISH["reschedule"], (seq, run_at))
        waiting = Waiting(
            qid, lane, priority, run_at, job_id, seq, epoch, attempt, lost, size, expires_at, task, tenant, group
        )
        release(tx, waiting, now)
    else:
        end(tx, code, [(seq, code, now, 0, epoch, attempt, lost, size, reason, None)], [qid])
    return Reaped(job_id, queue, task, STATES[code], lost, reason, key)


def _cancel_expired(tx: Transaction, limit: int, now: int) -> list[Reaped]:
    return expire(tx, tx.rows(_SQL["expired"], (now, limit)) if limit > 0 else [], now)
