"""How much one script does, so that nobody else waits for long."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.records import Row

STEPS = 2_000
"""How much one script does, roughly. A plain row to a queue, tenant and lane that the script has met is one step."""
_FEW = 64
"""This many rows are never too many."""
_QUEUE, _TENANT, _LANE, _KEY, _GROUP, _REPLY = 7, 6, 4, 3, 16, 2
"""What the first row to a queue, to a tenant and to a lane costs on top, and what a key, a group and an inbox cost."""


def pieces(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Rows in their order, as many at a time as one script stores; plain rows to few lanes are one piece."""
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
    """The cost of one row, if these queues, tenants and lanes are known."""
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
