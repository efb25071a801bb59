"""A stored job as people and programs see it from outside a handler."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from headrace.core.headers import read_headers
from headrace.errors import PayloadError
from headrace.payloads.codec import Envelope, show
from headrace.seam.instants import to_datetime
from headrace.seam.records import Record
from headrace.types import Failure, JobState
from headrace.worker.judge import failures

DETAILS = frozenset({"parameters", "vm_state", "metadata", "blob", "result", "error"})


class JobInfo(Struct, frozen=True):
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
    headers: dict[str, str] = {}
    failures: list[Failure] = []
    args: Any = None
    """The arguments as plain data, if they can be shown."""
    result: Any = None
    """The result as plain data, while it is kept."""
    held: bool = False
    group: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can carry."""
        return msgspec.to_builtins(self, str_keys=True)  # type: ignore[no-any-return]


def job_info(record: Record, envelope: Envelope) -> JobInfo:
    """The rich view of a flat record."""
    return JobInfo(
        id=UUID(bytes=record.id),
        queue=record.queue,
        task=record.task,
        state=record.state,
        tenant=record.tenant,
        key=record.key,
        priority=record.priority,
        run_at=_moment(record.run_at),
        enqueued_at=_moment(record.enqueued_at),
        expires_at=_moment(record.expires_at),
        finished_at=_moment(record.finished_at),
        attempt=record.attempt,
        lost=record.lost,
        max_attempts=record.max_attempts,
        worker=record.worker,
        lease_until=_moment(record.lease_until),
        cancel_requested=record.cancel_requested,
        reason=record.reason,
        headers=read_headers(record.headers),
        failures=failures(record.error),
        args=_shown(record.cells.get("parameters"), envelope),
        result=_shown(record.result, envelope),
        held=record.held,
        group=record.group,
    )


def _moment(instant: int | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def _shown(cell: bytes | None, envelope: Envelope) -> Any:
    if cell is None:
        return None
    try:
        return msgspec.to_builtins(show(*envelope.open(cell, "cell")), str_keys=True)
    except (PayloadError, TypeError, ValueError) as error:
        return f"<{error}>"
