"""Checks of ids, keys, selectors and changes that users give, before a store sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, get_args
from uuid import UUID

from msgspec.structs import replace

from headrace.core.durations import LONGEST
from headrace.core.ids import parse_id
from headrace.core.names import check_name, check_queue
from headrace.core.numbers import check_whole
from headrace.errors import ConfigError, InvalidJob
from headrace.seam import records as r
from headrace.text import shown
from headrace.types import JobState, NewJob

AnyId = UUID | str | bytes
T = TypeVar("T")

_whole = partial(check_whole, error=InvalidJob)
_MOST = 2**31 - 1
"""As many jobs as every store can count in one call."""
_LATEST = 2**53 - 1
"""The latest instant that every store can tell from the one before."""


def raw_id(job_id: AnyId) -> r.JobId:
    """A job id, however it is spelled, as 16 bytes."""
    if isinstance(job_id, UUID):
        return job_id.bytes
    if isinstance(job_id, bytes) and len(job_id) == 16:
        return job_id
    if isinstance(job_id, str):
        return parse_id(job_id)
    raise InvalidJob(f"expected a job id (UUID or its text), got {type(job_id).__name__} {shown(job_id)}")


def check_key(key: object) -> r.JobKey:
    """The key, if it is valid.

    >>> check_key(r.JobKey("mail", "ada"))
    JobKey(queue='mail', key='ada')
    """
    if not isinstance(key, r.JobKey):
        raise InvalidJob(f"keys: expected a JobKey, got {type(key).__name__} {shown(key)}")
    check_name(key.queue, "queue")
    check_name(key.key, "key", empty=True)
    return key


def check_which(job: AnyId | r.JobKey) -> r.JobId | r.JobKey:
    """The id or the key of a job, checked."""
    return check_key(job) if isinstance(job, r.JobKey) else raw_id(job)


def check_queues(queues: Iterable[str]) -> list[str]:
    """The names of several queues, as a list.

    >>> check_queues("mail")
    Traceback (most recent call last):
    headrace.errors.ConfigError: expected the names of queues, like ['mail'], got 'mail'; put it in a list
    """
    if isinstance(queues, str):
        raise ConfigError(f"expected the names of queues, like ['mail'], got {shown(queues)}; put it in a list")
    return [check_name(queue, "queue") for queue in queues]


def check_jobs(jobs: Iterable[NewJob]) -> list[NewJob]:
    """Several jobs, as a list.

    >>> check_jobs(NewJob(task="mail"))
    Traceback (most recent call last):
    headrace.errors.InvalidJob: expected jobs, like [task.job(…)], got one NewJob; put it in a list
    """
    if isinstance(jobs, NewJob):
        raise InvalidJob("expected jobs, like [task.job(…)], got one NewJob; put it in a list")
    if not isinstance(jobs, Iterable):
        raise InvalidJob(f"expected jobs, like [task.job(…)], got {shown(jobs)}")
    return list(jobs)


def check_limit(limit: object) -> int:
    """The largest number of jobs to look at or change, checked.

    >>> check_limit(100)
    100
    """
    return _whole(limit, "limit", 1, _MOST)


def check_selector(sel: object) -> r.Selector:
    """The selector, with ids and states as stores spell them.

    >>> check_selector(r.Selector(queue="mail", states=["failed"])).states
    frozenset({<JobState.FAILED: 'failed'>})
    """
    if not isinstance(sel, r.Selector):
        raise InvalidJob(f"expected a Selector, got {type(sel).__name__} {shown(sel)}")
    return replace(
        sel,
        ids=_each(sel.ids, "ids", raw_id),
        keys=_each(sel.keys, "keys", check_key),
        queue=None if sel.queue is None else check_name(sel.queue, "queue"),
        tenant=None if sel.tenant is None else check_name(sel.tenant, "tenant", empty=True),
        task=None if sel.task is None else check_name(sel.task, "task"),
        states=_states(sel.states),
        reason=None if sel.reason is None else check_name(sel.reason, "reason", empty=True),
        older_than=None if sel.older_than is None else _whole(sel.older_than, "older_than", 0, LONGEST),
        above=None if sel.above is None else raw_id(sel.above),
        limit=check_limit(sel.limit),
    )


def check_change(change: Any, priority: Callable[[object], int]) -> r.Change:
    """The change, if a store can make it; ``priority`` checks one.

    >>> check_change(r.Move("mail"), int)
    Move(queue='mail')
    """
    match change:
        case r.Cancel():
            check_name(change.reason, "reason", empty=True)
        case r.Move():
            check_queue(change.queue)
        case r.Reprioritise():
            priority(change.priority)
        case r.Reschedule():
            _whole(change.delay, "delay", 0, LONGEST)
            if change.run_at is not None:
                _whole(change.run_at, "run_at", 0, _LATEST)
        case r.Watch():
            check_name(change.inbox, "inbox")
        case r.Hold():
            _whole(change.result_ttl, "result_ttl", 0, LONGEST)
        case _ if not isinstance(change, get_args(r.Change)):
            raise InvalidJob(f"expected a change such as Cancel(), got {type(change).__name__} {shown(change)}")
    return change  # type: ignore[no-any-return]


def repeatable(sel: r.Selector, change: r.Change) -> bool:
    """Whether making the change twice has the same effect as making it once. It has not if the second call may find
    other jobs: the next ones that match, or a new job under the same key. Nor if the job may have run between the
    calls.
    """
    if isinstance(change, r.Hold):
        return True
    return sel.ids is not None and sel.keys is None and not isinstance(change, r.Requeue | r.Reschedule)


def _each(given: object, what: str, check: Callable[[Any], T]) -> list[T] | None:
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidJob(f"{what}: expected a list, got {type(given).__name__} {shown(given)}")
    return [check(one) for one in given]


def _states(given: object) -> frozenset[JobState] | None:
    if given is None:
        return None
    known = [state.value for state in JobState]
    if not isinstance(given, Collection) or isinstance(given, str) or not all(one in known for one in given):
        raise InvalidJob(f"states: expected a set of {', '.join(known)}, got {shown(given)}")
    return frozenset(map(JobState, given))
