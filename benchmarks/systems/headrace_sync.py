"""Headrace from code without an event loop: ``task.enqueue_sync``, to be held against libraries that block."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.gate import Gate
from benchmarks.payload import SMALL, pad
from benchmarks.systems.headrace import QUEUE, Headrace, HeadraceSqlite
from benchmarks.systems.headrace_postgres import HeadracePostgres
from benchmarks.systems.headrace_valkey import HeadraceValkey
from benchmarks.systems.system import WARM, Answer


class _Blocking(Headrace):
    roles = frozenset({"enqueue"})

    def __init__(self, name: str, *more: Any, **given: Any) -> None:
        super().__init__(name, *more, **given)
        self.setting = f"{self.setting}; task.enqueue_sync, without an event loop of its own"

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """``task.enqueue_sync(…)``, one after the other, in a thread without a loop."""
        from headrace import App, SyncApp

        app = App(self.url(place))

        @app.task(name="noop", queue=QUEUE)
        def noop(n: int, pad: str) -> None: ...

        enqueue, text = noop.enqueue_sync, pad(SMALL)
        for number in range(WARM):
            enqueue(number, text)
        gate.ready()
        start = time.perf_counter()
        for number in range(count):
            enqueue(number, text)
        answer = {"seconds": time.perf_counter() - start, **gate.used()}
        [stats] = SyncApp(app).stats([QUEUE]).queues
        if stats.available != WARM + count:
            raise RuntimeError(f"expected {WARM + count} jobs, found {stats.available}")
        return answer


class SyncSqlite(_Blocking, HeadraceSqlite):
    """On a file."""


class SyncPostgres(_Blocking, HeadracePostgres):
    """On PostgreSQL."""


class SyncValkey(_Blocking, HeadraceValkey):
    """On Valkey."""
