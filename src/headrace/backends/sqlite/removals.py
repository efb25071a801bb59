"""How many ended jobs sweeps have removed, in a SQLite file."""

from __future__ import annotations

from array import array

import apsw

from headrace.backends.sqlite.connection_thread import Capability
from headrace.backends.sqlite.readable_text import readable
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import STATES
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.archive import Removal

_SQL = load("removal")


def add(tx: Transaction, seqs: array[int]) -> None:
    """Ended jobs that a sweep is about to remove."""
    tx.execute(_SQL["add"], (apsw.carray(seqs),))


class SqliteRemovals(Capability):
    """See :class:`headrace.backends.archive.Removals`."""

    async def after(self, hour: int) -> list[Removal]:
        def work(session: Session, _: int) -> list[Removal]:
            return sorted(
                Removal(found, STATES[state].value, readable(task), readable(tenant), jobs, size)
                for found, state, task, tenant, jobs, size in session.rows(_SQL["after"], (hour,))
            )

        return await self._read(work, None)

    async def forget(self, most: int, limit: int) -> int:
        return await self._write(lambda tx, _: len(tx.rows(_SQL["forget"], (most, limit))), None, weight=limit)
