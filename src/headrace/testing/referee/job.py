"""A job as the referee knows it."""

from __future__ import annotations

from headrace.seam.records import JobId, Row
from headrace.types import JobState


class Job:
    """What the laws need to know of one job."""

    def __init__(self, row: Row, now: int) -> None:
        self.id: JobId = row.id
        self.tenant = row.tenant
        self.task = row.task
        self.group = row.group
        self.priority = row.priority
        self.run_at = now + row.delay if row.run_at is None else row.run_at
        self.expires_at = None if row.expires is None else now + row.expires
        self.state = JobState.AVAILABLE
        self.epoch = 0
        self.begun = False
        self.lost = 0
        self.holder = ""
        self.lease_until = 0

    @property
    def place(self) -> tuple[int, JobId]:
        """Its position among the jobs of its group."""
        return self.run_at, self.id

    @property
    def waits(self) -> bool:
        """Whether it counts for the depth."""
        return self.state in (JobState.AVAILABLE, JobState.PAUSED)

    def expired(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def due(self, now: int) -> bool:
        return self.state is JobState.AVAILABLE and self.run_at <= now

    def __repr__(self) -> str:
        group = "" if self.group is None else f" of group {self.group!r}"
        return f"{self.state.value} job {self.id.hex()[:12]} of tenant {self.tenant!r}, task {self.task!r}{group}"
