"""How many rows one script stores, so that it keeps nobody waiting."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.records import Row

STEPS = 2_000
"""What one script does, about; a plain row to a index that it has met is one step."""
_FEW = 64
"""So many rows are never too many."""
_QUEUE, _TENANT, _LANE, _KEY, _GROUP, _REPLY = 7, 6, 4, 3, 16, 2
"""What is looked up and written beside: for a queue, for a tenant of it, and for a task and priority of that, when the
script meets it first; for what comes with a row."""


def pieces(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Rows in their order, as many at a time as one script stores; of plain ones to few indexes that is all of them."""
    if len(rows) <= _FEW:
        return [rows] if rows else []
    found: list[Sequence[Row]] = []
    first, steps = 0, 0
    known: set[object] = set()
    for index, row in enumerate(rows):
        steps += _steps(row, known)
        if steps > STEPS:
            found.append(rows[first:index])
            first = index
            known.clear()
            steps = _steps(row, known)
    return [*found, rows[first:]]


def _steps(row: Row, known: set[object]) -> int:
    """Of one row, where these indexes are known."""
    lane = (row.queue, row.tenant, row.task, row.priority)
    steps = 1
    if lane not in known:
        tenant = (row.queue, row.tenant)
        steps += _LANE + (row.queue not in known) * _QUEUE + (tenant not in known) * _TENANT
        known.update((lane, tenant, row.queue))
    if row.key is not None:
        steps += _KEY
    if row.group is not None:
        steps += _GROUP
    if row.reply_to is not None:
        steps += _REPLY
    return steps
