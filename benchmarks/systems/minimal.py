"""The ceiling: a worker with nothing but asyncio, batches, decoded no-op jobs and their acknowledgement."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems.bare import BATCH, BareSqlite
from benchmarks.systems.system import WARM, Answer, job
from benchmarks.systems.tables import Narrow, Tables


class MinimalSqlite(BareSqlite):
    """No lease, no record, no retries, no schedules, no results: what is left is what no worker can do without."""

    roles = frozenset({"fill", "work", "watch"})
    distributions = ("apsw", "msgspec")
    tables = Narrow
    note = f"no lease, no record, turns of {BATCH}"

    def work(self, gate: Gate, place: str) -> Answer:
        """Run jobs until told to stop."""
        warm = self.open(place, "warm")
        warm.insert([(number, job().encode()) for number in range(WARM)])
        asyncio.run(_drain(warm, lambda: not warm.left()))
        tables = self.open(place)
        gate.ready()
        asyncio.run(_drain(tables, lambda: gate.stopped))
        return gate.used()


async def _drain(tables: Tables, over: Any) -> None:
    import msgspec

    decode = msgspec.json.Decoder().decode
    done: list[int] = []
    while not over():
        taken = tables.turn(done, BATCH)
        done = []
        for number, payload in taken:
            await _noop(**decode(payload))
            done.append(number)
        await asyncio.sleep(0 if taken else 0.001)


async def _noop(n: int, pad: str) -> None:
    pass
