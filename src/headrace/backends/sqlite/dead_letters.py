"""Dead letters by tenant: how many each holds, and which are the oldest."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import apsw

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam import dead_letter_shares
from headrace.seam.records import SweepClause

_SQL = load("dead_letter")
_PAGE = 20


def add(tx: Transaction, seqs: array[int]) -> None:
    """These jobs have FAILED."""
    tx.execute(_SQL["add"], (apsw.carray(seqs),))
    tx.execute(_SQL["share"], (apsw.carray(seqs), 1))


def remove(tx: Transaction, seqs: array[int]) -> None:
    """Those of these jobs that are FAILED are about to leave that place."""
    tx.execute(_SQL["share"], (apsw.carray(seqs), -1))
    tx.execute(_SQL["no_share"])
    tx.execute(_SQL["remove"], (apsw.carray(seqs),))


def condemn(session: Session, clause: SweepClause, bound: str, excess: int, now: int) -> dict[int, int]:
    """What goes of them as there are too many, and what it weighs; up to one more than the limit."""
    heaviest = session.rows(_SQL[f"heaviest_by_{bound}"], (clause.limit + 1,))

    def oldest(tenant: bytes | None) -> Iterator[tuple[int, int]]:
        return _oldest(session, tenant, clause.latest(now))

    return dict(dead_letter_shares.condemn(bound, excess, clause.limit, [(row[0], row[1]) for row in heaviest], oldest))


def _oldest(session: Session, tenant: bytes | None, before: int) -> Iterator[tuple[int, int]]:
    """Those of one tenant, or of all, page by page."""
    last = (-1, -1)
    name, whose = ("oldest_of_all", ()) if tenant is None else ("oldest", (tenant,))
    while rows := session.rows(_SQL[name], (*whose, *last, before, _PAGE)):
        for finished_at, seq, size in rows:
            yield seq, size
            last = finished_at, seq
