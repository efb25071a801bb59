"""Headrace: durable background jobs for Python.

One API that starts as a single SQLite file inside an app and grows, without a rewrite, to the stores of a fleet.
"""

from headrace.answers import Completed, Duplicate, JobStatus, Queued
from headrace.app import App
from headrace.client import Client
from headrace.config import Settings
from headrace.connect import connect
from headrace.core.codec import JsonSerde, MsgpackSerde, RawSerde, Serde
from headrace.core.content import content_id
from headrace.core.events import Event, EventKind
from headrace.core.retry import (
    RetryPolicy,
    doubling_to_an_hour,
    exponential,
    for_ever,
    half_minute_to_ten,
    immediate,
    never,
)
from headrace.handle import Handle
from headrace.info import JobInfo
from headrace.job import CancelToken, Job, Lease
from headrace.queue import Queue
from headrace.sync import SyncApp
from headrace.task import Task
from headrace.types import Again, Cancelled, Done, Fail, JobState, NewJob, Patch, Retry, Sections

__all__ = [
    "Again",
    "App",
    "CancelToken",
    "Cancelled",
    "Client",
    "Completed",
    "Done",
    "Duplicate",
    "Event",
    "EventKind",
    "Fail",
    "Handle",
    "Job",
    "JobInfo",
    "JobState",
    "JobStatus",
    "JsonSerde",
    "Lease",
    "MsgpackSerde",
    "NewJob",
    "Patch",
    "Queue",
    "Queued",
    "RawSerde",
    "Retry",
    "RetryPolicy",
    "Sections",
    "Serde",
    "Settings",
    "SyncApp",
    "Task",
    "connect",
    "content_id",
    "doubling_to_an_hour",
    "exponential",
    "for_ever",
    "half_minute_to_ten",
    "immediate",
    "never",
]
