"""Sealing: cells are encrypted on their way into a store, and opened where their jobs run or are shown.

Without keys none of this is used: there is another ``Packer`` and another ``Envelope``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from headrace.core.config import PayloadSettings
from headrace.core.ids import IdMaker
from headrace.errors import InvalidJob, SealError
from headrace.payloads.codec import SEALED, Envelope, Serde, not_here
from headrace.payloads.keyring import Keyring
from headrace.payloads.offload import LARGE, any_large
from headrace.payloads.pack import Packer
from headrace.payloads.section_sizes import SectionSizes
from headrace.seam.records import Cells, Limits, Replaces, Row
from headrace.seam.references import is_reference
from headrace.types import NewJob, Patch

T = TypeVar("T")

_RESULT = "result"
UNSEALED = "not sealed"
UNREADABLE = "cannot be read"


class SealedEnvelope(Envelope):
    """Opens sealed cells. A cell that is not sealed is refused, unless those are still to be read. What it wraps is
    sealed by the packer, which knows the job."""

    def __init__(self, settings: PayloadSettings, max_size: int, keyring: Keyring, sizes: SectionSizes) -> None:
        as_it_is = settings.compress.left_out
        super().__init__(max_size=max_size, compress_over=settings.compress_over, as_it_is=as_it_is, sizes=sizes)
        self._keyring = keyring
        self._read_unsealed = settings.sealing.read_unsealed

    def unwrap(self, cell: bytes, section: str, job_id: bytes | None = None, tenant: str = "") -> tuple[int, bytes]:
        if is_reference(cell):
            raise not_here(cell, section)
        if not self._read_unsealed or is_sealed(cell):
            cell = self._keyring.open(cell, section, job_id, tenant)
        return super().unwrap(cell, section)


class SealingPacker(Packer):
    """A packer that seals what it packs, for the job that it packs it for."""

    seals = True

    def __init__(self, settings: PayloadSettings, keyring: Keyring, limits: Limits, ids: IdMaker) -> None:
        super().__init__(settings, limits, ids)
        self.keyring = keyring
        self.envelope = SealedEnvelope(settings, self.envelope.max_size, keyring, self.sizes)

    def pack(self, job: NewJob, reply_to: str | None = None) -> Row:
        return self._seal(super().pack(job, reply_to))

    async def pack_all(self, jobs: Iterable[NewJob], reply_to: str | None = None) -> list[Row]:
        rows = [Packer.pack(self, job, reply_to) for job in jobs]
        if any(any_large(row.cells) for row in rows):
            return await asyncio.to_thread(lambda: [self._seal(row) for row in rows])
        return [self._seal(row) for row in rows]

    def pack_template(self, job: NewJob) -> Row:
        row = super().pack(job)
        return replace(row, cells=self._sealed(row.cells, None, row.tenant))

    def patch(self, patch: Patch, job_id: bytes, tenant: str) -> dict[str, bytes | None]:
        changes = super().patch(patch, job_id, tenant)
        set_now = {section: cell for section, cell in changes.items() if cell is not None}
        return changes | self._sealed(set_now, job_id, tenant)

    def wrap_result(self, value: T, serde: Serde[T], job_id: bytes) -> bytes | None:
        cell = super().wrap_result(value, serde, job_id)
        return cell if cell is None or len(cell) > LARGE else self.seal_result(cell, job_id)

    def seal_result(self, cell: bytes, job_id: bytes) -> bytes:
        return cell if is_sealed(cell) else self.keyring.seal(cell, _RESULT, job_id)

    def compress(self, cell: bytes, job_id: bytes) -> bytes:
        return cell if is_sealed(cell) else self.seal_result(super().compress(cell, job_id), job_id)

    def _seal(self, row: Row) -> Row:
        """A row that may replace the cells of another job is not bound to its own id."""
        job_id = None if row.replaces & Replaces.CELLS else row.id
        return replace(row, cells=self._sealed(row.cells, job_id, row.tenant))

    def _sealed(self, cells: Cells, job_id: bytes | None, tenant: str) -> dict[str, bytes]:
        for section, cell in cells.items():
            if is_sealed(cell):
                raise InvalidJob(f"{section}: expected a payload in plain, got one that is sealed, for another job")
        return {section: self.keyring.seal(cell, section, job_id, tenant) for section, cell in cells.items()}


def is_sealed(cell: bytes) -> bool:
    """Whether the cell says that it is sealed."""
    return cell.startswith(b"%c" % SEALED)


def key_name(keyring: Keyring, cell: bytes, section: str) -> str:
    """The id of the key that a cell is sealed with, for people."""
    try:
        return keyring.key_of(cell, section) or UNSEALED
    except SealError:
        return UNREADABLE


def resealed(
    keyring: Keyring, cell: bytes, section: str, job_id: bytes | None, tenant: str, *, unsealed: bool = False
) -> bytes | None:
    """The cell sealed with the key that seals now; None if it is. What is not sealed at all is refused, or sealed if
    ``unsealed`` says so: while a store changes over to sealing. A result is not bound to its tenant."""
    key_id = keyring.key_of(cell, section)
    if key_id == keyring.seals_with:
        return None
    tenant = "" if section == _RESULT else tenant
    change = keyring.seal if unsealed and not key_id else keyring.reseal
    return change(cell, section, job_id, tenant)
