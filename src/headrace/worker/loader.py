"""The stage between claimer and runner where sections come from an object store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from headrace.core.alerts import Alert
from headrace.core.events import Event, EventKind
from headrace.core.tasks import Tasks
from headrace.errors import HeadraceError, ObjectMissing, ObjectsUnavailable, Unavailable
from headrace.payloads.reference import referred_size
from headrace.payloads.segments import in_parts
from headrace.payloads.stowage import Loaded, Stowage
from headrace.seam.records import JobId, Leased
from headrace.seam.references import is_reference
from headrace.types import SECTIONS
from headrace.worker.consumer import Consumer
from headrace.worker.judge import OBJECTS_REST, UNUSABLE
from headrace.worker.kit import Kit

log = logging.getLogger("headrace")

_SECTIONS = frozenset(SECTIONS)
_MOST = 64 * 1024 * 1024
"""Bytes of sections that are loaded for one claim."""
_ANY = 1 << 30
_STOPPED = "the worker stopped before its sections were loaded"

Sections = Callable[[str], frozenset[str] | None]
"""Which sections jobs of a task come with, beside ``parameters``; None: all."""


class Loader:
    """Delivers claimed jobs to the runner, once their sections are loaded: those of one claim together.

    While the object store is away, jobs go back to the store for a while, and no attempt counts. A job whose object is
    gone is looked at once more, as the object may have been copied; then it fails, as does one whose object is damaged.
    Whatever else goes wrong, jobs go back as if the object store were away.

    A store bounds what a claim weighs, but to it a reference weighs 25 bytes. So of one claim only as many jobs are
    loaded as weigh ``_MOST`` together, but always one; the others go back at once, in their old place, and the next
    claims ask for fewer.
    """

    def __init__(
        self, kit: Kit, stowage: Stowage, consumer: Consumer, sections: Sections, *, together: bool = False
    ) -> None:
        """``together``: jobs of one claim are delivered together, even if only some have sections to be loaded."""
        self._together = together
        self._loading: dict[tuple[JobId, int], Leased] = {}
        """Leased jobs that have come and are neither delivered nor settled."""
        self._open = True
        self._fits = _ANY
        """How many jobs a claim may ask for; fewer after one whose sections weighed too much."""
        self._sections = sections
        self._stowage = stowage
        self._consumer = consumer
        self._kit = kit
        self._judge, self._settler, self._observers = kit.judge, kit.settler, kit.observers
        self._tasks = Tasks()
        self.away = ""
        """Why jobs could not be loaded the last time; empty: they could."""

    def deliver(self, jobs: list[Leased]) -> None:
        """Leased jobs from the claimer."""
        asked = self._bounded([self._without_unwanted(job) if _refers(job) else job for job in jobs])
        here = [job for job in asked if not _refers(job)]
        if self._together and len(here) < len(asked):
            here = []
        if here:
            self._consumer.deliver(here)
        if len(here) < len(asked):
            rest = asked if self._together else [job for job in asked if _refers(job)]
            self._loading.update({(job.id, job.epoch): job for job in rest})
            if self._open:
                self._tasks.start(self._bring(rest), "headrace-load")
            else:
                self._give_all_back()

    def most(self) -> int:
        """How many jobs a claim may ask for: none while others are loaded, if those of one claim weighed too much."""
        return 0 if self._loading and self._fits < _ANY else self._fits

    def _bounded(self, jobs: list[Leased]) -> list[Leased]:
        """The first jobs that may be in memory together; the others go back."""
        weight = 0
        for count, job in enumerate(jobs):
            weight += _size(job)
            if weight > _MOST and count:
                self._fits = count
                for other in jobs[count:]:
                    self._settler.add(self._judge.release(other.id, other.epoch, unbegun=not other.begun))
                return jobs[:count]
        self._fits = min(_ANY, self._fits + 1 + self._fits // 8)
        return jobs

    def _without_unwanted(self, job: Leased) -> Leased:
        """The job without references to sections that its handler does not ask for, or asks for later."""
        sections = self._sections(job.task)
        if sections is None:
            return job
        wanted = sections | {"parameters"}
        cells = {name: cell for name, cell in job.cells.items() if name in wanted or not is_reference(cell)}
        return replace(job, cells=cells, left=(*job.left, *(name for name in job.cells if name not in cells)))

    async def close(self) -> None:
        """Load nothing more. What is being loaded goes back, in its old place, and so does what still comes."""
        self._open = False
        await self._tasks.close()
        self._give_all_back()

    def _give_all_back(self) -> None:
        for job in self._loading.values():
            if self._kit.leases.current(job.id, job.epoch):
                event = Event(EventKind.RELEASED, *_about(job), tenant=job.tenant, detail=_STOPPED)
                settlement = self._judge.release(job.id, job.epoch, unbegun=not job.begun)
                self._settler.add(settlement, event if self._observers else None)
        self._loading.clear()

    def loading(self) -> int:
        """How many jobs are being loaded."""
        return len(self._loading)

    async def _bring(self, jobs: list[Leased]) -> None:
        together: list[Leased] = []
        try:
            for part in in_parts(jobs, _size):
                if ready := await self._ready(part):
                    self.away = ""
                    if self._together:
                        together += ready
                    else:
                        self._forget(ready)
                        self._consumer.deliver(ready)
        finally:
            if self._open:
                self._forget(jobs)
                self._kit.bell.ring()
        if together:
            self._forget(together)
            self._consumer.deliver(together)

    def _forget(self, jobs: Iterable[Leased]) -> None:
        for job in jobs:
            self._loading.pop((job.id, job.epoch), None)

    async def _ready(self, jobs: list[Leased]) -> list[Leased]:
        """Those of the jobs that have all their sections now; the others are settled."""
        try:
            found = await self._load(jobs)
        except Unavailable as error:
            found = [{"": error} for _ in jobs]
        except Exception as error:
            log.exception("sections could not be loaded; their jobs go back to the store")
            unknown = ObjectsUnavailable(f"sections cannot be loaded: {type(error).__name__}: {error}")
            found = [{"": unknown} for _ in jobs]
        answers = [self._loaded(job, cells) for job, cells in zip(jobs, found, strict=True)]
        return [job for job in answers if job is not None]

    async def _load(self, jobs: list[Leased]) -> list[Loaded]:
        found = await self._stowage.load([job.cells for job in jobs])
        gone = [i for i, cells in enumerate(found) if any(isinstance(cell, ObjectMissing) for cell in cells.values())]
        if gone:
            records = await self._kit.backend.fetch([jobs[i].id for i in gone], _SECTIONS, self._kit.clock.stamp())
            moved = {i: record.cells for i, record in zip(gone, records, strict=True) if record is not None}
            again = await self._stowage.load(list(moved.values()))
            found = [dict(zip(moved, again, strict=True)).get(i, cells) for i, cells in enumerate(found)]
        return found

    def _loaded(self, job: Leased, cells: Loaded) -> Leased | None:
        """The job with its cells; or None, and it is settled."""
        if not self._kit.leases.current(job.id, job.epoch):
            self._forget([job])
            return None
        wrong = [cell for cell in cells.values() if isinstance(cell, HeadraceError)]
        if not wrong:
            return replace(job, cells={name: cell for name, cell in cells.items() if isinstance(cell, bytes)})
        self._forget([job])
        error = next((one for one in wrong if isinstance(one, Unavailable)), wrong[0])
        if isinstance(error, Unavailable):
            self._give_back(job, error)
        else:
            self._fail(job, error)
        return None

    def _give_back(self, job: Leased, error: Unavailable) -> None:
        if isinstance(error, ObjectsUnavailable):
            self.away = str(error)
            sentence = f"jobs wait, because the object store is away: {error}"
            self._observers.alert(Alert.OBJECTS_AWAY, "load", sentence, error=error)
        delay = int(OBJECTS_REST * (0.5 + self._kit.rng.random()))
        event = _event(EventKind.RELEASED, job, error) if self._observers else None
        self._settler.add(self._judge.release(job.id, job.epoch, delay=delay, unbegun=not job.begun), event)

    def _fail(self, job: Leased, error: HeadraceError) -> None:
        settlement = self._judge.refuse(job, error, UNUSABLE)
        if job.headers is not None:
            self._settler.notes.ended(job, settlement, 0.0)
        self._settler.add(settlement, _event(EventKind.FAILED, job, error))


def _refers(job: Leased) -> bool:
    for cell in job.cells.values():  # noqa: SIM110  asked for every job, and any() takes twice as long
        if is_reference(cell):
            return True
    return False


def _size(job: Leased) -> int:
    return sum(referred_size(cell) for cell in job.cells.values() if is_reference(cell))


def _event(kind: EventKind, job: Leased, error: HeadraceError) -> Event:
    return Event(kind, *_about(job), tenant=job.tenant, error=error, detail=str(error))


def _about(job: Leased) -> tuple[JobId, str, str, str | None, int]:
    return job.id, job.queue, job.task, job.key, job.attempt
