"""Carries out what the store answers to a beat, on the worker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.core.tasks import Tasks
from headrace.seam.records import JobId, Leased, Renewed
from headrace.worker.claimer import Claimer
from headrace.worker.consumer import Consumer
from headrace.worker.kit import Kit


class Orders:
    """Leases that are lost, jobs to be cancelled, queues that are paused, and leases that this worker does not know."""

    def __init__(self, kit: Kit, consumer: Consumer, claimer: Claimer) -> None:
        self._leases, self._settler, self._judge = kit.leases, kit.settler, kit.judge
        self._consumer = consumer
        self._claimer = claimer
        self._tasks = Tasks()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Called on the worker's loop, which is remembered."""
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Nothing more is carried out."""
        await self._tasks.close()

    def hear(self, renewed: Renewed) -> None:
        """The answer to a beat. Can be called from any thread."""
        if self._loop is None or not (renewed.lost or renewed.cancels or renewed.paused or renewed.held):
            return
        try:
            self._loop.call_soon_threadsafe(self._obey, renewed)
        except RuntimeError:  # the worker's loop has ended already
            return

    def warn(self, job: Leased) -> None:
        """The lease of this job was nearly over when it was renewed."""
        self._settler.warn(job)

    def renewed(self, job: Leased, age: float) -> None:
        """The lease of this job was this many seconds old when it was renewed."""
        self._settler.measure(job, age)

    def _obey(self, renewed: Renewed) -> None:
        for job_id, epoch in renewed.lost:
            self._consumer.lose(job_id, epoch)
        for job_id in renewed.cancels:
            self._consumer.cancel(job_id)
        if renewed.paused:
            self._consumer.give_back(frozenset(renewed.paused))
        if unknown := [lease for lease in renewed.held if not self._leases.current(*lease[:2])]:
            self._tasks.start(self._give_back(unknown), "headrace-unknown-leases")

    async def _give_back(self, unknown: Sequence[tuple[JobId, int, bool]]) -> None:
        """Give unknown leases back, unless a claim that is under way brings them."""
        await self._claimer.all_answered()
        for job_id, epoch, begun in unknown:
            if not self._leases.current(job_id, epoch):
                self._settler.add(self._judge.release(job_id, epoch, unbegun=not begun))
