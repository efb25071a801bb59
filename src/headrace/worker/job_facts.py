"""What is known of a job under a lease."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from headrace.core.headers import SLOT, SOURCE, read_headers
from headrace.seam.instants import to_datetime
from headrace.seam.records import Leased
from headrace.types import Failure
from headrace.worker.failures import failures


class JobFacts:
    """What was enqueued, and how often it has been tried."""

    __slots__ = ("_leased",)

    def __init__(self, leased: Leased) -> None:
        self._leased = leased

    @property
    def id(self) -> UUID:
        return UUID(bytes=self._leased.id)

    @property
    def task(self) -> str:
        return self._leased.task

    @property
    def queue(self) -> str:
        return self._leased.queue

    @property
    def key(self) -> str | None:
        """The dedup name it was enqueued under."""
        return self._leased.key

    @property
    def tenant(self) -> str:
        return self._leased.tenant

    @property
    def group(self) -> str | None:
        """The group of its queue whose jobs run in order."""
        return self._leased.group

    @property
    def priority(self) -> int:
        return self._leased.priority

    @property
    def attempt(self) -> int:
        return self._leased.attempt

    @property
    def failures(self) -> list[Failure]:
        """The attempts that failed so far, oldest first; the last 20."""
        return failures(self._leased.error)

    @property
    def lost(self) -> int:
        return self._leased.lost

    @property
    def max_attempts(self) -> int | None:
        """As given at the enqueue; None leaves it to the task."""
        return self._leased.max_attempts

    @property
    def run_at(self) -> datetime:
        """When it became due."""
        return to_datetime(self._leased.run_at)

    @property
    def enqueued_at(self) -> datetime:
        return to_datetime(self._leased.enqueued_at)

    @property
    def headers(self) -> dict[str, str]:
        """The notes that travel with the job."""
        return read_headers(self._leased.headers)

    @property
    def source(self) -> str | None:
        """Where it came from, if that was told."""
        return self.headers.get(SOURCE)

    @property
    def slot(self) -> datetime | None:
        """The instant that a schedule made the job for, without jitter and retries; None for a job that was
        enqueued."""
        slot = self.headers.get(SLOT, "").partition(":")[2]
        return to_datetime(int(slot)) if slot.removeprefix("-").isdecimal() else None
