"""References: cells that only say where in an object store the cell itself lies.

A reference has 25 bytes. The first is ``KIND``, and no other cell of that length begins with it; the three from
``HOUR_AT`` on are the hour, since 1970, of the object that it leads to. A store need not know more of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from headrace.seam.records import Cells, JobId, Stamp

KIND = 3
SIZE = 25
HOUR_AT = 3
HOUR_SIZE = 3
_KIND = bytes((KIND,))
RESULT = "result"


def is_reference(cell: bytes) -> bool:
    """Whether a cell is a reference to another."""
    return len(cell) == SIZE and cell.startswith(_KIND)


def reference_hour(cell: bytes) -> int:
    """The hour, since 1970, of the object that a reference leads to."""
    return int.from_bytes(cell[HOUR_AT : HOUR_AT + HOUR_SIZE])


def oldest_hour(cells: Cells) -> int | None:
    """The hour of the oldest object that cells refer to; None if none of them is a reference."""
    found = None
    for cell in cells.values():
        if len(cell) == SIZE and cell.startswith(_KIND):
            hour = reference_hour(cell)
            found = hour if found is None else min(found, hour)
    return found


class Referrer(Struct, frozen=True):
    """A job with references."""

    id: JobId
    hour: int
    """Since 1970: none of its references leads to an object of an earlier hour."""
    cells: Cells
    """Its references. Where a run has just replaced them, there may be none."""


class Swap(Struct, frozen=True):
    """Cells of a job to be replaced by others that mean the same: references to a copy, or the same cells sealed with
    another key. ``result`` stands for its result, as in ``Backend.fetch``."""

    id: JobId
    seen: Cells
    """The cells as they were found."""
    cells: Cells
    """Other cells, to put in the place of some of them."""


class ReferenceStore(Protocol):
    """Which jobs refer to old objects. What holds for the ten operations holds here too.

    A store knows the hour of the oldest reference of every job, in whatever state, from the moment that the reference
    is stored: by ``insert``, ``finish``, a plan or a swap. The hour may be earlier than that of any reference after a
    run has replaced some, but never later. So whoever has seen that no job is left before an hour may delete the
    objects of the hours before it.
    """

    async def find(
        self, before: int, after: tuple[int, JobId] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Referrer]:
        """Jobs whose ``hour`` is before this one, above ``after``, in the order of ``(hour, id)``. Fewer than ``limit``
        mean that none is left above. The cost depends on ``limit``, not on how many jobs there are.

        A job that refers to such an hour throughout is found; one whose hour changes meanwhile may be missed or met
        twice.
        """

    async def swap(self, batch: Sequence[Swap], at: Stamp = None) -> list[bool]:
        """Replace cells, each job in one atomic step; answer for each, in order, whether it was done.

        It is done if all cells that were ``seen`` are still the same; a store may leave alone a job that somebody else
        changes at this moment. Then the sections in ``cells`` are replaced, and
        the hour of the job becomes that of its oldest reference; with nothing in ``cells``, only that. Its lease, its
        place and its times stay. A job that has not ended weighs what its cells weigh now; one that has keeps the
        weight that retention counted.
        """
