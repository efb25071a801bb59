"""Keeps settlements until a trip takes them to the store, and ends their leases when it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from uuid import UUID

from msgspec.structs import replace

from headrace.core.alerts import Alert
from headrace.core.events import Event, EventKind, Observers
from headrace.schedules.tick_notes import Notes
from headrace.seam.records import JobId, Leased, Settlement
from headrace.text import shown
from headrace.types import JobState
from headrace.worker.bell import Bell
from headrace.worker.leases import Leases

Answered = Callable[[Settlement, JobState | None], None]
"""Hears how the store has answered a settlement; None: fenced off."""


class Settler:
    """Settlements that the store has not answered yet."""

    def __init__(self, leases: Leases, observers: Observers, notes: Notes, bell: Bell) -> None:
        self.hears: Answered | None = None
        """Hears all answers."""
        self._leases = leases
        self.notes = notes
        self._observers = observers
        self._bell = bell
        self.quiet = asyncio.Event()
        """Set while no settlement waits for its answer."""
        self.quiet.set()
        self._waiting: list[Settlement] = []
        self._apart: list[Settlement] = []
        """Settlements of jobs that handlers complete in their own transactions. Until such a transaction ends, the
        store cannot end the lease, so these settlements have trips of their own."""
        self._off: list[list[Settlement]] = []
        """Settlements that were put off."""
        self._sent: set[tuple[JobId, int]] = set()
        """The leases of those, until they are answered."""
        self._events: dict[tuple[JobId, int], Event] = {}
        """The event of a settlement. Observers are told when the store has accepted it."""
        self.under_way = 0
        """Settlements on trips that the store has not answered."""
        self.settled = 0
        """Settlements that the store has answered."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._apart) + sum(map(len, self._off)) + self.under_way

    def doubtful(self, batch: Sequence[Settlement], states: Sequence[JobState | None]) -> list[int]:
        """The settlements that were refused, perhaps only because a handler had completed its job. By position. Only
        events depend on this, so it is empty without them."""
        return self._leases.entrusted.refused(batch, states) if self._events else []

    def confirm(self, settlement: Settlement) -> JobState:
        """The handler has completed the job itself. Observers are told so, whatever the outcome was."""
        lease = settlement.id, settlement.epoch
        if (event := self._events.get(lease)) is not None:
            result = self._leases.entrusted.result(*lease)
            self._events[lease] = replace(event, kind=EventKind.COMPLETED, result=result)
        return settlement.state

    def refused(self, failure: Settlement, error: Exception) -> None:
        """The store has rejected an outcome, and the job fails. Observers are told so instead of the outcome."""
        lease = failure.id, failure.epoch
        if (event := self._events.get(lease)) is not None:
            self._events[lease] = replace(event, kind=EventKind.FAILED, error=error, detail=failure.reason, result=None)

    def add(self, settlement: Settlement, event: Event | None = None) -> None:
        """Keep it for the next trip. Observers are told the event when the store has accepted it."""
        if event is not None:
            self._events[settlement.id, settlement.epoch] = event
        if not self._waiting:  # else it is not set
            self.quiet.clear()
        entrusted = self._leases.entrusted.results
        if entrusted and (settlement.id, settlement.epoch) in entrusted:
            self._apart.append(settlement)
        else:
            self._waiting.append(settlement)
        self._bell.ring()

    def has(self, job_id: JobId, epoch: int) -> bool:
        """Whether a settlement under this lease waits for its trip."""
        return any((one.id, one.epoch) == (job_id, epoch) for one in chain(self._waiting, self._apart, *self._off))

    def take_apart(self, limit: int) -> list[Settlement]:
        """The same for a trip with only those of jobs that handlers complete in their own transactions."""
        taken, self._apart = self._apart[:limit], self._apart[limit:]
        self.under_way += len(taken)
        return taken

    def take(self, limit: int) -> list[Settlement]:
        """The settlements for the next trip. Their leases are kept until it is answered."""
        if len(self._waiting) <= limit:
            taken, self._waiting = self._waiting, []
        else:
            taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        self.under_way += len(taken)
        return taken

    def put_back(self, batch: Sequence[Settlement]) -> None:
        """The trip that took these does not carry them."""
        self.under_way -= len(batch)
        self._waiting[:0] = batch

    def put_off(self, batch: Sequence[Settlement], seconds: float) -> None:
        """The part of the store that may have their leases is away: other trips come first."""
        self.under_way -= len(batch)
        off = list(batch)
        self._off.append(off)
        self._sent.update((one.id, one.epoch) for one in batch)
        asyncio.get_running_loop().call_later(seconds, self._take_up, off)

    def _take_up(self, batch: list[Settlement]) -> None:
        self._off.remove(batch)
        self._waiting[:0] = batch
        self._bell.ring()

    def were_sent(self, batch: Sequence[Settlement]) -> bool:
        """Whether some of these were put off: the store may have carried them out."""
        return bool(self._sent) and any((one.id, one.epoch) in self._sent for one in batch)

    def jobs(self, batch: Sequence[Settlement]) -> list[Leased]:
        """The jobs that these settlements end the leases of, as far as they are known."""
        return [job for settlement in batch if (job := self._leases.job(settlement)) is not None]

    def answered(self, batch: Sequence[Settlement], states: Sequence[JobState | None]) -> None:
        """The store has answered these settlements."""
        self.under_way -= len(batch)
        self.settled += len(batch)
        if self._sent:
            self._sent.difference_update((one.id, one.epoch) for one in batch)
        if batch and self._observers.meter is not None and (job := self._leases.job(batch[0])) is not None:
            self.measure(job, self._leases.age(job.id, job.epoch) or 0.0)
        was_full = self._leases.full
        for position, job in self._leases.settled(batch, self._leases.now()).items():
            if states[position] is not None:
                self.warn(job)
        if self._events or self.notes.expected:
            for settlement, state in zip(batch, states, strict=True):
                self._tell(settlement, state)
                self.notes.answered(settlement, state)
        if self.hears is not None:
            for settlement, state in zip(batch, states, strict=True):
                self.hears(settlement, state)
        if was_full:
            self._bell.ring()
        self._rest()

    def dropped(self, settlement: Settlement) -> None:
        """The store has rejected this settlement, and nothing takes its place: the lease goes on."""
        self.under_way -= 1
        self._events.pop((settlement.id, settlement.epoch), None)
        self._rest()

    def _rest(self) -> None:
        if not len(self):
            self.quiet.set()
            if not len(self._leases):
                self._bell.ring()

    def measure(self, job: Leased, age: float) -> None:
        """The lease of this job was this many seconds old when it was renewed, or the job ended. Told of one job in
        each trip and each beat."""
        if self._observers.meter is not None:
            self._observers.meter.upkeep.used(job.queue, age / self._leases.lease)

    def warn(self, job: Leased) -> None:
        """The lease of this job was nearly over when it was renewed, or the job ended."""
        job_id, lease = UUID(bytes=job.id), self._leases.lease
        what = f"the lease ({lease:g} s) of job {job_id} ({shown(job.task)})"
        sentence = f"more than 90 % of {what} had passed before it was renewed, or the job ended"
        more = {"id": job.id, "queue": job.queue, "task": job.task, "key": job.key, "attempt": job.attempt}
        self._observers.alert(Alert.LEASE_NEARLY_OVER, job.queue, sentence, **more)

    def _tell(self, settlement: Settlement, state: JobState | None) -> None:
        event = self._events.pop((settlement.id, settlement.epoch), None)
        if event is None:
            return
        if state is settlement.state:
            self._observers.tell(event)
        elif state is None:
            self._observers.tell(replace(event, kind=EventKind.LEASE_LOST, detail="outcome refused"))
        else:
            self._observers.tell(replace(event, kind=EventKind.CANCELLED, detail="instead of another run"))
