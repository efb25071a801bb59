"""The worker: dequeues jobs for a loop of the user's own."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from headrace.api.client import Client
from headrace.api.connection import connect
from headrace.core.durations import micros
from headrace.core.numbers import check_whole
from headrace.cyclotron.job import Job
from headrace.errors import InvalidJob, LeaseLost, Unavailable
from headrace.text import shown
from headrace.types import SECTIONS, Duration, JobState
from headrace.worker.health import Health
from headrace.worker.pull import Pull
from headrace.worker.pulled_job import Flush

log = logging.getLogger("headrace")

_LIGHT = frozenset(SECTIONS) - {"vm_state"}
_LONGEST = 300
"""Seconds after which, at most, a job is tried again whose batch has failed."""

ProcessBatch = Callable[[list[Job]], Awaitable[Any]]
"""What ``run`` calls with every batch."""


class Worker:
    """Dequeues jobs of one queue, and keeps their locks while you work on them.

    ``async for jobs in worker`` and ``run`` are the poll loop; ``dequeue_jobs`` and ``dequeue_with_vm_state`` look
    once. Stalled jobs and old ones are left to the ``Janitor``.

    >>> import asyncio
    >>> from headrace import connect
    >>> from headrace.cyclotron import JobInit, Manager, Worker
    >>> async def main():
    ...     async with connect("memory://") as client, Worker(client, "hog") as worker:
    ...         await Manager(client).create_job(JobInit(team_id=7, queue_name="hog", vm_state=b"1"))
    ...         [job] = await worker.dequeue_with_vm_state()
    ...         job.set_vm_state(job.vm_state + b"+1")
    ...         job.set_state("completed")
    ...         return await job.release()
    >>> asyncio.run(main()).value
    'completed'
    """

    def __init__(
        self,
        shard: str | Client,
        queue_name: str,
        *,
        batch: int = 100,
        poll_delay: Duration = "50ms",
        include_empty_batches: bool = False,
        vm_state: bool = True,
        heartbeat_timeout: Duration = "30s",
        **settings: Any,
    ) -> None:
        """``batch``: jobs at a time. ``include_empty_batches``: the poll loop gives an empty batch when there was no
        job for ``poll_delay``. ``vm_state``: whether its jobs come with it. ``heartbeat_timeout``: a job stalls when
        its worker was not heard of for this long; and a worker that holds no job and asks for none for this long is not
        healthy. ``settings`` are for a shard that is given as a URL.
        """
        self._client = shard if isinstance(shard, Client) else connect(shard, **settings)
        self._owns = self._client is not shard
        self.queue_name = queue_name
        self._batch = check_whole(batch, "batch", 1)
        self._poll_delay = poll_delay
        micros(poll_delay, "poll_delay")
        self._empty = include_empty_batches
        self._vm_state = vm_state
        self._timeout = heartbeat_timeout
        self._pulls: dict[bool, Pull] = {}
        """With ``vm_state`` and without, once they were asked for."""
        self._jobs: dict[UUID, Job] = {}
        self._stopping = False
        self._broken = ""
        """Why the last batch failed; empty: it did not."""

    # -- opening and closing

    async def open(self) -> None:
        """Connect, and start to beat."""
        await self._pull(self._vm_state).open()

    async def close(self) -> None:
        """Store what was released; give back what was not."""
        self._stopping = True
        for pull in self._pulls.values():
            await pull.close()
        if self._owns:
            await self._client.close()

    async def __aenter__(self) -> Worker:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _pull(self, vm_state: bool) -> Pull:
        if vm_state not in self._pulls:
            want = None if vm_state else _LIGHT
            self._pulls[vm_state] = self._client.pull(
                self.queue_name, batch=self._batch, want=want, lease=self._timeout, upkeep=False
            )
        return self._pulls[vm_state]

    # -- dequeueing

    async def dequeue_jobs(self, limit: int | None = None) -> list[Job]:
        """What is due now, without ``vm_state``, by priority and time; perhaps nothing."""
        return await self._take(False, limit, 0)

    async def dequeue_with_vm_state(self, limit: int | None = None) -> list[Job]:
        """What is due now, with ``vm_state``, by priority and time; perhaps nothing."""
        return await self._take(True, limit, 0)

    async def _take(self, vm_state: bool, limit: int | None, wait: Duration | None) -> list[Job]:
        jobs = [Job(pulled) for pulled in await self._pull(vm_state).take(limit, wait=wait)]
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job.held} | {job.id: job for job in jobs}
        return jobs

    async def __aiter__(self) -> AsyncIterator[list[Job]]:
        """Batches until ``stop``. While the store is away, it waits."""
        wait = self._poll_delay if self._empty else None
        while not self._stopping:
            try:
                jobs = await self._take(self._vm_state, None, wait)
            except Unavailable as error:
                log.warning("cannot dequeue jobs of %s; it is tried again: %s", self.queue_name, error)
                continue
            if jobs or (self._empty and not self._stopping):
                yield jobs

    async def run(self, process_batch: ProcessBatch) -> None:
        """Call a function with every batch, until ``stop``. If it raises, the jobs of the batch that it has not
        released are tried again later, with the error noted; and the loop goes on."""
        async for jobs in self:
            try:
                await process_batch(jobs)
            except Exception as error:
                log.exception("a batch of %s failed; its jobs are tried again", self.queue_name)
                self._broken = repr(error)
                for job in jobs:
                    if job.held:
                        job.put_off(self._broken, _LONGEST)
            else:
                self._broken = ""

    def stop(self) -> None:
        """End the poll loop after the present batch."""
        self._stopping = True
        for pull in self._pulls.values():
            pull.interrupt()

    # -- jobs by their ids

    def _held(self, job_id: UUID) -> Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise LeaseLost(f"job {job_id} is not held by this worker; nothing was stored, and no job is created")
        return job

    async def get_vm_state(self, job_id: UUID) -> bytes | None:
        """The ``vm_state`` of a job that is held, read now if it was not dequeued with it."""
        return await self._held(job_id).fetch_vm_state()

    def set_state(self, job_id: UUID, state: JobState | str) -> None:
        self._held(job_id).set_state(state)

    def set_queue(self, job_id: UUID, queue_name: str) -> None:
        self._held(job_id).set_queue(queue_name)

    def set_priority(self, job_id: UUID, priority: int) -> None:
        self._held(job_id).set_priority(priority)

    def set_scheduled(self, job_id: UUID, at: datetime) -> None:
        self._held(job_id).set_scheduled(at)

    set_scheduled_at = set_scheduled
    """Its name in Cyclotron's core."""

    def set_vm_state(self, job_id: UUID, body: bytes | None) -> None:
        self._held(job_id).set_vm_state(body)

    def set_parameters(self, job_id: UUID, body: bytes | None) -> None:
        self._held(job_id).set_parameters(body)

    def set_metadata(self, job_id: UUID, body: bytes | None) -> None:
        self._held(job_id).set_metadata(body)

    def set_blob(self, job_id: UUID, body: bytes | None) -> None:
        self._held(job_id).set_blob(body)

    def update_job(self, job_id: UUID, state: JobState | str, updates: Mapping[str, Any] | None = None) -> None:
        """``set_state``, and the other ``set_…`` methods by their names: ``{"queue_name": "next", "vm_state": None}``.
        What is not named stays as it is."""
        job = self._held(job_id)
        setters: dict[str, Callable[[Any], None]] = {
            "queue_name": job.set_queue,
            "priority": job.set_priority,
            "scheduled": job.set_scheduled,
            "vm_state": job.set_vm_state,
            "parameters": job.set_parameters,
            "metadata": job.set_metadata,
            "blob": job.set_blob,
        }
        given = updates or {}
        for name in given:
            if name not in setters:
                raise InvalidJob(f"update_job: expected some of {', '.join(setters)}, got {shown(name)}")
        job.set_state(state)
        for name, value in given.items():
            setters[name](value)

    def release_job(self, job_id: UUID) -> Flush:
        """Store the draft of a job and give up its lock; await it to know that it is stored."""
        return self._held(job_id).release()

    flush_job = release_job
    """Its older name."""

    async def force_flush(self) -> None:
        """Wait until everything that was released is stored. Raises the first error, such as ``LeaseLost``, once the
        store has answered for all."""
        for pull in self._pulls.values():
            await pull.flush()

    async def heartbeat(self, job_id: UUID) -> None:
        """Renew the lock of a job now. Raises ``LeaseLost``."""
        await self._held(job_id).heartbeat()

    # -- health

    def is_healthy(self) -> bool:
        """Whether it consumes and its heartbeats get through. A long batch is no fault, a batch that failed is."""
        return self.health().ok and not self._broken

    def health(self) -> Health:
        """The same in detail."""
        if not self._pulls:
            return self._pull(self._vm_state).health(idle=self._timeout)
        found = [pull.health(idle=self._timeout) for pull in self._pulls.values()]
        busy = next((one for one in found if one.consuming), found[0])
        return next((one for one in found if not one.beating), busy)
