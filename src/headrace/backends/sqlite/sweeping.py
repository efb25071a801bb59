"""sweep: what has ended or was planned long ago, oldest first, in bounded steps."""

from __future__ import annotations

from array import array
from collections import Counter

import apsw

from headrace.backends.shares import bound_of, goes_on
from headrace.backends.sqlite import dead_letters, ledger, rules, tenants
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import CODES, COMPLETED, FAILED, KEYS
from headrace.backends.sqlite.transaction import Session, Stored, Transaction
from headrace.backends.sqlite.transitions import forget, outlive
from headrace.seam.records import Place, SweepClause, Swept
from headrace.types import JobState

_SQL = load("sweep")
_QUEUE = load("queue")
_INSERT = load("insert")


def preview(session: Session, clause: SweepClause, now: int) -> Swept:
    """What a sweep would do now."""
    if clause.place is Place.RESULTS:
        _, answer = _condemn_results(session, clause, now)
    elif clause.place is Place.TICKS:
        _, answer = ledger.condemn(session, clause, now)
    elif clause.place is Place.KEYS:
        _, answer = _condemn_keys(session, clause, now)
    elif clause.place is Place.TENANTS:
        _, answer = tenants.condemn(session, clause.limit, now)
    else:
        _, answer = _condemn(session, clause, now)
    return answer


def nothing_condemned(session: Session, clause: SweepClause, now: int) -> Swept | None:
    """The answer to a sweep that would remove nothing, without a lock; None if it would remove something."""
    if not clause.dry_run and (session.first(_QUEUE["any_idle"], (now,)) is not None or rules.any_over(session, now)):
        return None
    answer = preview(session, clause, now)
    return answer if clause.dry_run or not answer.removed else None


def sweep(tx: Transaction, clause: SweepClause, now: int) -> Swept:
    """Remove what the clause condemns, and the names of queues that nothing refers to any more."""
    tx.flush()
    if clause.place is Place.RESULTS:
        results, answer = _condemn_results(tx, clause, now)
        for seq, result, size in results:
            tx.drop(result)
            tx.execute(_SQL["clear_result"], (seq, size))
        tx.fill(COMPLETED, 0, -answer.bytes)
    elif clause.place is Place.TICKS:
        last, answer = ledger.condemn(tx, clause, now)
        if last is not None:
            ledger.forget(tx, last, answer)
    elif clause.place is Place.KEYS:
        keys, answer = _condemn_keys(tx, clause, now)
        tx.executemany(_INSERT["drop_outlived"], keys)
        tx.fill(KEYS, -answer.removed, 0)
        for qid, number in Counter(qid for qid, _ in keys).items():
            tx.count(qid, KEYS, -number)
    elif clause.place is Place.TENANTS:
        tids, answer = tenants.condemn(tx, clause.limit, now)
        tenants.forget(tx, tids)
    else:
        seqs, answer = _condemn(tx, clause, now)
        if seqs:
            code = CODES[JobState(clause.place.value)]
            if code == COMPLETED:
                outlive(tx, seqs, now)
            elif code == FAILED:
                dead_letters.remove(tx, seqs)
            queues = Counter(qid for [qid] in tx.rows(_SQL["queues"], (apsw.carray(seqs),)))
            forget(tx, seqs)
            tx.fill(code, -answer.removed, -answer.bytes)
            for qid, number in queues.items():
                tx.count(qid, code, -number)
    rules.forget_over(tx, now)
    tx.forget_idle_queues(now)
    return answer


def _condemn(session: Session, clause: SweepClause, now: int) -> tuple[array[int], Swept]:
    code = CODES[JobState(clause.place.value)]
    count, size = session.one(_SQL["place"], (code,))
    condemned = _condemn_dead if code == FAILED else _condemn_oldest
    doomed, again = condemned(session, clause, count, size, now)
    seqs = array("q", list(doomed)[: clause.limit])
    freed = sum(doomed[seq] for seq in seqs)
    return seqs, Swept(len(seqs), freed, count - len(seqs), again or len(doomed) > clause.limit)


def _condemn_oldest(
    session: Session, clause: SweepClause, count: int, size: int, now: int
) -> tuple[dict[int, int], bool]:
    """The hard bounds take from the head of the place; beyond what they take, age takes what is not held."""
    code = CODES[JobState(clause.place.value)]
    excess = 0 if clause.max_count is None else count - clause.max_count
    over = 0 if clause.max_bytes is None else size - clause.max_bytes
    doomed: dict[int, int] = {}
    freed = 0
    if excess > 0 or over > 0:
        for seq, finished_at, each in session.rows(_SQL["oldest"], (code, clause.limit + 1)):
            if finished_at > now - clause.spare or (len(doomed) >= excess and freed >= over):
                break
            doomed[seq] = each
            freed += each
    if len(doomed) <= clause.limit:
        doomed |= _condemn_aged(session, clause, clause.limit + 1 + len(doomed), now)
    return doomed, False


def _condemn_dead(
    session: Session, clause: SweepClause, count: int, size: int, now: int
) -> tuple[dict[int, int], bool]:
    """What is too old; where nothing is, what is too much."""
    bound, excess = "age", 0
    doomed = _condemn_aged(session, clause, clause.limit + 1, now)
    if not doomed:
        bound, excess = bound_of(clause, count, size)
        doomed = dead_letters.condemn(session, clause, bound, excess, now) if bound else {}
    return doomed, bool(doomed) and goes_on(clause, bound, count - len(doomed), size - sum(doomed.values()))


def _condemn_aged(session: Session, clause: SweepClause, limit: int, now: int) -> dict[int, int]:
    if clause.older_than is None:
        return {}
    before = now - max(clause.older_than, clause.spare)
    return dict(session.rows(_SQL["aged"], (CODES[JobState(clause.place.value)], before, now, limit)))


def _condemn_results(session: Session, clause: SweepClause, now: int) -> tuple[list[tuple[int, Stored, int]], Swept]:
    rows = session.rows(_SQL["results"], (now, clause.limit + 1))
    doomed = [(seq, result, size) for seq, result, size in rows[: clause.limit]]
    return doomed, Swept(len(doomed), sum(size for _, _, size in doomed), 0, len(rows) > clause.limit)


def _condemn_keys(session: Session, clause: SweepClause, now: int) -> tuple[list[tuple[int, str]], Swept]:
    """Keys that outlive their jobs, in the order in which they are free."""
    count, _ = session.one(_SQL["place"], (KEYS,))
    excess = 0 if clause.max_count is None else count - clause.max_count
    first = session.rows(_SQL["keys"], (clause.limit + 1,))
    condemned = [(qid, key) for n, (qid, key, held_until) in enumerate(first) if n < excess or held_until <= now]
    doomed = condemned[: clause.limit]
    return doomed, Swept(len(doomed), 0, count - len(doomed), len(condemned) > clause.limit)
