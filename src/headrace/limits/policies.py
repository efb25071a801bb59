"""Policies of queues: how many jobs a queue takes in; and how fast, to whom and in which order it gives them out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from msgspec.structs import asdict, replace

from headrace.core.names import check_name, unknown_task
from headrace.core.store_access import Owner, StoreAccess
from headrace.core.validation import check_limit
from headrace.core.view import View
from headrace.errors import ConfigError, Unavailable
from headrace.limits.rates import RULES, check_count, check_lasts, check_rules, parse_rate, spell_rate
from headrace.limits.tenant_pauses import TenantPauses
from headrace.seam.instants import to_datetime
from headrace.seam.policy import FOREVER, STORE, Policy, PolicyState, Rate, TenantLimit, TenantState
from headrace.seam.protocol import PolicyStore
from headrace.types import Duration

log = logging.getLogger("headrace")

_TRIES = 20
"""How often a change is repeated if another one came first."""


class PolicyInfo(View, frozen=True, kw_only=True):
    """The rules of a queue; None: no such rule.

    >>> import asyncio
    >>> from headrace import App
    >>> async def main() -> PolicyInfo:
    ...     async with App("memory://") as app:
    ...         return await app.policies.set("mail", running=50, rate="100/s", tenant_running=5)
    >>> info = asyncio.run(main())
    >>> info.running, info.rate, info.tenant_running, info.tenant_workers
    (50, '100/s', 5, None)
    """

    queue: str
    """Empty: the whole store."""
    running: int | None
    rate: str | None
    tenant_running: int | None
    tenant_rate: str | None
    task_rates: dict[str, str]
    tenant_workers: int | None
    tenant_batch: int | None
    ageing: float | None
    """In seconds."""
    group_running: int
    depth: int | None
    fair: bool
    """Whether its tenants take turns."""
    paused_tasks: dict[str, datetime | None]
    """Until when; None: until they are resumed."""


class TenantInfo(View, frozen=True, kw_only=True):
    """A tenant of a queue whose tenants take turns.

    >>> import asyncio
    >>> from headrace import App
    >>> app = App("memory://")
    >>> @app.task(queue="mail")
    ... def send(to: str) -> None: ...
    >>> async def main() -> TenantInfo:
    ...     async with app:
    ...         await app.policies.set("mail", tenant_running=5)
    ...         await send.options(tenant="acme").enqueue("ada@example.org")
    ...         [tenant] = await app.policies.tenants("mail")
    ...         return tenant
    >>> tenant = asyncio.run(main())
    >>> tenant.tenant, tenant.waiting, tenant.running, tenant.limit, tenant.paused
    ('acme', 1, 0, None, False)
    """

    queue: str
    tenant: str
    waiting: int
    """Jobs that wait, up to 10,000, without those that wait for their group."""
    running: int
    limit: int | None
    rate: str | None
    """Its own, if it has any; they replace those that the policy sets for each tenant."""
    paused: bool
    paused_until: datetime | None
    """When the pause ends by itself."""
    opens_at: datetime | None
    """Its rate lets no job start before this."""
    workers: list[str]
    """The workers that have jobs of it."""


class Rules(TypedDict, total=False):
    """What ``policies.set`` takes; None removes a rule."""

    running: int | None
    rate: str | None
    tenant_running: int | None
    tenant_rate: str | None
    task_rates: Mapping[str, str] | None
    tenant_workers: int | None
    tenant_batch: int | None
    ageing: Duration | None
    group_running: int | None
    depth: int | None


class Policies:
    """The policies of a store's queues. They are kept in the store: every worker follows a change from its next claim
    on.

    >>> import asyncio
    >>> from headrace import App
    >>> async def main() -> None:
    ...     async with App("memory://") as app:
    ...         await app.policies.set("mail", rate="100/s", tenant_workers=2, tenant_batch=20, depth=100_000)
    ...         await app.policies.limit_tenant("mail", "acme", running=20)
    ...         await app.policies.pause("mail", tenant="trial", lasts="1h")
    ...         for tenant in await app.policies.tenants("mail"):
    ...             print(tenant.tenant, tenant.limit, tenant.paused)
    >>> asyncio.run(main())
    acme 20 False
    trial None True
    """

    def __init__(self, owner: Owner[StoreAccess], tasks: Collection[str] = ()) -> None:
        self._owner = owner
        self._tasks = tasks
        """The app's tasks, if it has any; another name may be a typo."""
        self._doubted: set[str] = set()

    async def set(self, queue: str, **rules: Unpack[Rules]) -> PolicyInfo:
        """Change rules of a queue. Rules that are not named stay; None removes one.

        ``running``: how many jobs run at once. ``rate``: how many start (``"100/s"``, ``"5/10m"``, ``"100/s, burst
        20"``). ``tenant_running`` and ``tenant_rate``: the same for each tenant. ``task_rates``: the rates of tasks, by
        their full names; all of them are replaced. ``tenant_workers``: how many workers have jobs of one tenant at
        once. ``tenant_batch``: how many jobs a tenant gets when it is its turn, 10 by default. ``ageing``: how long a
        wait makes up for one step of priority. ``group_running``: how many jobs of a group run at once. ``depth``: how
        many jobs may wait.
        """
        checked = check_rules(rules)
        self._doubt(checked.get("task_rates", ()), "its rate is set all the same")
        return await self._set(check_name(queue, "queue"), checked)

    async def limit_store(self, depth: int | None) -> PolicyInfo:
        """Limit how many jobs wait in all queues together; None: any number."""
        return await self._set(STORE, check_rules({"depth": depth}))

    async def _set(self, queue: str, rules: dict[str, Any]) -> PolicyInfo:
        store = await self._store()
        for _ in range(_TRIES):
            policy = replace(await self._policy(store, queue), **rules)
            if await store.save(policy, self._owner.client.clock.stamp()):
                return await self.get(queue) if queue else _policy_info(PolicyState(policy))
        raise Unavailable(f"others keep changing the policy of queue {queue!r}; try again")

    async def get(self, queue: str) -> PolicyInfo:
        """The rules of a queue; empty if it has none."""
        name = check_name(queue, "queue")
        found = await (await self._store()).find([name], self._owner.client.clock.stamp())
        return _policy_info(found[0] if found else PolicyState(Policy(queue=name)))

    async def list(self) -> Sequence[PolicyInfo]:
        """The rules of all queues that have any, by name; those of the whole store first."""
        found = await (await self._store()).find(None, self._owner.client.clock.stamp())
        return [_policy_info(one) for one in found]

    async def limit_tenant(
        self, queue: str, tenant: str, *, running: int | None = None, rate: str | None = None
    ) -> None:
        """Give one tenant limits of its own in a queue. They replace those that the policy sets for each tenant; with
        neither, they are removed."""
        limit = TenantLimit(
            check_name(queue, "queue"),
            check_name(tenant, "tenant", empty=True),
            None if running is None else check_count(running, "running"),
            None if rate is None else parse_rate(rate, "rate"),
        )
        await (await self._store()).limit(limit, self._owner.client.clock.stamp())

    async def tenants(self, queue: str, *, after: str | None = None, limit: int = 100) -> Sequence[TenantInfo]:
        """The tenants of a queue after ``after``, by name. A queue without rules does not know its tenants."""
        check_limit(limit)
        store = await self._store()
        most = self._owner.client.limits.max_batch
        found: list[TenantState] = []
        while len(found) < limit:
            page = min(limit - len(found), most)
            more = await store.tenants(check_name(queue, "queue"), None, after, page, self._owner.client.clock.stamp())
            found += more
            if len(more) < page:
                break
            after = more[-1].tenant
        return [_tenant_info(one) for one in found]

    async def pause(
        self, queue: str, *, tenant: str | None = None, task: str | None = None, lasts: Duration | None = None
    ) -> None:
        """Pause the queue, or one tenant or task in it, for ``lasts`` or until it is resumed: no worker claims its
        jobs. Running jobs go on. Name a task in full."""
        await self._owner.client.pause(queue, lasts, tenant=tenant, task=task)
        self._doubt([] if task is None else [task], "it is paused all the same")

    async def resume(self, queue: str, *, tenant: str | None = None, task: str | None = None) -> None:
        """End a pause: workers may claim again."""
        await self._owner.client.resume(queue, tenant=tenant, task=task)
        self._doubt([] if task is None else [task], "only this name is resumed")

    async def pause_tenant(self, tenant: str, *, lasts: Duration | None = None) -> Sequence[str]:
        """Pause a tenant in all queues, for ``lasts`` or until it is resumed: in those that have jobs or workers now,
        whose names are returned, and in those that workers serve who start later. In each of these queues, tenants take
        turns from then on."""
        pauses = await self._pauses()
        return await pauses.pause(check_name(tenant, "tenant", empty=True), check_lasts(lasts))

    async def resume_tenant(self, tenant: str) -> Sequence[str]:
        """Resume a tenant in all queues, also where it was paused alone; returns those in which it was paused."""
        return await (await self._pauses()).resume(check_name(tenant, "tenant", empty=True))

    async def paused_tenants(self) -> dict[str, datetime | None]:
        """The tenants that are paused in all queues, and until when; None: until they are resumed."""
        return {name: _moment(until) for name, until in (await (await self._pauses()).find()).items()}

    async def _pauses(self) -> TenantPauses:
        return TenantPauses(await self._owner.client.backend(), self._owner.client.clock)

    def _doubt(self, tasks: Iterable[str], what: str) -> None:
        """Warn, once for each name, of tasks that this app does not have; another app on the store may."""
        if not self._tasks:
            return
        for task in tasks:
            if task not in self._tasks and task not in self._doubted:
                self._doubted.add(task)
                log.warning("%s; %s", unknown_task(task, self._tasks), what)

    async def _policy(self, store: PolicyStore, queue: str) -> Policy:
        found = await store.find([queue], self._owner.client.clock.stamp())
        return found[0].policy if found else Policy(queue=queue)

    async def _store(self) -> PolicyStore:
        policies = (await self._owner.client.backend()).policies
        if policies is None:
            raise ConfigError("this store does not keep policies; SQLite, PostgreSQL and Valkey do")
        return policies


def _policy_info(state: PolicyState) -> PolicyInfo:
    """The rich view of a flat policy."""
    policy = state.policy
    rules = {name: value for name, value in asdict(policy).items() if name in RULES}
    rules |= {
        "rate": _rate(policy.rate),
        "tenant_rate": _rate(policy.tenant_rate),
        "task_rates": {task: spell_rate(rate) for task, rate in policy.task_rates.items()},
        "ageing": None if policy.ageing is None else policy.ageing / 1e6,
    }
    paused = {task: _moment(until) for task, until in state.paused_tasks.items()}
    return PolicyInfo(queue=policy.queue, fair=state.governed, paused_tasks=paused, **rules)


def _tenant_info(state: TenantState) -> TenantInfo:
    """The rich view of a flat tenant."""
    own = state.limit
    return TenantInfo(
        queue=state.queue,
        tenant=state.tenant,
        waiting=state.waiting,
        running=state.running,
        limit=None if own is None else own.running,
        rate=None if own is None else _rate(own.rate),
        paused=state.paused_until is not None,
        paused_until=_moment(state.paused_until),
        opens_at=_moment(state.opens_at),
        workers=list(state.workers),
    )


def _rate(rate: Rate | None) -> str | None:
    return None if rate is None else spell_rate(rate)


def _moment(instant: int | None) -> datetime | None:
    return None if instant is None or instant >= FOREVER else to_datetime(instant)
