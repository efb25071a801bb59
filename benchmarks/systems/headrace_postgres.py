"""Headrace on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.gate import Gate
from benchmarks.payload import SMALL
from benchmarks.systems.fastloop import on_uvloop
from benchmarks.systems.headrace import Headrace
from benchmarks.systems.headrace_crowd import Crowd
from benchmarks.systems.headrace_journal import Journal
from benchmarks.systems.headrace_steady import Steady
from benchmarks.systems.load import Load
from benchmarks.systems.log import Log
from benchmarks.systems.postgres import DURABLE, PostgresSystem
from benchmarks.systems.probe import Forgetful, Probe
from benchmarks.systems.system import Answer


class HeadracePostgres(PostgresSystem, Headrace):
    """The worker as ``headrace worker`` runs it. The server is watched by its tables, then asked through the API."""

    roles = frozenset(
        {"enqueue", "concurrent", "bulk", "fill", "work", "watch", "produce", "call", "footprint", "solo"}
        | {"journal", "claims", "crowd", "steady"}
    )  # fmt: skip
    forgets = True
    distributions = ("headrace", "msgspec", "psycopg", "uvloop")
    unfinished = "EXISTS (SELECT 1 FROM headrace.ready) OR EXISTS (SELECT 1 FROM headrace.leased)"
    witness = """
        SELECT format(
            'EXISTS (SELECT 1 FROM headrace.ready WHERE (qid, priority, run_at, id) = (%s, %s, %s, %L))',
            qid, priority, run_at, id
        )
        FROM headrace.ready ORDER BY priority DESC, run_at DESC, id DESC LIMIT 1
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{DURABLE}, LISTEN/NOTIFY, uvloop; default settings")

    def run(self, main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        return on_uvloop(main)

    def fill(self, gate: Gate, place: str, count: int, aside: int = 0, size: int = SMALL, task: str = "noop") -> Answer:
        answer = Headrace.fill(self, gate, place, count, aside, size, task)
        self.settle(place)
        return answer

    def watch(self, gate: Gate, place: str, goal: int) -> Answer:
        answer = super().watch(gate, place, goal)

        async def check() -> Answer:
            async with self._bench(place) as bench:
                left, spoilt = await bench.left(), await bench.spoilt()
                if left or spoilt:
                    raise RuntimeError(f"{left} jobs are left, {spoilt} failed or were cancelled")
                return answer

        return self.run(check)

    def journal(self, gate: Gate, place: str, count: int, load: str, history: bool) -> Answer:
        """Bytes of the log, by part, for a load with or without a history of completed jobs."""

        async def main() -> Answer:
            async with self._bench(place, probe=Probe if history else Forgetful) as bench:
                gate.ready()
                with self.connect(place) as connection:
                    return await Journal(bench, Load(load), count).measure(Log(connection), history=history)

        return self.run(main)

    def crowd(self, gate: Gate, place: str, workers: int, rounds: int) -> Answer:
        """How long single operations take among many workers."""

        async def main() -> Answer:
            return await Crowd(self.url(place), workers).run(rounds, gate.ready)

        return self.run(main)

    def steady(self, gate: Gate, place: str, backlog: int) -> Answer:
        """Keep a backlog and work it off, until told to stop."""

        async def main() -> Answer:
            await self._warm_up(place)
            async with self._bench(place, probe=Probe) as bench:
                steady = Steady(bench, backlog)
                gate.ready()
                loop = asyncio.get_running_loop()
                gate.on_stop(lambda: loop.call_soon_threadsafe(bench.app.stop))
                await steady.run()
                return {"samples": steady.samples}

        return self.run(main)
