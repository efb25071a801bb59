"""Headrace: durable background jobs for Python.

One API that starts as a single SQLite file inside an app and grows, without a rewrite, to the stores of a fleet.

The public names are loaded when they are first used, so that ``headrace --help`` and short-lived processes start
quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.api.app import App
    from headrace.api.batch import BatchTask
    from headrace.api.bind import AsyncBound, Bound
    from headrace.api.client import Client
    from headrace.api.connection import connect
    from headrace.api.handle import Handle
    from headrace.api.info import JobInfo
    from headrace.api.queue import Queue
    from headrace.api.queue_answers import Completed, Duplicate, JobStatus, Queued
    from headrace.api.sync import SyncApp
    from headrace.api.task import Task
    from headrace.api.why import Why, WhyCode
    from headrace.core.config import Settings
    from headrace.core.counters import Counters
    from headrace.core.events import Event, EventKind
    from headrace.errors import Stop
    from headrace.limits.policies import Policies, PolicyInfo, TenantInfo
    from headrace.payloads.codec import JsonSerde, MsgpackSerde, RawSerde, Serde
    from headrace.payloads.content_id import content_id
    from headrace.schedules.queries import ScheduleHealth
    from headrace.schedules.schedules import Schedules
    from headrace.schedules.spec import Cron, Every, ScheduleInfo, TickInfo
    from headrace.types import Again, Cancelled, Done, Fail, JobState, NewJob, Outcome, Patch, Paused, Retry, Sections
    from headrace.worker.handler import Ending
    from headrace.worker.job import CancelToken, Job, Lease
    from headrace.worker.middleware import Middleware, Next
    from headrace.worker.retry import (
        RetryPolicy,
        exponential,
        forever,
        gentle,
        immediate,
        never,
        persistent,
    )

__all__ = [
    "Again",
    "App",
    "AsyncBound",
    "BatchTask",
    "Bound",
    "CancelToken",
    "Cancelled",
    "Client",
    "Completed",
    "Counters",
    "Cron",
    "Done",
    "Duplicate",
    "Ending",
    "Event",
    "EventKind",
    "Every",
    "Fail",
    "Handle",
    "Job",
    "JobInfo",
    "JobState",
    "JobStatus",
    "JsonSerde",
    "Lease",
    "Middleware",
    "MsgpackSerde",
    "NewJob",
    "Next",
    "Outcome",
    "Patch",
    "Paused",
    "Policies",
    "PolicyInfo",
    "Queue",
    "Queued",
    "RawSerde",
    "Retry",
    "RetryPolicy",
    "ScheduleHealth",
    "ScheduleInfo",
    "Schedules",
    "Sections",
    "Serde",
    "Settings",
    "Stop",
    "SyncApp",
    "Task",
    "TenantInfo",
    "TickInfo",
    "Why",
    "WhyCode",
    "connect",
    "content_id",
    "exponential",
    "forever",
    "gentle",
    "immediate",
    "never",
    "persistent",
]

_HOMES = {
    "Again": "headrace.types",
    "App": "headrace.api.app",
    "AsyncBound": "headrace.api.bind",
    "BatchTask": "headrace.api.batch",
    "Bound": "headrace.api.bind",
    "CancelToken": "headrace.worker.job",
    "Cancelled": "headrace.types",
    "Client": "headrace.api.client",
    "Completed": "headrace.api.queue_answers",
    "Counters": "headrace.core.counters",
    "Cron": "headrace.schedules.spec",
    "Done": "headrace.types",
    "Duplicate": "headrace.api.queue_answers",
    "Ending": "headrace.worker.handler",
    "Event": "headrace.core.events",
    "EventKind": "headrace.core.events",
    "Every": "headrace.schedules.spec",
    "Fail": "headrace.types",
    "Handle": "headrace.api.handle",
    "Job": "headrace.worker.job",
    "JobInfo": "headrace.api.info",
    "JobState": "headrace.types",
    "JobStatus": "headrace.api.queue_answers",
    "JsonSerde": "headrace.payloads.codec",
    "Lease": "headrace.worker.job",
    "Middleware": "headrace.worker.middleware",
    "MsgpackSerde": "headrace.payloads.codec",
    "NewJob": "headrace.types",
    "Next": "headrace.worker.middleware",
    "Outcome": "headrace.types",
    "Patch": "headrace.types",
    "Paused": "headrace.types",
    "Policies": "headrace.limits.policies",
    "PolicyInfo": "headrace.limits.policies",
    "Queue": "headrace.api.queue",
    "Queued": "headrace.api.queue_answers",
    "RawSerde": "headrace.payloads.codec",
    "Retry": "headrace.types",
    "RetryPolicy": "headrace.worker.retry",
    "ScheduleHealth": "headrace.schedules.queries",
    "ScheduleInfo": "headrace.schedules.spec",
    "Schedules": "headrace.schedules.schedules",
    "Sections": "headrace.types",
    "Serde": "headrace.payloads.codec",
    "Settings": "headrace.core.config",
    "Stop": "headrace.errors",
    "SyncApp": "headrace.api.sync",
    "Task": "headrace.api.task",
    "TenantInfo": "headrace.limits.policies",
    "TickInfo": "headrace.schedules.spec",
    "Why": "headrace.api.why",
    "WhyCode": "headrace.api.why",
    "connect": "headrace.api.connection",
    "content_id": "headrace.payloads.content_id",
    "persistent": "headrace.worker.retry",
    "exponential": "headrace.worker.retry",
    "forever": "headrace.worker.retry",
    "gentle": "headrace.worker.retry",
    "immediate": "headrace.worker.retry",
    "never": "headrace.worker.retry",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
