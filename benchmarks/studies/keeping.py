"""What janitor, vault and budget cost a drain.

``python -m benchmarks.studies.keeping`` drains jobs on every store in turns: with nothing that keeps; with janitor,
vault and budget watch; and with them while as many jobs that ended some minutes before are archived and removed, as
in a store that has been in use for long. It takes some minutes. ``--jobs`` and ``--rounds`` make it smaller.

The second drain is to be at least 85 % as fast as the first, by the clock, and by the CPU of worker and server. So is
the third by the clock, while it archives and removes others. What of that is not done when the drain is over is done
then, and its CPU counts too: it says what it costs to archive and remove a job.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import STORES, Fresh, fresh, keep
from headrace import App
from headrace.keeping.retention import Retention
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Row, Settlement
from headrace.types import JobState
from headrace.vault.tables import arrow

OUTPUT = HOME / "keeping.jsonl"
LEAST = 0.85
_MINUTE = 60_000_000
_BEFORE = 5 * _MINUTE
_BATCH = 1_000
_PART = 10
"""At least a tenth of the jobs are to be archived during a drain."""


@dataclass(frozen=True)
class Drained:
    """One drain."""

    jobs: int
    keeping: bool
    old: bool
    """Whether others are archived and removed meanwhile."""
    seconds: float
    cpu: float
    """Seconds, of worker and server."""
    meanwhile: int
    """Jobs that were archived by the end of the drain."""
    archived: int
    removed: int
    kind: str = "drain"


def make(url: str, folder: Path, *, keeping: bool) -> App:
    """An app whose jobs do nothing."""
    retention: dict[str, Any] = {"every": "1h"}
    options: dict[str, Any] = {}
    if keeping:
        retention = {"every": "1s", "completed": {"age": "2m"}, "safety": {"floor": 10_000_000}}
        options = {"vault": {"url": f"file://{folder}", "every": "1s"}}
    app = App(url, retention=retention, **options)

    @app.task(name="nothing", queue="work", result_ttl=0)
    async def nothing() -> None: ...

    return app


async def drain(place: Fresh, folder: Path, jobs: int, *, keeping: bool, old: bool) -> Drained:
    """Drain so many jobs; ``old``: after as many have ended."""
    app = make(place.url, folder, keeping=keeping)
    nothing: Any = app.tasks["nothing"]
    async with app:
        if old:
            await _end(await app.client.backend(), jobs)
        if keeping:
            await app.janitor.set_budget(1 << 40)
        for _ in range(0, jobs, _BATCH):
            await app.enqueue_many([nothing.job() for _ in range(_BATCH)])
        await asyncio.to_thread(place.settle)
        cpu, began = _cpu(place), time.perf_counter()
        await app.drain()
        seconds = time.perf_counter() - began
        meanwhile = sum(row["jobs"] for row in await _archived(app)) if old else 0
        if old:
            await app.vault.archive()
            await _sweep(app)
        cpu = _cpu(place) - cpu
        archived = sum(row["jobs"] for row in await _archived(app)) if old else 0
        removed = sum(one.jobs for one in await app.janitor.removed())
    return Drained(jobs, keeping, old, seconds, cpu, meanwhile, archived, removed)


async def _archived(app: App) -> list[dict[str, Any]]:
    files = [f"'{app.client.settings.vault.url}/{file.key}'".replace("file://", "") for file in await app.vault.files()]
    return await app.vault.query(f"SELECT count(*) AS jobs FROM read_parquet([{', '.join(files)}])") if files else []


async def _sweep(app: App) -> None:
    """What the duty of a worker does."""
    client = app.client
    settings = client.settings.retention
    await Retention(await client.backend(), client.clock, Random(), client.observers, settings).sweep()


def _cpu(place: Fresh) -> float:
    return time.process_time() + place.cpu()


async def _end(backend: Backend, jobs: int) -> None:
    """Jobs that completed some minutes ago."""
    at = await backend.now() - _BEFORE
    for start in range(0, jobs, _BATCH):
        rows = [Row(_id(at, start + n), "old", "nothing", {"parameters": b"[]"}) for n in range(_BATCH)]
        await backend.insert(rows, at)
        leased = (await backend.claim(Claim("h", ("old",), _BATCH, _MINUTE), at)).jobs
        await backend.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in leased], at + start)


def _id(at: int, number: int) -> bytes:
    return (at // 1_000).to_bytes(6, "big") + bytes.fromhex(f"7000800000{number:010x}")


def best(drains: Sequence[Drained], measure: str, *, keeping: bool, old: bool = False) -> float:
    """The least that was measured."""
    return min(getattr(one, measure) for one in drains if (one.keeping, one.old) == (keeping, old))


def share(drains: Sequence[Drained], measure: str, *, old: bool = False) -> float:
    """How much of the first one's speed a drain that keeps has."""
    return best(drains, measure, keeping=False) / best(drains, measure, keeping=True, old=old)


def cost(drains: Sequence[Drained]) -> float:
    """CPU seconds that it takes to archive and remove a job."""
    more = best(drains, "cpu", keeping=True, old=True) - best(drains, "cpu", keeping=True)
    return more / drains[0].jobs


def verdict(store: str, drains: Sequence[Drained]) -> list[str]:
    """What is not as it is to be."""
    told = []
    for measure, name in (("seconds", "the clock"), ("cpu", "CPU")):
        if (found := share(drains, measure)) < LEAST:
            told.append(f"{store}: a drain that keeps has {found:.0%} of the other's speed by {name}")
    if (found := share(drains, "seconds", old=True)) < LEAST:
        told.append(f"{store}: a drain has {found:.0%} of the other's speed while others are archived and removed")
    if any(one.meanwhile < one.jobs // _PART for one in drains if one.old):
        told.append(f"{store}: few were archived during the drain, so it does not show what that costs")
    if any(min(one.archived, one.removed) < one.jobs - _BATCH for one in drains if one.old):
        told.append(f"{store}: not all that had ended was archived and removed, so this shows nothing")
    return told


def table(found: dict[str, list[Drained]]) -> str:
    """What people read."""
    rows = [
        ["store", "jobs", "by the clock", "by CPU", "while it archives", "CPU of a job", "to archive and remove it"]
    ]
    for store, drains in found.items():
        job = best(drains, "cpu", keeping=False) / drains[0].jobs
        rows.append(
            [
                store, f"{drains[0].jobs:,}", f"{share(drains, 'seconds'):.0%}", f"{share(drains, 'cpu'):.0%}",
                f"{share(drains, 'seconds', old=True):.0%}",
                f"{job * 1e6:.0f} µs", f"{cost(drains) * 1e6:.0f} µs",
            ]
        )  # fmt: skip
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and keep the result."""
    parser = argparse.ArgumentParser("python -m benchmarks.studies.keeping", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="of each drain; whole thousands")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--place", type=Path, help="where the stores' files are; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    arrow()  # once, for all of them
    found: dict[str, list[Drained]] = {}
    told: list[str] = []
    with Servers(given.place, None) as servers:
        for store in given.store or STORES:
            for _ in range(given.rounds):
                for keeping, old in ((False, False), (True, False), (True, True)):
                    with fresh(store, servers, given.place) as place, tempfile.TemporaryDirectory() as folder:
                        one = asyncio.run(drain(place, Path(folder), given.jobs, keeping=keeping, old=old))
                    found.setdefault(store, []).append(one)
                    print(*asdict(one).values(), flush=True)
            told += verdict(store, found[store])
            machine = facts(given.place or Path(tempfile.gettempdir()))
            keep(given.output, store, machine, [asdict(one) for one in found[store]])
    print(table(found))
    print("\n".join(told or ["as it is to be"]))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
