"""A duty of every worker: take back the jobs of workers that died."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from headrace.core.durations import micros
from headrace.core.events import Event, EventKind
from headrace.core.slow_calls import timed
from headrace.errors import Unavailable
from headrace.seam.records import Reap, Reaped
from headrace.text import reason_in_words
from headrace.types import JobState
from headrace.worker.claimer import Claimer
from headrace.worker.kit import Kit

log = logging.getLogger("headrace")

_KINDS = {
    JobState.AVAILABLE: EventKind.STALLED,
    JobState.FAILED: EventKind.FAILED,
    JobState.CANCELLED: EventKind.CANCELLED,
}


class Reaper:
    """Reaps at regular intervals, with jitter. It needs no leader: any number of workers share the work.

    The store reaps nothing for a worker whose own beats have paused: see ``Backend.reap``.
    """

    def __init__(
        self,
        kit: Kit,
        claimer: Claimer,
        *,
        gap: float,
        guest_of: frozenset[str] | None = None,
        ended: Callable[[JobState, int], None] = lambda state, count: None,
    ) -> None:
        """``guest_of``: the queues of a guest. It reaps only while no worker claims from others. ``ended`` is told how
        many jobs it has ended."""
        self._guest_of = guest_of
        self._ended = ended
        self._backend, self._clock, self._rng, self._observers = kit.backend, kit.clock, kit.rng, kit.observers
        self._every = micros(kit.settings.worker.reap) / 1e6
        self._claimer = claimer
        self._request = Reap(
            holder=kit.holder,
            gap=int(gap * 1e6),
            steady=int(kit.leases.lease / 2 * 1e6),
            max_lost=kit.settings.worker.max_lost,
            spread=int(self._every * 1e6),
        )

    async def run(self, *, at_once: bool = False) -> None:
        """Reap until cancelled, for the first time right away."""
        while True:
            try:
                full = await self.is_needed() and await self.reap(at_once=at_once) >= self._request.limit
            except Unavailable:
                full = False
            except Exception:
                log.exception("cannot reap; it is tried again after the usual interval")
                full = False
            # After a full batch there is more, but it is taken slowly: so many jobs at once would flood the workers.
            pace = 0.1 if full else 0.75 + self._rng.random() / 2
            await asyncio.sleep(self._every * pace)

    async def is_needed(self) -> bool:
        """Whether nobody reaps whose settings should decide."""
        if self._guest_of is None:
            return True
        try:
            workers = (await self._backend.stats(self._clock.stamp(), queues=())).workers
        except Unavailable:
            return False
        return all(self._guest_of.issuperset(worker.queues) for worker in workers)

    async def reap(self, *, at_once: bool = False) -> int:
        """Reap one batch. Returns how many jobs it took. ``at_once``: they are due right away, and the claimer looks
        for them."""
        request, at = self._request, self._clock.stamp()
        if at_once:  # on a virtual clock, which stands still, beats say nothing
            request = replace(request, spread=0, holder=request.holder if at is None else None)
        reaped = await timed(self._observers, "reap", self._backend.reap(request, at))
        for job in reaped:
            if self._observers.meter is not None:
                self._observers.meter.upkeep.ran_out(job.queue, waits_again=job.state is JobState.AVAILABLE)
            self._observers.tell(event_of(job))
        for state, count in Counter(job.state for job in reaped).items():
            if state is not JobState.AVAILABLE:
                self._ended(state, count)
        if at_once and reaped:
            self._claimer.wake()
        return len(reaped)


def event_of(job: Reaped) -> Event:
    """What observers hear of a job that was taken back, or has expired."""
    kind = EventKind.EXPIRED if job.reason == "expired" else _KINDS[job.state]
    return Event(kind, job.id, job.queue, job.task, key=job.key, detail=reason_in_words(job.reason, job.lost))
