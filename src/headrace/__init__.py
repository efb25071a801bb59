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

_NAMES = {
    "headrace.api.app": "App",
    "headrace.api.batch": "BatchTask",
    "headrace.api.bind": "AsyncBound Bound",
    "headrace.api.client": "Client",
    "headrace.api.connection": "connect",
    "headrace.api.handle": "Handle",
    "headrace.api.info": "JobInfo",
    "headrace.api.queue": "Queue",
    "headrace.api.queue_answers": "Completed Duplicate JobStatus Queued",
    "headrace.api.sync": "SyncApp",
    "headrace.api.task": "Task",
    "headrace.api.why": "Why WhyCode",
    "headrace.core.config": "Settings",
    "headrace.core.counters": "Counters",
    "headrace.core.events": "Event EventKind",
    "headrace.errors": "Stop",
    "headrace.limits.policies": "Policies PolicyInfo TenantInfo",
    "headrace.payloads.codec": "JsonSerde MsgpackSerde RawSerde Serde",
    "headrace.payloads.content_id": "content_id",
    "headrace.schedules.queries": "ScheduleHealth",
    "headrace.schedules.schedules": "Schedules",
    "headrace.schedules.spec": "Cron Every ScheduleInfo TickInfo",
    "headrace.types": "Again Cancelled Done Fail JobState NewJob Outcome Patch Paused Retry Sections",
    "headrace.worker.handler": "Ending",
    "headrace.worker.job": "CancelToken Job Lease",
    "headrace.worker.middleware": "Middleware Next",
    "headrace.worker.retry": "RetryPolicy exponential forever gentle immediate never persistent",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
