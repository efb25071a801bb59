"""Many jobs at once: counted first, then changed in small steps."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from headrace import Client
from headrace.cli.audited import note_selected
from headrace.cli.output import confirm, counted, note, progress
from headrace.core.walks import walk
from headrace.seam.records import Delete, JobId, Selector
from headrace.types import JobState

CAP = 10_000
"""Beyond this many, matching jobs are not counted exactly."""
_STEP = 500


class Count(Struct, frozen=True):
    """How many jobs match."""

    number: int
    exact: bool = True

    def of(self, noun: str) -> str:
        """The count with its noun."""
        return counted(self.number, noun) if self.exact else f"more than {counted(self.number, noun)}"


async def count(client: Client, filters: Selector, states: frozenset[JobState]) -> Count:
    """From the store's counters if they suffice, else by scanning up to ``CAP`` jobs."""
    if filters == Selector(queue=filters.queue):  # the store counts by queue
        queues = (await client.stats(None if filters.queue is None else [filters.queue])).queues
        fields = {JobState.AVAILABLE: "available", JobState.PAUSED: "jobs_paused", JobState.FAILED: "failed"}
        return Count(sum(getattr(queue, fields[state]) for queue in queues for state in states))
    found = await ids(client, replace(filters, states=states), CAP + 1)
    return Count(min(len(found), CAP), len(found) <= CAP)


async def ids(client: Client, selector: Selector, most: int) -> list[JobId]:
    """The ids of matching jobs, newest first."""
    pages = walk(await client.backend(), selector, page=_STEP, most=most)
    return [record.id async for records in pages for record in records]


async def purge(
    client: Client,
    filters: Selector,
    states: frozenset[JobState],
    noun: str,
    where: str = "",
    *,
    yes: bool,
    limit: int | None = None,
) -> tuple[Count, int]:
    """Show how many jobs match, ask, and delete them, oldest first; never more than were shown."""
    matching = await count(client, filters, states)
    if not matching.number:
        return matching, 0
    if limit is not None and limit < matching.number:
        note(f"{matching.of(noun)}{where} match; the oldest {limit:,} will be deleted")
        matching = Count(limit)
    else:
        note(f"{matching.of(noun)}{where} will be deleted")
    confirm(f"delete {matching.of(noun)}{where}?", yes=yes)
    await note_selected(client, f"delete {noun}s", filters, matching.number)
    deleted = 0
    with progress("deleting", matching.number if matching.exact else None) as advance:
        above: JobId | None = None
        while not matching.exact or deleted < matching.number:
            step = min(_STEP, matching.number - deleted) if matching.exact else _STEP
            altered = await client.alter(replace(filters, states=states, limit=step, above=above), Delete())
            deleted += len(altered)
            advance(len(altered))
            if len(altered) < step:
                break
            above = altered[-1].id
    return matching, deleted
