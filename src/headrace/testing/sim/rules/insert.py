"""insert: idempotent by id, exclusive by key (I13), and truthful (I16)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.records import Inserted, InsertStatus, Row
from headrace.testing.sim.ledger import LIVE, Ledger
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
    if last is not None and (last.state in LIVE or (row.hold_failed and last.state is JobState.FAILED)):
        return Inserted(InsertStatus.DUPLICATE, last.id, last.state, None, last.attempt)
    if last is not None and last.held(now):
        return Inserted(InsertStatus.DONE, last.id, last.state, last.result, last.attempt)
    if row.key is not None and (job_id := book.outliving(row.queue, row.key, now)) is not None:
        return Inserted(InsertStatus.DUPLICATE, job_id, JobState.COMPLETED)
    full = book.realm.of(row.queue).full() if gate else None
    return Inserted(InsertStatus.FULL if full else InsertStatus.NEW, row.id, room=full)


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
