"""Headrace: durable background jobs for Python.

One API that starts as a single SQLite file inside an app and grows, without a rewrite, to the stores of a fleet.

The public names are loaded when they are first used, so that ``headrace --help`` and short-lived processes start
quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.admin.actions import Action
    from headrace.admin.admin import Admin
    from headrace.admin.audit import AuditEntry
    from headrace.admin.operations import Operation
    from headrace.admin.redaction import Redaction
    from headrace.admin.timeline import Moment, MomentKind, Timeline
    from headrace.admin.views import (
        Changed,
        JobCount,
        JobDetails,
        JobPage,
        KeptView,
        Overview,
        QueueView,
        SectionView,
        WorkerView,
    )
    from headrace.api.app import App
    from headrace.api.batch import BatchTask
    from headrace.api.bind import AsyncBound, Bound
    from headrace.api.bundle import Bundle
    from headrace.api.client import Client
    from headrace.api.connection import connect
    from headrace.api.crawler import Crawler, Cursor
    from headrace.api.handle import Handle
    from headrace.api.info import JobInfo
    from headrace.api.queue import Queue
    from headrace.api.queue_answers import Completed, Duplicate, JobStatus, Queued
    from headrace.api.stream import Part
    from headrace.api.streams import Streams
    from headrace.api.sync import SyncApp, SyncQueue
    from headrace.api.sync_handle import SyncHandle
    from headrace.api.table import Table
    from headrace.api.task import Task
    from headrace.api.tracker import TierCount, Tracker
    from headrace.api.why import Why, WhyCode
    from headrace.core.config import Settings
    from headrace.core.counters import Counters
    from headrace.core.events import Event, EventKind
    from headrace.core.progress import Progress
    from headrace.errors import Stop
    from headrace.hot.sweeping import TableStats, TableSweep
    from headrace.keeping.janitor import Janitor, JanitorRun, JanitorStep, KeepInfo, RemovedInfo, UsageInfo
    from headrace.limits.policies import Policies, PolicyInfo, TenantInfo
    from headrace.payloads.codec import JsonSerde, MsgpackSerde, RawSerde, Serde
    from headrace.payloads.content_id import content_id
    from headrace.schedules.queries import ScheduleHealth
    from headrace.schedules.schedules import Schedules
    from headrace.schedules.spec import Cron, Every, ScheduleInfo, TickInfo
    from headrace.tracking.sink import RowSink
    from headrace.tracking.subject import Subject, Visited
    from headrace.types import Again, Cancelled, Done, Fail, JobState, NewJob, Outcome, Patch, Paused, Retry, Sections
    from headrace.vault.vault import Replayed, Vault, VaultFile
    from headrace.worker.current import CurrentJob, current_job, progress
    from headrace.worker.given import given
    from headrace.worker.handler import Ending
    from headrace.worker.job import CancelToken, Job, Lease
    from headrace.worker.job_fields import JobFields
    from headrace.worker.middleware import Middleware, Next, PlainMiddleware
    from headrace.worker.pull import Pull
    from headrace.worker.pulled_job import Flush, PulledJob
    from headrace.worker.retry import RetryPolicy, exponential, forever, gentle, immediate, never, persistent

__all__ = [
    "Action", "Admin", "Again", "App", "AsyncBound", "AuditEntry", "BatchTask", "Bound", "Bundle", "CancelToken",
    "Cancelled", "Changed", "Client", "Completed", "Counters", "Crawler", "Cron", "CurrentJob", "Cursor", "Done",
    "Duplicate", "Ending", "Event", "EventKind", "Every", "Fail", "Flush", "Handle", "Janitor", "JanitorRun",
    "JanitorStep", "Job", "JobCount", "JobDetails", "JobFields", "JobInfo", "JobPage", "JobState", "JobStatus",
    "JsonSerde", "KeepInfo", "KeptView", "Lease", "Middleware", "Moment", "MomentKind", "MsgpackSerde", "NewJob",
    "Next", "Operation", "Outcome", "Overview", "Part", "Patch", "Paused", "PlainMiddleware", "Policies", "PolicyInfo",
    "Progress", "Pull", "PulledJob", "Queue", "QueueView", "Queued", "RawSerde", "Redaction", "RemovedInfo", "Replayed",
    "Retry", "RetryPolicy", "RowSink", "ScheduleHealth", "ScheduleInfo", "Schedules", "SectionView", "Sections",
    "Serde", "Settings", "Stop", "Streams", "Subject", "SyncApp", "SyncHandle", "SyncQueue", "Table", "TableStats",
    "TableSweep", "Task", "TenantInfo", "TickInfo", "TierCount", "Timeline", "Tracker", "UsageInfo", "Vault",
    "VaultFile", "Visited", "Why", "WhyCode", "WorkerView", "connect", "content_id", "current_job", "exponential",
    "forever", "gentle", "given", "immediate", "never", "persistent", "progress",
]  # fmt: skip

_NAMES = {
    "headrace.admin.actions": "Action",
    "headrace.admin.admin": "Admin",
    "headrace.admin.audit": "AuditEntry",
    "headrace.admin.operations": "Operation",
    "headrace.admin.redaction": "Redaction",
    "headrace.admin.timeline": "Moment MomentKind Timeline",
    "headrace.admin.views": "Changed JobCount JobDetails JobPage KeptView Overview QueueView SectionView WorkerView",
    "headrace.api.app": "App",
    "headrace.api.batch": "BatchTask",
    "headrace.api.bind": "AsyncBound Bound",
    "headrace.api.bundle": "Bundle",
    "headrace.api.client": "Client",
    "headrace.api.connection": "connect",
    "headrace.api.crawler": "Crawler Cursor",
    "headrace.api.handle": "Handle",
    "headrace.api.info": "JobInfo",
    "headrace.api.queue": "Queue",
    "headrace.api.queue_answers": "Completed Duplicate JobStatus Queued",
    "headrace.api.stream": "Part",
    "headrace.api.streams": "Streams",
    "headrace.api.sync": "SyncApp SyncQueue",
    "headrace.api.sync_handle": "SyncHandle",
    "headrace.api.table": "Table",
    "headrace.api.task": "Task",
    "headrace.api.tracker": "TierCount Tracker",
    "headrace.api.why": "Why WhyCode",
    "headrace.core.config": "Settings",
    "headrace.core.counters": "Counters",
    "headrace.core.events": "Event EventKind",
    "headrace.core.progress": "Progress",
    "headrace.errors": "Stop",
    "headrace.hot.sweeping": "TableStats TableSweep",
    "headrace.keeping.janitor": "Janitor JanitorRun JanitorStep KeepInfo RemovedInfo UsageInfo",
    "headrace.limits.policies": "Policies PolicyInfo TenantInfo",
    "headrace.payloads.codec": "JsonSerde MsgpackSerde RawSerde Serde",
    "headrace.payloads.content_id": "content_id",
    "headrace.schedules.queries": "ScheduleHealth",
    "headrace.schedules.schedules": "Schedules",
    "headrace.schedules.spec": "Cron Every ScheduleInfo TickInfo",
    "headrace.tracking.sink": "RowSink",
    "headrace.tracking.subject": "Subject Visited",
    "headrace.types": "Again Cancelled Done Fail JobState NewJob Outcome Patch Paused Retry Sections",
    "headrace.vault.vault": "Replayed Vault VaultFile",
    "headrace.worker.current": "CurrentJob current_job progress",
    "headrace.worker.handler": "Ending",
    "headrace.worker.job": "CancelToken Job Lease",
    "headrace.worker.job_fields": "JobFields",
    "headrace.worker.middleware": "Middleware Next PlainMiddleware",
    "headrace.worker.pull": "Pull",
    "headrace.worker.pulled_job": "Flush PulledJob",
    "headrace.worker.retry": "RetryPolicy exponential forever gentle immediate never persistent",
    "headrace.worker.given": "given",
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
