"""The ceiling on PostgreSQL: a worker with nothing but asyncio, batches, decoded no-op jobs and their acknowledgement.

The jobs of a turn run at the same time, each in a task of its own, as handlers may wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from benchmarks.gate import Gate
from benchmarks.sql import connected, micros, read
from benchmarks.systems.fastloop import on_uvloop
from benchmarks.systems.postgres import DURABLE, PostgresSystem
from benchmarks.systems.system import WARM, Answer, job

_BATCH = 500


class MinimalPostgres(PostgresSystem):
    """One lease per batch, so that a crash could be recovered from; no record, retries, schedules or results."""

    roles = frozenset({"fill", "work", "watch"})
    distributions = ("psycopg", "msgspec", "uvloop")
    unfinished = "EXISTS (SELECT 1 FROM jobs)"
    witness = "SELECT format('EXISTS (SELECT 1 FROM jobs WHERE id = %s)', max(id)) FROM jobs"

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{DURABLE}; one lease per batch, no record, turns of {_BATCH}, a task per job, uvloop")

    def fill(self, gate: Gate, place: str, count: int) -> Answer:
        """As many waiting jobs as asked for."""
        gate.ready()
        _fill(self.url(place), count)
        self.settle(place)
        return {}

    def work(self, gate: Gate, place: str) -> Answer:
        """Run jobs until told to stop."""
        _fill(self.url(place, "warm"), WARM)

        async def main() -> Answer:
            await _run(self.url(place, "warm"), lambda: None, lambda ran: ran >= WARM)
            await _run(self.url(place), gate.ready, lambda ran: gate.stopped)
            return gate.used()

        return on_uvloop(main)


def _fill(url: str, count: int) -> None:
    text, now, sql = job().encode(), micros(), read("minimal")
    with connected(url, "minimal") as connection, connection.transaction(), connection.cursor() as cursor:
        with cursor.copy(sql["copy_jobs"]) as copy:
            copy.set_types(["int8", "bytea"])
            for number in range(count):
                copy.write_row((number, text))
        with cursor.copy(sql["copy_ready"]) as copy:
            copy.set_types(["int2", "int8", "int8"])
            for number in range(count):
                copy.write_row((0, now, number))


async def _run(url: str, ready: Callable[[], None], over: Callable[[int], bool]) -> None:
    import msgspec
    import psycopg

    decode, start = msgspec.json.Decoder().decode, asyncio.get_running_loop().create_task
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)
    async with connection, connection.cursor(binary=True) as cursor:
        await connection.execute(read("minimal")["session"], prepare=False)
        turn = read("minimal")["turn"].format(batch=_BATCH)
        done: list[int] = []

        async def run(number: int, payload: bytes) -> None:
            await _noop(**decode(payload))
            done.append(number)

        ready()
        batch = ran = 0
        while not over(ran):
            await cursor.execute(turn, {"last": batch, "done": done, "next": batch + 1, "until": micros() + 30_000_000})
            taken = await cursor.fetchall()
            batch += 1
            ran += len(done)
            done.clear()
            running = [start(run(number, payload)) for number, payload in taken]
            while len(done) < len(running):
                await asyncio.sleep(0)
            if not running:
                await asyncio.sleep(0.05)


async def _noop(n: int, pad: str) -> None:
    pass
