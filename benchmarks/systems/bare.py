"""The tightest loop over the driver that makes the same writes durable as Headrace does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from benchmarks.gate import Gate
from benchmarks.systems.system import WARM, Answer, System, job, needed
from benchmarks.systems.tables import Leased, Tables

BATCH = 500
CHUNK = 2_000
"""Rows of one transaction in a bulk insert: as many as Headrace puts into one."""


class BareSqlite(System):
    """apsw in a loop: no jobs are run, nothing is decoded."""

    roles = frozenset({"enqueue", "bulk", "fill", "work", "watch"})
    distributions = ("apsw",)
    tables: ClassVar[type[Tables]] = Leased
    note = f"the tables that Headrace writes, turns of {BATCH}"

    def __init__(self, name: str, durability: str) -> None:
        super().__init__(name, "sqlite", f"WAL, synchronous={durability.upper()}; {self.note}")
        self._durability = durability

    def open(self, place: str, name: str = "queue") -> Tables:
        """The tables in the shared directory."""
        return self.tables(Path(place, f"{name}.db"), self._durability)

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """Insert one job per transaction."""
        tables, text = self.open(place), job().encode()
        for number in range(WARM):
            tables.insert([(number, text)])
        gate.ready()
        start = time.perf_counter()
        for number in range(WARM, WARM + count):
            tables.insert([(number, text)])
        return {"seconds": time.perf_counter() - start, **gate.used()}

    def bulk(self, gate: Gate, place: str, count: int) -> Answer:
        """Insert many jobs in few transactions."""
        tables, text = self.open(place), job().encode()
        tables.insert([(number, text) for number in range(WARM)])
        gate.ready()
        start = time.perf_counter()
        for first in range(WARM, WARM + count, CHUNK):
            tables.insert((number, text) for number in range(first, min(first + CHUNK, WARM + count)))
        return {"seconds": time.perf_counter() - start, **gate.used()}

    def fill(self, gate: Gate, place: str, count: int) -> Answer:
        """As many waiting jobs as asked for."""
        tables, text = self.open(place), job().encode()
        gate.ready()
        for first in range(0, count, CHUNK):
            tables.insert((number, text) for number in range(first, min(first + CHUNK, count)))
        return {}

    def work(self, gate: Gate, place: str) -> Answer:
        """Take and end jobs in turns until told to stop."""
        warm = self.open(place, "warm")
        warm.insert([(number, job().encode()) for number in range(WARM)])
        warm.turn([number for number, _ in warm.turn([], WARM)], BATCH)
        tables = self.open(place)
        gate.ready()
        done: list[int] = []
        while not gate.stopped:
            done = [number for number, _ in tables.turn(done, BATCH)]
            if not done:
                time.sleep(0.001)
        return gate.used()

    def watch(self, gate: Gate, place: str, goal: int) -> Answer:
        """The instant at which the store held nothing any more."""
        assert goal == 0
        tables = self.open(place)
        needed(tables.left())
        gate.ready()
        while tables.left():
            time.sleep(0.001)
        return {"at": time.monotonic_ns()}

    def engine(self) -> dict[str, str]:
        import apsw

        return {"sqlite (apsw)": apsw.sqlite_lib_version()}
