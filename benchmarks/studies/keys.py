"""How long a key is held while others complete: ``python -m benchmarks.studies.keys --store sqlite``.

One job with a key completes with a ``result_ttl`` of an hour. Then a million others do, every tenth of them with a key
of its own, under the bounds that records have by default, swept as workers sweep. At the end the first key must still
be taken, and so must those of the others. A store takes some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import gettempdir

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import STORES, fresh, keep
from headrace import App
from headrace.core.clock import SystemClock
from headrace.core.config import RetentionSettings
from headrace.core.events import Observers
from headrace.keeping.retention import Retention
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, InsertStatus, Row, Settlement, SweepTarget
from headrace.types import JobState

OUTPUT = HOME / "keys.jsonl"
_HOUR = 3_600_000_000
_BATCH = 1_000
_KEYED = 10
_LOOKS = 1_000


@dataclass(frozen=True)
class Cell:
    """Keys after so many completions."""

    store: str
    completions: int
    seconds: float
    records: int
    """Left of completed jobs."""
    keys: int
    """That outlive the records of theirs."""
    held: bool
    """Whether the first key is taken."""
    free: int
    """Of so many of the others as were looked at."""


async def measure(store: str, url: str, completions: int) -> Cell:
    """Complete, sweep, and look whether the keys are taken."""
    app, rng = App(url), Random(1)
    async with app:
        backend = await app.client.backend()
        sweeper = Retention(backend, SystemClock(), rng, Observers(), RetentionSettings())
        began = time.perf_counter()
        await _complete(backend, [_row(rng, "first")])
        for done in range(0, completions, _BATCH):
            await _complete(backend, [_row(rng, f"{done + n}" if n % _KEYED == 0 else None) for n in range(_BATCH)])
            if done % (20 * _BATCH) == 0:
                await sweeper.sweep()
        await sweeper.sweep()
        places = {place.target: place.count for place in (await backend.stats()).kept}
        known = [f"{n}" for n in range(0, completions, _KEYED)]
        looks = [_row(rng, key) for key in rng.sample(known, min(_LOOKS, len(known)))]
        others = await backend.insert(looks)
        [first] = await backend.insert([_row(rng, "first")])
    return Cell(
        store,
        completions,
        time.perf_counter() - began,
        places[SweepTarget.COMPLETED],
        places[SweepTarget.KEYS],
        first.status in (InsertStatus.DUPLICATE, InsertStatus.DONE),
        sum(answer.status is InsertStatus.NEW for answer in others),
    )


def _row(rng: Random, key: str | None) -> Row:
    made = time.time_ns() // 1_000_000
    job_id = made.to_bytes(6, "big") + bytes([0x70]) + rng.randbytes(9)
    return Row(job_id, "charges", "charge", {"parameters": b"[42]"}, key=key)


async def _complete(backend: Backend, rows: Sequence[Row]) -> None:
    await backend.insert(rows)
    claimed = await backend.claim(Claim("study", ("charges",), len(rows), _HOUR))
    await backend.finish(
        [
            Settlement(job.id, job.epoch, "study", JobState.COMPLETED, result=b"1", result_ttl=_HOUR)
            for job in claimed.jobs
        ]
    )


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [
        ("store", "completions", "records left", "keys that outlive", "first key", "others free")
    ]
    rows += [
        (c.store, f"{c.completions:,}", f"{c.records:,}", f"{c.keys:,}", "held" if c.held else "FREE", f"{c.free:,}")
        for c in cells
    ]
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.keys", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--completions", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    cells = []
    with Servers(None, None) as servers:
        for store in given.store or STORES:
            with fresh(store, servers) as place:
                cell = asyncio.run(measure(store, place.url, given.completions))
            cells.append(cell)
            keep(given.output, store, facts(Path(gettempdir())), [{"kind": "keys", **asdict(cell)}])
    print(table(cells))
    return int(any(not cell.held or cell.free for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
