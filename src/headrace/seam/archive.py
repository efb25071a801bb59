"""Ended jobs in the order of their ends, for those who keep or count them elsewhere."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from headrace.seam.records import JobId, Record, Stamp
from headrace.types import JobState

WEIGHT = 16 * 1024 * 1024


class Mark(Struct, frozen=True, order=True):
    """How far somebody has read the ended jobs of one state."""

    ended_at: int
    id: JobId


class EndedPage(Struct, frozen=True):
    """Ended jobs of one state, oldest end first."""

    records: list[Record]
    weights: list[int]
    """What each of them weighs, as retention counts."""
    last: Mark | None
    """The mark to go on from; None: there is nothing after the one that was given."""
    final: int
    """No further job ends at this instant or before it, unless the store's clock steps back: what is committed later
    ended later."""


class ArchiveStore(Protocol):
    """Reads what has ended. What holds for the ten operations holds here too."""

    async def ended(
        self,
        state: JobState,
        after: Mark | None = None,
        limit: int = 100,
        want: frozenset[str] = frozenset(),
        max_bytes: int = WEIGHT,
        at: Stamp = None,
    ) -> EndedPage:
        """Jobs that ended in this state, after the mark, in the order of ``(finished_at, id)``.

        A page ends early once its jobs weigh ``max_bytes``, but always has one. A job that changes while the page is
        read may be missing from it; then it ends again, and later, or is gone. ``want`` as for ``Backend.fetch``. The
        cost depends on the limit, not on how many jobs have ended.
        """
