"""Jobs by the objects that they refer to, in a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.sqlite.connection_thread import Capability
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Stored, Transaction
from headrace.seam.records import Cells, JobId, Stamp
from headrace.seam.references import RESULT, Referrer, Swap, is_reference, oldest_hour
from headrace.types import SECTIONS

_SQL = load("reference")
_LIVE = ("grow_ready", "grow_running", "grow_paused")


class SqliteReferences(Capability):
    """The operations of a :class:`~headrace.seam.references.ReferenceStore`."""

    async def find(
        self, before: int, after: tuple[int, JobId] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Referrer]:
        return await self._read(lambda session, _: _find(session, before, after or (-1, b""), limit), at)

    async def swap(self, batch: Sequence[Swap], at: Stamp = None) -> list[bool]:
        if not batch:
            return []
        return await self._write(lambda tx, _: [_swap(tx, one) for one in batch], at, weight=len(batch))


def _find(session: Session, before: int, after: tuple[int, JobId], limit: int) -> list[Referrer]:
    found = session.rows(_SQL["find"], (before, *after, limit))
    return [Referrer(job_id, hour, _references(stored)) for job_id, hour, *stored in found]


def _references(stored: Sequence[Stored]) -> Cells:
    """The references among stored cells; those are never so large that they lie elsewhere."""
    cells = zip(SECTIONS, stored, strict=True)
    return {name: cell for name, cell in cells if isinstance(cell, bytes) and is_reference(cell)}


def _swap(tx: Transaction, swap: Swap) -> bool:
    row = tx.first(_SQL["cells"], (swap.id,))
    if row is None:
        return False
    seq, headers, error, result, *stored = row
    there: dict[str, Stored] = dict(zip(SECTIONS, stored, strict=True)) | {RESULT: result}
    if not all(_is_same(tx, there[name], cell) for name, cell in swap.seen.items()):
        return False
    grown = 0
    for name, cell in swap.cells.items():
        grown += len(cell) - tx.weigh(there[name])
        tx.drop(there[name])
        there[name] = tx.put(cell)
    result = there.pop(RESULT)
    for table in _LIVE if grown else ():
        tx.execute(_SQL[table], (seq, grown))
    far = any(isinstance(cell, int) for cell in (headers, error, *there.values()))
    tx.execute(_SQL["swap"], (seq, *there.values(), far, oldest_hour(_references([*there.values()]))))
    if RESULT in swap.cells:
        tx.execute(_SQL["swap_result"], (seq, result))
    return True


def _is_same(tx: Transaction, stored: Stored, cell: bytes) -> bool:
    return stored is not None and tx.weigh(stored) == len(cell) and tx.read(stored) == cell
