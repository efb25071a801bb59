"""The leases of a worker: each from its claim until the store has answered its settlement."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from headrace.core.clock import SystemClock
from headrace.core.progress import Progress
from headrace.seam.records import JobId, Leased, Settlement
from headrace.worker.current import CurrentJob
from headrace.worker.entrusted import Entrusted

_ELAPSED = SystemClock().elapsed
_NEARLY = 0.9
"""The part of a lease after which it counts as nearly over."""


class _Held(Struct, gc=False):
    """One lease. A renewal changes this object in place; a job that was dropped and granted again has a new one."""

    epoch: int
    job: Leased
    since: float
    bytes: int


class Leases:
    """Which jobs are held, under which epoch, and since when, by a clock that goes on while the machine sleeps.

    The event loop grants and drops, the thread of the beats reads and renews. Every step is a single operation.
    """

    def __init__(self, lease: float, now: Callable[[], float] = _ELAPSED, most_bytes: int = sys.maxsize) -> None:
        self.lease = lease
        """Seconds."""
        self.now = now
        """The clock by which they age."""
        self._held: dict[JobId, _Held] = {}
        self._most_bytes = most_bytes
        self._bytes = 0
        self._said: dict[tuple[JobId, int], Progress] = {}
        """What handlers have said of their progress since the last beat."""
        self.entrusted = Entrusted()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether the sections of the jobs that are held weigh so much that there should be no more of them."""
        return self._bytes >= self._most_bytes

    def grant(self, jobs: Iterable[Leased], now: float) -> None:
        """New leases, as of ``now``: an instant before the claim was sent. So they never end later than in the
        store."""
        held = self._held
        for job in jobs:
            weight = sum(map(len, job.cells.values()))
            self._bytes += weight
            if (before := held.get(job.id)) is not None:
                self._bytes -= before.bytes
            held[job.id] = _Held(job.epoch, job, now, weight)

    def held(self) -> list[tuple[JobId, int]]:
        """All leases."""
        return [(job_id, held.epoch) for job_id, held in list(self._held.items())]

    def drop(self, job_id: JobId, epoch: int) -> None:
        """The lease under this epoch has ended without a settlement."""
        self.entrusted.forget(job_id, epoch)
        if self.current(job_id, epoch):
            self._bytes -= self._held.pop(job_id).bytes

    def settled(self, batch: Sequence[Settlement], now: float) -> dict[int, Leased]:
        """The store has answered these settlements, so their leases have ended. Returns the jobs whose leases were
        nearly over, by their position in the batch."""
        late, old, held = {}, self.old(now), self._held
        for position, settlement in enumerate(batch):
            lease = held.get(settlement.id)
            if lease is not None and lease.epoch == settlement.epoch:
                del held[settlement.id]
                self._bytes -= lease.bytes
                if lease.since < old:
                    late[position] = lease.job
        if self.entrusted.results:
            for settlement in batch:
                self.entrusted.forget(settlement.id, settlement.epoch)
        return late

    def old(self, now: float) -> float:
        """Leases from before this instant are nearly over."""
        return now - _NEARLY * self.lease

    def aging(self, now: float) -> list[tuple[JobId, int]]:
        """Leases past half their life."""
        old = now - self.lease / 2
        return [(job_id, held.epoch) for job_id, held in list(self._held.items()) if held.since <= old]

    def first(self, leases: Sequence[tuple[JobId, int]], now: float) -> tuple[Leased, float] | None:
        """The job of the first of these leases, and how old it is."""
        held = self._held.get(leases[0][0]) if leases else None
        return None if held is None else (held.job, now - held.since)

    def renewed(self, leases: Iterable[tuple[JobId, int]], now: float) -> list[Leased]:
        """The store has extended these leases, as of ``now``. Returns the jobs whose leases were nearly over."""
        late, old = [], self.old(now)
        for job_id, epoch in leases:
            held = self._held.get(job_id)
            if held is not None and held.epoch == epoch:
                since, held.since = held.since, now
                if since < old:
                    late.append(held.job)
        return late

    def say(self, job: Leased | CurrentJob, progress: Progress) -> None:
        """The handler has said how far the job has come. Can be called from any thread."""
        job_id = job.id if isinstance(job, Leased) else job.id.bytes
        held = self._held.get(job_id)
        epoch = job.epoch if isinstance(job, Leased) else 0 if held is None else held.epoch
        if held is not None and held.epoch == epoch:
            self._said[job_id, epoch] = progress

    def said(self) -> dict[tuple[JobId, int], Progress]:
        """What was said since the last call, of leases that are still held."""
        taken = {lease: self._said.pop(lease) for lease in list(self._said)}
        return {lease: progress for lease, progress in taken.items() if self.current(*lease)}

    def say_again(self, said: Mapping[tuple[JobId, int], Progress]) -> None:
        """The store did not hear this, or not all of it; what was said meanwhile counts."""
        for lease, progress in said.items():
            self._said.setdefault(lease, progress)

    def job(self, settlement: Settlement) -> Leased | None:
        """The job that a settlement ends the lease of, as it was claimed."""
        held = self._held.get(settlement.id)
        return held.job if held is not None and held.epoch == settlement.epoch else None

    def current(self, job_id: JobId, epoch: int) -> bool:
        """Whether the job is held under this very epoch."""
        held = self._held.get(job_id)
        return held is not None and held.epoch == epoch

    def age(self, job_id: JobId, epoch: int) -> float | None:
        """Seconds since the lease was granted or renewed; None if it is not held."""
        held = self._held.get(job_id)
        return None if held is None or held.epoch != epoch else self.now() - held.since

    def over(self, job_id: JobId, epoch: int, now: float) -> bool:
        """Whether the lease has run out by this worker's own clock, or was replaced by a later one. Its job must not be
        started any more."""
        held = self._held.get(job_id)
        return held is None or held.epoch != epoch or held.since + self.lease <= now

    def in_doubt(self, now: float) -> list[tuple[JobId, int]]:
        """Leases that have run out by this worker's own clock, and that the store has not reported lost."""
        end = now - self.lease
        return [(job_id, held.epoch) for job_id, held in list(self._held.items()) if held.since <= end]
