"""What the janitor counts of the jobs that it deletes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from headrace.cyclotron.fields import NO_FUNCTION, OURS, function_of, team_of
from headrace.seam.archive import HOUR, Removal
from headrace.seam.instants import to_datetime
from headrace.seam.records import Record
from headrace.types import Duration, JobState, NewJob, Sections

AGGREGATES = f"{OURS}aggregates"
"""The queue of jobs whose parameters are aggregates, as JSON."""
_TASK = f"{NO_FUNCTION}.aggregates"


class Aggregate(Struct, frozen=True):
    """How many jobs of a function of a team ended in a state in an hour, of those that were deleted."""

    hour: datetime
    team_id: int | None
    function_id: UUID | None
    state: JobState
    count: int


_DECODER = msgspec.json.Decoder(list[Aggregate])


def aggregates(records: Iterable[Record]) -> list[Aggregate]:
    """Counts of these ended jobs; those of the janitor itself are left out."""
    return added(
        Aggregate(_hour(record.finished_at or 0), team_of(record.tenant), function_of(record.task), record.state, 1)
        for record in records
        if not record.queue.startswith(OURS)
    )


def aggregates_of(removals: Iterable[Removal]) -> list[Aggregate]:
    """The store's counts of what sweeps have removed; jobs of the janitor itself are left out."""
    return [
        Aggregate(
            to_datetime(one.hour * HOUR).astimezone(UTC),
            team_of(one.tenant),
            function_of(one.task),
            JobState(one.state),
            one.jobs,
        )
        for one in removals
        if not one.task.startswith(f"{NO_FUNCTION}.")
    ]


def added(all_of_them: Iterable[Aggregate]) -> list[Aggregate]:
    """One for each hour, team, function and state."""
    counts: Counter[tuple[datetime, int | None, UUID | None, JobState]] = Counter()
    for one in all_of_them:
        counts[one.hour, one.team_id, one.function_id, one.state] += one.count
    found = (Aggregate(*key, count) for key, count in counts.items())
    return sorted(found, key=lambda one: (one.hour, str(one.team_id), str(one.function_id), one.state))


def entry(counts: list[Aggregate], keep: Duration) -> NewJob:
    """A job that carries the counts."""
    body = Sections(parameters=msgspec.json.encode(counts))
    return NewJob(task=_TASK, queue=AGGREGATES, sections=body, expires=keep)


def read(parameters: bytes) -> list[Aggregate]:
    """The counts that such a job carries."""
    return _DECODER.decode(parameters)


def _hour(instant: int) -> datetime:
    return to_datetime(instant).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
