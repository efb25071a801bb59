"""RQ: a hash per job, and many commands to run one."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems.peer import payload
from benchmarks.systems.sync_peer import SyncPeer, SyncSession

_HERE = "benchmarks.systems.rq"
_latencies: list[int] = []
"""The library finds its functions by their import path, so they cannot belong to a session."""


class Rq(SyncPeer):
    """Its worker that runs jobs in its own process, where the usual one forks for each."""

    packages = ("rq", "hiredis")
    distributions = ("rq", "redis", "hiredis")
    roles = SyncPeer.roles | {"bulk"}
    unfinished = "call('EXISTS', 'rq:queue:bench', 'rq:queue:bench:intermediate', 'rq:wip:bench') > 0"
    most_drained = 1_500

    def __init__(self, name: str) -> None:
        super().__init__(
            name,
            "at most once (a job whose worker dies fails, unless it has retries), SimpleWorker,"
            f" enqueue_many for many; drains {self.most_drained:,} jobs at most, as each takes long",
        )

    def session(self, url: str) -> SyncSession:
        logging.getLogger("rq.worker").setLevel(logging.WARNING)
        return _Session(url)


class _Session(SyncSession):
    def __init__(self, url: str) -> None:
        import redis
        from rq import Queue

        super().__init__()
        self.latencies = _latencies
        self._client = redis.Redis.from_url(url)
        self._queue: Any = Queue("bench", connection=self._client)

    def put(self) -> None:
        self._queue.enqueue(f"{_HERE}.noop", kwargs=payload())

    def put_many(self, count: int) -> None:
        from rq import Queue

        job = Queue.prepare_data(f"{_HERE}.noop", kwargs=payload())
        self._queue.enqueue_many([job] * count)

    def stamp(self) -> None:
        self._queue.enqueue(f"{_HERE}.stamp", time.monotonic_ns())

    def warm_up(self) -> None:
        self._worker().work(burst=True, logging_level="WARNING")

    def work(self, gate: Gate) -> None:
        worker = self._worker()
        gate.on_stop(lambda: os.kill(os.getpid(), signal.SIGINT))
        gate.ready()
        worker.work(logging_level="WARNING")

    def _worker(self) -> Any:
        from rq import SimpleWorker

        return SimpleWorker([self._queue], connection=self._client)


def noop(n: int, pad: str) -> None:
    pass


def stamp(sent: int) -> None:
    _latencies.append(time.monotonic_ns() - sent)
