"""Huey on SQLite: a worker framework with threads, at most once."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gate import Gate
from benchmarks.payload import SMALL, pad
from benchmarks.systems.system import WARM, Answer, System, needed, stdlib_sqlite


class HueySqlite(System):
    """Its own consumer in one process, with the number of threads that served it best."""

    packages = ("huey",)
    distributions = ("huey",)
    roles = frozenset({"enqueue", "fill", "work", "watch", "produce"})
    gap = 0.3
    most_samples = 60
    threads = 1

    def __init__(self, name: str) -> None:
        super().__init__(
            name, "sqlite", f"WAL, synchronous=FULL (its default), at most once, {self.threads} thread, 100 ms poll"
        )

    def engine(self) -> dict[str, str]:
        return stdlib_sqlite()

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """Enqueue one by one, each stored before the next."""
        tasks, text = _Tasks(Path(place, "queue.db")), pad(SMALL)
        for _ in range(WARM):
            tasks.noop(1, text)
        gate.ready()
        start = time.perf_counter()
        for _ in range(count):
            tasks.noop(1, text)
        return {"seconds": time.perf_counter() - start, **gate.used()}

    def fill(self, gate: Gate, place: str, count: int) -> Answer:
        """As many waiting jobs as asked for."""
        tasks, text = _Tasks(Path(place, "queue.db")), pad(SMALL)
        gate.ready()
        for _ in range(count):
            tasks.noop(1, text)
        return {}

    def work(self, gate: Gate, place: str) -> Answer:
        """Its consumer, until told to stop; the latencies of jobs that say when they were sent."""
        logging.getLogger("huey").setLevel(logging.WARNING)
        warm = _Tasks(Path(place, "warm.db"))
        for _ in range(WARM):
            warm.noop(1, "")
        while (task := warm.huey.dequeue()) is not None:
            warm.huey.execute(task)
        tasks = _Tasks(Path(place, "queue.db"))
        consumer = tasks.huey.create_consumer(workers=self.threads, periodic=False, check_worker_health=False)
        gate.ready()
        stop = threading.Event()
        gate.on_stop(stop.set)
        consumer.start()
        stop.wait()
        answer = {"latencies": tasks.latencies, **gate.used()}
        consumer.stop(graceful=True)
        return answer

    def watch(self, gate: Gate, place: str, goal: int) -> Answer:
        """The instant at which no task waited any more; Huey drops a task when it starts it."""
        assert goal == 0
        left = _left(Path(place, "queue.db"))
        needed(left())
        gate.ready()
        while left():
            time.sleep(0.001)
        return {"at": time.monotonic_ns()}

    def produce(self, gate: Gate, place: str, count: int, gap: float) -> Answer:
        """Send single jobs to an idle worker, and wait until it has started them all."""
        tasks = _Tasks(Path(place, "queue.db"))
        gate.ready()
        for _ in range(count):
            time.sleep(gap)
            tasks.stamp(time.monotonic_ns())
        left = _left(Path(place, "queue.db"))
        while left():
            time.sleep(gap)
        return {}


class _Tasks:
    """The same two tasks in producer and consumer."""

    def __init__(self, path: Path) -> None:
        from huey import SqliteHuey

        self.huey: Any = SqliteHuey("bench", filename=str(path))
        self.latencies: list[int] = []
        self.noop: Any = self.huey.task(name="noop")(_noop)
        self.stamp: Any = self.huey.task(name="stamp")(self._stamp)

    def _stamp(self, sent: int) -> None:
        self.latencies.append(time.monotonic_ns() - sent)


def _left(path: Path) -> Callable[[], bool]:
    connection = sqlite3.connect(path, isolation_level=None)
    return lambda: bool(connection.execute("SELECT EXISTS (SELECT 1 FROM task)").fetchone()[0])


def _noop(n: int, pad: str) -> None:
    pass
