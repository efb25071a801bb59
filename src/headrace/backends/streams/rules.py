"""Policies, schedules, references, transfers: PostgreSQL has them. It also gives out the jobs of queues with rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.backends.postgres.policies import PostgresPolicies
from headrace.backends.postgres.references import PostgresReferences
from headrace.backends.postgres.ticks import PostgresTicks
from headrace.backends.postgres.transfers import PostgresTransfers
from headrace.backends.streams.changing import Changing
from headrace.backends.streams.relay import Relay
from headrace.seam import records as r
from headrace.seam import ticks as t
from headrace.seam.policy import STORE, Policy, QueuePause, TenantLimit
from headrace.seam.references import Swap
from headrace.seam.transfers import Parcel


class WindowedPolicies(PostgresPolicies):
    """The window is closed before a change, so that nothing is given out by the rules of before, and again after it, as
    somebody may have opened it."""

    def __init__(self, inner: PostgresPolicies, relay: Relay) -> None:
        super().__init__(inner._call, inner._send, inner._count_cap)
        self._relay = relay

    async def save(self, policy: Policy, at: r.Stamp = None) -> bool:
        async with self._closed(policy.queue, at):
            return await super().save(policy, at)

    async def limit(self, limit: TenantLimit, at: r.Stamp = None) -> None:
        async with self._closed(limit.queue, at):
            await super().limit(limit, at)

    async def pause(self, pause: QueuePause, at: r.Stamp = None) -> None:
        async with self._closed(pause.queue, at):
            await super().pause(pause, at)

    @asynccontextmanager
    async def _closed(self, queue: str, at: r.Stamp) -> AsyncIterator[None]:
        await self._close(queue, at)
        yield
        await self._close(queue, at)

    async def _close(self, queue: str, at: r.Stamp) -> None:
        for one in await self._relay.queues(at) if queue == STORE else [queue]:
            await self._relay.close(one, at)


class WindowedTicks(PostgresTicks):
    """A plan that may cancel a job must find its lease in PostgreSQL."""

    def __init__(self, inner: PostgresTicks, relay: Relay) -> None:
        super().__init__(inner._call, inner._send)
        self._relay = relay

    async def plan(self, batch: Sequence[t.Plan], at: r.Stamp = None) -> list[list[t.TickOutcome | None] | None]:
        cancelling = [tick for plan in batch for tick in plan.ticks if tick.overlap is t.Overlap.CANCEL and tick.row]
        for queue in dict.fromkeys(tick.row.queue for tick in cancelling if tick.row is not None):
            await self._relay.close(queue, at)
        return await super().plan(batch, at)


class WindowedReferences(PostgresReferences):
    """A job whose cells change leaves its window."""

    def __init__(self, inner: PostgresReferences, changing: Changing) -> None:
        super().__init__(inner._call, inner._send)
        self._changing = changing

    async def swap(self, batch: Sequence[Swap], at: r.Stamp = None) -> list[bool]:
        done = await super().swap(batch, at)
        await self._changing.recall([one.id for one in batch], at)
        return done


class WindowedTransfers(PostgresTransfers):
    """Jobs leave their windows before they leave the store."""

    def __init__(self, inner: PostgresTransfers, changing: Changing) -> None:
        super().__init__(inner._call, inner._send)
        self._changing = changing

    async def depart(self, leg: str, ids: Sequence[r.JobId], at: r.Stamp = None) -> list[Parcel]:
        await self._changing.recall(ids, at)
        return await super().depart(leg, ids, at)
