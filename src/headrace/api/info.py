"""A stored job as people and programs see it from outside a handler."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import field

from headrace.core.headers import SOURCE, read_headers
from headrace.core.progress import Progress, unpack_progress
from headrace.core.view import View
from headrace.payloads.codec import Envelope
from headrace.seam.instants import datetime_or_none
from headrace.seam.records import Record
from headrace.types import Failure, JobState
from headrace.worker.failures import failures

DETAILS = frozenset({"parameters", "vm_state", "metadata", "blob", "result", "error"})


class JobInfo(View, frozen=True):
    """What the store knows about a job.

    >>> from headrace import App, SyncApp
    >>> app = App("memory://")
    >>> @app.task(queue="mail")
    ... def welcome(user_id: int) -> None: ...
    >>> with SyncApp(app) as jobs:
    ...     info = jobs.enqueue(welcome, 42).info()
    >>> info.queue, info.state.value, info.args
    ('mail', 'available', {'user_id': 42})
    """

    id: UUID
    queue: str
    task: str
    state: JobState
    tenant: str = ""
    key: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    enqueued_at: datetime | None = None
    expires_at: datetime | None = None
    finished_at: datetime | None = None
    attempt: int = 0
    lost: int = 0
    max_attempts: int | None = None
    worker: str = ""
    lease_until: datetime | None = None
    cancel_requested: bool = False
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    """Where it came from, if that was told."""
    failures: list[Failure] = field(default_factory=list)
    args: Any = None
    """The arguments as plain data, if they can be shown."""
    result: Any = None
    """The result as plain data, while it is kept."""
    held: bool = False
    group: str | None = None
    started_at: datetime | None = None
    """Of a job that runs or has ended: when a worker last took it."""
    last_transition: datetime | None = None
    """When its state last changed, as far as the store knows: its end, else its last start, else its enqueue."""
    transitions: int = 0
    """How often its state has changed, at least: failed attempts and losses count, and the present run."""
    progress: Progress | None = None
    """Running: how far it has come, as its handler last said."""

    def seen_state(self, now: datetime) -> str:
        """The state in the words of the command line and the dashboard: a job that is ``available`` is ``due``,
        ``scheduled`` (not due yet) or ``retrying`` (an attempt failed, and the next one is not due yet)."""
        if self.state is not JobState.AVAILABLE:
            return self.state.value
        if self.run_at is None or self.run_at <= now:
            return "due"
        return "retrying" if self.attempt else "scheduled"


_STORED = ("run_at", "enqueued_at", "expires_at", "finished_at", "lease_until")
_INSTANTS = (*_STORED, "started_at", "last_transition")
_SAME = {*JobInfo.__struct_fields__} & {*Record.__struct_fields__} - {*_STORED, "id", "headers", "result", "progress"}


def job_info(record: Record, envelope: Envelope) -> JobInfo:
    """The rich view of a flat record."""
    fields: dict[str, Any] = {name: getattr(record, name) for name in _SAME}
    fields |= {name: datetime_or_none(getattr(record, name)) for name in _INSTANTS}
    headers = read_headers(record.headers)
    return JobInfo(
        **fields,
        transitions=record.transitions,
        progress=unpack_progress(record.progress),
        id=UUID(bytes=record.id),
        headers=headers,
        source=headers.get(SOURCE),
        failures=failures(record.error),
        args=envelope.readable(record.cells.get("parameters"), "parameters", record.id, record.tenant),
        result=envelope.readable(record.result, "result", record.id),
    )
