"""insert: idempotent by id, exclusive by key (I13), and truthful (I16)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.records import Inserted, InsertStatus, KeyUntil, Replaces, Reschedule, Row
from headrace.testing.sim.ledger import LIVE, Ledger
from headrace.testing.sim.life import Life
from headrace.types import JobState


def on_insert(book: Ledger, rows: Sequence[Row], answers: Sequence[Inserted], now: int) -> None:
    """Rows were inserted and answered."""
    if len(rows) != len(answers):
        book.blame("I16", None, f"{len(rows)} rows were inserted and {len(answers)} answered")
    for row, answer in zip(rows, answers, strict=False):
        _judge(book, row, answer, now)


def expected(book: Ledger, row: Row, now: int, *, gate: bool = False) -> Inserted:
    """The only right answer to one row; ``gate``: where the depth of the queue counts."""
    known = book.jobs.get(row.id)
    if known is not None:
        return Inserted(InsertStatus.SAME, row.id, known.state, None, known.attempt)
    last = None if row.key is None else book.by_key(row.queue, row.key)
    passed = last is not None and last.state is JobState.RUNNING and row.key_until is KeyUntil.STARTED
    kept_out = LIVE if not row.hold_failed else (*LIVE, JobState.FAILED)
    if last is not None and last.state in kept_out and not passed:
        status = InsertStatus.REPLACED if _replaces(row, last) else InsertStatus.DUPLICATE
        return Inserted(status, last.id, last.state, None, last.attempt)
    kept = row.key_until is KeyUntil.KEPT
    if kept and last is not None and last.held(now):
        return Inserted(InsertStatus.DONE, last.id, last.state, last.result, last.attempt)
    if kept and row.key is not None and (job_id := book.outliving(row.queue, row.key, now)) is not None:
        return Inserted(InsertStatus.DUPLICATE, job_id, JobState.COMPLETED)
    full = book.realm.of(row.queue).full() if gate else None
    return Inserted(InsertStatus.FULL if full else InsertStatus.NEW, row.id, room=full)


def _replaces(row: Row, life: Life) -> bool:
    same = (row.task, row.tenant) == (life.row.task, life.row.tenant)
    return row.replaces is not Replaces.NOTHING and life.state in Reschedule.applies and same


def replace_job(book: Ledger, row: Row, life: Life, now: int) -> None:
    """A waiting job has taken on what the row replaces."""
    if row.replaces & Replaces.CELLS:
        life.cells = dict(row.cells)
    if row.replaces & Replaces.TIME:
        life.expires_at = None if row.expires is None else now + row.expires
        life.run_at = now + row.delay if row.run_at is None else row.run_at
        book.put(life, life.state)


def _judge(book: Ledger, row: Row, answer: Inserted, now: int) -> None:
    right = expected(book, row, now, gate=True)
    if answer.status is not right.status:
        invariant = "I21" if InsertStatus.FULL in (answer.status, right.status) else "I13"
        book.blame(invariant, row.id, f"insert was answered {answer.status}, which should be {right.status}")
    elif answer != right:
        invariant = "I15" if answer.result != right.result else "I16"
        book.blame(invariant, row.id, f"insert was answered {answer}, which should be {right}")
    _note(book, row, answer)
    if answer.status is InsertStatus.NEW:
        book.add(row, now)
    elif answer.status is InsertStatus.REPLACED and (life := book.jobs.get(answer.id)) is not None:
        replace_job(book, row, life, now)


def _note(book: Ledger, row: Row, answer: Inserted) -> None:
    if answer.status is InsertStatus.NEW:
        if row.key is not None and (row.queue, row.key) in book.keys:
            book.reach("key taken again")
    elif answer.status is InsertStatus.DUPLICATE and answer.state is JobState.FAILED:
        book.reach("key held by a failed job")
    elif answer.status is InsertStatus.DUPLICATE and answer.state is JobState.COMPLETED:
        book.reach("key held by a job that was swept")
    else:
        book.reach(f"insert {answer.status}")
