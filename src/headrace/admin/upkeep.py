"""Upkeep: what operators do to schedules, limits, retention and the vault. Each is noted in the audit log first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack
from uuid import UUID

from headrace.admin.audit import Audit
from headrace.api.app import App
from headrace.api.client import Client
from headrace.core.actor import local_actor
from headrace.keeping.janitor import Janitor, JanitorRun
from headrace.limits.policies import Policies, PolicyInfo, Rules
from headrace.schedules.schedules import Schedules
from headrace.schedules.spec import ScheduleInfo
from headrace.types import Duration
from headrace.vault.query import Answer
from headrace.vault.vault import Vault


class Upkeep:
    """Changes to what is not a job. Reading is the business of the app's own parts, which are here too."""

    def __init__(self, client: Client, audit: Audit) -> None:
        app = App(client)
        self._audit = audit
        self.schedules: Schedules = app.schedules
        self.policies: Policies = app.policies
        self.janitor: Janitor = app.janitor
        self.vault: Vault = app.vault

    async def run_schedule(self, name: str, *, actor: str | None = None) -> UUID:
        """Run the job of a schedule once, now."""
        await self._note(actor, "run schedule", schedule=name)
        return await self.schedules.run(name)

    async def pause_schedule(self, name: str, *, actor: str | None = None) -> ScheduleInfo:
        """Stop a schedule from firing until it is resumed."""
        await self._note(actor, "pause schedule", schedule=name)
        return await self.schedules.disable(name)

    async def resume_schedule(self, name: str, *, actor: str | None = None) -> ScheduleInfo:
        """Let a schedule fire again."""
        await self._note(actor, "resume schedule", schedule=name)
        return await self.schedules.enable(name)

    async def limit_queue(self, queue: str, *, actor: str | None = None, **rules: Unpack[Rules]) -> PolicyInfo:
        """Set rules of a queue; None removes one."""
        await self._note(actor, "limit queue", queue=queue, rules=dict(rules))
        return await self.policies.set(queue, **rules)

    async def limit_tenant(self, queue: str, tenant: str, running: int | None, *, actor: str | None = None) -> None:
        """How many jobs of a tenant may run at a time; None: as many as the queue's rules say."""
        await self._note(actor, "limit tenant", queue=queue, tenant=tenant, running=running)
        await self.policies.limit_tenant(queue, tenant, running=running)

    async def pause_tenant(
        self, tenant: str, lasts: Duration | None = None, *, actor: str | None = None
    ) -> Sequence[str]:
        """Pause a tenant in all queues, for that long or until it is resumed. Returns the queues that there are."""
        told = None if lasts is None else str(lasts)
        await self._note(actor, "pause tenant", tenant=tenant, lasts=told)
        return await self.policies.pause_tenant(tenant, lasts=lasts)

    async def resume_tenant(self, tenant: str, *, actor: str | None = None) -> Sequence[str]:
        """Resume a tenant in all queues. Returns those in which it was paused."""
        await self._note(actor, "resume tenant", tenant=tenant)
        return await self.policies.resume_tenant(tenant)

    async def run_janitor(self, *, force: bool = False, actor: str | None = None) -> JanitorRun:
        """Delete what is over its bounds. Raises ``SafetyStop``."""
        await self._note(actor, "run janitor", force=force)
        return await self.janitor.run(force=force)

    async def set_budget(self, bytes: int | None, *, actor: str | None = None) -> None:
        """How many bytes the store may take up; None: any number."""
        await self._note(actor, "set budget", bytes=bytes)
        await (self.janitor.drop_budget() if bytes is None else self.janitor.set_budget(bytes))

    async def query_vault(self, sql: str, *, most: int = 200, actor: str | None = None) -> Answer:
        """The first rows of one ``SELECT`` over ended jobs, which sees nothing else."""
        await self._note(actor, "query vault", sql=sql)
        return await self.vault.confined(sql, most=most)

    async def _note(self, actor: str | None, action: str, **details: Any) -> None:
        await self._audit.note(actor or local_actor(), action, **details)
