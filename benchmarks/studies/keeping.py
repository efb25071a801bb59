"""What janitor, vault and budget cost a drain.

``python -m benchmarks.studies.keeping`` drains jobs on every store, with everything that keeps and with nothing of it,
in turns. As many jobs ended some minutes before, and while the others run, these are archived and removed: so it is for
a store that has been in use for long. What is not archived and removed when the drain is over is done then, and its CPU
counts too; its time does not, as nobody waits for it.

The drain that keeps is to be at least 85 % as fast as the other, by the clock, and by the CPU of worker and server.
``--jobs`` and ``--rounds`` make it smaller.
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
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import STORES, Fresh, fresh, keep
from headrace import App
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Row, Settlement
from headrace.types import JobState
from headrace.vault.tables import arrow

OUTPUT = HOME / "keeping.jsonl"
LEAST = 0.85
_MINUTE = 60_000_000
_BEFORE = 5 * _MINUTE
_BATCH = 1_000


@dataclass(frozen=True)
class Drained:
    """One drain."""

    jobs: int
    keeping: bool
    seconds: float
    cpu: float
    """Seconds, of worker and server."""
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


async def drain(place: Fresh, folder: Path, jobs: int, *, keeping: bool) -> Drained:
    """Drain so many jobs, after as many have ended."""
    app = make(place.url, folder, keeping=keeping)
    nothing: Any = app.tasks["nothing"]
    async with app:
        await _end(await app.client.backend(), jobs)
        if keeping:
            await app.janitor.set_budget(1 << 40)
        for _ in range(0, jobs, _BATCH):
            await app.enqueue_many([nothing.job() for _ in range(_BATCH)])
        await asyncio.to_thread(place.settle)
        cpu, began = _cpu(place), time.perf_counter()
        await app.drain()
        seconds = time.perf_counter() - began
        if keeping:
            await app.vault.archive()
            await app.janitor.run(force=True)
        cpu = _cpu(place) - cpu
        archived = sum(row["jobs"] for row in await _archived(app)) if keeping else 0
        removed = sum(one.jobs for one in await app.janitor.removed())
    return Drained(jobs, keeping, seconds, cpu, archived, removed)


async def _archived(app: App) -> list[dict[str, Any]]:
    files = [f"'{app.client.settings.vault.url}/{file.key}'".replace("file://", "") for file in await app.vault.files()]
    return await app.vault.query(f"SELECT count(*) AS jobs FROM read_parquet([{', '.join(files)}])") if files else []


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


def share(drains: Sequence[Drained], measure: str) -> float:
    """How much of the other's speed a drain that keeps has, by the best of each."""
    best = {
        keeping: min(getattr(one, measure) for one in drains if one.keeping is keeping) for keeping in (False, True)
    }
    return best[False] / best[True]


def verdict(store: str, drains: Sequence[Drained]) -> list[str]:
    """What is not as it is to be."""
    told = []
    for measure, name in (("seconds", "the clock"), ("cpu", "CPU")):
        if (found := share(drains, measure)) < LEAST:
            told.append(f"{store}: a drain that keeps has {found:.0%} of the other's speed by {name}")
    kept = [one for one in drains if one.keeping]
    if any(min(one.archived, one.removed) < one.jobs for one in kept):
        told.append(f"{store}: not all that had ended was archived and removed, so this shows nothing")
    return told


def table(found: dict[str, list[Drained]]) -> str:
    """What people read."""
    rows = [["store", "jobs", "by the clock", "by CPU", "CPU per job", "with everything"]]
    for store, drains in found.items():
        cpu = {k: min(one.cpu / one.jobs for one in drains if one.keeping is k) * 1e6 for k in (False, True)}
        rows.append(
            [
                store, f"{drains[0].jobs:,}", f"{share(drains, 'seconds'):.0%}", f"{share(drains, 'cpu'):.0%}",
                f"{cpu[False]:.0f} µs", f"{cpu[True]:.0f} µs",
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
                for keeping in (False, True):
                    with fresh(store, servers, given.place) as place, tempfile.TemporaryDirectory() as folder:
                        one = asyncio.run(drain(place, Path(folder), given.jobs, keeping=keeping))
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
