"""What was sealed with an old key is sealed again with the one that seals now."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from headrace.core.clock import Clock
from headrace.core.walks import walk
from headrace.errors import CodecError, HeadraceError, ObjectsUnavailable
from headrace.keeping.share import ALL, Share
from headrace.payloads.keyring import Keyring
from headrace.payloads.offload import any_large
from headrace.payloads.sealing import UNREADABLE, key_name, resealed
from headrace.payloads.segments import ToStow
from headrace.payloads.stowage import Stowage
from headrace.seam.protocol import Backend
from headrace.seam.records import Cells, JobId, Record, Selector
from headrace.seam.references import RESULT, Swap, is_reference
from headrace.types import SECTIONS

_PAGE = 100
_MOST = 4 * 1024 * 1024
"""Bytes of cells that are best read at a time."""
_EVERYTHING = frozenset((*SECTIONS, RESULT))


class Resealed(NamedTuple):
    """What became of the cells that were looked at."""

    looked: int
    resealed: int
    refused: int
    """Neither opened nor changed: no key fits, they are not sealed, or their object is gone."""

    def plus(self, other: Resealed) -> Resealed:
        """Both together."""
        return Resealed(*map(sum, zip(self, other, strict=True)))


class Resealer:
    """Walks over all jobs, newest first, and seals their cells and results again.

    A cell is replaced only if it is still the one that was read, so a run that writes a cell meanwhile wins. Every step
    is bounded and safe to repeat, and any number may walk at once.
    """

    def __init__(
        self, backend: Backend, keyring: Keyring, stowage: Stowage | None, clock: Clock, *, unsealed: bool = False
    ) -> None:
        if backend.references is None:
            raise CodecError("this store cannot replace cells, so they cannot be sealed again")
        self._backend = backend
        self._references = backend.references
        self._keyring = keyring
        self._stowage = stowage
        self._clock = clock
        self._unsealed = unsealed
        """Whether cells that are not sealed are to be sealed."""
        self._at_once = 16

    async def reseal(self, share: Share = ALL, pause: float = 0.0) -> Resealed:
        """One walk, with a pause after each page."""
        total = Resealed(0, 0, 0)
        async for jobs in self._jobs(share):
            total = total.plus(await self._reseal(jobs))
            await asyncio.sleep(pause)
        return total

    async def survey(self) -> Counter[str]:
        """How many cells and results are sealed with which key."""
        found: Counter[str] = Counter()
        async for jobs in self._jobs(ALL):
            for cells in await self._loaded(jobs):
                for name, cell in cells.items():
                    found[key_name(self._keyring, cell, name) if isinstance(cell, bytes) else UNREADABLE] += 1
        return found

    async def _jobs(self, share: Share) -> AsyncIterator[list[Record]]:
        """All jobs with all their cells, a few at a time: fewer if they are large."""
        async for listed in walk(self._backend, Selector(), self._clock, page=_PAGE):
            ids = [record.id for record in listed if share.has(record.id)]
            while ids:
                part, ids = ids[: self._at_once], ids[self._at_once :]
                records = await self._backend.fetch(part, _EVERYTHING, self._clock.stamp())
                found = [record for record in records if record is not None]
                size = sum(len(cell) for record in found for cell in _stored(record).values())
                self._at_once = max(1, self._at_once // 2) if size > _MOST else min(_PAGE, 2 * self._at_once)
                yield found

    async def _loaded(self, jobs: Sequence[Record]) -> list[dict[str, bytes | HeadraceError]]:
        """The cells of each job, with what its references lead to."""
        cells = [_stored(job) for job in jobs]
        if self._stowage is not None:
            return await self._stowage.load(cells)
        return [
            {name: CodecError("there is no object store") if is_reference(cell) else cell for name, cell in of.items()}
            for of in cells
        ]

    async def _reseal(self, jobs: Sequence[Record]) -> Resealed:
        loaded = await self._loaded(jobs)
        if away := next((c for of in loaded for c in of.values() if isinstance(c, ObjectsUnavailable)), None):
            raise away
        changed: list[tuple[Record, str, bytes]] = []
        refused = 0
        for job, cells in zip(jobs, loaded, strict=True):
            for name, cell in cells.items():
                try:
                    new = await self._again(job, name, cell)
                except HeadraceError:
                    refused += 1
                else:
                    if new is not None:
                        changed.append((job, name, new))
        done = await self._replace(changed)
        return Resealed(sum(map(len, loaded)), done, refused)

    async def _again(self, job: Record, section: str, cell: bytes | HeadraceError) -> bytes | None:
        if isinstance(cell, HeadraceError):
            raise cell
        again = partial(resealed, self._keyring, cell, section, job.id, job.tenant, unsealed=self._unsealed)
        return await asyncio.to_thread(again) if any_large({section: cell}) else again()

    async def _replace(self, changed: Sequence[tuple[Record, str, bytes]]) -> int:
        """Put new cells in the place of old ones; how many."""
        away = [(job, cell) for job, name, cell in changed if is_reference(_stored(job)[name])]
        copies: Iterator[bytes] = iter(())
        if away and self._stowage is not None:
            stowed = await self._stowage.segments.stow([ToStow(cell, job.run_at) for job, cell in away])
            copies = iter([one.cell for one in stowed])
        swaps: dict[JobId, tuple[Cells, Cells]] = {}
        for job, name, cell in changed:
            was = _stored(job)[name]
            seen, new = swaps.setdefault(job.id, ({}, {}))
            seen[name], new[name] = was, next(copies) if is_reference(was) else cell
        batch = [Swap(job_id, seen, new) for job_id, (seen, new) in swaps.items()]
        answers = await self._references.swap(batch, self._clock.stamp()) if batch else []
        return sum(len(swap.cells) for swap, done in zip(batch, answers, strict=True) if done)


def _stored(record: Record) -> Cells:
    return record.cells if record.result is None else record.cells | {RESULT: record.result}
