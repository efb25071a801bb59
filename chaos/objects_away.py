"""The object store goes away under load, for longer than any request waits: nothing is lost, no attempt is burnt."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from random import Random
from typing import Any

from servers.seaweedfs import SeaweedFS

from chaos.outcome import Outcome
from chaos.stores import opened
from headrace import App, Event, EventKind, Job, JobState, NewJob, Sections
from headrace.errors import Unavailable
from headrace.seam.records import JobId

_ALWAYS = {name: {"over": 0, "least": 0} for name in ("parameters", "vm_state", "metadata", "blob")}
_SIZE = 4_500
_SHARE = 0.7
"""Of the jobs asked for that must be enqueued: nobody waits for an object store that is away."""


class _Load:
    """A producer and a worker in this process, on a store and an object store."""

    def __init__(self, url: str, objects: str, seed: int) -> None:
        self._rng = Random(seed)
        self.app = App(url, objects={"url": objects} | _ALWAYS, worker={"concurrency": 20, "poll": "200ms"})
        self.stored: dict[JobId, str] = {}
        self.refused = self.wrong = self.alerts = self.put_off = 0
        self.ran: dict[JobId, int] = {}
        self.slowest = self.produced = 0.0
        self.app.task(name="work", queue="default")(self._run)
        self.app.observe(self._observe)

    async def _run(self, job: Job[None]) -> None:
        self.wrong += hashlib.sha256(job.sections["blob"]).hexdigest() != self.stored[job.id.bytes]
        self.ran[job.id.bytes] = self.ran.get(job.id.bytes, 0) + 1

    def _observe(self, event: Event) -> None:
        self.alerts += event.alert == "objects_away"
        self.put_off += event.kind is EventKind.RELEASED

    async def produce(self, rate: int, enough: asyncio.Event) -> None:
        """Ten batches a second, due at once or a little later."""
        first = time.monotonic()
        while not enough.is_set():
            began = time.monotonic()
            jobs = []
            for _ in range(max(1, rate // 10)):
                body = self._rng.randbytes(_SIZE)
                job_id = self.app.client.packer.new_id()
                self.stored[job_id] = hashlib.sha256(body).hexdigest()
                delay = self._rng.choice((None, "2s"))
                jobs.append(NewJob(task="work", id=job_id, sections=Sections(blob=body), delay=delay))  # type: ignore[arg-type]
            try:
                await self.app.client.insert(jobs)
            except Unavailable:
                self.refused += len(jobs)
            self.slowest = max(self.slowest, time.monotonic() - began)
            await asyncio.sleep(max(0.0, 0.1 - (time.monotonic() - began)))
        self.produced = time.monotonic() - first


async def run(
    folder: Path, *, away: float, seed: int, backend: str = "sqlite", rate: int = 100, budget: float = 300.0
) -> Outcome:
    """Enqueue ``rate`` jobs a second while the object store is gone for ``away`` seconds, and some before and after."""
    server = SeaweedFS()
    try:
        await asyncio.to_thread(server.start)
        with opened(backend, folder) as store:
            load = _Load(store.url, server.url(f"away/{seed}", timeout="2s"), seed)
            async with load.app:
                drained, seconds = await _play(load, server, away, rate, budget)
                records = [await load.app.get(job_id) for job_id in load.stored]
    finally:
        server.close()
    lost = sum(record.state is not JobState.COMPLETED for record in records)
    burnt = sum(record.attempt for record in records)
    twice = sum(runs > 1 for runs in load.ran.values())
    said = (
        (bool(lost), f"{lost} jobs did not complete"),
        (bool(burnt), f"{burnt} attempts were burnt"),
        (bool(load.wrong), f"{load.wrong} runs had another section than was stored"),
        (bool(load.refused), f"{load.refused} jobs could not be enqueued"),
        (not load.alerts, "no alert said that the object store is away"),
        (not drained, "not everything was done in time"),
        (
            too_few(len(load.stored), rate, load.produced),
            f"fewer jobs were enqueued than asked in {load.produced:.0f} s",
        ),
    )
    problems = [text for bad, text in said if bad]
    reached: dict[str, Any] = {
        "jobs": len(load.stored), "lost": lost, "attempts burnt": burnt, "wrong sections": load.wrong,
        "jobs that ran more than once": twice, "times a job was put off": load.put_off,
        "slowest enqueue s": round(load.slowest, 2), "seconds of enqueueing": round(load.produced, 1),
        "drained": drained, "seconds": seconds,
    }  # fmt: skip
    asked = {"seconds away": away, "jobs a second": rate}
    return Outcome(
        scenario="objects_away", backend=backend, asked=asked, reached=reached, ok=not problems, seed=seed,
        problems=problems,
    )  # fmt: skip


def too_few(jobs: int, rate: int, seconds: float) -> bool:
    """Whether those who enqueue were held up."""
    return jobs < _SHARE * rate * seconds


async def _play(load: _Load, server: SeaweedFS, away: float, rate: int, budget: float) -> tuple[bool, float]:
    began, enough = time.monotonic(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(load.app.work())
        producer = group.create_task(load.produce(rate, enough))
        await _until(lambda: len(load.ran) >= rate, began + budget)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(away)
        await asyncio.to_thread(server.start)
        more = len(load.ran) + rate
        await _until(lambda: len(load.ran) >= more, began + budget)
        enough.set()
        await producer
        drained = await _until(lambda: len(load.ran) == len(load.stored), began + away + budget)
        load.app.stop()
        await worker
    return drained, round(time.monotonic() - began, 1)


async def _until(reached: Any, deadline: float) -> bool:
    while not reached():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True
