"""A job as the answers of the store say it must be."""

from __future__ import annotations

from headrace.seam.records import Cells, JobId, Row
from headrace.types import JobState


class Life:
    """One job, from its insert until its record goes."""

    def __init__(self, row: Row, now: int) -> None:
        self.id = row.id
        self.row = row
        self.queue = row.queue
        self.key = row.key
        self.priority = row.priority
        self.run_at = now + row.delay if row.run_at is None else row.run_at
        self.enqueued_at = now
        self.expires_at = None if row.expires is None else now + row.expires
        self.cells: Cells = dict(row.cells)
        self.state = JobState.AVAILABLE
        self.epoch = 0
        self.begun = False
        self.begun_before = False
        self.attempt = 0
        self.lost = 0
        self.holder = ""
        self.node = ""
        self.lease_until = 0
        self.cancel_requested = False
        self.superseded = False
        self.finished_at: int | None = None
        self.held_until = 0
        self.reason = ""
        self.error: bytes | None = None
        self.result: bytes | None = None

    @property
    def place(self) -> tuple[int, int, JobId]:
        """Where the job stands in line."""
        return (self.priority, self.run_at, self.id)

    def expired(self, now: int) -> bool:
        """Whether it is too late to start it."""
        return self.expires_at is not None and self.expires_at <= now

    def held(self, now: int) -> bool:
        """Whether its result and key are still kept."""
        return self.state is JobState.COMPLETED and self.held_until > now
