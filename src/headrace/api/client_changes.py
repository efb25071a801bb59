"""What a client can change in its store: jobs that are there, and whether a queue is paused."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.api.client_reading import ClientReading
from headrace.core import validation
from headrace.core.events import Event, EventKind
from headrace.core.names import check_name
from headrace.core.slow_calls import timed
from headrace.errors import ConfigError, InvalidJob
from headrace.limits.rates import MOST_TASKS, check_lasts
from headrace.limits.tenant_pauses import TenantPauses
from headrace.seam import records as r
from headrace.seam.policy import QueuePause
from headrace.seam.protocol import PolicyStore
from headrace.text import shown
from headrace.types import Duration, JobState


class ClientChanges(ClientReading):
    """Reads and changes."""

    async def alter(self, sel: r.Selector, change: r.Change) -> list[r.Altered]:
        """Change jobs from outside: those named, or up to ``sel.limit`` that match.

        While the store is ``Unavailable``, a change that can be made twice without harm is repeated for up to
        ``patience``: one of jobs named by their ids, except ``Requeue`` and ``Reschedule``; ``Hold``; and one of a
        queue. The answer is that to the last try: what an earlier try changed is not ``changed``, or not there any
        more. Other changes raise ``Unavailable`` at once, and whether they were made is unknown: look before you repeat
        them.
        """
        sel, change = self._checked(sel, change)
        return await self._alter(sel, change, again=validation.repeatable(sel, change))

    async def alter_all(self, sel: r.Selector, change: r.Change) -> int:
        """Apply a change to everything that matches, step by step; returns how many jobs changed.

        While the store is ``Unavailable``, a step is repeated for up to ``patience``, except ``Requeue`` and
        ``Reschedule``. What an earlier try changed may not be counted. If it raises, some steps have been made: calling
        it again does the rest.
        """
        sel, change = self._checked(sel, change)
        total = 0
        while altered := await self._alter(sel, change, again=not isinstance(change, r.Requeue | r.Reschedule)):
            total += sum(one.changed for one in altered)
            if len(altered) < sel.limit:
                break
            sel = replace(sel, above=altered[-1].id)
        return total

    def _checked(self, sel: r.Selector, change: r.Change) -> tuple[r.Selector, r.Change]:
        return validation.check_selector(sel), validation.check_change(change, self.packer.priority)

    async def _alter(self, sel: r.Selector, change: r.Change, *, again: bool) -> list[r.Altered]:
        backend = await self.backend()
        if again:
            altered = await self._patience.repeat(
                lambda: timed(self.observers, "alter", self._backend.alter(sel, change, self.clock.stamp()))
            )
        else:
            altered = await backend.alter(sel, change, self.clock.stamp())
        if self.observers and isinstance(change, r.Cancel):
            for one in altered:
                if one.changed and one.after is JobState.CANCELLED:
                    news = Event(EventKind.CANCELLED, one.id, one.queue, key=one.key, detail=change.reason)
                    self.observers.tell(news)
        return altered

    async def pause(
        self, queue: str, lasts: Duration | None = None, *, tenant: str | None = None, task: str | None = None
    ) -> None:
        """No worker claims from the queue, or jobs of one tenant or task in it, for that long or until it is resumed.
        Jobs that run go on."""
        await self._pause(queue, tenant, task, lasts=check_lasts(lasts))

    async def resume(self, queue: str, *, tenant: str | None = None, task: str | None = None) -> None:
        """Workers may claim again what was paused."""
        await self._pause(queue, tenant, task, paused=False)

    async def _pause(
        self, queue: str, tenant: str | None, task: str | None, *, paused: bool = True, lasts: int | None = None
    ) -> None:
        if tenant is not None and task is not None:
            raise InvalidJob(f"expected a tenant or a task, got both: {shown(tenant)} and {shown(task)}")
        pause = QueuePause(
            check_name(queue, "queue"),
            None if tenant is None else check_name(tenant, "tenant", empty=True),
            None if task is None else check_name(task, "task"),
            paused,
            lasts,
        )
        await self.backend()
        policies = self._backend.policies
        if policies is None:
            raise ConfigError("this store keeps no policies of queues, so it cannot pause one")
        if task is not None and paused:
            await self._check_pauses(policies, queue, task)
        if tenant is not None and not paused:
            await TenantPauses(self._backend, self.clock).spare(tenant, queue)
        await self._patience.repeat(lambda: policies.pause(pause, self.clock.stamp()))

    async def _check_pauses(self, policies: PolicyStore, queue: str, task: str) -> None:
        """Refuse a pause if as many tasks are paused as may be."""
        found = await self._patience.repeat(lambda: policies.find([queue], self.clock.stamp()))
        tasks = found[0].paused_tasks if found else {}
        if len(tasks) >= MOST_TASKS and task not in tasks:
            raise ConfigError(
                f"cannot pause task {shown(task)} in queue {shown(queue)}: {len(tasks):,} tasks of it are paused"
                " already, and every claim looks at all of them; pause the queue, or resume some"
            )
