"""finish: only from the current lease (I4), never after the end (I5), with respect for a cancel request (I14)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.records import InsertStatus, Row, Settlement
from headrace.testing.sim.ledger import Ledger
from headrace.testing.sim.life import Life
from headrace.testing.sim.rules.insert import expected, replace_job
from headrace.types import JobState


def on_finish(book: Ledger, batch: Sequence[Settlement], answers: Sequence[JobState | None], now: int) -> None:
    """Settlements were answered."""
    if len(batch) != len(answers):
        book.blame("I16", None, f"{len(batch)} settlements were sent and {len(answers)} answered")
    for settlement, answer in zip(batch, answers, strict=False):
        _judge(book, settlement, answer, now)
    for settlement, answer in zip(batch, answers, strict=False):
        for row in settlement.spawn if answer is not None else ():
            _spawn(book, row, now)


def _judge(book: Ledger, s: Settlement, answer: JobState | None, now: int) -> None:
    life = book.jobs.get(s.id)
    current = life is not None and (life.state, life.epoch, life.holder) == (JobState.RUNNING, s.epoch, s.holder)
    if answer is None:
        if current:
            book.blame("I4", s.id, f"a settlement from the current lease, epoch {s.epoch}, was refused")
        else:
            book.reach("fenced off")
        return
    if life is None:
        book.blame("I4", s.id, f"a settlement was accepted for a job that is not there, epoch {s.epoch}")
        return
    if not current:
        now_is = f"{life.state}, epoch {life.epoch}"
        book.blame("I4", s.id, f"a settlement of epoch {s.epoch} by {s.holder} was accepted; the job is {now_is}")
        if life.state.terminal:
            book.blame("I5", s.id, f"a settlement was accepted after the job was {life.state}")
    asked = life.cancel_requested and not s.state.terminal
    right = JobState.CANCELLED if asked else s.state
    if answer is not right:
        book.blame("I14" if asked else "I16", s.id, f"settled as {answer}, which should be {right}")
    if asked:
        book.reach("cancel request outlived a retry")
    reason = "cancelled" if asked else s.reason
    if life.superseded and answer is JobState.CANCELLED and reason == "cancelled":
        reason = "superseded"
    _settle(book, life, s, answer, reason, now)


def _settle(book: Ledger, life: Life, s: Settlement, state: JobState, reason: str, now: int) -> None:
    life.attempt += s.failed_attempt
    if not s.keep_lost:
        life.lost = 0
    if s.error is not None:
        life.error = s.error
    for name, cell in (s.cells or {}).items():
        if cell is None:
            life.cells.pop(name, None)
        else:
            life.cells[name] = cell
    if s.queue is not None and s.queue != life.queue:
        book.change_queue(life, s.queue, now)
    if s.priority is not None:
        life.priority = s.priority
    if state.terminal:
        if state is JobState.COMPLETED:
            life.result = s.result if s.result_ttl > 0 else None
            life.held_until = now + s.result_ttl
        book.finish(life, state, now, reason)
        if state is JobState.COMPLETED and not s.keep:
            book.remove(life, "completed without a record")
    else:
        if s.run_at is not None:
            life.run_at = s.run_at
        elif s.delay is not None:
            life.run_at = now + s.delay
        life.begun = not s.unbegun
        book.put(life, state)
    book.reach(f"settled {state}")


def _spawn(book: Ledger, row: Row, now: int) -> None:
    answer = expected(book, row, now)
    book.reach(f"spawned {answer.status}")
    if answer.status is InsertStatus.NEW:
        book.add(row, now)
    elif answer.status is InsertStatus.REPLACED:
        replace_job(book, row, book.jobs[answer.id], now)
