"""A job in memory."""

from __future__ import annotations

from headrace.seam.records import Cells, Row, carried
from headrace.types import JobState

_ENTRY_BYTES = 200


class Entry:
    """One job, mutable, in whatever state."""

    __slots__ = (
        "attempt", "begun", "begun_before", "cancel_requested", "carried", "cells", "enqueued_at", "epoch", "error",
        "expires_at", "finished_at", "group", "headers", "held_until", "holder", "id", "key", "lease_until", "lost",
        "priority", "progress", "queue", "reason", "result", "run_at", "size", "state", "superseded", "task", "tenant",
    )  # fmt: skip

    def __init__(self, row: Row, now: int) -> None:
        self.id = row.id
        self.queue = row.queue
        self.task = row.task
        self.tenant = row.tenant
        self.key = row.key
        self.group = row.group
        self.priority = row.priority
        self.run_at = now + row.delay if row.run_at is None else row.run_at
        self.enqueued_at = now
        self.expires_at = None if row.expires is None else now + row.expires
        self.carried = carried(row)
        self.headers = row.headers
        self.cells: Cells = dict(row.cells)
        self.state = JobState.AVAILABLE
        self.epoch = 0
        self.begun = False
        self.begun_before = False
        self.attempt = 0
        self.lost = 0
        self.holder = ""
        self.lease_until = 0
        self.cancel_requested = False
        self.superseded = False
        self.finished_at: int | None = None
        self.held_until = 0
        self.reason = ""
        self.error: bytes | None = None
        self.result: bytes | None = None
        self.size = 0
        self.progress: bytes | None = None

    def measure(self) -> int:
        """About what this job takes up."""
        size = _ENTRY_BYTES + len(self.queue) + len(self.task) + len(self.tenant)
        for cell in self.cells.values():
            size += len(cell)
        if self.key is not None:
            size += len(self.key)
        if self.group is not None:
            size += len(self.group)
        if self.error is not None:
            size += len(self.error)
        if self.result is not None:
            size += len(self.result)
        if self.headers is not None:
            size += len(self.headers)
        return size
