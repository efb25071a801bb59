"""What every system under test offers: roles, each played in a process of its own.

A role is a method ``(gate, place, …) -> dict``. It sets itself up in the directory ``place``, warms up, calls
``gate.ready()``, and does the measured work after that. Libraries are imported inside the roles: the harness reads what
is declared here without having any peer installed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.gate import Gate
from benchmarks.payload import SMALL, pad

WARM = 300
"""Jobs that warm a process up before the clock runs."""

Answer = dict[str, Any]


class System:
    """One library, or one loop over a driver, in one setting."""

    roles: frozenset[str] = frozenset()
    """The roles that it can play; metrics that need others leave it out."""
    packages: ClassVar[tuple[str, ...]] = ()
    """What its own venv needs; empty: it runs in ours."""
    distributions: ClassVar[tuple[str, ...]] = ()
    """Whose versions go with its figures."""
    shared = True
    """Whether several processes can use one store of it."""
    served = False
    """Whether the store is a server that the harness runs."""
    forgets = False
    """Whether it can be told to keep no record of completed jobs."""
    gap = 0.02
    """Seconds between two jobs while idle latency is sampled: long enough for the worker to be idle again."""
    most_samples = 1_000
    most_drained = 1_000_000
    """No more jobs than this are drained where every one takes long; ``setting`` says so then."""

    def __init__(self, name: str, backend: str, setting: str) -> None:
        self.name = name
        self.backend = backend
        self.setting = setting

    @property
    def peer(self) -> bool:
        """Whether it is somebody else's library."""
        return bool(self.packages)

    def versions(self, gate: Gate, place: str) -> Answer:
        """What exactly is measured."""
        gate.ready()
        return {name: version(name) for name in self.distributions} | self.engine()

    def engine(self) -> dict[str, str]:
        """The version of the store itself, where it comes as a library."""
        return {}


class LoopSystem(System):
    """A system that is a plain loop: put, get and acknowledge one job after the other."""

    roles = frozenset({"enqueue", "fill", "work", "watch", "produce", "shallow"})
    poll = 0.001
    """Seconds between two looks of an idle worker; such libraries bring no worker of their own."""

    def connect(self, path: Path) -> Loop:
        """The queue in the file or directory at ``path``."""
        raise NotImplementedError

    def left(self, path: Path) -> Callable[[], bool]:
        """A cheap look at the store itself: does it hold a job that waits or is not acknowledged?"""
        raise NotImplementedError

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """Put jobs one by one, each stored before the next."""
        put = self.connect(Path(place, "queue")).put
        text = job()
        for _ in range(WARM):
            put(text)
        gate.ready()
        start = time.perf_counter()
        for _ in range(count):
            put(text)
        return {"seconds": time.perf_counter() - start, **gate.used()}

    def fill(self, gate: Gate, place: str, count: int) -> Answer:
        """As many waiting jobs as asked for."""
        queue, text = self.connect(Path(place, "queue")), job()
        gate.ready()
        for _ in range(count):
            queue.put(text)
        return {}

    def work(self, gate: Gate, place: str) -> Answer:
        """Work until told to stop; the latencies of jobs that say when they were sent."""
        warm = self.connect(Path(place, "warm"))
        for _ in range(WARM):
            warm.put(job())
        while (taken := warm.take()) is not None:
            warm.done(taken[0])
        queue = self.connect(Path(place, "queue"))
        latencies: list[int] = []
        gate.ready()
        while not gate.stopped:
            taken = queue.take()
            if taken is None:
                time.sleep(self.poll)
                continue
            if sent := json.loads(taken[1]).get("sent"):
                latencies.append(time.monotonic_ns() - sent)
            queue.done(taken[0])
        return {"latencies": latencies, **gate.used()}

    def shallow(self, gate: Gate, place: str, count: int, portion: int) -> Answer:
        """Drain so many jobs, of which only a portion waits at any time; putting them there is not counted."""
        queue, text, seconds, done = self.connect(Path(place, "queue")), job(), 0.0, 0
        gate.ready()
        for _ in range(0, count, portion):
            for _ in range(portion):
                queue.put(text)
            start = time.perf_counter()
            while (taken := queue.take()) is not None:
                json.loads(taken[1])
                queue.done(taken[0])
                done += 1
            seconds += time.perf_counter() - start
        return {"seconds": seconds, "done": done}

    def watch(self, gate: Gate, place: str, goal: int) -> Answer:
        """The instant at which the store held nothing any more."""
        assert goal == 0
        left = self.left(Path(place, "queue"))
        needed(left())
        gate.ready()
        while left():
            time.sleep(0.001)
        return {"at": time.monotonic_ns()}

    def produce(self, gate: Gate, place: str, count: int, gap: float) -> Answer:
        """Send single jobs to an idle worker, and wait until it has run them all."""
        queue = self.connect(Path(place, "queue"))
        gate.ready()
        for _ in range(count):
            time.sleep(gap)
            queue.put(json.dumps({"sent": time.monotonic_ns()}))
        left = self.left(Path(place, "queue"))
        while left():
            time.sleep(gap)
        return {}


class Loop:
    """The three steps of a plain loop."""

    def put(self, text: str) -> None:
        """Store a job."""
        raise NotImplementedError

    def take(self) -> tuple[Any, str] | None:
        """The next job, as what ``done`` wants to know of it and its text; None if there is none."""
        raise NotImplementedError

    def done(self, taken: Any) -> None:
        """Acknowledge it."""
        raise NotImplementedError


def needed(work: bool) -> None:
    """A drain of nothing would be the fastest of all."""
    if not work:
        raise RuntimeError("there is nothing to drain")


def job(size: int = SMALL) -> str:
    """A job as such loops know it: text."""
    return json.dumps({"n": 1, "pad": pad(size)})


def stdlib_sqlite() -> dict[str, str]:
    """The SQLite that Python itself links, which the peers use."""
    import sqlite3

    return {"sqlite (stdlib)": sqlite3.sqlite_version}
