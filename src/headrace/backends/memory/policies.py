"""The policies of queues, in memory."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace.backends.memory.capability import Capability
from headrace.backends.memory.store import MemoryStore
from headrace.backends.memory.turns import MemoryTenant, MemoryTurns
from headrace.backends.turns import opens_at
from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.records import Names, Stamp


class MemoryPolicies(Capability):
    """The operations of a :class:`~headrace.seam.protocol.PolicyStore`."""

    def __init__(self, store: MemoryStore, begin: Callable[[Stamp], int], count_cap: int) -> None:
        super().__init__(store, begin)
        self._count_cap = count_cap

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        with self._store.lock:
            now = self._begin(at)
            known = self._store.policies.get(policy.queue)
            if policy.version != (0 if known is None else known.version):
                return False
            self._store.policies[policy.queue] = policy = replace(policy, version=policy.version + 1)
            if policy.governs:
                self._store.govern(policy.queue)
            if (turns := self._store.turns.get(policy.queue)) is not None:
                turns.rule(policy, self._store.jobs.__getitem__)
                turns.wake_all(now)
            for queue, group in list(self._store.groups):
                if queue == policy.queue:
                    self._store.call(queue, group)
            self._store.publish(f"queue:{policy.queue}")
            return True

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        with self._store.lock:
            now = self._begin(at)
            turns = self._store.govern(limit.queue)
            if limit.running is None and limit.rate is None:
                turns.limits.pop(limit.tenant, None)
            else:
                turns.limits[limit.tenant] = limit
            turns.wake_tenant(limit.tenant, now)
            self._store.publish(f"queue:{limit.queue}")

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        with self._store.lock:
            now = self._begin(at)
            if pause.tenant is not None:
                turns = self._store.govern(pause.queue)
                pauses, name = turns.paused_tenants, pause.tenant
            elif pause.task is not None:
                turns = self._store.govern(pause.queue)
                pauses, name = turns.paused_tasks, pause.task
            else:
                pauses, name = self._store.paused_queues, pause.queue
            if pause.paused:
                pauses[name] = pause.until(now)
            else:
                pauses.pop(name, None)
                self._store.publish(f"queue:{pause.queue}")
            if pause.tenant is not None:
                turns.wake_tenant(pause.tenant, now)
            elif pause.task is not None:
                turns.wake_all(now)

    async def find(self, queues: Names = None, at: Stamp = None) -> list[PolicyState]:
        with self._store.lock:
            now = self._begin(at)
            known = self._store.policies.keys() | self._store.turns.keys()
            return [self._state(queue, now) for queue in sorted(known if queues is None else known & set(queues))]

    def _state(self, queue: str, now: int) -> PolicyState:
        turns = self._store.turns.get(queue)
        return PolicyState(self._store.policies[queue]) if turns is None else turns.state(now)

    async def tenants(
        self, queue: str, names: Names = None, after: str | None = None, limit: int = 100, at: Stamp = None
    ) -> list[TenantState]:
        with self._store.lock:
            now = self._begin(at)
            turns = self._store.turns.get(queue)
            if turns is None:
                return []
            known = turns.tenants.keys() | turns.limits.keys() | turns.paused_tenants.keys()
            found = sorted(
                name for name in known if (after is None or name > after) and (names is None or name in names)
            )
            return [self._tenant(turns, name, now) for name in found[:limit]]

    def _tenant(self, turns: MemoryTurns, name: str, now: int) -> TenantState:
        tenant = turns.tenants.get(name) or MemoryTenant(name)
        waiting = min(sum(map(len, tenant.lanes.values())), self._count_cap)
        until = turns.paused_tenants.get(name, 0)
        opens = opens_at(tenant.rate, tenant.full_at, now)
        listed = [self._store.workers[holder] for holder in tenant.holders if holder in self._store.workers]
        workers = tuple(sorted(one.stats.worker for one in listed if one.until > now))
        return TenantState(
            turns.policy.queue, name, waiting, tenant.running, turns.limits.get(name), until if until > now else None,
            opens, workers,
        )  # fmt: skip

    async def group(self, queue: str, group: str) -> GroupState:
        with self._store.lock:
            found = self._store.groups.get((queue, group))
            if found is None:
                return GroupState(queue, group)
            return GroupState(queue, group, tuple(sorted(found.called)), min(len(found.line), self._count_cap))
