"""What has the jobs that are claimed: the runner of a worker, or the callers of a pull."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.seam.records import JobId, Leased


class Consumer(Protocol):
    """What claimer, loader and beats know of it."""

    @property
    def alive(self) -> int:
        """How many jobs it can work on at a time."""

    @property
    def busy(self) -> int:
        """Jobs that it works on right now."""

    @property
    def alone(self) -> bool:
        """Whether a job on its last chance is here. Nothing may be claimed until it has ended."""

    def deliver(self, jobs: list[Leased]) -> None:
        """Leased jobs from the claimer."""

    def cancel(self, job_id: JobId) -> None:
        """The cancellation of this job was requested."""

    def lose(self, job_id: JobId, epoch: int) -> None:
        """This lease is lost: the store will refuse its settlement."""

    def doubt(self, leases: Iterable[tuple[JobId, int]], *, doubtful: bool) -> None:
        """Whether another holder may have these leases by now, as the store was away for so long."""

    def give_back(self, queues: frozenset[str] | None = None) -> None:
        """Give jobs (of these queues) that nobody works on yet back to the store, each in its old place."""
