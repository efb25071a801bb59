"""What goes from a hot table: whether it may, and page by page to the archive before it is deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from msgspec import Struct

from headrace.core.durations import spell
from headrace.core.view import View
from headrace.hot.archived_pages import ArchivedPages
from headrace.seam.records import Stamp
from headrace.seam.tables import Cutoff, HotRule, Survey, TableName, TableStore

Check = Callable[[TableName], Awaitable[None]]
PAGE = 1_000
"""Rows that are archived and deleted in one step."""
MOST = 1_000_000
"""Rows of one sweep; what is left goes with the next."""
DAY = 86_400_000_000


class TableLimits(Struct, frozen=True, kw_only=True):
    """How long rows are kept, and when a sweep asks first."""

    keep: int
    keep_unprocessed: int | None
    share: float
    floor: int
    gap: int
    following: Callable[[int], int]
    """When the sweep after one is to come."""

    def cutoff(self, now: int) -> Cutoff:
        """What is too old now."""
        limit = self.keep_unprocessed
        return Cutoff(now - self.keep, None if limit is None else now - limit)


class TableSweep(View, frozen=True, kw_only=True):
    """What a sweep deleted, or would delete.

    >>> from datetime import UTC
    >>> last = datetime(2026, 11, 18, tzinfo=UTC)
    >>> plan = TableSweep(table="videos", deleted=7, archived=0, kept=3, waiting=0, cutoff=last, retention="7d")
    >>> plan.deleted, plan.stopped
    (7, '')
    """

    table: str
    deleted: int
    archived: int
    kept: int | None
    """None: more than a million, and nobody has counted them."""
    waiting: int
    """Rows that are too old, but not processed yet."""
    cutoff: datetime
    retention: str
    """As ``"7d"``."""
    stopped: str = ""
    """Why nothing was deleted; empty: it was, or there was nothing."""


class TableStats(View, frozen=True, kw_only=True):
    """A hot table in numbers.

    >>> TableStats(rows=3, bytes=8_192, ages={0: 2, 6: 1}, approaching=1, expired=0, waiting=0).approaching
    1
    """

    rows: int
    bytes: int
    """With its indexes."""
    ages: Mapping[int, int]
    """How many rows are how many whole days old; -1: rows without an age, which are never deleted."""
    approaching: int
    """Rows that will be too old within a day."""
    expired: int
    """Rows that the next sweep deletes."""
    waiting: int
    """Rows that are too old, but not processed yet."""


class Found(Struct, frozen=True):
    """What a sweep would delete, and of how much."""

    condemned: int
    """Rows that are too old."""
    waiting: int
    newest: int | None
    rows: int
    """All rows; or so many that what is too old is less than the share."""
    exact: bool
    """Whether ``rows`` is all of them."""

    @property
    def deleted(self) -> int:
        """What one sweep deletes."""
        return min(self.condemned, MOST)

    def kept(self, deleted: int) -> int | None:
        """What is left."""
        return self.rows - deleted if self.exact else None


async def look(
    store: TableStore, rule: HotRule, cutoff: Cutoff, limits: TableLimits, at: Stamp, *, force: bool
) -> Found:
    """Look what is too old. As many rows are read as are too old, and about as many others, or a million: not the whole
    table. Only a backlog that one sweep cannot delete is counted whole, unless it goes by force."""
    found = await store.look(rule, cutoff, MOST)
    if found.condemned == MOST and not force:
        whole = await store.survey(rule, cutoff, at)
        return Found(whole.condemned, whole.waiting, whole.newest, whole.rows, exact=True)
    enough = max(MOST, int(found.condemned / limits.share) + 1) if limits.share else MOST
    rows = await store.count(rule.table, enough)
    return Found(found.condemned, found.waiting, found.newest, rows, exact=rows < enough)


def too_much(found: Found, limits: TableLimits, now: int, last: int | None) -> str:
    """Why somebody should look before this is deleted; empty: it may go. ``last``: when the last sweep was; None: there
    was none.

    A sweep in time deletes a small part of a table. If the last one was long ago the clock may be wrong: new rows
    cannot tell, as they have their ages from the same clock. Before the first sweep there is nothing better to go by
    than the newest row.
    """
    if found.condemned <= limits.floor:
        return ""
    old = f"{found.condemned:,} rows are too old, and"
    if last is not None and (late := now - limits.following(last)) > limits.gap:
        return f"{old} the sweep is {spell(late)} late by the store's clock: it may be wrong"
    if found.newest is not None and now - found.newest > limits.gap:
        return f"{old} the newest row is {spell(now - found.newest)} old: the clock may be wrong, or nothing new comes"
    most = max(int(limits.share * found.rows), limits.floor)
    if found.condemned > most:
        return (
            f"{found.condemned:,} of {found.rows:,} rows are too old, and a sweep deletes {limits.share:.0%} or "
            f"{limits.floor:,} at most"
        )
    return ""


async def sweep_pages(
    store: TableStore, rule: HotRule, cutoff: Cutoff, archive: ArchivedPages | None, may: Check
) -> tuple[int, int]:
    """Archive and delete what is too old, oldest first: how many were deleted, and how many archived. Before each page,
    ``may`` raises if nothing may be deleted."""
    deleted = archived = 0
    while deleted < MOST:
        await may(rule.table)
        if archive is not None:
            count, gone, more = await archive.step(cutoff, PAGE)
            archived += count
        else:
            rows = await store.oldest(rule, cutoff, PAGE, values=False)
            gone = await store.delete(rule, cutoff, rows) if rows else 0
            more = len(rows) == PAGE and gone > 0
        deleted += gone
        if not more:
            break
    return deleted, archived


def approaching(survey: Survey, limits: TableLimits) -> int:
    """Rows that will be too old within a day, to the day."""
    return sum(
        count for day, count in survey.ages.items() if (day + 1) * DAY > limits.keep - DAY and day * DAY < limits.keep
    )
