"""A library on Valkey without asyncio: it says how a job is put and worked, the roles are here."""

from __future__ import annotations

import time

from benchmarks.gate import Gate
from benchmarks.systems.system import WARM, Answer
from benchmarks.systems.valkey import ValkeySystem


class SyncSession:
    """A library at work on one database."""

    def __init__(self) -> None:
        self.latencies: list[int] = []

    def put(self) -> None:
        """Store one no-op job."""
        raise NotImplementedError

    def put_many(self, count: int) -> None:
        """Store many, in the way that the library has for it; one by one where it has none."""
        for _ in range(count):
            self.put()

    def stamp(self) -> None:
        """Store a job that says when it was sent."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """Run the jobs that are stored, and return when none is left."""
        raise NotImplementedError

    def work(self, gate: Gate) -> None:
        """Be a worker until told to stop."""
        raise NotImplementedError


class SyncPeer(ValkeySystem):
    """A library that blocks."""

    roles = frozenset({"enqueue", "fill", "work", "watch", "produce"})

    def session(self, url: str) -> SyncSession:
        """The library, connected."""
        raise NotImplementedError

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """One by one, each stored before the next."""
        session = self.session(self.url(place))
        for _ in range(WARM):
            session.put()
        gate.ready()
        start = time.perf_counter()
        for _ in range(count):
            session.put()
        return {"seconds": time.perf_counter() - start, **gate.used()}

    def bulk(self, gate: Gate, place: str, count: int) -> Answer:
        """Many in one call."""
        session = self.session(self.url(place))
        session.put_many(WARM)
        gate.ready()
        start = time.perf_counter()
        session.put_many(count)
        return {"seconds": time.perf_counter() - start, **gate.used()}

    def fill(self, gate: Gate, place: str, count: int) -> Answer:
        """As many waiting jobs as asked for."""
        session = self.session(self.url(place))
        gate.ready()
        for first in range(0, count, 1_000):
            session.put_many(min(1_000, count - first))
        self.settle(place)
        return {}

    def work(self, gate: Gate, place: str) -> Answer:
        """Its worker, until told to stop; the latencies of jobs that say when they were sent."""
        warm = self.session(self.url(place, "warm"))
        warm.put_many(WARM)
        warm.warm_up()
        session = self.session(self.url(place))
        session.work(gate)
        return {"latencies": session.latencies, **gate.used()}

    def produce(self, gate: Gate, place: str, count: int, gap: float) -> Answer:
        """Send single jobs to an idle worker, and wait until the server has none left."""
        session = self.session(self.url(place))
        gate.ready()
        for _ in range(count):
            time.sleep(gap)
            session.stamp()
        with self.connect(place) as client:
            while self.left(client):
                time.sleep(gap)
        return {}
