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


class _Given(NamedTuple):
    queue: str
    epoch: int
    holder: str


class Deliveries:
    """Shared with siblings: the heartbeat's thread reads what the worker's has noted."""

    def __init__(self) -> None:
        self._given: dict[JobId, _Given] = {}

    def note(self, holder: str, jobs: Iterable[Leased]) -> None:
        """A claim brought these."""
        for job in jobs:
            self._given[job.id] = _Given(job.queue, job.epoch, holder)

    def note_found(self, queue: str, found: Iterable[Delivery]) -> None:
        """The window knows these, though this process did not."""
        for one in found:
            self._given[one.id] = _Given(queue, one.epoch, one.holder)

    def of(self, batch: Sequence[Settlement]) -> dict[str, list[tuple[JobId, int]]]:
        """Those that are settled, by queue."""
        found: dict[str, list[tuple[JobId, int]]] = {}
        for s in batch:
            given = self._given.get(s.id)
            if given is not None and given.epoch == s.epoch and given.holder == s.holder:
                found.setdefault(given.queue, []).append((s.id, s.epoch))
        return found

    def known(self, batch: Sequence[Settlement]) -> set[tuple[JobId, int, str]]:
        """Those that are settled: id, epoch and holder."""
        leases = {(s.id, s.epoch, s.holder) for s in batch}
        return {
            (job_id, epoch, holder)
            for job_id, epoch, holder in leases
            if (given := self._given.get(job_id)) is not None and given[1:] == (epoch, holder)
        }

    def by_queue(self, leases: Sequence[tuple[JobId, int]], holder: str) -> dict[str, list[tuple[JobId, int]]]:
        """Those that are named, by queue."""
        found: dict[str, list[tuple[JobId, int]]] = {}
        for job_id, epoch in leases:
            given = self._given.get(job_id)
            if given is not None and given.epoch == epoch and given.holder == holder:
                found.setdefault(given.queue, []).append((job_id, epoch))
        return found

    def forget(self, leases: Iterable[tuple[JobId, int]]) -> None:
        """These are over."""
        for job_id, epoch in leases:
            given = self._given.get(job_id)
            if given is not None and given.epoch == epoch:
                self._given.pop(job_id, None)
