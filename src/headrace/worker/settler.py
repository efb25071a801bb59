"""The stage that ends leases: outcomes gather here until a trip takes them to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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


class Settler:
    """Settlements that the store has not answered yet."""

    def __init__(self, leases: Leases, observers: Observers, notes: Notes, bell: Bell) -> None:
        self._leases = leases
        self.notes = notes
        self._observers = observers
        self._bell = bell
        self.quiet = asyncio.Event()
        """Set while every settlement has its answer."""
        self.quiet.set()
        self._waiting: list[Settlement] = []
        self._apart: list[Settlement] = []
        """Of jobs whose handlers complete them in transactions of their own. Until such a transaction ends, the store
        lets no other end the lease, so these settlements travel on trips of their own."""
        self._news: dict[tuple[JobId, int], Event] = {}
        """What to tell of a settlement once the store has accepted it."""
        self.under_way = 0
        """Settlements on trips that the store has not answered."""
        self.settled = 0
        """Settlements that the store has answered."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._apart) + self.under_way

    def doubtful(self, batch: Sequence[Settlement], states: Sequence[JobState | None]) -> list[int]:
        """Which of these were refused, perhaps only because their handlers had completed the jobs themselves. Empty
        when no news waits for the answer."""
        return self._leases.entrusted.refused(batch, states) if self._news else []

    def confirm(self, settlement: Settlement) -> JobState:
        """The handler has completed the job itself. Observers are told that, whatever the outcome was."""
        lease = settlement.id, settlement.epoch
        if (news := self._news.get(lease)) is not None:
            result = self._leases.entrusted.result(*lease)
            self._news[lease] = replace(news, kind=EventKind.COMPLETED, result=result)
        return settlement.state

    def add(self, settlement: Settlement, news: Event | None = None) -> None:
        """Put an outcome on its way; ``news`` is told when the store has accepted it."""
        if news is not None:
            self._news[settlement.id, settlement.epoch] = news
        if not self._waiting:  # else it is not set
            self.quiet.clear()
        entrusted = self._leases.entrusted.results
        if entrusted and (settlement.id, settlement.epoch) in entrusted:
            self._apart.append(settlement)
        else:
            self._waiting.append(settlement)
        self._bell.ring()

    def has(self, job_id: JobId, epoch: int) -> bool:
        """Whether an outcome under this lease waits for its trip."""
        return any((one.id, one.epoch) == (job_id, epoch) for one in (*self._waiting, *self._apart))

    def take_apart(self, limit: int) -> list[Settlement]:
        """The same for a trip with those whose handlers have a transaction of their own, and nothing else."""
        taken, self._apart = self._apart[:limit], self._apart[limit:]
        self.under_way += len(taken)
        return taken

    def take(self, limit: int) -> list[Settlement]:
        """What the next trip takes along; until it is answered the leases are kept."""
        if len(self._waiting) <= limit:
            taken, self._waiting = self._waiting, []
        else:
            taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        self.under_way += len(taken)
        return taken

    def put_back(self, batch: Sequence[Settlement]) -> None:
        """The trip that took these was broken off, and is not repeated."""
        self.under_way -= len(batch)
        self._waiting[:0] = batch

    def answered(self, batch: Sequence[Settlement], states: Sequence[JobState | None]) -> None:
        """The store has answered these settlements."""
        self.under_way -= len(batch)
        self.settled += len(batch)
        for position, job in self._leases.settled(batch, self._leases.now()).items():
            if states[position] is not None:
                self.warn(job)
        if self._news or self.notes.expected:
            for settlement, state in zip(batch, states, strict=True):
                self._tell(settlement, state)
                self.notes.answered(settlement, state)
        if not len(self):
            self.quiet.set()
            if not len(self._leases):
                self._bell.ring()

    def warn(self, job: Leased) -> None:
        """The lease of this job was nearly over when it was renewed, or the job ended."""
        job_id, lease = UUID(bytes=job.id), self._leases.lease
        what = f"the lease ({lease:g} s) of job {job_id} ({shown(job.task)})"
        sentence = f"more than 90 % of {what} had passed before it was renewed, or the job ended"
        more = {"id": job.id, "queue": job.queue, "task": job.task, "key": job.key, "attempt": job.attempt}
        self._observers.alert(Alert.LEASE_NEARLY_OVER, job.queue, sentence, **more)

    def _tell(self, settlement: Settlement, state: JobState | None) -> None:
        news = self._news.pop((settlement.id, settlement.epoch), None)
        if news is None:
            return
        if state is settlement.state:
            self._observers.tell(news)
        elif state is None:
            self._observers.tell(replace(news, kind=EventKind.LEASE_LOST, detail="outcome refused"))
        else:
            self._observers.tell(replace(news, kind=EventKind.CANCELLED, detail="instead of another run"))
