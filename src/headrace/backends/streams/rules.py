"""Policies, schedules, references, transfers: PostgreSQL has them. It also gives out the jobs of queues with rules."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.postgres.policies import PostgresPolicies
from headrace.backends.postgres.references import PostgresReferences
from headrace.backends.postgres.ticks import PostgresTicks
from headrace.backends.postgres.transfers import PostgresTransfers
from headrace.backends.streams.changing import Changing
from headrace.backends.streams.relay import Relay
from headrace.seam import records as r
from headrace.seam import ticks as t
from headrace.seam.policy import STORE, GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.references import Referrer, Swap
from headrace.seam.transfers import Parcel


class WindowedPolicies:
    """See :class:`headrace.seam.protocol.PolicyStore`. The window is closed before a change, so that nothing is given
    out by the rules of before, and again after it, as somebody may have opened it."""

    def __init__(self, inner: PostgresPolicies, relay: Relay) -> None:
        self._inner = inner
        self._relay = relay

    async def save(self, policy: Policy, at: r.Stamp = None) -> bool:
        await self._close(policy.queue, at)
        done = await self._inner.save(policy, at)
        await self._close(policy.queue, at)
        return done

    async def limit(self, limit: TenantLimit, at: r.Stamp = None) -> None:
        await self._relay.close(limit.queue, at)
        await self._inner.limit(limit, at)
        await self._relay.close(limit.queue, at)

    async def pause(self, pause: QueuePause, at: r.Stamp = None) -> None:
        await self._relay.close(pause.queue, at)
        await self._inner.pause(pause, at)
        await self._relay.close(pause.queue, at)

    async def _close(self, queue: str, at: r.Stamp) -> None:
        for one in await self._relay.queues(at) if queue == STORE else [queue]:
            await self._relay.close(one, at)

    async def find(self, queues: r.Names = None, at: r.Stamp = None) -> list[PolicyState]:
        return await self._inner.find(queues, at)

    async def tenants(
        self, queue: str, names: r.Names = None, after: str | None = None, limit: int = 100, at: r.Stamp = None
    ) -> list[TenantState]:
        return await self._inner.tenants(queue, names, after, limit, at)

    async def group(self, queue: str, group: str) -> GroupState:
        return await self._inner.group(queue, group)


class WindowedTicks:
    """See :class:`headrace.seam.protocol.TickStore`. A plan that may cancel a job must find its lease in PostgreSQL."""

    def __init__(self, inner: PostgresTicks, relay: Relay) -> None:
        self._inner = inner
        self._relay = relay

    async def save(self, batch: Sequence[t.Save | t.Drop], at: r.Stamp = None) -> list[bool]:
        return await self._inner.save(batch, at)

    async def find(self, sel: t.ScheduleSelector, after: str | None = None, limit: int = 100) -> list[t.Schedule]:
        return await self._inner.find(sel, after, limit)

    async def due(self, req: t.Look, at: r.Stamp = None) -> t.Looked:
        return await self._inner.due(req, at)

    async def plan(self, batch: Sequence[t.Plan], at: r.Stamp = None) -> list[list[t.TickOutcome | None] | None]:
        cancelling = [tick for plan in batch for tick in plan.ticks if tick.overlap is t.Overlap.CANCEL and tick.row]
        for queue in dict.fromkeys(tick.row.queue for tick in cancelling if tick.row is not None):
            await self._relay.close(queue, at)
        return await self._inner.plan(batch, at)

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[t.Tick]:
        return await self._inner.history(uid, before, limit)

    async def note(self, batch: Sequence[t.TickNote], at: r.Stamp = None) -> None:
        await self._inner.note(batch, at)


class WindowedReferences:
    """See :class:`headrace.seam.references.ReferenceStore`. A job whose cells change leaves its window."""

    def __init__(self, inner: PostgresReferences, changing: Changing) -> None:
        self._inner = inner
        self._changing = changing

    async def find(
        self, before: int, after: tuple[int, r.JobId] | None = None, limit: int = 100, at: r.Stamp = None
    ) -> list[Referrer]:
        return await self._inner.find(before, after, limit, at)

    async def swap(self, batch: Sequence[Swap], at: r.Stamp = None) -> list[bool]:
        done = await self._inner.swap(batch, at)
        await self._changing.recall([one.id for one in batch], at)
        return done


class WindowedTransfers(PostgresTransfers):
    """Jobs leave their windows before they leave the store."""

    def __init__(self, inner: PostgresTransfers, changing: Changing) -> None:
        self.__dict__.update(inner.__dict__)
        self._changing = changing

    async def depart(self, leg: str, ids: Sequence[r.JobId], at: r.Stamp = None) -> list[Parcel]:
        await self._changing.recall(ids, at)
        return await super().depart(leg, ids, at)
