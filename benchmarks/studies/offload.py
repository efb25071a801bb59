"""The reference load with its sections in the store, and in an object store: bytes in PostgreSQL's log and tables
beside the wide table that jobs lived in before, also where Valkey gives the jobs out (streams); requests at the object
store; and the pace of enqueues and of a worker.

``python -m benchmarks.studies.offload`` takes some minutes; ``--quick`` some seconds. A job has 2.7 KB of vm_state, 1.6
KB of blob, 155 B of parameters and 120 B of metadata; one in ten is retried with a new vm_state. The object store is a
real S3 server on this machine (SeaweedFS).

The ways: *inline*, all sections in the store; *delayed*, jobs that are due an hour later, so that vm_state and blob
leave by the default settings; *objects*, vm_state and blob always leave; *everything*, all four do.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from servers.seaweedfs import SeaweedFS

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.results import HOME, aligned, shown
from benchmarks.server import STORES as DATABASES
from benchmarks.studies.stores import EVERY, Fresh, fresh, keep
from benchmarks.systems.legacy import LegacyPostgres
from benchmarks.systems.load import Load
from benchmarks.systems.log import Log
from headrace import App, Job, NewJob, Patch, Retry, Sections, immediate
from headrace.api.client import Client
from headrace.api.connection import open_backend
from headrace.core.clock import ManualClock, SystemClock
from headrace.core.config import RetentionSettings, Settings
from headrace.seam.records import SweepClause, SweepTarget

OUTPUT = HOME / "offload.jsonl"
WAYS = ("inline", "delayed", "objects", "everything")
SHARE = 0.15
"""Of the log of the wide table: what may be written with everything in objects."""
REQUESTS = 20.0
"""For 1,000 jobs, to enqueue them in bulk and to claim them a hundred at a time."""
_CHUNK = 1_000
_DAY = 86_400_000_000
_A_DAY = RetentionSettings().completed.count or 1
_AWAY = {"over": 0}
_HEAVY = {"vm_state": _AWAY, "blob": _AWAY}
_ALL = {name: {"over": 0, "least": 0} for name in ("parameters", "vm_state", "metadata", "blob")}


@dataclass(frozen=True)
class Bytes:
    """Of one job, in PostgreSQL's log and tables."""

    way: str
    load: str
    insert: float
    work: float
    delete: float
    """By a sweep, row by row."""
    kept: float
    """Tables and indexes before anything is deleted."""
    share: float = 1.0
    """Of the log that the wide table wrote."""
    day: float | None = None
    """To make four days and drop one, whatever is in it: bytes in all. It comes instead of ``delete`` where completed
    jobs are kept for a day or more."""
    drop_share: float | None = None
    """Of the log that the wide table wrote, if days of as many jobs as the default settings keep are dropped."""
    requests: float = 0.0
    """At the object store, for 1,000 jobs."""
    kind: str = "offload, bytes"

    @property
    def log(self) -> float:
        return self.insert + self.work + self.delete


@dataclass(frozen=True)
class Pace:
    """Jobs a second, on one store."""

    way: str
    enqueue: float
    drain: float
    requests: float
    kind: str = "offload, pace"


@dataclass(frozen=True)
class Requests:
    """At the object store, for 1,000 jobs that succeed at once: a bulk enqueue, and claims of 100."""

    enqueue: float
    work: float
    kind: str = "offload, requests"


class Jobs:
    """One load on one store, through an app and its worker."""

    def __init__(self, url: str, objects: SeaweedFS, way: str, load: str, count: int, *, retried: bool = True) -> None:
        self._count, self._way, made = count, way, Load(load)
        self._clock = ManualClock(SystemClock().now()) if way == "delayed" else SystemClock()
        rules: dict[str, Any] = {"delayed": {}, "objects": _HEAVY, "everything": _ALL}.get(way, {})
        given: dict[str, Any] = {"url": url, "worker": {"concurrency": 100}}
        if way != "inline":
            given["objects"] = {"url": objects.url(f"study/{way}/{load}/{time.monotonic_ns()}")} | rules
        settings = Settings.load(given, env={}, toml={})
        self.app = App(Client(open_backend(url), settings, clock=self._clock))
        self._jobs = [self._job(made, number) for number in range(count)]
        """All are made before anything is measured: to make one takes longer than to enqueue it."""
        retries = {number: made.retried(number) for number in range(count if retried else 0)}
        self._retries = {number: vm_state for number, vm_state in retries.items() if vm_state is not None}
        self._again: set[int] = set()
        self.app.task(name="load", queue="bench", retry=immediate(3))(self._run)

    async def insert(self) -> None:
        for first in range(0, self._count, _CHUNK):
            await self.app.enqueue_many(self._jobs[first : first + _CHUNK])

    async def work(self) -> None:
        if isinstance(self._clock, ManualClock):
            self._clock.advance("1h")
        await self.app.drain()
        left = sum(one.available + one.running + one.failed for one in (await self.app.client.stats()).queues)
        if left:
            raise RuntimeError(f"{left} of {self._count} jobs did not complete")

    async def drop(self) -> None:
        """Let four days pass: new ones are made, and that of all jobs is past its age, which drops it."""
        backend = await self.app.client.backend()
        assert backend.tidy is not None
        clause = SweepClause(target=SweepTarget.COMPLETED, older_than=_DAY)
        await backend.tidy([clause], self._clock.now() + 4 * _DAY)
        left = sum(one.completed for one in (await backend.stats()).queues)
        if left:
            raise RuntimeError(f"{left} of {self._count} jobs are left of the dropped day")

    async def delete(self) -> None:
        backend = await self.app.client.backend()
        clause = SweepClause(target=SweepTarget.COMPLETED, max_count=0)
        while (await backend.sweep(clause, self._clock.stamp())).more:
            pass

    def _job(self, made: Load, number: int) -> NewJob:
        return NewJob(
            task="load",
            queue="bench",
            args=made.parameters(number),
            sections=Sections(**made.sections(number)),
            delay="1h" if self._way == "delayed" else None,  # type: ignore[arg-type]
        )

    async def _run(self, job: Job[None], n: int, pad: str) -> Any:
        vm_state = None if n in self._again else self._retries.get(n)
        if vm_state is None:
            return None
        self._again.add(n)
        return Retry(0, patch=Patch(sections=Sections(vm_state=vm_state)))


async def journal(made: Fresh, objects: SeaweedFS, way: str, load: str, count: int, legacy: float) -> Bytes:
    """What one way writes into PostgreSQL."""
    jobs = Jobs(made.url, objects, way, load, count)
    async with jobs.app:
        await (await jobs.app.client.backend()).stats()
        with psycopg.connect(made.truth, autocommit=True) as connection:
            log, before = Log(connection), objects.requests()
            with log.part("insert"):
                await jobs.insert()
            with log.part("work"):
                await jobs.work()
            asked, kept = objects.requests() - before, log.relations()
            with log.part("delete"):
                await jobs.delete()
            if way == "everything":
                await jobs.insert()
                await jobs.work()
                with log.part("days"):
                    await jobs.drop()
    parts = {name: size / count for name, size in log.parts.items()}
    days = parts.pop("days", 0.0) * count
    share = sum(parts.values()) / legacy
    drop_share = (parts["insert"] + parts["work"] + days / _A_DAY) / legacy if days else None
    return Bytes(
        way, load, **parts, kept=kept / count, share=share, day=days or None, drop_share=drop_share,
        requests=asked * 1_000 / count,
    )  # fmt: skip


class _AlwaysReady:
    """A gate for a system that is played in this process."""

    def ready(self) -> None: ...


def wide_table(url: str, load: str, count: int) -> Bytes:
    """What the wide table writes for the same load."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{DATABASES[0]}.url").write_text(url)
        answer = LegacyPostgres("legacy").journal(_AlwaysReady(), folder, count, load, True)  # type: ignore[arg-type]
    parts = {name: size / count for name, size in answer["parts"].items() if name != "vacuum"}
    return Bytes("wide table", load, **parts, kept=answer["relations"] / count)


async def pace(url: str, objects: SeaweedFS, way: str, count: int) -> Pace:
    """How fast the load is enqueued in bulk, and worked off by one worker."""
    jobs = Jobs(url, objects, way, "json", count)
    async with jobs.app:
        before, began = objects.requests(), time.perf_counter()
        await jobs.insert()
        enqueued = time.perf_counter()
        await jobs.work()
        done = time.perf_counter()
    asked = (objects.requests() - before) * 1_000 / count
    return Pace(way, count / (enqueued - began), count / (done - enqueued), asked)


async def requests(url: str, objects: SeaweedFS, count: int) -> Requests:
    """How often the object store is asked."""
    jobs = Jobs(url, objects, "everything", "random", count, retried=False)
    async with jobs.app:
        before = objects.requests()
        await jobs.insert()
        enqueued = objects.requests()
        async with jobs.app.pull("bench", batch=100) as pull:
            for _ in range(0, count, 100):
                for job in await pull.take(100):
                    job.set_state("completed")
                    job.release()
        done = objects.requests()
    return Requests((enqueued - before) * 1_000 / count, (done - enqueued) * 1_000 / count)


def measure(stores: Sequence[str], place: Path | None, count: int, loads: Sequence[str]) -> dict[str, list[Any]]:
    """All ways on all stores."""
    found: dict[str, list[Any]] = {}
    objects = SeaweedFS()
    objects.start()
    try:
        with Servers(place, None) as servers:
            for store in stores:
                lines = found.setdefault(store, [])
                for load in loads if store in ("postgres", "streams") else ():
                    with fresh("postgres", servers, place, "quiet") as made:
                        legacy = wide_table(made.url, load, count)
                    lines.append(legacy)
                    for way in WAYS:
                        with fresh(store, servers, place, "quiet") as made:
                            lines.append(asyncio.run(journal(made, objects, way, load, count, legacy.log)))
                with fresh(store, servers, place) as made:
                    lines.append(asyncio.run(requests(made.url, objects, count)))
                for way in WAYS:
                    with fresh(store, servers, place) as made:
                        lines.append(asyncio.run(pace(made.url, objects, way, count)))
    finally:
        objects.close()
    return found


def table(found: dict[str, list[Any]]) -> str:
    """The lines for people."""
    sizes: list[Sequence[str]] = [
        (
            "store",
            "load",
            "way",
            "log B/job",
            "insert",
            "work",
            "delete",
            "kept B/job",
            "of the wide table",
            "its day dropped",
            "requests/1,000",
        )
    ]
    rates: list[Sequence[str]] = [("store", "way", "enqueued/s", "worked off/s", "requests/1,000")]
    asked: list[Sequence[str]] = [("store", "requests/1,000 to enqueue", "to work off")]
    for store, lines in found.items():
        for one in lines:
            if isinstance(one, Bytes):
                dropped = "" if one.drop_share is None else f"{one.drop_share:.1%}"
                parts = [f"{size:,.0f}" for size in (one.log, one.insert, one.work, one.delete, one.kept)]
                sizes.append((store, one.load, one.way, *parts, f"{one.share:.1%}", dropped, shown(one.requests)))
            elif isinstance(one, Requests):
                asked.append((store, shown(one.enqueue), shown(one.work)))
            else:
                rates.append((store, one.way, f"{one.enqueue:,.0f}", f"{one.drain:,.0f}", shown(one.requests)))
    return "\n".join([*aligned(sizes), "", *aligned(asked), "", *aligned(rates)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.offload", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few jobs, to see that it works")
    parser.add_argument("--store", choices=EVERY, action="append", help="may be repeated; default: all")
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--place", type=Path, help="where the servers' files are")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    logging.getLogger("headrace").setLevel(logging.ERROR)
    loads = ("json",) if given.quick else ("random", "json")
    found = measure(given.store or EVERY, given.place, 200 if given.quick else given.jobs, loads)
    machine = facts(given.place or Path(tempfile.gettempdir()))
    for store, lines in found.items():
        keep(given.output, store, machine, [asdict(line) for line in lines])
    print(table(found))
    short = [] if given.quick else missed(found)
    for one in short:
        print(f"missed: {one}")
    return 1 if short else 0


def missed(found: dict[str, list[Any]]) -> list[str]:
    """Which goals were not reached. A few jobs say nothing about the log."""
    problems = []
    for store, lines in found.items():
        for one in lines:
            if isinstance(one, Bytes) and one.way == "everything" and one.share > SHARE:
                problems.append(f"{store}, {one.load}: {one.share:.1%} of the wide table's log, expected {SHARE:.0%}")
            if isinstance(one, Requests) and one.enqueue + one.work > REQUESTS:
                asked = one.enqueue + one.work
                problems.append(f"{store}: {asked:.1f} requests for 1,000 jobs, expected {REQUESTS:.0f}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
