"""What the parts of a worker, or of a pull, share."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from headrace.core.clock import Clock
from headrace.core.config import Settings
from headrace.core.durations import micros
from headrace.core.events import Observers
from headrace.core.ids import secret_name
from headrace.core.names import check_name, worker_name
from headrace.errors import ConfigError
from headrace.payloads.pack import Packer
from headrace.payloads.stowage import Stowage
from headrace.schedules.tick_notes import Notes
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim
from headrace.worker.bell import Bell
from headrace.worker.judge import Judge
from headrace.worker.leases import Leases
from headrace.worker.outage import Outage
from headrace.worker.part_sender import PartSender
from headrace.worker.section_reader import SectionReader
from headrace.worker.settler import Settler

_ANYTHING = 2**50
"""Bytes. More than the jobs of any claim weigh."""


class Kit:
    """The store and what surrounds it, and the parts that do not depend on who consumes the jobs.

    ``heartbeat_thread``: whether leases are renewed from a thread of its own.
    """

    def __init__(
        self,
        backend: Backend,
        queues: Sequence[str],
        settings: Settings,
        packer: Packer,
        *,
        clock: Clock,
        rng: Random,
        observers: Observers,
        heartbeat_thread: bool = True,
        stowage: Stowage | None = None,
    ) -> None:
        if not queues:
            raise ConfigError("a worker needs at least one queue; register a task first, or name the queues")
        self.name = worker_name(settings.worker.name, rng)
        self.queues = tuple(check_name(queue, "queue") for queue in dict.fromkeys(queues))
        self.holder = secret_name(rng)
        self.backend = backend
        self.settings = settings
        self.packer = packer
        self.clock = clock
        self.rng = rng
        self.observers = observers
        self.heartbeat_thread = heartbeat_thread
        self.stowage = stowage
        self.leases = Leases(micros(settings.worker.lease) / 1e6, clock.elapsed, settings.worker.max_bytes)
        self.notes = Notes(backend.ticks, clock, rng)
        self.bell = Bell()
        self.settler = Settler(self.leases, observers, self.notes, self.bell)
        self.judge = Judge(self.holder, packer, clock, rng, self.name)
        self.reader = SectionReader(backend, clock, packer, stowage)
        self.sender = PartSender(backend, clock, packer, rng, micros(settings.patience) / 1e6)
        self.last_chance = max(settings.worker.max_lost, 1)
        """How often a job was lost that is on its last chance."""
        self.outage = Outage(observers)

    def request(self, want: frozenset[str] | None) -> Claim:
        """The claim that claimers start from. Jobs that come without sections may weigh anything."""
        claim = Claim(self.holder, self.queues, 0, int(self.leases.lease * 1e6), want, self.last_chance)
        return replace(claim, max_bytes=_ANYTHING) if want is not None and not want else claim

    @property
    def poll(self) -> float:
        """Seconds between two looks without a hint."""
        worker = self.settings.worker
        return micros(worker.poll_blind if self.backend.hints is None else worker.poll) / 1e6
