"""Dramatiq: threads that share prefetched messages, each acknowledged by itself."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems.peer import payload
from benchmarks.systems.sync_peer import SyncPeer, SyncSession

_THREADS = 32


class Dramatiq(SyncPeer):
    """Its worker in one process, with the number of threads that served it best."""

    packages = ("dramatiq[redis]", "hiredis")
    distributions = ("dramatiq", "redis", "hiredis")
    unfinished = "call('HLEN', 'dramatiq:bench.msgs') > 0"
    gap = 0.05
    most_samples = 150

    def __init__(self, name: str) -> None:
        super().__init__(name, f"at least once, {_THREADS} threads, its default middleware")

    def session(self, url: str) -> SyncSession:
        logging.getLogger("dramatiq").setLevel(logging.WARNING)
        return _Session(url)


class _Session(SyncSession):
    def __init__(self, url: str) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        super().__init__()
        self._broker: Any = RedisBroker(url=url)
        self._noop: Any = dramatiq.actor(_noop, actor_name="noop", broker=self._broker, queue_name="bench")
        self._stamp: Any = dramatiq.actor(self._run, actor_name="stamp", broker=self._broker, queue_name="bench")

    def put(self) -> None:
        self._noop.send(**payload())

    def stamp(self) -> None:
        self._stamp.send(time.monotonic_ns())

    def warm_up(self) -> None:
        worker = self._worker()
        worker.start()
        self._broker.join("bench")
        worker.stop()

    def work(self, gate: Gate) -> None:
        worker, stop = self._worker(), threading.Event()
        gate.on_stop(stop.set)
        gate.ready()
        worker.start()
        stop.wait()
        worker.stop()

    def _worker(self) -> Any:
        from dramatiq import Worker

        return Worker(self._broker, worker_threads=_THREADS)

    def _run(self, sent: int) -> None:
        self.latencies.append(time.monotonic_ns() - sent)


def _noop(n: int, pad: str) -> None:
    pass
