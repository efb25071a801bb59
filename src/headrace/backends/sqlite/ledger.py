"""history, note and the sweep of ticks: what became of slots."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import apsw

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import TICKS
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.records import JobId, SweepClause, Swept
from headrace.seam.ticks import Tick, TickNote, TickOutcome

_SQL = load("tick")
_SWEEP = load("sweep")

OUTCOMES = (TickOutcome.FIRED, TickOutcome.SKIPPED, TickOutcome.MISSED)
CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_TICK_BYTES = 150
"""About what a tick takes in the table and in its index."""
_NEVER = 2**63 - 1

TickRow = tuple[bytes, int, int, int, int, int, JobId | None]
"""uid, slot, run_at, outcome, planned_at, count, job."""

Last = tuple[int, bytes, int]
"""planned_at, uid, slot."""


def known(session: Session, uid: bytes, slots: Sequence[int]) -> dict[int, int]:
    """The outcomes of slots that are in the history of a schedule, as codes."""
    return dict(session.rows(_SQL["known"], (uid, apsw.carray(array("q", slots))))) if slots else {}


def add(tx: Transaction, rows: Sequence[TickRow]) -> None:
    """New entries of the ledger."""
    tx.executemany(_SQL["add"], rows)
    tx.fill(TICKS, len(rows), len(rows) * _TICK_BYTES)


def take_off(tx: Transaction, places: Sequence[tuple[bytes, int]]) -> None:
    """Entries that others take the places of, by uid and slot."""
    tx.executemany(_SQL["take_off"], places)
    tx.fill(TICKS, -len(places), -len(places) * _TICK_BYTES)


def note(tx: Transaction, batch: Sequence[TickNote]) -> None:
    """Keep with ticks what became of their jobs."""
    tx.executemany(_SQL["note"], [(one.uid, one.slot, one.state, one.waited, one.ran) for one in batch])


def history(session: Session, uid: bytes, before: int | None, limit: int) -> list[Tick]:
    """Ticks of a schedule, latest slot first; those of slots earlier than ``before``."""
    rows = session.rows(_SQL["history"], (uid, _NEVER if before is None else before, limit))
    return [
        Tick(
            slot=slot, run_at=run_at, outcome=OUTCOMES[code], planned_at=planned_at, count=count, job=job, state=state,
            waited=waited, ran=ran,
        )
        for slot, run_at, code, planned_at, count, job, state, waited, ran in rows
    ]  # fmt: skip


def condemn(session: Session, clause: SweepClause, now: int) -> tuple[Last | None, Swept]:
    """The last tick that goes, with all that were planned before it. Nothing holds a tick, so that whatever bound
    condemns most decides."""
    count, size = session.one(_SWEEP["place"], (TICKS,))
    excess = 0 if clause.max_count is None else count - clause.max_count
    if clause.max_bytes is not None:
        excess = max(excess, -((clause.max_bytes - size) // _TICK_BYTES))
    condemned: list[Last] = session.rows(_SQL["oldest"], (min(excess, clause.limit + 1),)) if excess > 0 else []
    if clause.older_than is not None and len(condemned) <= clause.limit:
        aged = session.rows(_SQL["aged"], (now - clause.older_than, clause.limit + 1))
        condemned = max(condemned, aged, key=len)
    more = len(condemned) > clause.limit
    del condemned[clause.limit :]
    answer = Swept(len(condemned), len(condemned) * _TICK_BYTES, count - len(condemned), more)
    return condemned[-1] if condemned else None, answer


def forget(tx: Transaction, last: Last, answer: Swept) -> None:
    """These ticks go."""
    tx.execute(_SQL["forget"], last)
    tx.fill(TICKS, -answer.removed, -answer.bytes)
