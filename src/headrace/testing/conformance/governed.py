"""What the tests of governed queues share."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headrace.seam.policy import Policy, PolicyState
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Claimed, Settlement
from headrace.testing.conformance.base import (
    LEASE,
    T0,
    ConformanceBase,
    job_id,
    number,
    row,
)
from headrace.types import JobState

GOVERNED = Policy(queue="q", tenant_batch=10)
"""Nothing but turns."""


class GovernedBase(ConformanceBase):
    """One queue, ``q``, and its rules."""

    async def govern(self, store: Backend, queue: str = "q", at: int = T0, **rules: Any) -> None:
        """Change the policy of a queue."""
        [known] = await self.policies(store).find([queue], at) or [PolicyState(replace(GOVERNED, queue=queue))]
        assert await self.policies(store).save(replace(known.policy, **rules), at)

    async def claim(
        self, store: Backend, limit: int = 100, at: int = T0, holder: str = "w1", **changes: Any
    ) -> Claimed:
        return await store.claim(Claim(holder, changes.pop("queues", ("q",)), limit, LEASE, **changes), at)

    async def got(self, store: Backend, limit: int = 100, at: int = T0, holder: str = "w1") -> list[int]:
        """Which jobs a claim gets."""
        return [number(job) for job in (await self.claim(store, limit, at, holder)).jobs]

    async def ahead(self, store: Backend, tenant: str) -> None:
        """A tenant was given more than others, and has nothing now."""
        await self.govern(store, tenant_batch=4)
        await self.put(store, *(row(n, tenant=tenant) for n in range(3)))
        await self.end(store, *await self.got(store))

    async def end(self, store: Backend, *numbers: int, holder: str = "w1", at: int = T0) -> None:
        """Complete jobs that run."""
        ends = [
            Settlement(job_id(n), (await self.get(store, n, at=at)).epoch, holder, JobState.COMPLETED) for n in numbers
        ]
        assert await store.finish(ends, at) == [JobState.COMPLETED] * len(ends)
