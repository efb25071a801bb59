"""Copies of new jobs in another store, to see how it does. They never run, and have ids of their own."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from zlib import crc32

from msgspec import Struct

from headrace.core.tasks import Tasks
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Row

log = logging.getLogger("headrace")

QUEUE = "headrace-shadow"
"""The queue of copies."""
KEPT = 86_400 * 1_000_000
"""Microseconds for which a copy is kept. It has expired before it is due, so upkeep cancels it, and retention
removes it like others."""
_EARLIER = 1_000_000
_MASK = bytes(9) + b"\xa5" * 7
WAITING = 10_000
"""Copies that wait to be written; more are dropped."""
WAITING_BYTES = 64 * 1024 * 1024
"""The same of their bytes."""
BATCH = 500
PATIENCE = 2.0
"""Seconds that producers wait for a copy."""
FAILURES = 5
"""After this many in a row, nothing is tried …"""
OPEN = 60.0
"""… for this many seconds."""


class Counts(Struct):
    """What became of copies in this process."""

    written: int = 0
    dropped: int = 0
    """There were too many, or the other store had failed too often."""
    failed: int = 0


def twin(job_id: JobId) -> JobId:
    """The id of a job's copy, and of a copy's job.

    >>> twin(twin(bytes(range(16)))) == bytes(range(16))
    True
    """
    return bytes(a ^ b for a, b in zip(job_id, _MASK, strict=True))


def copy_of(row: Row) -> Row:
    """A job like this one that never runs, has no key and no group, and is waited for by nobody."""
    return Row(
        id=twin(row.id), queue=QUEUE, task=row.task, cells=row.cells, tenant=row.tenant, delay=KEPT,
        expires=KEPT - _EARLIER, priority=row.priority, headers=row.headers,
    )  # fmt: skip


def sampled(job_id: JobId, share: float) -> bool:
    """Whether a job is among this share of all. The answer is always the same.

    >>> sampled(bytes(16), 1.0), sampled(bytes(16), 0.0)
    (True, False)
    """
    return crc32(job_id) < share * 2**32


class Shadow:
    """Writes copies without harm to those who write the jobs: what does not work is counted, and nobody else notices.
    After some failures in a row the other store is left alone for a while."""

    def __init__(self, store: Backend, clock: Callable[[], float]) -> None:
        self.counts = Counts()
        self._store = store
        self._clock = clock
        self._waiting: deque[Row] = deque()
        self._bytes = 0
        self._tasks = Tasks()
        self._busy = False
        self._failures = 0
        self._open_until = 0.0

    def offer(self, rows: Sequence[Row]) -> None:
        """Write copies of these jobs in the background."""
        for row in rows:
            if len(self._waiting) >= WAITING or self._bytes + _weight(row) > WAITING_BYTES:
                self.counts.dropped += 1
                continue
            self._waiting.append(copy_of(row))
            self._bytes += _weight(row)
        if self._waiting and not self._busy:
            self._busy = True
            self._tasks.start(self._drain(), "headrace-shadow")

    async def write(self, rows: Sequence[Row]) -> None:
        """Write copies of these jobs now."""
        await self._write([copy_of(row) for row in rows])

    async def close(self) -> None:
        """Drop what was not written."""
        self._waiting.clear()
        self._bytes = 0
        await self._tasks.close()

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._bytes -= sum(map(_weight, batch))
                await self._write(batch)
        finally:
            self._busy = False

    async def _write(self, copies: Sequence[Row]) -> None:
        if self._clock() < self._open_until:
            self.counts.dropped += len(copies)
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._store.open()
                await self._store.insert(copies)
        except Exception as error:
            self.counts.failed += len(copies)
            self._failures += 1
            if self._failures >= FAILURES:
                self._open_until, self._failures = self._clock() + OPEN, 0
                log.warning("copies of new jobs are not written for %.0f s, as that failed too often: %s", OPEN, error)
            return
        self._failures = 0
        self.counts.written += len(copies)


def _weight(row: Row) -> int:
    return len(row.headers or b"") + sum(map(len, row.cells.values()))
