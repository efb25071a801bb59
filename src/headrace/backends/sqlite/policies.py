"""The policies of queues in a SQLite file: each operation is handed to the thread that serves it."""

from __future__ import annotations

from headrace.backends.sqlite import groups, marks, rules
from headrace.backends.sqlite.connection_thread import Capability, Read, Write
from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.records import Names, Stamp


class SqlitePolicies(Capability):
    """The operations of a :class:`~headrace.seam.protocol.PolicyStore`."""

    def __init__(self, read: Read, write: Write, count_cap: int) -> None:
        super().__init__(read, write)
        self._count_cap = count_cap

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        saved = await self._write(lambda tx, now: rules.save(tx, policy, now), at)
        await self._reach_all(at)
        return saved

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        await self._write(lambda tx, now: rules.limit(tx, limit, now), at)

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        await self._write(lambda tx, now: rules.pause(tx, pause, now), at)
        await self._reach_all(at)

    async def _reach_all(self, at: Stamp) -> None:
        while await self._write(marks.go_on, at, peek=marks.none_left):
            pass

    async def find(self, queues: Names = None, at: Stamp = None) -> list[PolicyState]:
        return await self._read(lambda session, now: rules.find(session, queues, now), at)

    async def tenants(
        self, queue: str, names: Names = None, after: str | None = None, limit: int = 100, at: Stamp = None
    ) -> list[TenantState]:
        cap = self._count_cap
        return await self._read(
            lambda session, now: rules.find_tenants(session, queue, names, after, limit, cap, now), at
        )

    async def group(self, queue: str, group: str) -> GroupState:
        return await self._read(lambda session, _: groups.state(session, queue, group, self._count_cap), None)
