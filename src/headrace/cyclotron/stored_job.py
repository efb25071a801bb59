"""A job as it is stored, by Cyclotron's names."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from headrace.core.headers import SOURCE, read_headers
from headrace.cyclotron.fields import function_of, team_of
from headrace.payloads.codec import Envelope
from headrace.seam.instants import datetime_or_none, to_datetime
from headrace.seam.records import Record
from headrace.types import SECTIONS, JobState


class StoredJob(Struct, frozen=True, kw_only=True):
    """What the store has of a job."""

    id: UUID
    team_id: int | None
    """None: a manager did not create it."""
    function_id: UUID | None
    queue_name: str
    state: JobState
    priority: int
    scheduled: datetime
    created: datetime
    finished: datetime | None
    reason: str
    """Why it failed: ``lost`` for a poison pill."""
    transition_count: int
    """How often its state has changed, at least: attempts that failed and losses count, and the present run."""
    janitor_touch_count: int
    """Stalls in a row."""
    last_transition: datetime
    """The last change of state that the store knows the instant of: its end, else its last start, else its creation."""
    lease_until: datetime | None
    """Running: when it counts as stalled, unless a heartbeat comes before. Heartbeats move it."""
    source: str | None
    vm_state: bytes | None = None
    parameters: bytes | None = None
    metadata: bytes | None = None
    blob: bytes | None = None


def stored_job(record: Record, envelope: Envelope) -> StoredJob:
    """The record by these names."""
    sections = {
        name: envelope.unwrap(cell, name, record.id, record.tenant)[1]
        for name, cell in record.cells.items()
        if name in SECTIONS
    }
    return StoredJob(
        id=UUID(bytes=record.id),
        team_id=team_of(record.tenant),
        function_id=function_of(record.task),
        queue_name=record.queue,
        state=record.state,
        priority=record.priority,
        scheduled=to_datetime(record.run_at),
        created=to_datetime(record.enqueued_at),
        finished=datetime_or_none(record.finished_at),
        reason=record.reason,
        transition_count=record.transitions,
        janitor_touch_count=record.lost,
        last_transition=to_datetime(record.last_transition),
        lease_until=datetime_or_none(record.lease_until),
        source=read_headers(record.headers).get(SOURCE),
        **sections,
    )
