"""stats: the counters, and a look at the heads of the queues."""

from __future__ import annotations

import json
from typing import Any

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import KEYS, STATES, TICKS
from headrace.backends.sqlite.transaction import Session
from headrace.policy import FOREVER
from headrace.records import Place, PlaceStats, QueueStats, Stats, WorkerStats

_SQL = load("stats")
_PLACES = {code: state.value for code, state in enumerate(STATES)} | {
    KEYS: Place.KEYS.value,
    TICKS: Place.TICKS.value,
}


def stats(session: Session, count_cap: int, store_bytes: int, now: int) -> Stats:
    """The store in numbers."""
    queues = session.rows(_SQL["queues"], (now,))
    workers = session.rows(_SQL["workers"], (now,))
    return Stats(
        sorted((_queue(session, row, count_cap, now) for row in queues), key=lambda queue: queue.queue),
        [WorkerStats(worker, tuple(json.loads(names)), *rest) for worker, names, *rest in workers],
        [PlaceStats(_PLACES[code], count, size) for code, count, size in session.rows(_SQL["places"])],
        store_bytes,
    )


def _queue(session: Session, row: Any, count_cap: int, now: int) -> QueueStats:
    qid, name, until, available, running, jobs_paused, completed, cancelled, failed = row
    [scheduled] = session.one(_SQL["scheduled"], (qid, now, count_cap)) if available else (0,)
    [oldest] = session.one(_SQL["oldest"], (qid,)) if available else (None,)
    return QueueStats(
        name,
        until > now,
        available,
        scheduled,
        running,
        jobs_paused,
        completed,
        cancelled,
        failed,
        now - oldest if oldest is not None and oldest <= now else None,
        until if now < until < FOREVER else None,
    )
