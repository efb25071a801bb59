"""A store that writes down which leases it has granted: what is certain of them, and nothing more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from chaos.ledger import LedgerWriter
from headrace.seam.protocol import Backend, Turn
from headrace.seam.records import Beat, Claim, Claimed, JobId, Renewed, Settlement, Stamp
from headrace.types import JobState


class Witness:
    """Any backend, with its leases in the ledger of this process.

    ``leased``: the lease was there at this instant. ``until``: nobody could take it back before this instant, as it was
    granted or renewed for so long, after the request was sent. ``ending``: it was there until then, and is now being
    given back. So what the ledger calls a lease was one, whatever was lost or late.
    """

    def __init__(self, backend: Backend, ledger: LedgerWriter) -> None:
        self._backend = backend
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def sibling(self) -> Witness:
        return Witness(self._backend.sibling(), self._ledger)

    @property
    def turn(self) -> Turn | None:
        return None if self._backend.turn is None else self._turn

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        asked = time.monotonic_ns()
        claimed = await self._backend.claim(req, at)
        self._granted(claimed, asked, req.lease_for)
        return claimed

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        self._ending(batch)
        return await self._backend.finish(batch, at)

    async def _turn(
        self, batch: Sequence[Settlement], req: Claim, at: Stamp = None
    ) -> tuple[list[JobState | None], Claimed]:
        turn = self._backend.turn
        assert turn is not None
        self._ending(batch)
        asked = time.monotonic_ns()
        states, claimed = await turn(batch, req, at)
        self._granted(claimed, asked, req.lease_for)
        return states, claimed

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        asked = time.monotonic_ns()
        renewed = await self._backend.renew(beat, at)
        kept = set(beat.leases) - {*renewed.lost, *renewed.busy}
        self._lasting(kept, asked, beat.lease_for)
        return renewed

    def _granted(self, claimed: Claimed, asked: int, lease_for: int) -> None:
        for job in claimed.jobs:
            self._ledger.write("leased", job.id.hex(), job.epoch)
        self._lasting(((job.id, job.epoch) for job in claimed.jobs), asked, lease_for)

    def _lasting(self, leases: Iterable[tuple[JobId, int]], asked: int, lease_for: int) -> None:
        for job_id, epoch in leases:
            self._ledger.write("until", job_id.hex(), epoch, asked + lease_for * 1_000)

    def _ending(self, batch: Sequence[Settlement]) -> None:
        for settlement in batch:
            self._ledger.write("ending", settlement.id.hex(), settlement.epoch)
