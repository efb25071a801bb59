"""What can be asked and changed of one job: on a client, and on an app."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec.structs import replace

from headrace.api.client_changes import ClientChanges
from headrace.api.info import JobInfo, job_info
from headrace.api.loop_guard import needs_loop
from headrace.api.why import Circumstances, Why, explain
from headrace.core import validation
from headrace.core.durations import micros
from headrace.core.validation import AnyId
from headrace.errors import InvalidJob, JobNotFound
from headrace.seam import records as r
from headrace.text import shown
from headrace.types import Duration, JobState
from headrace.worker.failures import failures


class JobCalls:
    """What can be asked and changed of one job: on a client, and on an app."""

    def _access(self) -> ClientChanges:
        raise NotImplementedError

    async def get(self, job_id: AnyId | r.JobKey) -> JobInfo:
        """Everything that is known about a job. Raises ``JobNotFound``."""
        client = self._access()
        record = await client.fetch(job_id)
        if record is None:
            raise _not_found(job_id)
        return job_info(record, client.packer.envelope)

    async def why(self, job_id: AnyId | r.JobKey) -> Why:
        """In one sentence, why the job is not running, as far as the store can tell. Raises ``JobNotFound``."""
        client = self._access()
        policies, now, stamp = (await client.backend()).policies, await client.store_now(), client.clock.stamp()
        record = await client.fetch(job_id, frozenset({"error"}))
        if record is None:
            raise _not_found(job_id)
        queue, told = record.queue, failures(record.error)
        stats, last_chance = await client.stats([queue]), max(client.settings.worker.max_lost, 1)
        seen = Circumstances(record, stats, now, failure=told[-1] if told else None, last_chance=last_chance)
        if policies is not None and record.state is JobState.AVAILABLE:
            states = await policies.find([queue], stamp)
            tenants = await policies.tenants(queue, [record.tenant], at=stamp)
            group = None if record.group is None else await policies.group(queue, record.group)
            seen = replace(seen, policy=next(iter(states), None), tenant=next(iter(tenants), None), group=group)
        return explain(seen)

    @needs_loop("SyncApp(app).cancel(id)")
    async def cancel(self, job_id: AnyId | r.JobKey) -> JobState:
        """Cancel a waiting job, or ask a running one to stop. Returns its state: CANCELLED, RUNNING (it has been
        asked), or the one in which it had ended. Raises ``JobNotFound``."""
        return await self._alter_one(job_id, r.Cancel())

    @needs_loop("SyncApp(app).reschedule(id)")
    async def reschedule(
        self, job_id: AnyId | r.JobKey, *, delay: Duration | None = None, at: datetime | None = None
    ) -> JobState:
        """Make a waiting job due after ``delay``, or at ``at``; with neither, now. Returns its state: AVAILABLE or
        PAUSED if it was rescheduled; in any other state it stays as it is. Raises ``JobNotFound``."""
        if at is not None and delay is not None:
            raise InvalidJob("expected delay or at, got both")
        if at is not None:
            return await self._alter_one(job_id, r.Reschedule(run_at=self._access().packer.instant(at, "at")))
        return await self._alter_one(job_id, r.Reschedule(0 if delay is None else micros(delay, "delay")))

    @needs_loop("SyncApp(app).pause_job(id)")
    async def pause_job(self, job_id: AnyId | r.JobKey) -> JobState:
        """Keep a waiting job from running until it is resumed. Returns its state. Raises ``JobNotFound``."""
        return await self._alter_one(job_id, r.Pause())

    @needs_loop("SyncApp(app).resume_job(id)")
    async def resume_job(self, job_id: AnyId | r.JobKey) -> JobState:
        """Let a paused job go on, due when it was before. Returns its state. Raises ``JobNotFound``."""
        return await self._alter_one(job_id, r.Resume())

    async def _alter_one(self, job_id: AnyId | r.JobKey, change: r.Change) -> JobState:
        name = validation.check_which(job_id)
        sel = r.Selector(keys=[name]) if isinstance(name, r.JobKey) else r.Selector(ids=[name])
        altered = await self._access().alter(sel, change)
        if not altered or altered[0].after is None:
            raise _not_found(job_id)
        return altered[0].after


def _not_found(job_id: AnyId | r.JobKey) -> JobNotFound:
    return JobNotFound(f"no job {_shown_id(job_id)}: it never existed, or its record is past retention")


def _shown_id(job_id: AnyId | r.JobKey) -> str:
    if isinstance(job_id, r.JobKey):
        return f"{shown(job_id.key)} in queue {shown(job_id.queue)}"
    return str(UUID(bytes=validation.raw_id(job_id)))
