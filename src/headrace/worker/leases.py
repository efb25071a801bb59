"""The leases of this process: from the claim until the store has answered their settlement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from headrace.core.clock import SystemClock
from headrace.seam.records import JobId, Leased, Settlement
from headrace.worker.entrusted import Entrusted

_ELAPSED = SystemClock().elapsed
_NEARLY = 0.9
"""The part of a lease after which it counts as nearly over."""


class _Held(Struct, gc=False):
    """One lease. A renewal changes this object in place; a job that was dropped and granted again has a new one."""

    epoch: int
    job: Leased
    since: float


class Leases:
    """Which jobs are held, under which epoch, and since when, by a clock that goes on while the machine sleeps.

    The event loop grants and drops, the heartbeat's thread reads and renews; every step is a single operation.
    """

    def __init__(self, lease: float, now: Callable[[], float] = _ELAPSED) -> None:
        self.lease = lease
        """Seconds."""
        self.now = now
        """The clock by which they age."""
        self._held: dict[JobId, _Held] = {}
        self.entrusted = Entrusted()

    def __len__(self) -> int:
        return len(self._held)

    def grant(self, jobs: Iterable[Leased], now: float) -> None:
        """New leases, as of ``now``: an instant before the claim was sent, so never later than the store's own."""
        held = self._held
        for job in jobs:
            held[job.id] = _Held(job.epoch, job, now)

    def held(self) -> list[tuple[JobId, int]]:
        """All of them."""
        return [(job_id, held.epoch) for job_id, held in list(self._held.items())]

    def drop(self, job_id: JobId, epoch: int) -> None:
        """The lease under this epoch has ended without a settlement."""
        self.entrusted.forget(job_id, epoch)
        if self.current(job_id, epoch):
            del self._held[job_id]

    def settled(self, batch: Sequence[Settlement], now: float) -> dict[int, Leased]:
        """The store has answered these settlements, so their leases have ended. The jobs of those that were nearly
        over, by their position in the batch."""
        late, old, held = {}, self.old(now), self._held
        for position, settlement in enumerate(batch):
            lease = held.get(settlement.id)
            if lease is not None and lease.epoch == settlement.epoch:
                del held[settlement.id]
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

    def renewed(self, leases: Iterable[tuple[JobId, int]], now: float) -> list[Leased]:
        """The store has extended these, as of ``now``. The jobs of those that were nearly over."""
        late, old = [], self.old(now)
        for job_id, epoch in leases:
            held = self._held.get(job_id)
            if held is not None and held.epoch == epoch:
                since, held.since = held.since, now
                if since < old:
                    late.append(held.job)
        return late

    def current(self, job_id: JobId, epoch: int) -> bool:
        """Whether the job is held under this very epoch; news about an older one mean nothing."""
        held = self._held.get(job_id)
        return held is not None and held.epoch == epoch

    def over(self, job_id: JobId, epoch: int, now: float) -> bool:
        """Whether the lease has run out by this process's own count, or has given way to a later one; its job must not
        be started any more."""
        held = self._held.get(job_id)
        return held is None or held.epoch != epoch or held.since + self.lease <= now

    def in_doubt(self, now: float) -> list[tuple[JobId, int]]:
        """Leases that have run out by this process's own count, and that the store has not reported lost."""
        end = now - self.lease
        return [(job_id, held.epoch) for job_id, held in list(self._held.items()) if held.since <= end]
