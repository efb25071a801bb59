"""The ceiling: a worker with nothing but asyncio, batches, decoded no-op jobs and their acknowledgement.

The jobs of a turn run at the same time, each in a task of its own: handlers may wait, so a loop that awaits one after
the other would be faster and no worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from benchmarks.gate import Gate
from benchmarks.systems.bare import BATCH, BareSqlite
from benchmarks.systems.system import WARM, Answer, job
from benchmarks.systems.tables import Narrow, Tables


class MinimalSqlite(BareSqlite):
    """No lease, no record, no retries, no schedules, no results: what is left is what no worker can do without."""

    roles = frozenset({"fill", "work", "watch"})
    distributions = ("apsw", "msgspec")
    tables = Narrow
    note = f"no lease, no record, turns of {BATCH}, a task per job"

    def work(self, gate: Gate, place: str) -> Answer:
        """Run jobs until told to stop."""
        warm = self.open(place, "warm")
        warm.insert([(number, job().encode()) for number in range(WARM)])
        asyncio.run(_drain(warm, lambda: not warm.left()))
        tables = self.open(place)
        gate.ready()
        asyncio.run(_drain(tables, lambda: gate.stopped))
        return gate.used()


async def _drain(tables: Tables, over: Callable[[], bool]) -> None:
    import msgspec

    decode = msgspec.json.Decoder().decode
    start = asyncio.get_running_loop().create_task
    done: list[int] = []

    async def run(number: int, payload: bytes) -> None:
        await _noop(**decode(payload))
        done.append(number)

    while not over():
        taken = tables.turn(done, BATCH)
        done.clear()
        running = [start(run(number, payload)) for number, payload in taken]
        while len(done) < len(running):
            await asyncio.sleep(0)
        if not running:
            await asyncio.sleep(0.001)


async def _noop(n: int, pad: str) -> None:
    pass
