"""A duty of every worker: segments of hours long past go, once what is still referred to was copied."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from headrace.core.clock import Clock
from headrace.core.config import ObjectSettings
from headrace.core.durations import micros
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import HeadraceError, ObjectsUnavailable, Unavailable
from headrace.payloads.reference import Reference, read_reference
from headrace.payloads.segment_hours import SegmentHours
from headrace.payloads.segments import ToStow, in_parts
from headrace.payloads.stowage import Stowage
from headrace.seam.records import JobId
from headrace.seam.references import ReferenceStore, Referrer, Swap

log = logging.getLogger("headrace")

_HOUR = 3_600_000_000
_PAGE = 200
_ALL_HOURS = 1 << 30


class Kept(NamedTuple):
    """What one round did."""

    copied: int
    """Cells that are still referred to, and have another place now."""
    lost: int
    """References to old objects that are gone or damaged."""
    deleted: int
    """Objects."""


class ObjectKeeper:
    """Copies what jobs in any state still refer to in segments that are past their keep, and deletes these segments,
    hour by hour.

    An hour goes only after a grace in which no job referred to it: whoever has read a reference may still load it. Each
    step is bounded and safe to repeat, and any number of workers may do it at once: a copy counts only if the job still
    has the reference that was copied.
    """

    def __init__(
        self,
        references: ReferenceStore,
        stowage: Stowage,
        clock: Clock,
        rng: Random,
        observers: Observers,
        settings: ObjectSettings,
    ) -> None:
        self._references = references
        self._segments = stowage.segments
        self._objects = stowage.objects
        self._hours = SegmentHours(stowage.objects, clock)
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = micros(settings.every) / 1e6
        self._keep = micros(settings.keep)
        self._grace = micros(settings.grace)
        self._unused: dict[int, int] = {}
        """Hours that no job refers to, and since when that is known."""

    async def run(self) -> None:
        """Keep order until cancelled. What fails is tried again."""
        while True:
            await asyncio.sleep(self._every * (0.75 + self._rng.random() / 2))
            try:
                await self.keep()
            except Unavailable as error:
                log.warning("old objects could not be removed; that is tried again: %s", error)
            except Exception:
                log.exception("old objects could not be removed; that is tried again")

    async def keep(self) -> Kept:
        """One round: copy what is past its keep and still referred to, delete what has been unused for the grace."""
        before = (self._clock.now() - self._keep) // _HOUR
        copied, lost, left = await self._copy(before)
        if left:
            self._unused.clear()
        deleted = 0 if left else await self._delete(before)
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

    async def _copy(self, before: int) -> tuple[int, int, bool]:
        """Copy what jobs refer to in objects of earlier hours: how many cells, how many could not be had, and whether
        any job still refers to one that could."""
        copied = lost = 0
        left = False
        after: tuple[int, JobId] | None = None
        while page := await self._references.find(before, after, _PAGE, self._clock.stamp()):
            after = page[-1].hour, page[-1].id
            for part in in_parts(page, lambda job: sum(one.length for one in _old(job, before).values())):
                done, missed, changed = await self._copy_part(part, before)
                copied, lost, left = copied + done, lost + missed, left or changed
        return copied, lost, left

    async def _copy_part(self, jobs: Sequence[Referrer], before: int) -> tuple[int, int, bool]:
        wanted = [(job, name, one) for job in jobs for name, one in _old(job, before).items()]
        cells = await self._segments.load([one for _, _, one in wanted])
        if away := next((cell for cell in cells if isinstance(cell, ObjectsUnavailable)), None):
            raise away
        found = [(job, name, cell) for (job, name, _), cell in zip(wanted, cells, strict=True) if _is_cell(cell)]
        copies = await self._segments.stow([ToStow(cell) for _, _, cell in found if isinstance(cell, bytes)])
        new: dict[JobId, dict[str, bytes]] = {}
        for (job, name, _), copy in zip(found, copies, strict=True):
            new.setdefault(job.id, {})[name] = copy.cell
        for (_, _, one), cell in zip(wanted, cells, strict=True):
            if _is_cell(cell):
                self._unused.pop(one.hour, None)
        lost = len(wanted) - len(found)
        broken = {job.id for (job, _, _), cell in zip(wanted, cells, strict=True) if not _is_cell(cell)}
        swaps = [Swap(job.id, job.cells, new.get(job.id, {})) for job in jobs if job.id in new or job.id not in broken]
        done = await self._references.swap(swaps, self._clock.stamp())
        return len(found), lost, not all(done)

    async def _delete(self, before: int) -> int:
        """Delete the segments of hours before this one. No job refers to them."""
        now, deleted = self._clock.now(), 0
        self._unused = {hour: self._unused.get(hour, now) for hour in await self._hours.before(before)}
        for hour, since in self._unused.items():
            if now - since >= self._grace:
                deleted += await self._hours.delete(hour, self._grace)
        return deleted


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
