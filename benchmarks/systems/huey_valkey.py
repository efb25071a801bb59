"""Huey on Valkey: threads that pop tasks from a list."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems.peer import payload
from benchmarks.systems.sync_peer import SyncPeer, SyncSession

_THREADS = 4


class HueyValkey(SyncPeer):
    """Its own consumer in one process, with the number of threads that served it best."""

    packages = ("huey[redis]", "hiredis")
    distributions = ("huey", "redis", "hiredis")
    unfinished = "call('LLEN', 'huey.redis.bench') > 0"

    def __init__(self, name: str) -> None:
        super().__init__(name, f"at most once (a task is gone when it starts), {_THREADS} threads, blocking pop")

    def session(self, url: str) -> SyncSession:
        logging.getLogger("huey").setLevel(logging.WARNING)
        return _Session(url)


class _Session(SyncSession):
    def __init__(self, url: str) -> None:
        from huey import RedisHuey

        super().__init__()
        self._huey: Any = RedisHuey("bench", url=url, immediate=False)
        self._noop: Any = self._huey.task(name="noop")(_noop)
        self._stamp: Any = self._huey.task(name="stamp")(self._run)

    def put(self) -> None:
        self._noop(**payload())

    def stamp(self) -> None:
        self._stamp(time.monotonic_ns())

    def warm_up(self) -> None:
        while self._huey.pending_count():
            self._huey.execute(self._huey.dequeue())

    def work(self, gate: Gate) -> None:
        consumer = self._huey.create_consumer(workers=_THREADS, periodic=False, check_worker_health=False)
        stop = threading.Event()
        gate.on_stop(stop.set)
        gate.ready()
        consumer.start()
        stop.wait()
        consumer.stop(graceful=True)

    def _run(self, sent: int) -> None:
        self.latencies.append(time.monotonic_ns() - sent)


def _noop(n: int, pad: str) -> None:
    pass
