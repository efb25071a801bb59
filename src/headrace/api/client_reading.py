"""What a client can ask of its store: jobs, their ends, and numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from headrace.api.client_connection import ClientConnection
from headrace.api.info import DETAILS, JobInfo, job_info
from headrace.api.job_errors import raise_unless_completed
from headrace.api.queue_health import QueueHealth, queue_health
from headrace.core import validation
from headrace.core.durations import micros
from headrace.core.names import check_queue
from headrace.core.numbers import check_whole
from headrace.core.validation import AnyId
from headrace.core.walks import walk
from headrace.errors import PartlyUnavailable, Unavailable
from headrace.seam import records as r
from headrace.seam.references import is_reference
from headrace.types import Duration, JobState

log = logging.getLogger("headrace")


class ClientReading(ClientConnection):
    """Looks, and waits. Changes nothing."""

    async def fetch(self, job_id: AnyId | r.JobKey, want: frozenset[str] = DETAILS) -> r.Record | None:
        """The flat record of a job, or None. A section whose object is gone, damaged or out of reach says so when it is
        read."""
        which = validation.check_which(job_id)
        [record] = await (await self.backend()).fetch([which], want, self.clock.stamp())
        if record is not None and self._stowage is not None and any(map(is_reference, record.cells.values())):
            [record] = await self._stowage.load_records([record])
        return record

    async def wait(self, job_id: AnyId, timeout: Duration | None = "30s", *, watch: bool = True) -> r.Record:
        """Wait until the job has completed, and return its record. Raises ``WaitTimeout``, or the ``JobError`` that
        says why there is no result."""
        await self.backend()
        seconds = None if timeout is None else micros(timeout, "timeout") / 1e6
        record = await self._waiter.wait(validation.raw_id(job_id), seconds, watch=watch)
        if record.state is JobState.FAILED:
            record = await self._with_payload(record)
        raise_unless_completed(record, self.packer.envelope)
        return record

    async def _with_payload(self, record: r.Record) -> r.Record:
        """A failed job's record, with its arguments if they are there."""
        try:
            again = await self.fetch(record.id)
        except Unavailable:
            return record
        return again if again is not None and again.state is JobState.FAILED else record

    async def store_now(self) -> int:
        """The store's clock, by which leases end and jobs are due."""
        return await (await self.backend()).now(self.clock.stamp())

    async def queue_health(self, queue: str, *, workers: int = 1, max_age: Duration | None = None) -> QueueHealth:
        """Whether at least ``workers`` workers or pulls of the queue are alive, its due jobs have one, and none of them
        has waited for longer than ``max_age``. A worker counts as alive until it has been silent for one lease."""
        name = check_queue(queue)
        longest = None if max_age is None else micros(max_age, "max_age")
        stats = await self.stats([name])
        return queue_health(name, stats, workers=check_whole(workers, "workers", 0), max_age=longest)

    async def list_jobs(self, sel: r.Selector, limit: int = 100) -> list[JobInfo]:
        """Matching jobs, newest first, without arguments and results. Those of a part of the store that is away are
        missing."""
        sel, most = validation.check_selector(sel), validation.check_limit(limit)
        backend = await self.backend()
        found: list[JobInfo] = []
        try:
            async for records in walk(backend, sel, self.clock, most=most):
                found += [job_info(record, self.packer.envelope) for record in records]
        except PartlyUnavailable as error:
            log.warning("the list of jobs is not complete: %s", error)
        return found

    async def jobs_of_worker(self, name: str) -> list[JobInfo]:
        """The jobs that the workers of this name are running, newest first. The cost depends on how many jobs run, not
        on how many there are."""
        backend = await self.backend()
        running = r.Selector(states=frozenset({JobState.RUNNING}))
        found: list[JobInfo] = []
        async for records in walk(backend, running, self.clock):
            found += [job_info(record, self.packer.envelope) for record in records if record.worker == name]
        return found

    async def stats(self, queues: Iterable[str] | None = None) -> r.Stats:
        """The store in numbers. With ``queues``, only these and their workers: other queues then cost nothing.
        With no queues at all, ``()``, only all workers."""
        names = None if queues is None else validation.check_queues(queues)
        return await (await self.backend()).stats(self.clock.stamp(), queues=names)
