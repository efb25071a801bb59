"""stats: the counters, and a look at the heads of the queues."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Sequence
from typing import Any

import apsw

from headrace.backends.listed_workers import claiming_from
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import KEYS, STATES, TICKS
from headrace.backends.sqlite.transaction import Session
from headrace.seam.policy import FOREVER
from headrace.seam.records import KeptStats, QueueStats, Stats, SweepTarget, WorkerStats
from headrace.seam.usage import Usage

_SQL = load("stats")
_TARGETS = {code: state.value for code, state in enumerate(STATES)} | {
    KEYS: SweepTarget.KEYS.value,
    TICKS: SweepTarget.TICKS.value,
}


def stats(session: Session, names: Sequence[str] | None, count_cap: int, now: int) -> Stats:
    """The store in numbers, or some of its queues."""
    if names is None:
        queues = session.rows(_SQL["queues"], (now,))
    else:
        queues = session.rows(_SQL["queues_named"], (now, json.dumps(list(names))))
    found = _queues(session, queues, count_cap, now)
    listed = session.rows(_SQL["workers"], (now,))
    workers = [WorkerStats(worker, tuple(json.loads(queues)), *rest) for worker, queues, *rest in listed]
    if names is not None:
        return Stats(found, claiming_from(names, workers), [])
    kept = [KeptStats(_TARGETS[code], count, size) for code, count, size in session.rows(_SQL["places"])]
    return Stats(found, workers, kept)


def _queues(session: Session, rows: Sequence[Any], count_cap: int, now: int) -> list[QueueStats]:
    """By name. Plain queues are looked at in one go, governed ones one after the other."""
    waiting: dict[int, tuple[int, int | None]] = {}
    plain = array("q", [qid for qid, _, governed, _, available, *_ in rows if available and not governed])
    found = session.rows(_SQL["plain"], (apsw.carray(plain), now, count_cap)) if plain else []
    for qid, scheduled, *firsts in found:
        waiting[qid] = scheduled, min((first for first in firsts if first is not None), default=None)
    for qid, _, governed, _, available, *_ in rows:
        if available and governed:
            [scheduled] = session.one(_SQL["scheduled"], (qid, now, count_cap))
            waiting[qid] = scheduled, session.one(_SQL["oldest"], (qid,))[0]
    for qid, _, _, _, available, *_ in rows:
        scheduled, first = waiting.get(qid, (0, None))
        if scheduled == count_cap:
            due = (
                session.one(_SQL["due"], (qid, count_cap))[0] + session.one(_SQL["due_later"], (qid, now, count_cap))[0]
            )
            waiting[qid] = scheduled if due >= count_cap else available - due, first
    answers = [_queue(row, *waiting.get(row[0], (0, None)), now) for row in rows]
    return sorted(answers, key=lambda queue: queue.queue)


def _queue(row: Any, scheduled: int, oldest: int | None, now: int) -> QueueStats:
    _, name, _, until, available, running, jobs_paused, completed, cancelled, failed = row
    age = now - oldest if oldest is not None and oldest <= now else None
    return QueueStats(
        name, until > now, available, scheduled, running, jobs_paused, completed, cancelled, failed, age,
        until if now < until < FOREVER else None,
    )  # fmt: skip


def usage_of(session: Session, path: str) -> Usage:
    """What the file and its log take up, without pages that are free; and what there is on the volume."""
    pages, free, size = session.one(_SQL["pages"], ())
    volume, log = os.statvfs(os.path.dirname(path)), f"{path}-wal"
    wal = os.stat(log).st_size if os.path.exists(log) else 0
    used = (pages - free) * size + wal
    capacity = used + free * size + volume.f_bavail * volume.f_frsize
    return Usage(used, capacity, {"free": free * size, "wal": wal})
