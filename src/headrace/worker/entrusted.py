"""Jobs that handlers complete in their own transactions.

When such a transaction commits, the lease ends with it, and nothing is lost. While it is open, nobody else can end the
lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.seam.records import JobId, Settlement
from headrace.types import JobState


class Entrusted:
    """The leases of these jobs, and the results their handlers give. Can be used from any thread, as every step is a
    single operation."""

    def __init__(self) -> None:
        self.results: dict[tuple[JobId, int], list[Any]] = {}
        """By lease, the last result last. Public, as it is looked at for every job, and a call would cost too much."""

    def __contains__(self, lease: tuple[JobId, int]) -> bool:
        return lease in self.results

    def add(self, job_id: JobId, epoch: int, result: Any) -> None:
        """The handler is about to complete the job."""
        self.results.setdefault((job_id, epoch), []).append(result)

    def withdraw(self, job_id: JobId, epoch: int) -> None:
        """The handler's last transaction did not commit."""
        if results := self.results.get((job_id, epoch)):
            results.pop()

    def forget(self, job_id: JobId, epoch: int) -> None:
        """The lease has ended."""
        self.results.pop((job_id, epoch), None)

    def result(self, job_id: JobId, epoch: int) -> Any:
        """The result with which the handler has completed the job."""
        results = self.results.get((job_id, epoch))
        return results[-1] if results else None

    def refused(self, batch: Sequence[Settlement], states: Sequence[JobState | None]) -> list[int]:
        """The settlements that were refused, perhaps only because a handler had completed its job. By position."""
        if not self.results:
            return []
        return [i for i, s in enumerate(batch) if states[i] is None and (s.id, s.epoch) in self.results]
