"""Many workers on one store: what a job costs while they idle, and what turns cost when all of them claim."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import Load
from benchmarks.metrics.metric import percentile
from benchmarks.studies.stores import Fresh, fresh
from headrace import App
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Row, Settlement
from headrace.types import JobState

WORKERS = 24
CLAIMERS = 16
RATIO = 0.7
"""What a governed queue must at least give out of what a plain one does."""
BUSY = 0.5
"""With so many cores kept busy by others, seconds say nothing: claims that go one after the other get one share of the
machine, and claims side by side get many."""
_QUEUE = "crowd"
_TENANTS = 100
_BATCH = 10
_LEASE = 3_600_000_000
_REST = 0.3
"""Seconds for the late claims that a job has caused."""


@dataclass(frozen=True)
class Crowd:
    """The same with few and with many, or plain and governed."""

    name: str
    unit: str
    before: float
    after: float
    flat: bool
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else 0.0


@dataclass(frozen=True)
class _Trickled:
    """Jobs that came alone."""

    claims: float
    """For each of them."""
    inserts: Sequence[float]
    starts: Sequence[float]
    """Milliseconds until each was stored, and until it ran."""


def idle(store: str, servers: Servers, jobs: int, workers: int, place: Path | None = None) -> list[Crowd]:
    """What each job costs that comes alone, and how long it takes: one worker, and many of them."""
    found = []
    for number in (1, workers):
        with fresh(store, servers, place, "counting") as at:
            found.append(asyncio.run(_trickle(at.url, number, jobs)))
    alone, many = found
    name = f"{workers} idle workers"
    few = many.claims <= 2 * alone.claims
    # A claim of SQLite that finds nothing is a look of this process into its file.
    note = "" if few or store != "sqlite" else "not judged: a look costs others nothing"
    return [
        Crowd(name, "claims/job", alone.claims, many.claims, few or bool(note), note),
        *_times(name, "insert", alone.inserts, many.inserts),
        *_times(name, "start", alone.starts, many.starts),
    ]


def _times(name: str, what: str, before: Sequence[float], after: Sequence[float]) -> list[Crowd]:
    """Where the median stays, a higher p99 is noise, and told so."""
    found = {share: (percentile(before, share), percentile(after, share)) for share in (0.5, 0.99)}
    flat = any(many <= 2 * few for few, many in found.values())
    return [
        Crowd(name, f"{what} p{share * 100:.0f} ms", few, many, flat, "noise" if flat and many > 2 * few else "")
        for share, (few, many) in found.items()
    ]


async def _trickle(url: str, workers: int, jobs: int) -> _Trickled:
    ran = asyncio.Event()
    claims = 0

    def counted(backend: Any) -> None:
        claim, turn = backend.claim, backend.finish_and_claim

        async def claims_counted(*args: Any) -> Any:
            nonlocal claims
            claims += 1
            return await claim(*args)

        async def turns_counted(*args: Any) -> Any:
            nonlocal claims
            claims += 1
            return await turn(*args)

        backend.claim, backend.finish_and_claim = claims_counted, turns_counted

    async with AsyncExitStack() as stack:
        apps = [App(url) for _ in range(workers)]
        for app in apps:

            @app.task(name="nothing", queue=_QUEUE)
            async def nothing() -> None:
                ran.set()

            await stack.enter_async_context(app)
            counted(app.client._backend)
        working = [asyncio.ensure_future(app.work()) for app in apps]
        try:
            await asyncio.sleep(2.0)
            claims = 0
            inserts, starts = [], []
            for _ in range(jobs):
                ran.clear()
                began = time.perf_counter()
                await apps[0].enqueue_named("nothing", {})
                inserts.append((time.perf_counter() - began) * 1e3)
                await asyncio.wait_for(ran.wait(), 60)
                starts.append((time.perf_counter() - began) * 1e3)
                await asyncio.sleep(_REST)
            return _Trickled(claims / jobs, inserts, starts)
        finally:
            for app in apps:
                app.stop()
            await asyncio.gather(*working)


@dataclass(frozen=True)
class _Drained:
    """One queue that was emptied."""

    rate: float
    """Jobs a second …"""
    thrift: float
    """… and a second of CPU, of the server and of its clients."""
    foreign: float
    """Cores that others kept busy meanwhile."""


def governed(
    store: str, servers: Servers, jobs: int, claimers: int, times: int, place: Path | None = None
) -> list[Crowd]:
    """Jobs a second through claims and completions, by the clock and by CPU time: of a plain queue, and of a governed
    one."""
    found: dict[bool, list[_Drained]] = {False: [], True: []}
    for time_ in range(times):
        for kind in (False, True) if time_ % 2 == 0 else (True, False):
            with fresh(store, servers, place, "counting") as at:
                found[kind].append(_measured(at, jobs, claimers, kind))
    name = f"{claimers} claimers, governed"
    plain, turns = (max(one.rate for one in found[kind]) for kind in (False, True))
    lean, costly = (max(one.thrift for one in found[kind]) for kind in (False, True))
    quick, cheap = turns >= RATIO * plain, costly >= RATIO * lean
    busy = min(one.foreign for one in [*found[False], *found[True]]) > BUSY
    note = "NOT FLAT, or noise: others were busy" if busy and cheap and not quick else ""
    return [
        Crowd(name, "jobs/s", plain, turns, quick, note),
        Crowd(name, "jobs/s of CPU", lean, costly, cheap),
    ]


def _measured(at: Fresh, jobs: int, claimers: int, governs: bool) -> _Drained:
    cpu, load = at.cpu() + time.process_time(), Load.now(at.cpu())
    seconds, filling = asyncio.run(_drain(at, jobs, claimers, governs))
    cpu = at.cpu() + time.process_time() - cpu - filling
    return _Drained(jobs / seconds, jobs / max(cpu, 1e-9), Load.now(at.cpu()).foreign_since(load))


async def _drain(at: Fresh, jobs: int, claimers: int, governs: bool) -> tuple[float, float]:
    """The seconds that it took, and the CPU seconds before it began."""
    cpu = at.cpu() + time.process_time()
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(App(at.url)) for _ in range(claimers)]
        first = await apps[0].client.backend()
        if governs:
            await apps[0].policies.set(_QUEUE, tenant_batch=_BATCH)
        new_id = apps[0].client.packer.new_id
        rows = [Row(new_id(), _QUEUE, "nothing", {}, tenant=f"t{number % _TENANTS}") for number in range(jobs)]
        for start in range(0, jobs, 1_000):
            await first.insert(rows[start : start + 1_000])
        backends = [await app.client.backend() for app in apps]
        cpu, began = at.cpu() + time.process_time() - cpu, time.perf_counter()
        done = await asyncio.gather(*[_empty(backend, f"h{i}") for i, backend in enumerate(backends)])
        seconds = time.perf_counter() - began
    if sum(done) != jobs:
        raise RuntimeError(f"expected {jobs} jobs to be run, but {sum(done)} were")
    return seconds, cpu


async def _empty(backend: Backend, holder: str) -> int:
    assert backend.finish_and_claim is not None
    done = 0
    batch: list[Settlement] = []
    while True:
        _, found = await backend.finish_and_claim(batch, Claim(holder, (_QUEUE,), _BATCH, _LEASE))
        done += len(batch)
        batch = [Settlement(job.id, job.epoch, holder, JobState.COMPLETED, keep=False) for job in found.jobs]
        if not batch and found.next_in is None:
            return done
