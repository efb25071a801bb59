"""Celery: messages popped one by one, and kept aside until they are acknowledged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems.peer import payload
from benchmarks.systems.sync_peer import SyncPeer, SyncSession

_PLACES = ("bench", "unacked")
"""Where a message waits, and where it is until it is acknowledged."""


class Celery(SyncPeer):
    """Its worker in one process."""

    packages = ("celery[redis]", "hiredis")
    distributions = ("celery", "kombu", "redis", "hiredis")
    unfinished = f"call('EXISTS', {', '.join(map(repr, _PLACES))}) > 0"
    most_drained = 4_000

    def __init__(self, name: str) -> None:
        super().__init__(
            name,
            "at least once (acks_late; its default acknowledges before the run), solo pool, ignore_result, no gossip,"
            f" mingle or heartbeat; drains {self.most_drained:,} jobs at most, as each takes long",
        )

    def session(self, url: str) -> SyncSession:
        logging.getLogger("celery").setLevel(logging.WARNING)
        return _Session(url)


class _Session(SyncSession):
    def __init__(self, url: str) -> None:
        import celery

        super().__init__()
        self._app: Any = celery.Celery("bench", broker=url)
        self._app.conf.update(
            task_default_queue="bench",
            task_ignore_result=True,
            task_acks_late=True,
            worker_hijack_root_logger=False,
            worker_redirect_stdouts=False,
            broker_connection_retry_on_startup=True,
        )

        def stamp(sent: int) -> None:
            self.latencies.append(time.monotonic_ns() - sent)

        self._noop: Any = self._app.task(name="noop", shared=False)(_noop)
        self._stamp: Any = self._app.task(name="stamp", shared=False)(stamp)

    def put(self) -> None:
        self._noop.apply_async(kwargs=payload())

    def stamp(self) -> None:
        self._stamp.apply_async((time.monotonic_ns(),))

    def warm_up(self) -> None:
        with self._app.connection_for_read() as connection:
            client = connection.default_channel.client

            def emptied() -> None:
                while client.exists(*_PLACES):
                    time.sleep(0.01)

            self._consume(emptied)

    def work(self, gate: Gate) -> None:
        stop = threading.Event()
        gate.on_stop(stop.set)
        gate.ready()
        self._consume(stop.wait)

    def _consume(self, wait: Callable[[], object]) -> None:
        """Be a worker in this thread until another one has waited long enough."""
        from celery.worker import state

        worker = self._app.Worker(
            pool="solo",
            loglevel="WARNING",
            quiet=True,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )

        def end() -> None:
            wait()
            state.should_stop = 0

        threading.Thread(target=end, daemon=True).start()
        try:
            worker.start()
        finally:
            state.should_stop = None


def _noop(n: int, pad: str) -> None:
    pass
