"""sweep: what has ended or was planned long ago, oldest first, in bounded steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import apsw

from headrace.backends.sqlite import dead_letters, ledger, removals, rules, tenants
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import CODES, COMPLETED, FAILED, KEYS
from headrace.backends.sqlite.transaction import Session, Stored, Transaction
from headrace.backends.sqlite.transitions import forget, outlive
from headrace.seam.dead_letter_shares import bound_of, goes_on
from headrace.seam.records import JobId, SweepClause, SweepTarget, Swept
from headrace.types import JobState

_SQL = load("sweep")
_QUEUE = load("queue")
_INSERT = load("insert")


def preview(session: Session, clause: SweepClause, now: int) -> Swept:
    """What a sweep would do now."""
    if clause.target is SweepTarget.RESULTS:
        _, answer = _condemn_results(session, clause, now)
    elif clause.target is SweepTarget.TICKS:
        _, answer = ledger.condemn(session, clause, now)
    elif clause.target is SweepTarget.KEYS:
        _, answer = _condemn_keys(session, clause, now)
    elif clause.target is SweepTarget.TENANTS:
        _, answer = tenants.condemn(session, clause.limit, now)
    else:
        _, answer = _condemn(session, clause, now)
    return answer


def nothing_condemned(session: Session, clause: SweepClause, now: int) -> Swept | None:
    """The answer to a sweep that would remove nothing, without a lock; None if it would remove something."""
    if session.first(_QUEUE["any_idle"], (now,)) is not None or rules.any_over(session, now):
        return None
    answer = preview(session, clause, now)
    return None if answer.removed else answer


def sweep(tx: Transaction, clause: SweepClause, now: int) -> Swept:
    """Remove what the clause condemns, and the names of queues that nothing refers to any more."""
    tx.flush()
    if clause.target is SweepTarget.RESULTS:
        results, answer = _condemn_results(tx, clause, now)
        for seq, result, size in results:
            tx.drop(result)
            tx.execute(_SQL["clear_result"], (seq, size))
        tx.fill(COMPLETED, 0, -answer.bytes)
    elif clause.target is SweepTarget.TICKS:
        last, answer = ledger.condemn(tx, clause, now)
        if last is not None:
            ledger.forget(tx, last, answer)
    elif clause.target is SweepTarget.KEYS:
        keys, answer = _condemn_keys(tx, clause, now)
        tx.executemany(_INSERT["drop_outlived"], keys)
        tx.fill(KEYS, -answer.removed, 0)
        tx.count_all([qid for qid, _ in keys], KEYS, -1)
    elif clause.target is SweepTarget.TENANTS:
        tids, answer = tenants.condemn(tx, clause.limit, now)
        tenants.forget(tx, tids)
    else:
        seqs, answer = _condemn(tx, clause, now)
        if seqs:
            code = CODES[JobState(clause.target.value)]
            removals.add(tx, seqs)
            if code == COMPLETED:
                outlive(tx, seqs, now)
            elif code == FAILED:
                dead_letters.remove(tx, seqs)
            tx.count_all([qid for [qid] in tx.rows(_SQL["queues"], (apsw.carray(seqs),))], code, -1)
            forget(tx, seqs)
            tx.fill(code, -answer.removed, -answer.bytes)
    rules.forget_over(tx, now)
    tx.forget_idle_queues(now)
    return answer


def _condemn(session: Session, clause: SweepClause, now: int) -> tuple[array[int], Swept]:
    code = CODES[JobState(clause.target.value)]
    count, size = session.one(_SQL["place"], (code,))
    if clause.jobs is not None:
        condemned, again = _condemn_named(session, clause, clause.jobs, now), False
    else:
        condemn = _condemn_dead if code == FAILED else _condemn_oldest
        condemned, again = condemn(session, clause, count, size, now)
    seqs = array("q", list(condemned)[: clause.limit])
    freed = sum(condemned[seq] for seq in seqs)
    return seqs, Swept(len(seqs), freed, count - len(seqs), again or len(condemned) > clause.limit)


def _condemn_named(
    session: Session, clause: SweepClause, jobs: Sequence[tuple[JobId, int]], now: int
) -> dict[int, int]:
    """Those of the jobs that a clause names which are ended, old enough and not held."""
    latest = clause.latest(now) if clause.older_than is None else min(clause.latest(now), now - clause.older_than)
    code = CODES[JobState(clause.target.value)]
    condemned: dict[int, int] = {}
    for job_id, epoch in jobs:
        if row := session.first(_SQL["named"], (job_id, code, epoch, latest, now)):
            condemned[row[0]] = row[1]
    return condemned


def _condemn_oldest(
    session: Session, clause: SweepClause, count: int, size: int, now: int
) -> tuple[dict[int, int], bool]:
    """The hard bounds take from the head of the place; beyond what they take, age takes what is not held."""
    code = CODES[JobState(clause.target.value)]
    excess = 0 if clause.max_count is None else count - clause.max_count
    over = 0 if clause.max_bytes is None else size - clause.max_bytes
    condemned: dict[int, int] = {}
    freed = 0
    if excess > 0 or over > 0:
        for seq, finished_at, each in session.rows(_SQL["oldest"], (code, clause.limit + 1)):
            if finished_at > clause.latest(now) or (len(condemned) >= excess and freed >= over):
                break
            condemned[seq] = each
            freed += each
    if len(condemned) <= clause.limit:
        condemned |= _condemn_aged(session, clause, clause.limit + 1 + len(condemned), now)
    return condemned, False


def _condemn_dead(
    session: Session, clause: SweepClause, count: int, size: int, now: int
) -> tuple[dict[int, int], bool]:
    """What is too old; where nothing is, what is too much."""
    bound, excess = "age", 0
    condemned = _condemn_aged(session, clause, clause.limit + 1, now)
    if not condemned:
        bound, excess = bound_of(clause, count, size)
        condemned = dead_letters.condemn(session, clause, bound, excess, now) if bound else {}
    return condemned, bool(condemned) and goes_on(clause, bound, count - len(condemned), size - sum(condemned.values()))


def _condemn_aged(session: Session, clause: SweepClause, limit: int, now: int) -> dict[int, int]:
    if clause.older_than is None:
        return {}
    before = min(now - clause.older_than, clause.latest(now))
    return dict(session.rows(_SQL["aged"], (CODES[JobState(clause.target.value)], before, now, limit)))


def _condemn_results(session: Session, clause: SweepClause, now: int) -> tuple[list[tuple[int, Stored, int]], Swept]:
    rows = session.rows(_SQL["results"], (now, clause.limit + 1))
    going = rows[: clause.limit]
    return going, Swept(len(going), sum(size for _, _, size in going), 0, len(rows) > clause.limit)


def _condemn_keys(session: Session, clause: SweepClause, now: int) -> tuple[list[tuple[int, str]], Swept]:
    """Keys that outlive their jobs, in the order in which they are free."""
    count, _ = session.one(_SQL["place"], (KEYS,))
    excess = 0 if clause.max_count is None else count - clause.max_count
    first = session.rows(_SQL["keys"], (clause.limit + 1,))
    condemned = [(qid, key) for n, (qid, key, held_until) in enumerate(first) if n < excess or held_until <= now]
    going = condemned[: clause.limit]
    return going, Swept(len(going), 0, count - len(going), len(condemned) > clause.limit)
