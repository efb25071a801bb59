"""A duty of every worker: segments of hours long past go, once what is still referred to was copied."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import msgspec
from msgspec import Struct

from headrace.core.clock import Clock
from headrace.core.config import ObjectSettings
from headrace.core.durations import micros
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import ConfigError, HeadraceError, ObjectsUnavailable, Unavailable
from headrace.keeping.dead_letter_offload import DeadLetterOffload
from headrace.payloads.object_owner import ObjectOwner
from headrace.payloads.reference import Reference, read_reference
from headrace.payloads.segment_hours import SegmentHours
from headrace.payloads.segments import ToStow, in_parts
from headrace.payloads.stowage import Stowage
from headrace.routing.passage import has_all
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId
from headrace.seam.references import Referrer, Swap

log = logging.getLogger("headrace")

_HOUR = 3_600_000_000
_PAGE = 200
_ALL_HOURS = 1 << 30
_DOCUMENT = "objects/rounds"


class Kept(NamedTuple):
    """What one round did."""

    copied: int
    """Cells that are still referred to, and have another place now."""
    lost: int
    """References to old objects that are gone or damaged."""
    deleted: int
    """Objects."""


class _Rounds(Struct):
    """What keepers leave each other, as a document."""

    at: int = 0
    """When the last round began."""
    unused: dict[int, int] = {}
    """Hours past their keep, and since when it is known that no job refers to them."""


class ObjectKeeper:
    """Copies what jobs in any state still refer to in segments that are past their keep, and deletes these segments,
    hour by hour.

    An hour goes only after a grace in which no job referred to it: whoever has read a reference may still load it. The
    store keeps since when that is so, for all processes. Each step is bounded and safe to repeat, and any number of
    workers may do it at once: a copy counts only if the job still has the reference that was copied.

    Nothing goes while the objects are another store's, or some jobs may be in another store because of a transfer.
    """

    def __init__(
        self,
        backend: Backend,
        stowage: Stowage,
        clock: Clock,
        rng: Random,
        observers: Observers,
        settings: ObjectSettings,
    ) -> None:
        assert backend.references is not None
        assert backend.documents is not None
        self._backend = backend
        self._references = backend.references
        self._documents = backend.documents
        self._owner = ObjectOwner(stowage.objects, backend.documents)
        self._dead_letters = (
            None
            if backend.archive is None
            else DeadLetterOffload(backend.archive, self._documents, self._references, backend, stowage, clock)
        )
        self._segments = stowage.segments
        self._objects = stowage.objects
        self._hours = SegmentHours(stowage.objects, clock)
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = micros(settings.every)
        self._keep = micros(settings.keep)
        self._grace = micros(settings.grace)

    async def run(self) -> None:
        """Keep order until cancelled, as one of many: whoever looks first when a round is due makes it. What fails is
        tried again."""
        while True:
            await self.look()
            await asyncio.sleep(self._every / 1e6 * (0.75 + self._rng.random() / 2))

    async def look(self) -> None:
        """Make a round if one is due: send away what dead letters still have in the store, then ``keep``. Raises
        nothing."""
        try:
            if not await self._begin():
                return
        except Exception as error:
            _tell(error)
            return
        for part in (self.offload, self.keep):
            try:
                await part()
            except Exception as error:
                _tell(error)

    async def offload(self) -> int:
        """Send sections of dead letters to the object store that are still in the store; how many."""
        return 0 if self._dead_letters is None else await self._dead_letters.look()

    async def keep(self) -> Kept:
        """One round: copy what is past its keep and still referred to, delete what has been unused for the grace."""
        if reason := await self._reason_to_wait():
            log.info("old objects stay: %s", reason)
            return Kept(0, 0, 0)
        before = (await self._now() - self._keep) // _HOUR
        used: set[int] = set()
        copied, lost = await self._copy(before, used)
        deleted = await self._delete(before, used)
        if lost:
            log.error("%d sections cannot be copied: their objects are gone or damaged", lost)
        if copied or deleted:
            detail = f"{copied} sections copied, {deleted} old objects deleted"
            log.info("%s", detail)
            self._observers.tell(Event(EventKind.SWEPT, detail=detail, count=deleted))
        return Kept(copied, lost, deleted)

    async def sweep(self, *, dry_run: bool = False) -> list[str]:
        """Delete the objects that no job refers to, of any hour, unless they were written within the grace; which ones.
        There are some where a process died between an object and its row."""
        began = self._clock.now()
        if reason := await self._reason_to_wait():
            raise ConfigError(f"expected objects that this store may delete, but {reason}")
        referred: set[str] = set()
        after: tuple[int, JobId] | None = None
        while page := await self._references.find(_ALL_HOURS, after, _PAGE, self._clock.stamp()):
            referred.update(one.key for job in page for one in _read(job).values())
            after = page[-1].hour, page[-1].id
        gone: list[str] = []
        for day in await self._hours.days():
            grace = self._grace + self._clock.now() - began
            async for keys in self._hours.orphans(day, referred, grace):
                if not dry_run:
                    await self._objects.delete(keys)
                gone += keys
        return gone

    async def _reason_to_wait(self) -> str:
        """Why nothing may be deleted; empty: it may."""
        if not await has_all(self._backend):
            return (
                "some jobs may be in another store: a transfer to or from this one has not ended. Workers go on with "
                "it after: headrace transfer finish, or rollback"
            )
        if not await self._owner.is_ours():
            return f"those in {self._objects.location.where} are another store's"
        return ""

    async def _now(self) -> int:
        return await self._backend.now(self._clock.stamp())

    async def _rounds(self) -> tuple[_Rounds, int]:
        """What other rounds have left, and its version."""
        [known] = await self._documents.get([_DOCUMENT])
        if known is None:
            return _Rounds(), 0
        return msgspec.json.decode(known.body, type=_Rounds), known.version

    async def _begin(self) -> bool:
        """Whether a round is due, and nobody else has begun it."""
        rounds, version = await self._rounds()
        now = await self._now()
        if 0 <= now - rounds.at < self._every // 2:
            return False
        rounds.at = now
        return await self._documents.put(_DOCUMENT, msgspec.json.encode(rounds), version)

    async def _copy(self, before: int, used: set[int]) -> tuple[int, int]:
        """Copy what jobs refer to in objects of earlier hours: how many cells, and how many could not be had. Adds the
        hours to ``used`` that were referred to until now."""
        copied = lost = 0
        after: tuple[int, JobId] | None = None
        while page := await self._references.find(before, after, _PAGE, self._clock.stamp()):
            after = page[-1].hour, page[-1].id
            for part in in_parts(page, lambda job: sum(one.length for one in _old(job, before).values())):
                done, missed = await self._copy_part(part, before, used)
                copied, lost = copied + done, lost + missed
        return copied, lost

    async def _copy_part(self, jobs: Sequence[Referrer], before: int, used: set[int]) -> tuple[int, int]:
        wanted = [(job, name, one) for job in jobs for name, one in _old(job, before).items()]
        cells = await self._segments.load([one for _, _, one in wanted])
        if away := next((cell for cell in cells if isinstance(cell, ObjectsUnavailable)), None):
            raise away
        found = [(job, name, cell) for (job, name, _), cell in zip(wanted, cells, strict=True) if _is_cell(cell)]
        copies = await self._segments.stow([ToStow(cell) for _, _, cell in found if isinstance(cell, bytes)])
        new: dict[JobId, dict[str, bytes]] = {}
        for (job, name, _), copy in zip(found, copies, strict=True):
            new.setdefault(job.id, {})[name] = copy.cell
        used.update(one.hour for (_, _, one), cell in zip(wanted, cells, strict=True) if _is_cell(cell))
        lost = len(wanted) - len(found)
        broken = {job.id for (job, _, _), cell in zip(wanted, cells, strict=True) if not _is_cell(cell)}
        swaps = [Swap(job.id, job.cells, new.get(job.id, {})) for job in jobs if job.id in new or job.id not in broken]
        await self._references.swap(swaps, self._clock.stamp())
        return len(found), lost

    async def _delete(self, before: int, used: set[int]) -> int:
        """Delete the segments of hours before this one that no job has referred to for the grace. Those that were
        ``used`` in this round are unused from now on, if the next one does not find otherwise."""
        hours = await self._hours.before(before)
        rounds, version = await self._rounds()
        now = await self._now()
        rounds.unused = {hour: now if hour in used else rounds.unused.get(hour, now) for hour in hours}
        if not await self._documents.put(_DOCUMENT, msgspec.json.encode(rounds), version):
            return 0  # somebody else makes a round
        ripe = [hour for hour, since in rounds.unused.items() if now - since >= self._grace]
        if not ripe or await self._reason_to_wait():
            return 0
        return sum([await self._hours.delete(hour, self._grace) for hour in ripe])


def _tell(error: Exception) -> None:
    if isinstance(error, Unavailable):
        log.warning("old objects could not be looked after; that is tried again: %s", error)
    else:
        log.error("old objects could not be looked after; that is tried again", exc_info=error)


def _is_cell(cell: bytes | HeadraceError) -> bool:
    return isinstance(cell, bytes)


def _read(job: Referrer) -> dict[str, Reference]:
    """The references of a job; those that are damaged lead nowhere."""
    found = {}
    for name, cell in job.cells.items():
        try:
            found[name] = read_reference(cell, name)
        except HeadraceError:
            log.debug("job %s: its reference to a section is damaged: %s", job.id.hex(), name)
    return found


def _old(job: Referrer, before: int) -> dict[str, Reference]:
    """Its references to objects of hours before this one."""
    return {name: one for name, one in _read(job).items() if one.hour < before}
