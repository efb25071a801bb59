"""What windows have given to this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.seam.records import JobId, Leased, Settlement


class Delivery(NamedTuple):
    """A job that a window has given out."""

    id: JobId
    epoch: int
    holder: str
    left: int
    """How long its lease lasts, in microseconds."""
    begun: bool
    floor: int
    """Of the server that gave it out: while PostgreSQL has another one, the delivery counts for nothing."""

    def counts_after(self, epoch: int) -> bool:
        """Whether it is newer than a job with this epoch, and than the floor."""
        return self.epoch > epoch and self.epoch >= self.floor


class Known(NamedTuple):
    """Deliveries, and the floor under which they were made."""

    floor: int
    leases: set[tuple[JobId, int, str]]
    """Ids, epochs and holders."""


class _Given(NamedTuple):
    queue: str
    epoch: int
    holder: str
    floor: int


class Deliveries:
    """Shared with siblings: the heartbeat's thread reads what the worker's has noted."""

    def __init__(self) -> None:
        self._given: dict[JobId, _Given] = {}

    def note(self, holder: str, floor: int, jobs: Iterable[Leased]) -> None:
        """A claim brought these."""
        for job in jobs:
            self._given[job.id] = _Given(job.queue, job.epoch, holder, floor)

    def note_found(self, queue: str, found: Iterable[Delivery]) -> None:
        """The window knows these, though this process did not."""
        for one in found:
            self._given[one.id] = _Given(queue, one.epoch, one.holder, one.floor)

    def known(self, batch: Sequence[Settlement]) -> Known:
        """Those that are settled, of the highest floor: what was given out under a lower one counts no more."""
        floors = {(s.id, s.epoch, s.holder): floor for s in batch if (floor := self.floor_of(s)) is not None}
        floor = max(floors.values(), default=0)
        return Known(floor, {lease for lease, under in floors.items() if under == floor})

    def floor_of(self, s: Settlement) -> int | None:
        """The floor under which the job was given out, if it is known here."""
        given = self._given.get(s.id)
        return given.floor if given is not None and given[1:3] == (s.epoch, s.holder) else None

    def by_queue(self, leases: Iterable[tuple[JobId, int, str]]) -> dict[str, list[tuple[JobId, int]]]:
        """Those of these ids, epochs and holders, by queue."""
        found: dict[str, list[tuple[JobId, int]]] = {}
        for job_id, epoch, holder in leases:
            given = self._given.get(job_id)
            if given is not None and given[1:3] == (epoch, holder):
                found.setdefault(given.queue, []).append((job_id, epoch))
        return found

    def forget(self, leases: Iterable[tuple[JobId, int]]) -> None:
        """These are over."""
        for job_id, epoch in leases:
            given = self._given.get(job_id)
            if given is not None and given.epoch == epoch:
                self._given.pop(job_id, None)
