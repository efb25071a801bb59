"""A store that writes down which leases it has granted: what is certain of them, and nothing more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from chaos.ledger import LedgerWriter
from headrace.seam.protocol import Backend
from headrace.seam.records import Claimed, JobId, Settlement, Stamp
from headrace.testing.wrapped import Carry, Wrapped


class Witness(Wrapped):
    """Any backend, with its leases in the ledger of this process.

    ``leased``: the lease was there at this instant. ``until``: nobody could take it back before this instant, as it was
    granted or renewed for so long, after the request was sent. ``ending``: it was there until then, and is now being
    given back. So what the ledger calls a lease was one, whatever was lost or late.
    """

    def __init__(self, inner: Backend, ledger: LedgerWriter) -> None:
        super().__init__(inner)
        self._ledger = ledger

    def sibling(self) -> Witness:
        return Witness(self.inner.sibling(), self._ledger)

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[Any]) -> Any:
        if name in ("finish", "finish_and_claim"):
            self._ending(args[0])
        asked = time.monotonic_ns()
        answer = await carry(at)
        match name:
            case "claim":
                self._granted(answer, asked, args[0].lease_for)
            case "finish_and_claim":
                self._granted(answer[1], asked, args[1].lease_for)
            case "renew":
                kept = set(args[0].leases) - {*answer.lost, *answer.busy}
                self._lasting(kept, asked, args[0].lease_for)
        return answer

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
