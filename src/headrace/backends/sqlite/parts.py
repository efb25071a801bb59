"""Parts in a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.sqlite.connection_thread import Capability
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.parts import KEEP, KEPT, Part, inbox_of
from headrace.seam.records import JobId, Stamp

_SQL = load("part")
_REMOVED = 1_000
"""Parts past their time that go with each call."""


class SqliteParts(Capability):
    """See :class:`headrace.seam.parts.PartStore`."""

    async def send(self, batch: Sequence[Part], at: Stamp = None) -> None:
        await self._write(lambda tx, now: _send(tx, batch, now), at)

    async def read(self, job_id: JobId, after: tuple[int, int], limit: int = 100, at: Stamp = None) -> list[Part]:
        return await self._read(lambda session, _: _parts(session, job_id, after, limit), at)


def _send(tx: Transaction, batch: Sequence[Part], now: int) -> None:
    for part in batch:
        tx.execute(_SQL["send"], (part.job, part.epoch, part.number, now + KEEP, part.body))
        tx.hint_inbox(inbox_of(part.job), part.job)
    for part in {part.job: part for part in batch}.values():
        tx.execute(_SQL["trim"], (part.job, part.epoch, part.number - KEPT))
    tx.execute(_SQL["remove"], (now, _REMOVED))


def _parts(session: Session, job_id: JobId, after: tuple[int, int], limit: int) -> list[Part]:
    return [Part(job_id, *row) for row in session.rows(_SQL["read"], (job_id, *after, limit))]
