"""Ended jobs in the order of their ends, for those who keep or count them elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

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


HOUR = 3_600_000_000


class Removal(Struct, frozen=True, order=True):
    """How many ended jobs sweeps have removed: those that ended in one hour and state, of one task and tenant."""

    hour: int
    """The hour since 1970 in which they ended."""
    state: str
    task: str
    tenant: str
    jobs: int
    bytes: int
    """What they weighed."""


def first_hour(answers: Sequence[Sequence[Removal]]) -> list[Removal]:
    """The answers of several stores to ``removals`` as one: that of the earliest hour, added up."""
    hour = min((one.hour for answer in answers for one in answer), default=0)
    found: dict[tuple[str, str, str], Removal] = {}
    for one in (one for answer in answers for one in answer if one.hour == hour):
        scope = one.state, one.task, one.tenant
        known = found.get(scope)
        found[scope] = one if known is None else replace(one, jobs=one.jobs + known.jobs, bytes=one.bytes + known.bytes)
    return sorted(found.values())


class ArchiveStore(Protocol):
    """Reads what has ended, and counts what is gone. What holds for the ten operations holds here too."""

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

    async def removals(self, after: int = -1) -> list[Removal]:
        """What sweeps have removed of the first hour after this one of which they removed something, in the order of
        state, task and tenant; empty: there is no such hour.

        A sweep of ended jobs counts what it removes, and so does ``tidy``, in the same step: both happen, or neither.
        A job whose task cannot be read counts under empty names. What is deleted in other ways is not counted.
        """

    async def forget_removals(self, most: int, limit: int = 1_000) -> int:
        """If there are more than ``most`` of these counts, forget those of the oldest hours, at most ``limit``; returns
        how many."""
