"""Producers that rush at a queue of limited depth while workers drain it: how far over the limit it ever was.

``python -m benchmarks.studies.rush URL ROLE …`` is one of them: ``produce BATCH``, which tells in the end what became
of its rows, or ``work``.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.results import aligned
from benchmarks.studies.stores import fresh
from headrace import App
from headrace.seam.records import InsertStatus

QUEUE = "rush"
_LOOK = 0.002
_AT_REST = 25
"""So many looks in a row that find the same depth, while producers are refused: it changes no more."""
_PATIENCE = 60.0


@dataclass(frozen=True)
class Plan:
    """How much is asked for."""

    depth: int = 10_000
    batches: tuple[int, ...] = (100, 1_000)
    producers: int = 4
    workers: int = 2
    seconds: float = 20.0


QUICK = Plan(depth=500, batches=(100,), producers=2, workers=1, seconds=0.5)


@dataclass(frozen=True)
class Cell:
    """Batches of one size. Depths are numbers of waiting jobs."""

    depth: int
    """The limit."""
    batch: int
    full: int
    """How many waited when nobody drained, and nothing more was taken in."""
    most: int
    """The greatest depth ever seen, while workers drained …"""
    least: int
    """… and the lowest."""
    looks: int
    admitted: int
    refused: int

    @property
    def over(self) -> float:
        """By what share of the limit it was exceeded. What workers give back when they stop does not count: only those
        who come anew are refused."""
        return max(self.full, self.most) / self.depth - 1


def study(store: str, servers: Servers, plan: Plan, place: Path | None = None) -> list[Cell]:
    """A rush for every size of batches, each on a fresh store."""
    cells = []
    for batch in plan.batches:
        with fresh(store, servers, place) as at:
            cells.append(asyncio.run(_rush(at.url, batch, plan)))
    return cells


async def _rush(url: str, batch: int, plan: Plan) -> Cell:
    producers: list[subprocess.Popen[bytes]] = []
    workers: list[subprocess.Popen[bytes]] = []
    app = _app(url)
    try:
        async with app:
            await app.policies.set(QUEUE, depth=plan.depth)
            producers += [_start(url, "produce", str(batch)) for _ in range(plan.producers)]
            full = await _until_full(app)
            workers += [_start(url, "work") for _ in range(plan.workers)]
            while not (await app.client.stats()).workers:
                await asyncio.sleep(_LOOK)
            seen = [await _depth(app)]
            end = time.monotonic() + plan.seconds
            while time.monotonic() < end:
                await asyncio.sleep(_LOOK)
                seen.append(await _depth(app))
            for worker in workers:
                worker.terminate()
            await asyncio.to_thread(_wait, workers)
            for producer in producers:
                producer.terminate()
            told = await asyncio.to_thread(_wait, producers)
            [queue] = (await app.client.stats()).queues
    finally:
        for process in (*producers, *workers):
            if process.poll() is None:
                process.kill()
                process.wait()
    counts: Counter[str] = Counter()
    for each in told:
        counts.update(json.loads(each))
    if queue.available + queue.completed != counts["new"]:
        raise RuntimeError(f"{counts['new']} jobs were admitted, but the store has {queue}")
    return Cell(plan.depth, batch, full, max(seen), min(seen), len(seen), counts["new"], counts["full"])


def _start(url: str, *role: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.studies.rush", url, *role]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> list[bytes]:
    """What they said, when they have ended."""
    told = [process.communicate(timeout=_PATIENCE)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("one of them came to a bad end")
    return told


async def _until_full(app: App) -> int:
    """The depth that stays as it is."""
    end = time.monotonic() + _PATIENCE
    same, before = 0, 0
    while same < _AT_REST:
        if time.monotonic() > end:
            raise RuntimeError(f"the queue does not come to rest; {before} jobs wait now")
        await asyncio.sleep(10 * _LOOK)
        depth = await _depth(app)
        same, before = (same + 1 if depth == before and depth else 0), depth
    return before


async def _depth(app: App) -> int:
    queues = (await app.client.stats()).queues
    return sum(queue.available + queue.jobs_paused for queue in queues)


def _app(url: str) -> App:
    app = App(url, worker={"name": "random"})

    @app.task(name="nothing", queue=QUEUE)
    async def nothing(number: int) -> None: ...

    return app


async def _produce(url: str, batch: int) -> None:
    """The same batch over and over, with new ids, until told to stop."""
    app = _app(url)
    task: Any = app.tasks["nothing"]
    counts: Counter[str] = Counter()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with app:
        backend = await app.client.backend()
        while not stopped.is_set():
            rows = [app.client.packer.pack(task.job(number)) for number in range(batch)]
            answers = await backend.insert(rows)
            counts.update(answer.status.value for answer in answers)
            if all(answer.status is InsertStatus.FULL for answer in answers):
                await asyncio.sleep(_LOOK)
    print(json.dumps(counts))


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [("limit", "batch", "full", "most", "least", "over", "looks", "admitted", "refused")]
    for cell in cells:
        numbers = (cell.depth, cell.batch, cell.full, cell.most, cell.least)
        more = (cell.looks, cell.admitted, cell.refused)
        rows.append((*(f"{n:,}" for n in numbers), f"{cell.over:.2%}", *(f"{n:,}" for n in more)))
    return "\n".join(aligned(rows))


def main() -> None:
    url, role, *more = sys.argv[1:]
    if role == "produce":
        asyncio.run(_produce(url, int(more[0])))
    else:
        _app(url).run()


if __name__ == "__main__":
    main()
