"""The policies of queues, each in the shard of its queue."""

from __future__ import annotations

from headrace.backends.redis.cluster.shards import Capability, by_shard, every
from headrace.errors import ConfigError
from headrace.seam.policy import STORE, GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.records import Names, Stamp


class ClusterPolicies(Capability):
    """The operations of a :class:`~headrace.seam.protocol.PolicyStore`. All that belongs to a queue is in one shard, so
    its rules hold as on one server. The only rule for the whole store is that it takes no new job (a depth of 0)."""

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        if policy.queue == STORE:
            return await self._save_for_all(policy, at)
        return await self._shards.shard_of(policy.queue).policies.save(policy, at)

    async def _save_for_all(self, policy: Policy, at: Stamp) -> bool:
        """The rule of each shard; one that failed to get it gets it when this is repeated."""
        if policy.depth not in (0, None):
            raise ConfigError(
                f"{self._shards.where}: expected the policy of a queue, got one of the whole store: the shards of a "
                "cluster do not count their jobs together, so its depth is 0 or none. Give each queue its own depth"
            )
        stores = [shard.policies for shard in self._shards.all]
        known = [await one.find([STORE], at) for one in stores]
        versions = [states[0].policy.version if states else 0 for states in known]
        if policy.version != min(versions):
            return False
        late = [one for one, version in zip(stores, versions, strict=True) if version == policy.version]
        return all(await every(one.save(policy, at) for one in late))

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        await self._shards.shard_of(limit.queue).policies.limit(limit, at)

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        await self._shards.shard_of(pause.queue).policies.pause(pause, at)

    async def find(self, queues: Names = None, at: Stamp = None) -> list[PolicyState]:
        shards = self._shards
        if queues is None:
            answers = await every(shard.policies.find(None, at) for shard in shards.all)
        else:
            groups = by_shard((queue for queue in queues if queue != STORE), shards.number_of)
            if STORE in queues:
                groups = {shard.number: [STORE, *groups.get(shard.number, ())] for shard in shards.all}
            answers = await every(shards.all[number].policies.find(of, at) for number, of in groups.items())
        found = sorted(
            (one for answer in answers for one in answer), key=lambda one: (one.policy.queue, one.policy.version)
        )
        return [one for n, one in enumerate(found) if n == 0 or found[n - 1].policy.queue != one.policy.queue]

    async def tenants(
        self, queue: str, names: Names = None, after: str | None = None, limit: int = 100, at: Stamp = None
    ) -> list[TenantState]:
        return await self._shards.shard_of(queue).policies.tenants(queue, names, after, limit, at)

    async def group(self, queue: str, group: str) -> GroupState:
        return await self._shards.shard_of(queue).policies.group(queue, group)
