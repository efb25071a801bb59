"""The rules of queues, where jobs are in several stores."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.routing.view import Routed, each, present
from headrace.seam.policy import STORE, GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.protocol import PolicyStore
from headrace.seam.records import Names, Stamp


class RoutedPolicies(Routed):
    """The rules are read from the store that is home, and written to all. Each store keeps them for its own jobs: a
    queue whose jobs are in two may run as many of them in each."""

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        view = await self._look()
        if not await present(view.home.policies).save(policy, at):
            return False
        for store in view.stores:
            if store is not view.home and policy.queue != STORE:
                await copy_policy(present(store.policies), policy, at)
        return True

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        await each(await self._look(), lambda store: present(store.policies).limit(limit, at))

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        await each(await self._look(), lambda store: present(store.policies).pause(pause, at))

    async def find(self, queues: Names = None, at: Stamp = None) -> list[PolicyState]:
        return await present((await self._look()).home.policies).find(queues, at)

    async def tenants(
        self, queue: str, names: Names = None, after: str | None = None, limit: int = 100, at: Stamp = None
    ) -> list[TenantState]:
        found: dict[str, TenantState] = {}
        for some in await each(
            await self._look(), lambda store: present(store.policies).tenants(queue, names, after, limit, at)
        ):
            for one in some:
                known = found.get(one.tenant)
                found[one.tenant] = one if known is None else _sum(known, one)
        return [found[name] for name in sorted(found)][:limit]

    async def group(self, queue: str, group: str) -> GroupState:
        found = await each(await self._look(), lambda store: present(store.policies).group(queue, group))
        called = tuple(sorted({job_id for one in found for job_id in one.called}))
        return GroupState(queue, group, called, sum(one.waiting for one in found))


async def copy_policy(policies: PolicyStore, policy: Policy, at: Stamp = None) -> None:
    """Save a policy whatever there is."""
    for _ in range(10):
        known = await policies.find([policy.queue], at)
        if await policies.save(replace(policy, version=known[0].policy.version if known else 0), at):
            return


def _sum(a: TenantState, b: TenantState) -> TenantState:
    workers = tuple(sorted({*a.workers, *b.workers}))
    opens = max((one.opens_at for one in (a, b) if one.opens_at is not None), default=None)
    waiting, running = a.waiting + b.waiting, a.running + b.running
    return replace(b, waiting=waiting, running=running, opens_at=opens, workers=workers)
