"""Sections that a handler asks for while it runs."""

from __future__ import annotations

from headrace.core.clock import Clock
from headrace.errors import CodecError, HeadraceError, LeaseLost
from headrace.payloads.pack import Packer
from headrace.payloads.stowage import Stowage
from headrace.seam.protocol import Backend
from headrace.seam.records import Leased
from headrace.seam.references import is_reference


class SectionReader:
    """Reads a section of a running job from the store, and from the object store if it lies there."""

    def __init__(self, backend: Backend, clock: Clock, packer: Packer, stowage: Stowage | None) -> None:
        self._backend = backend
        self._clock = clock
        self._packer = packer
        self._stowage = stowage

    async def read(self, leased: Leased, section: str) -> bytes | None:
        """The bytes of a section; None if the job has none."""
        [record] = await self._backend.fetch([leased.id], frozenset({section}), self._clock.stamp())
        if record is None or record.epoch != leased.epoch:
            raise LeaseLost
        cell: bytes | HeadraceError | None = record.cells.get(section)
        if cell is None:
            return None
        if isinstance(cell, bytes) and is_reference(cell):
            if self._stowage is None:
                raise CodecError(f"{section}: it lies in an object store, and this process has none; set objects.url")
            [loaded] = await self._stowage.load([{section: cell}])
            cell = loaded[section]
        if isinstance(cell, HeadraceError):
            raise cell
        return self._packer.envelope.unwrap(cell, section, leased.id, leased.tenant)[1]
