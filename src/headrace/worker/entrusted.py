"""Jobs that their handlers complete in transactions of their own.

When such a transaction commits, the lease is gone, and nothing is lost. While it is open, the store lets nobody else
end the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.seam.records import JobId, Settlement
from headrace.types import JobState


class Entrusted:
    """Which leases these are, and with which results their handlers complete them. Usable from any thread: every step
    is a single operation."""

    def __init__(self) -> None:
        self.results: dict[tuple[JobId, int], list[Any]] = {}
        """By lease, the last result last. Public for those that ask for every job: a call would cost too much."""

    def __contains__(self, lease: tuple[JobId, int]) -> bool:
        return lease in self.results

    def add(self, job_id: JobId, epoch: int, result: Any) -> None:
        """The handler is about to complete the job."""
        self.results.setdefault((job_id, epoch), []).append(result)

    def withdraw(self, job_id: JobId, epoch: int) -> None:
        """The last completion that the handler tried did not happen."""
        if results := self.results.get((job_id, epoch)):
            results.pop()

    def forget(self, job_id: JobId, epoch: int) -> None:
        """The lease has ended."""
        self.results.pop((job_id, epoch), None)

    def result(self, job_id: JobId, epoch: int) -> Any:
        """With which the handler has completed the job."""
        results = self.results.get((job_id, epoch))
        return results[-1] if results else None

    def refused(self, batch: Sequence[Settlement], states: Sequence[JobState | None]) -> list[int]:
        """Which of these settlements were refused, perhaps only because their handlers had completed the jobs."""
        if not self.results:
            return []
        return [i for i, s in enumerate(batch) if states[i] is None and (s.id, s.epoch) in self.results]
