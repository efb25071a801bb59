"""Headrace: durable background jobs for Python.

One API that starts as a single SQLite file inside an app and grows, without a rewrite, to the stores of a fleet.

The public names are loaded when they are first used, so that ``headrace --help`` and short-lived processes start
quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.answers import Completed, Duplicate, JobStatus, Queued
    from headrace.app import App
    from headrace.batch import BatchTask
    from headrace.bind import AsyncBound, Bound
    from headrace.client import Client
    from headrace.config import Settings
    from headrace.connection import connect
    from headrace.core.codec import JsonSerde, MsgpackSerde, RawSerde, Serde
    from headrace.core.content import content_id
    from headrace.core.counters import Counters
    from headrace.core.events import Event, EventKind
    from headrace.core.handler import Ending
    from headrace.core.middleware import Middleware, Next
    from headrace.core.retry import (
        RetryPolicy,
        doubling_to_an_hour,
        exponential,
        for_ever,
        half_minute_to_ten,
        immediate,
        never,
    )
    from headrace.core.why import Why, WhyCode
    from headrace.errors import Stop
    from headrace.handle import Handle
    from headrace.info import JobInfo
    from headrace.job import CancelToken, Job, Lease
    from headrace.policies import Policies, PolicyInfo, TenantInfo
    from headrace.queue import Queue
    from headrace.schedule import Cron, Every, ScheduleInfo, TickInfo
    from headrace.schedules import Schedules
    from headrace.sync import SyncApp
    from headrace.task import Task
    from headrace.timetable import ScheduleHealth
    from headrace.types import Again, Cancelled, Done, Fail, JobState, NewJob, Outcome, Patch, Paused, Retry, Sections

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
    "doubling_to_an_hour",
    "exponential",
    "for_ever",
    "half_minute_to_ten",
    "immediate",
    "never",
]

_HOMES = {
    "Again": "headrace.types",
    "App": "headrace.app",
    "AsyncBound": "headrace.bind",
    "BatchTask": "headrace.batch",
    "Bound": "headrace.bind",
    "CancelToken": "headrace.job",
    "Cancelled": "headrace.types",
    "Client": "headrace.client",
    "Completed": "headrace.answers",
    "Counters": "headrace.core.counters",
    "Cron": "headrace.schedule",
    "Done": "headrace.types",
    "Duplicate": "headrace.answers",
    "Ending": "headrace.core.handler",
    "Event": "headrace.core.events",
    "EventKind": "headrace.core.events",
    "Every": "headrace.schedule",
    "Fail": "headrace.types",
    "Handle": "headrace.handle",
    "Job": "headrace.job",
    "JobInfo": "headrace.info",
    "JobState": "headrace.types",
    "JobStatus": "headrace.answers",
    "JsonSerde": "headrace.core.codec",
    "Lease": "headrace.job",
    "Middleware": "headrace.core.middleware",
    "MsgpackSerde": "headrace.core.codec",
    "NewJob": "headrace.types",
    "Next": "headrace.core.middleware",
    "Outcome": "headrace.types",
    "Patch": "headrace.types",
    "Paused": "headrace.types",
    "Policies": "headrace.policies",
    "PolicyInfo": "headrace.policies",
    "Queue": "headrace.queue",
    "Queued": "headrace.answers",
    "RawSerde": "headrace.core.codec",
    "Retry": "headrace.types",
    "RetryPolicy": "headrace.core.retry",
    "ScheduleHealth": "headrace.timetable",
    "ScheduleInfo": "headrace.schedule",
    "Schedules": "headrace.schedules",
    "Sections": "headrace.types",
    "Serde": "headrace.core.codec",
    "Settings": "headrace.config",
    "Stop": "headrace.errors",
    "SyncApp": "headrace.sync",
    "Task": "headrace.task",
    "TenantInfo": "headrace.policies",
    "TickInfo": "headrace.schedule",
    "Why": "headrace.core.why",
    "WhyCode": "headrace.core.why",
    "connect": "headrace.connection",
    "content_id": "headrace.core.content",
    "doubling_to_an_hour": "headrace.core.retry",
    "exponential": "headrace.core.retry",
    "for_ever": "headrace.core.retry",
    "half_minute_to_ten": "headrace.core.retry",
    "immediate": "headrace.core.retry",
    "never": "headrace.core.retry",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
