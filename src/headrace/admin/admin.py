"""The admin API: one object that command line, HTTP and dashboard share."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from headrace.admin import views
from headrace.admin.actions import Action, change_of
from headrace.admin.audit import Audit
from headrace.admin.filters import parse_filter
from headrace.admin.listening import Listening
from headrace.admin.operations import PACE, Operation, Submitted, find_operation, list_operations, operation_job
from headrace.admin.redaction import Redaction, redact, redact_failure, redact_job
from headrace.admin.search import search
from headrace.admin.timeline import timeline
from headrace.admin.upkeep import Upkeep
from headrace.api.client import Client
from headrace.api.connection import connect
from headrace.api.info import job_info
from headrace.api.queue_health import listeners
from headrace.api.why import without_error
from headrace.core.actor import local_actor
from headrace.core.config import Settings
from headrace.core.numbers import check_whole
from headrace.core.validation import AnyId, check_which, raw_id
from headrace.errors import ConfigError, JobNotFound, QueueFull, StoreFull
from headrace.keeping.budget import usage_of
from headrace.keeping.waiting_ends import look_at_ended
from headrace.seam.instants import to_datetime
from headrace.seam.policy import OPERATIONS
from headrace.seam.records import JobKey, QueueStats, Record, Selector, Stats, WorkerStats
from headrace.text import shown, url_without_secrets
from headrace.types import Duration
from headrace.worker.failures import failures

COUNTED = 10_000
"""Beyond this many, matching jobs are not counted."""


class Admin:
    """Looks at the jobs, queues and workers of a store.

    Lists and statistics come from a replica, if there is one; single jobs never do, nor does anything by which
    something is decided.

    >>> import asyncio
    >>> from headrace import Admin, App
    >>> app = App("memory://")
    >>> @app.task(queue="mail")
    ... async def welcome(user: int, token: str = "x") -> None: ...
    >>> async def main():
    ...     async with app:
    ...         for user in range(20):
    ...             await welcome.enqueue(user, "x")
    ...         admin = Admin(app.client)
    ...         found = await admin.jobs("queue:mail args.user>=18")
    ...         details = await admin.job(found.jobs[0].id)
    ...         return len(found.jobs), details.job.args, details.why.code.value
    >>> asyncio.run(main())
    (2, {'user': 19, 'token': '•••'}, 'no_worker')
    """

    def __init__(
        self, client: Client, *, replica: Client | None = None, redaction: Redaction = Redaction.SECRETS
    ) -> None:
        self.client = client
        self.redaction = redaction
        self._replica = replica
        self.primary: Admin = self if replica is None else Admin(client, redaction=redaction)
        """The same without the replica, which may lag: for numbers by which something is decided."""
        self.audit = Audit(client)
        """Who did what."""
        self.listening = Listening(client)
        """What happens in all processes of the store, as it happens."""
        self.upkeep = Upkeep(client, self.audit)
        """Schedules, limits, retention and the vault."""

    @property
    def reader(self) -> Client:
        """Who reads lists and statistics: the replica, if there is one."""
        return self._replica or self.client

    async def close(self) -> None:
        """Disconnect from the replica. The client stays as it is."""
        if self._replica is not None:
            await self._replica.close()

    async def jobs(self, filter: str = "", after: str | None = None, limit: int = 50) -> views.JobPage:
        """Jobs that a filter finds, newest first, without arguments and results."""
        found = await search(self.reader, parse_filter(filter, self.redaction), after, limit)
        envelope = self.reader.packer.envelope
        jobs = [job_info(replace(record, cells={}, result=None), envelope) for record in found.records]
        return views.JobPage([redact_job(job, self.redaction) for job in jobs], found.after, found.looked_at)

    async def count(self, filter: str = "", most: int = COUNTED) -> views.JobCount:
        """How many jobs a filter finds: exactly, up to ``most``."""
        wanted = parse_filter(filter, self.redaction)
        number, after = 0, None
        while number <= most:
            found = await search(self.reader, wanted, after, most + 1 - number)
            number += len(found.records)
            if (after := found.after) is None:
                return views.JobCount(number)
        return views.JobCount(most, exact=False)

    async def job(self, job_id: AnyId | JobKey, *, reveal: bool = False, actor: str | None = None) -> views.JobDetails:
        """Everything about a job, named by its id, or by queue and key. Raises ``JobNotFound``. ``reveal``: nothing is
        redacted, and that is noted in the audit log."""
        which = check_which(job_id)
        if reveal:
            name = f"{which.queue}/{which.key}" if isinstance(which, JobKey) else str(UUID(bytes=which))
            await self.audit.note(actor or local_actor(), "reveal", job=name)
        record = await self.client.fetch(which)
        if record is None:
            name = which.key if isinstance(which, JobKey) else str(UUID(bytes=which))
            raise JobNotFound(f"no job {shown(name)}: it never existed, or its record is past retention")
        how = Redaction.NOTHING if reveal else self.redaction
        why = await self.client.why(record.id)
        info = redact_job(job_info(record, self.client.packer.envelope), how)
        told = timeline(record, info.failures, await self.client.store_now())
        shown_why = without_error(why) if how is Redaction.ALL else why
        return views.JobDetails(info, shown_why, told, self._sections(record, how))

    async def last_errors(self, ids: Sequence[AnyId]) -> dict[UUID, str]:
        """The last error of each of these jobs that has one."""
        backend = await self.reader.backend()
        records = await backend.fetch([raw_id(one) for one in ids], frozenset({"error"}), self.reader.clock.stamp())
        told = {UUID(bytes=one.id): failures(one.error) for one in records if one is not None}
        last = {job: redact_failure(kept[-1], self.redaction) for job, kept in told.items() if kept}
        return {job: f"{one.type}: {one.message}" for job, one in last.items()}

    async def change(
        self, ids: Sequence[AnyId], action: Action | str, argument: str | None = None, *, actor: str | None = None
    ) -> list[views.Changed]:
        """Change the jobs named, as far as their states allow it; one answer for each that exists."""
        change = change_of(action, argument)
        named = [raw_id(one) for one in ids]
        told = [str(UUID(bytes=one)) for one in named[:100]]
        await self.audit.note(actor or local_actor(), str(action), ids=told, jobs=len(named), argument=argument)
        altered = await self.client.alter(Selector(ids=named), change)
        return [views.Changed(UUID(bytes=one.id), one.before, one.after, one.changed) for one in altered]

    async def pause_queue(
        self, queue: str, lasts: Duration | None = None, *, tenant: str | None = None, task: str | None = None,
        actor: str | None = None,
    ) -> None:  # fmt: skip
        """Let no worker claim from the queue, or jobs of one tenant or task in it, for that long or until resumed."""
        told = None if lasts is None else str(lasts)
        await self.audit.note(actor or local_actor(), "pause queue", queue=queue, lasts=told, tenant=tenant, task=task)
        await self.client.pause(queue, lasts, tenant=tenant, task=task)

    async def resume_queue(
        self, queue: str, *, tenant: str | None = None, task: str | None = None, actor: str | None = None
    ) -> None:
        """Let workers claim again what was paused."""
        await self.audit.note(actor or local_actor(), "resume queue", queue=queue, tenant=tenant, task=task)
        await self.client.resume(queue, tenant=tenant, task=task)

    async def submit(
        self,
        filter: str,
        action: Action | str,
        argument: str | None = None,
        *,
        expected: int | None = None,
        pace: int = PACE,
        actor: str | None = None,
    ) -> Operation:
        """Start a bulk operation on all jobs that the filter finds. ``expected``: as many as were shown before; if
        there are more by now, nothing is done. A store that takes no new jobs for want of room takes operations all the
        same. Raises ``ConfigError``."""
        change_of(action, argument)
        found = await self.primary.count(f"-queue:{OPERATIONS} {filter}")
        if expected is not None and found.number > expected:
            raise ConfigError(f"expected {expected:,} jobs, got {found.number:,} by now; look again, and confirm those")
        check_whole(pace, "pace", 1)
        who = actor or local_actor()
        given = Submitted(filter, str(action), who, found.number, argument, pace, self.redaction)
        job = operation_job(given)
        told = {"filter": filter, "argument": argument, "expected": found.number}
        await self.audit.note(who, f"submit {action}", **told)
        try:
            [answer] = await self.client.insert([job])
        except (QueueFull, StoreFull) as error:
            await self.audit.note(who, f"submit {action}: refused", filter=filter, reason=str(error))
            raise
        return await find_operation(self.client, answer.id)

    async def operation(self, op_id: AnyId) -> Operation:
        """A bulk operation, and how far it has come. Raises ``JobNotFound``."""
        return await find_operation(self.client, op_id)

    async def operations(self, limit: int = 50) -> list[Operation]:
        """Bulk operations, newest first."""
        return await list_operations(self.client, limit)

    async def cancel_operation(self, op_id: AnyId, *, actor: str | None = None) -> Operation:
        """Stop a bulk operation. What it has changed stays changed."""
        found = await find_operation(self.client, op_id)
        await self.audit.note(actor or local_actor(), "cancel operation", operation=found.id)
        await self.client.cancel(op_id)
        return await find_operation(self.client, op_id)

    async def overview(self) -> views.Overview:
        """Queues, workers and what is kept, in numbers."""
        stats, now = await self.reader.stats(), await self.reader.store_now()
        backend = await self.reader.backend()
        ended = await look_at_ended(backend, now)
        return views.Overview(
            url_without_secrets(self.client.settings.url),
            to_datetime(now),
            [_queue(queue, stats) for queue in stats.queues],
            [_worker(worker, now) for worker in stats.workers],
            [views.KeptView(one.target, one.count, one.bytes) for one in stats.kept],
            (await usage_of(backend)).used,
            from_replica=self._replica is not None,
            oldest_dead_seconds=ended.dead_letter,
            vault_lag_seconds=ended.vault,
        )

    async def queues(self, *names: str) -> list[views.QueueView]:
        """Queues in numbers: those named, or all."""
        stats = await self.reader.stats(names or None)
        return [_queue(queue, stats) for queue in stats.queues]

    async def workers(self) -> list[views.WorkerView]:
        """The workers that are alive."""
        stats, now = await self.reader.stats(), await self.reader.store_now()
        return [_worker(worker, now) for worker in stats.workers]

    def _sections(self, record: Record, how: Redaction) -> list[views.SectionView]:
        envelope, found = self.client.packer.envelope, []
        for name, cell in record.cells.items():
            value = envelope.readable(cell, name, record.id, record.tenant)
            if how is not Redaction.NOTHING and not isinstance(value, dict | list):
                value = None
            found.append(views.SectionView(name, len(cell), redact(value, how)))
        return found


def open_admin(settings: Settings, *, redaction: Redaction = Redaction.SECRETS) -> Admin:
    """The admin API of the settings' store, with its replica."""
    return Admin(connect(settings), replica=replica_of(settings), redaction=redaction)


def replica_of(settings: Settings) -> Client | None:
    """A client of the settings' replica, if there is one."""
    if settings.replica_url is None:
        return None
    url = settings.replica_url
    if url.startswith("postgres") and "target_session_attrs" not in url:
        url += ("&" if "?" in url else "?") + "target_session_attrs=any"
    return connect(replace(settings, url=url))


def _queue(queue: QueueStats, stats: Stats) -> views.QueueView:
    workers = listeners(queue.queue, stats.workers)
    return views.QueueView(
        queue.queue,
        queue.paused,
        **queue.counts,
        oldest_due_seconds=None if queue.oldest_due_age is None else queue.oldest_due_age / 1e6,
        workers=len(workers),
        slots=sum(worker.slots for worker in workers),
        busy=sum(worker.busy for worker in workers),
        due=queue.due,
    )


def _worker(worker: WorkerStats, now: int) -> views.WorkerView:
    return views.WorkerView(
        worker.worker,
        list(worker.queues),
        worker.slots,
        worker.busy,
        to_datetime(worker.started_at),
        max(0, now - worker.seen_at) / 1e6,
    )
