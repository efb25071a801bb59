"""Request/response: waiting for jobs to end, over hints, with slow polling beneath."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from random import Random
from uuid import UUID

from headrace.core.batcher import Batcher
from headrace.core.clock import Clock
from headrace.core.ids import secret_name
from headrace.core.listener import listen
from headrace.core.patience import Patience
from headrace.core.tasks import Tasks
from headrace.errors import JobNotFound, Unavailable, WaitTimeout
from headrace.seam.protocol import Backend
from headrace.seam.records import Hint, JobId, Record, Selector, Watch

log = logging.getLogger("headrace")

_WANT = frozenset({"result", "error"})
_POLL = 2.0
_POLL_BLIND = 0.1
_EARLY_KEPT = 10_000


class Waiter:
    """One inbox for the whole process, for any number of waits, also for the same job.

    A hint only says "look now". The truth is always fetched, and it is also looked for without a hint, so a lost one
    costs time and nothing else.
    """

    def __init__(self, backend: Backend, clock: Clock, rng: Random, tasks: Tasks, patience: Patience) -> None:
        self.inbox = secret_name(rng)
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._patience = patience
        self._waits: defaultdict[JobId, set[asyncio.Future[Record]]] = defaultdict(set)
        self._polled: set[JobId] = set()
        """Jobs that are looked for without a hint just now: one whose part of the store is away holds up no other."""
        self._early: dict[JobId, None] = {}
        """Ends that were heard before anybody waited for them: the answer to the insert may be slower than the job."""
        self._listening: asyncio.Event | None = None
        most = backend.limits.max_batch
        self._fetches: Batcher[JobId, Record | None] = Batcher(
            self._fetch, tasks, rng, patience=patience.seconds, max_batch=most, name="headrace-fetch"
        )
        self._watches: Batcher[JobId, None] = Batcher(
            self._watch, tasks, rng, patience=patience.seconds, max_batch=most, name="headrace-watch"
        )

    async def prepare(self) -> None:
        """Start listening. Call it before the insert of a job to wait for."""
        if self._listening is None:
            self._listening = asyncio.Event()
            self._tasks.start(self._poll(), "headrace-waiter-poll")
            if self._backend.hints is None:
                self._listening.set()
            else:
                heard = listen(
                    self._backend.hints, [f"inbox:{self.inbox}"], self._hear, self._rng, self._listening.set
                )  # fmt: skip
                self._tasks.start(heard, "headrace-waiter")
        if not self._listening.is_set():
            await self._patience.once(self._listening.wait())

    async def wait(self, job_id: JobId, seconds: float | None, *, watch: bool) -> Record:
        """The record of the ended job. ``watch`` registers the inbox first, unless the insert has done so. With a
        timeout of 0 it looks once. Raises ``Unavailable`` when the store has not answered a look within patience."""
        if watch and seconds == 0:
            return await self._now(job_id)
        future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._waits[job_id].add(future)
        try:
            async with asyncio.timeout(seconds):
                await self.prepare()
                if watch:
                    await self._watches.submit(job_id)
                if watch or self._early.pop(job_id, self) is None:
                    await self._look(job_id)
                return await future
        except TimeoutError:
            name = str(UUID(bytes=job_id))
            message = f"no answer in {seconds:.3g} s; job {name} goes on and may still finish; look at its status later"
            raise WaitTimeout(message, job_id=name) from None
        finally:
            self._waits[job_id].discard(future)
            if not self._waits[job_id]:
                del self._waits[job_id]

    async def _now(self, job_id: JobId) -> Record:
        record = await self._fetches.submit(job_id)
        if record is None:
            raise _not_found()
        if not record.state.terminal:
            name = str(UUID(bytes=job_id))
            raise WaitTimeout(f"job {name} has not ended yet", job_id=name)
        return record

    def close(self) -> None:
        """End all waits: no answer will come any more."""
        for futures in self._waits.values():
            for future in futures:
                if not future.done():
                    future.set_exception(Unavailable("the client was closed while it waited for a result"))

    def _hear(self, hint: Hint) -> None:
        if hint.id is None:
            return
        if hint.id in self._waits:
            self._tasks.start(self._look(hint.id), "headrace-look")
        else:
            self._early[hint.id] = None
            if len(self._early) > _EARLY_KEPT:
                del self._early[next(iter(self._early))]

    async def _poll(self) -> None:
        pause = _POLL_BLIND if self._backend.hints is None else _POLL
        while True:
            await asyncio.sleep(pause * (0.75 + self._rng.random() / 2))
            for job_id in self._waits.keys() - self._polled:
                self._polled.add(job_id)
                self._tasks.start(self._poll_one(job_id), "headrace-look")

    async def _poll_one(self, job_id: JobId) -> None:
        try:
            await self._look(job_id)
        except Exception as error:
            log.warning("cannot look whether a job has ended: %s", error)
        finally:
            self._polled.discard(job_id)

    async def _look(self, job_id: JobId) -> None:
        found: Record | Exception
        try:
            found = await self._fetches.submit(job_id) or _not_found()
        except Unavailable as error:
            found = error
        for future in self._waits.get(job_id, ()):
            if future.done():
                continue
            if isinstance(found, Exception):
                future.set_exception(found)
            elif found.state.terminal:
                future.set_result(found)

    async def _watch(self, ids: list[JobId]) -> list[None]:
        await self._backend.alter(Selector(ids=ids), Watch(self.inbox), self._clock.stamp())
        return [None] * len(ids)

    async def _fetch(self, ids: list[JobId]) -> list[Record | None]:
        return await self._backend.fetch(ids, _WANT, self._clock.stamp())


def _not_found() -> JobNotFound:
    return JobNotFound("no such job: it never existed, or it ended and its record is gone")
