"""Why a job is where it is, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from uuid import UUID

from msgspec import Struct

from headrace.api.queue_health import listeners
from headrace.core.durations import spell_roughly
from headrace.seam.policy import FOREVER, GroupState, PolicyState, TenantState
from headrace.seam.records import QueueStats, Record, Stats
from headrace.text import reason_in_words
from headrace.types import Failure, JobState

_LONGEST = 200
"""Characters of an error that are shown."""
_LAST_ERROR = "; its last error: "


class WhyCode(StrEnum):
    """Kinds of reasons.

    >>> WhyCode("queue_paused") is WhyCode.QUEUE_PAUSED
    True
    """

    ENDED = "ended"
    RUNNING = "running"
    STOPPING = "stopping"
    """Its cancellation was requested."""
    WORKER_LOST = "worker_lost"
    JOB_PAUSED = "job_paused"
    QUEUE_PAUSED = "queue_paused"
    TENANT_PAUSED = "tenant_paused"
    TASK_PAUSED = "task_paused"
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    TAKEN_BACK = "taken_back"
    GROUP = "group"
    """It is the turn of another job of its group."""
    QUEUE_LIMIT = "queue_limit"
    QUEUE_RATE = "queue_rate"
    TENANT_LIMIT = "tenant_limit"
    TENANT_RATE = "tenant_rate"
    TASK_RATE = "task_rate"
    TENANT_WORKERS = "tenant_workers"
    """As many workers as the policy allows have jobs of its tenant."""
    NO_WORKER = "no_worker"
    LAST_CHANCE = "last_chance"
    """It may only run alone, in a helper process or in a worker that holds no other job."""
    WORKERS_BUSY = "workers_busy"
    NEXT = "next"
    """It is due, and a worker should take it now."""


class Why(Struct, frozen=True):
    """The reason why a job is not running, or that there is none to give.

    >>> from headrace import App, SyncApp
    >>> app = App("memory://")
    >>> @app.task(queue="mail")
    ... def send(to: str) -> None: ...
    >>> with SyncApp(app) as jobs:
    ...     handle = jobs.enqueue(send, "ada@example.org")
    ...     jobs.pause("mail")
    ...     why = jobs.why(handle.id)
    >>> why.code.value, why.sentence
    ('queue_paused', "queue 'mail' is paused")
    """

    code: WhyCode
    sentence: str


class Circumstances(Struct, frozen=True):
    """What is known about a job and its surroundings."""

    record: Record
    stats: Stats
    now: int
    policy: PolicyState | None = None
    tenant: TenantState | None = None
    group: GroupState | None = None
    failure: Failure | None = None
    """The last one."""
    last_chance: int = 2
    """A job lost this many times in a row runs alone."""


def explain(seen: Circumstances) -> Why:
    """The first reason that holds."""
    job = seen.record
    if job.state.terminal:
        reason = f", {reason_in_words(job.reason, job.lost)}" if job.reason and job.reason != job.state.value else ""
        return Why(WhyCode.ENDED, f"it has ended: {job.state.value}{reason}{_error(seen)}")
    if job.state is JobState.RUNNING:
        return _running(seen)
    if job.state is JobState.PAUSED:
        return Why(WhyCode.JOB_PAUSED, "the job itself is paused")
    return next(_reasons(seen))


def _error(seen: Circumstances) -> str:
    failure = seen.failure
    if failure is None or seen.record.state is not JobState.FAILED:
        return ""
    text = " ".join(f"{failure.type}: {failure.message}".split())
    return f"{_LAST_ERROR}{text if len(text) <= _LONGEST else f'{text[:_LONGEST]}…'}"


def without_error(why: Why) -> Why:
    """The reason, without the text of the job's error."""
    return Why(why.code, why.sentence.partition(_LAST_ERROR)[0])


def _running(seen: Circumstances) -> Why:
    job = seen.record
    if job.lease_until is not None and job.lease_until < seen.now:
        return Why(WhyCode.WORKER_LOST, "its worker has vanished; another worker takes the job back within seconds")
    if job.cancel_requested:
        return Why(WhyCode.STOPPING, "its cancellation was requested; the handler has not stopped yet")
    return Why(WhyCode.RUNNING, "it is running" + (f" on {job.worker}" if job.worker else ""))


def _reasons(seen: Circumstances) -> Iterator[Why]:
    yield from _pauses(seen)
    yield from _time(seen)
    yield from _turn(seen)
    yield from _limits(seen)
    yield from _workers(seen)
    yield Why(WhyCode.NEXT, "it is due, and a worker should take it now")


def _pauses(seen: Circumstances) -> Iterator[Why]:
    job, policy, tenant = seen.record, seen.policy, seen.tenant
    queue = _queue(seen)
    if queue is not None and queue.paused:
        yield Why(WhyCode.QUEUE_PAUSED, f"queue {job.queue!r} is paused{_until(queue.paused_until, seen.now)}")
    if tenant is not None and tenant.paused_until is not None:
        until = _until(tenant.paused_until, seen.now)
        yield Why(WhyCode.TENANT_PAUSED, f"tenant {job.tenant!r} is paused in queue {job.queue!r}{until}")
    if policy is not None and job.task in policy.paused_tasks:
        until = _until(policy.paused_tasks[job.task], seen.now)
        yield Why(WhyCode.TASK_PAUSED, f"task {job.task!r} is paused in queue {job.queue!r}{until}")


def _time(seen: Circumstances) -> Iterator[Why]:
    job = seen.record
    if job.run_at > seen.now:
        due = f"in {spell_roughly(job.run_at - seen.now)}"
        if job.lost:
            yield Why(WhyCode.TAKEN_BACK, f"it was taken back from a worker that vanished, and is due again {due}")
        elif job.attempt:
            yield Why(WhyCode.RETRYING, f"it waits for its next attempt, {due}")
        else:
            yield Why(WhyCode.SCHEDULED, f"it is scheduled, {due}")


def _turn(seen: Circumstances) -> Iterator[Why]:
    job, group = seen.record, seen.group
    if group is not None and group.called and job.id not in group.called:
        others = " and ".join(str(UUID(bytes=one)) for one in group.called[:2])
        more = f" and {len(group.called) - 2} more" if len(group.called) > 2 else ""
        yield Why(WhyCode.GROUP, f"in its group {job.group!r} it is the turn of {others}{more}")


def _limits(seen: Circumstances) -> Iterator[Why]:
    job, tenant = seen.record, seen.tenant
    if seen.policy is None:
        return
    policy, opens_at = seen.policy.policy, seen.policy.opens_at
    queue = _queue(seen)
    if policy.running is not None and queue is not None and queue.running >= policy.running:
        yield Why(WhyCode.QUEUE_LIMIT, f"queue {job.queue!r} is at its limit of running jobs: {policy.running}")
    if "" in opens_at:
        yield Why(WhyCode.QUEUE_RATE, f"queue {job.queue!r} is at its rate limit{_opens(opens_at[''], seen.now)}")
    if job.task in opens_at:
        yield Why(WhyCode.TASK_RATE, f"task {job.task!r} is at its rate limit{_opens(opens_at[job.task], seen.now)}")
    if tenant is None:
        return
    own = tenant.limit.running if tenant.limit is not None and tenant.limit.running is not None else None
    most = policy.tenant_running if own is None else own
    if most is not None and tenant.running >= most:
        yield Why(WhyCode.TENANT_LIMIT, f"tenant {job.tenant!r} is at its limit of running jobs: {most}")
    if tenant.opens_at is not None:
        yield Why(WhyCode.TENANT_RATE, f"tenant {job.tenant!r} is at its rate limit{_opens(tenant.opens_at, seen.now)}")
    if policy.tenant_workers is not None and len(tenant.workers) >= policy.tenant_workers:
        which = ", ".join(tenant.workers[:3]) + (" and others" if len(tenant.workers) > 3 else "")
        yield Why(WhyCode.TENANT_WORKERS, f"only {which} may have jobs of tenant {job.tenant!r} now")


def _workers(seen: Circumstances) -> Iterator[Why]:
    queue = seen.record.queue
    workers = listeners(queue, seen.stats.workers)
    if not workers:
        yield Why(WhyCode.NO_WORKER, f"no worker listens to queue {queue!r}")
    elif seen.record.lost >= seen.last_chance:
        waits = "it waits for a worker's helper process, or for a worker that holds no other job"
        yield Why(WhyCode.LAST_CHANCE, f"it is on its last chance and runs alone: {waits}")
    elif sum(worker.slots - worker.busy for worker in workers) <= 0:
        slots = sum(worker.slots for worker in workers)
        who = "the worker that listens" if len(workers) == 1 else f"the {len(workers)} workers that listen"
        yield Why(WhyCode.WORKERS_BUSY, f"all {slots} slots of {who} to queue {queue!r} are busy")


def _queue(seen: Circumstances) -> QueueStats | None:
    return next((one for one in seen.stats.queues if one.queue == seen.record.queue), None)


def _until(instant: int | None, now: int) -> str:
    return "" if instant is None or instant >= FOREVER else f" for another {spell_roughly(max(0, instant - now))}"


def _opens(instant: int, now: int) -> str:
    return f"; it lets the next job through in {spell_roughly(max(0, instant - now))}"
