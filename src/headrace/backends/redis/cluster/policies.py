"""The policies of queues, each in the shard of its queue."""

from __future__ import annotations

from collections.abc import Callable

from headrace.backends.redis.cluster.shards import Shards, by_shard, every
from headrace.errors import ConfigError
from headrace.seam.policy import STORE, GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.records import Names, Stamp


class ClusterPolicies:
    """The operations of a :class:`~headrace.seam.protocol.PolicyStore`. All that belongs to a queue is in one shard, so
    its rules hold as on one server. There is no rule for the whole store."""

    def __init__(self, shards: Callable[[], Shards]) -> None:
        self._open_shards = shards

    @property
    def _shards(self) -> Shards:
        return self._open_shards()

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        if policy.queue == STORE:
            raise ConfigError(
                f"{self._shards.where}: expected the policy of a queue, got one of the whole store: the shards of a "
                "cluster do not count their jobs together. Give each queue a depth of its own"
            )
        return await self._shards.shard_of(policy.queue).policies.save(policy, at)

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        await self._shards.shard_of(limit.queue).policies.limit(limit, at)

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        await self._shards.shard_of(pause.queue).policies.pause(pause, at)

    async def find(self, queues: Names = None, at: Stamp = None) -> list[PolicyState]:
        shards = self._shards
        if queues is None:
            answers = await every(shard.policies.find(None, at) for shard in shards.all)
        else:
            groups = by_shard(queues, shards.number_of)
            answers = await every(shards.all[number].policies.find(of, at) for number, of in groups.items())
        return sorted((state for answer in answers for state in answer), key=lambda state: state.policy.queue)

    async def tenants(
        self, queue: str, names: Names = None, after: str | None = None, limit: int = 100, at: Stamp = None
    ) -> list[TenantState]:
        return await self._shards.shard_of(queue).policies.tenants(queue, names, after, limit, at)

    async def group(self, queue: str, group: str) -> GroupState:
        return await self._shards.shard_of(queue).policies.group(queue, group)
