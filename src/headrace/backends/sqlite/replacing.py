"""insert: a waiting job takes on the cells or the time of a row that has its key."""

from __future__ import annotations

from headrace.backends.sqlite.entry import Entry
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, PAUSED
from headrace.backends.sqlite.transaction import Transaction
from headrace.backends.sqlite.transitions import reschedule
from headrace.seam.records import Replaces, Row
from headrace.seam.references import oldest_hour
from headrace.types import SECTIONS

_SQL = load("replace")


def can_replace(entry: Entry, row: Row) -> bool:
    """Whether the job takes on what the row replaces."""
    waits = entry.code in (AVAILABLE, PAUSED)
    return bool(row.replaces) and waits and (entry.task, entry.tenant) == (row.task, row.tenant)


def replace_waiting(tx: Transaction, entry: Entry, row: Row, now: int) -> None:
    """Let the job take that on. All that was gathered of the batch must be written."""
    if row.replaces & Replaces.CELLS:
        _replace_cells(tx, entry, row)
    if row.replaces & Replaces.TIME:
        run_at = now + row.delay if row.run_at is None else row.run_at
        expires_at = None if row.expires is None else now + row.expires
        tx.execute(_SQL["time"], (entry.seq, run_at, expires_at))
        if entry.code == AVAILABLE:
            reschedule(tx, entry._replace(expires_at=expires_at), run_at, now)


def _replace_cells(tx: Transaction, entry: Entry, row: Row) -> None:
    grown = sum(map(len, row.cells.values())) - sum(map(tx.weigh, entry.cells))
    tx.drop(*entry.cells)
    cells = [tx.put(row.cells.get(name)) for name in SECTIONS]
    far = any(isinstance(cell, int) for cell in (entry.error, entry.headers, *cells))
    tx.execute(_SQL["cells"], (entry.seq, far, *cells, oldest_hour(row.cells)))
    if entry.code == PAUSED:
        tx.execute(_SQL["grow_paused"], (entry.seq, grown))
    else:
        priority = 0 if entry.lane < 0 else entry.priority
        tx.execute(_SQL["grow_ready"], (entry.lane, priority, entry.run_at, entry.id, grown))
