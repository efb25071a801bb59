"""Jobs that may be claimed, or may be once they are due: of a queue, or of one tenant and task of a governed one."""

from __future__ import annotations

from collections.abc import Callable

from headrace.backends.memory.agenda import Agenda
from headrace.backends.memory.entry import Entry
from headrace.seam.records import JobId

PROMOTED_AT_ONCE = 1_000
"""A claim promotes at most this many jobs."""

Rank = Callable[[Entry], int]
"""The position of a job in the order of claims: lower first, and among equals the lower id."""


def rank(entry: Entry) -> int:
    """By ``(priority, run_at)``."""
    return (entry.priority << 64) + entry.run_at


def drop_job(lanes: dict[str, Lane], name: str, job_id: JobId) -> None:
    """Take a job out of the lane, if it is there. No lane outlives its last job."""
    if (lane := lanes.get(name)) is not None:
        lane.drop(job_id)
        if not (lane.due.positions or lane.delayed.positions):
            del lanes[name]


class Lane:
    """Due jobs in the order of claims. Delayed jobs lie apart, by ``run_at``, and are promoted."""

    __slots__ = ("delayed", "due")

    def __init__(self) -> None:
        self.due: Agenda[JobId, int] = Agenda()
        """By rank."""
        self.delayed: Agenda[JobId, int] = Agenda()
        """By ``run_at``."""

    def __len__(self) -> int:
        return len(self.due.positions) + len(self.delayed.positions)

    def put(self, entry: Entry, rank: Rank, now: int) -> None:
        """Enter a job."""
        if entry.run_at <= now:
            self.due.put(entry.id, rank(entry))
        else:
            self.delayed.put(entry.id, entry.run_at)

    def drop(self, job_id: JobId) -> None:
        """Take a job out, if it is here."""
        if job_id in self.due.positions:
            self.due.drop(job_id)
        elif job_id in self.delayed.positions:
            self.delayed.drop(job_id)

    def promote(self, most: int, find: Callable[[JobId], Entry], rank: Rank, now: int) -> int:
        """Make jobs claimable that have become due, earliest first; return how many."""
        moved = 0
        while moved < most and (job_id := next(self.delayed.take(now), None)) is not None:
            self.due.put(job_id, rank(find(job_id)))
            moved += 1
        return moved

    def draw(self, find: Callable[[JobId], Entry], now: int) -> Entry | None:
        """Remove and return the first due job. If the clock was set back, what is not due is delayed again."""
        while (job_id := self.due.pop()) is not None:
            entry = find(job_id)
            if entry.run_at <= now:
                return entry
            self.delayed.put(job_id, entry.run_at)
        return None

    def next_due(self, find: Callable[[JobId], Entry]) -> int | None:
        """The earliest ``run_at``, if only a few jobs are due; if more are, that of the first in order."""
        first = self.due.head()
        instants = [self.delayed.first(), None if first is None else find(first[1]).run_at]
        return min((instant for instant in instants if instant is not None), default=None)

    def oldest(self, find: Callable[[JobId], Entry]) -> int | None:
        """The earliest ``run_at`` of all."""
        instants = [self.delayed.first(), *(find(job_id).run_at for job_id in self.due.positions)]
        return min((instant for instant in instants if instant is not None), default=None)
