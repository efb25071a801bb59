"""stats: the counters, and a look at the heads of the queues."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
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
_STEP = 5_000
"""Jobs, priorities and lanes that one step looks at, roughly: some milliseconds."""
_QUEUES = 1_000
_LANES = 500
_LEVELS = 1_000
"""Queues, lanes and priorities that one statement looks at."""
_FEW = 16
"""Delayed jobs and priorities of a lane, and lanes of a tenant, that are looked at together with those of others."""


class Count:
    """The store in numbers, or some of its queues; counted in steps, each of which looks at a bounded number of queues,
    lanes, priorities and jobs, so that no other read waits for long."""

    def __init__(self, names: Sequence[str] | None, count_cap: int) -> None:
        self._names, self._cap = names, count_cap
        self._queues: list[QueueStats] = []
        self._workers: list[WorkerStats] = []
        self._kept: list[KeptStats] = []
        self._work: Iterator[int] | None = None
        self._session: Session

    def step(self, session: Session, now: int) -> bool:
        """Count on; tell whether there is more to count."""
        self._session, left = session, _STEP
        if self._work is None:
            self._work = self._count(now)
        for looked_at in self._work:
            left -= looked_at
            if left < 0:
                return True
        return False

    def stats(self) -> Stats:
        """What was counted."""
        return Stats(sorted(self._queues, key=lambda queue: queue.queue), self._workers, self._kept)

    def _count(self, now: int) -> Iterator[int]:
        """The work, piece by piece. Tells after each how much it has looked at."""
        for rows in self._pages(now):
            yield len(rows)
            found = {row[0]: _Waiting(row[4]) for row in rows if row[4]}
            governed = [row[0] for row in rows if row[4] and row[2]]
            plain = [qid for qid in found if qid not in set(governed)]
            for first in range(0, len(plain), _LANES):
                some = plain[first : first + _LANES]
                yield from self._look({qid: found[qid] for qid in some}, now)
            for qid in governed:
                for lanes in self._lanes(qid):
                    yield from self._look(dict.fromkeys(lanes, found[qid]), now)
            for qid, waiting in found.items():
                if waiting.scheduled >= self._cap:
                    lanes_of = self._lanes(qid) if qid in governed else iter([[qid]])
                    yield from self._count_due(waiting, lanes_of, now)
            self._queues += (_queue(row, found.get(row[0]) or _Waiting(0), now) for row in rows)
        listed = self._session.rows(_SQL["workers"], (now,))
        workers = [WorkerStats(worker, tuple(json.loads(queues)), *rest) for worker, queues, *rest in listed]
        self._workers = claiming_from(self._names, workers)
        if self._names is None:
            places = self._session.rows(_SQL["places"])
            self._kept = [KeptStats(_TARGETS[code], count, size) for code, count, size in places]

    def _pages(self, now: int) -> Iterator[list[Any]]:
        """The rows of the queues, a bounded number at once."""
        if self._names is not None:
            for first in range(0, len(self._names), _QUEUES):
                some = list(self._names[first : first + _QUEUES])
                yield self._session.rows(_SQL["queues_named"], (now, json.dumps(some)))
            return
        above, rows = 0, []
        while rows := self._session.rows(_SQL["queues"], (now, above, _QUEUES)):
            above = rows[-1][0]
            yield rows

    def _lanes(self, qid: int) -> Iterator[list[int]]:
        """The lanes of a governed queue, a bounded number at once: first those that have not been brought into lanes of
        their tenants, then those of each tenant."""
        yield [qid]
        name = ""
        while tenants := self._session.rows(_SQL["tenants"], (qid, name, _LANES)):
            few = array("q", [tid for tid, _, lanes in tenants if 0 < lanes <= _FEW])
            found = [lane for [lane] in self._session.rows(_SQL["lanes_of"], (apsw.carray(few),))] if few else []
            for first in range(0, len(found), _LANES):
                yield found[first : first + _LANES]
            for tid in (tid for tid, _, lanes in tenants if lanes > _FEW):
                task = ""
                while rows := self._session.rows(_SQL["lanes_of_one"], (tid, task, _LANES)):
                    yield [lane for lane, _ in rows]
                    task = _after(rows[-1][1])
            name = _after(tenants[-1][1])

    def _look(self, lanes: Mapping[int, _Waiting], now: int) -> Iterator[int]:
        """Into lanes of queues: what is not due yet, and since when the first is."""
        few = min(_FEW, self._cap)
        rows = self._session.rows(_SQL["lanes"], (apsw.carray(array("q", lanes)), now, few, _FEW))
        yield sum(later + 3 for _, later, *_ in rows)
        for lane, later, first, level, delayed, not_due in rows:
            waiting = lanes[lane]
            waiting.saw(first)
            waiting.saw(delayed)
            waiting.saw_later(not_due)
            if later == few and waiting.scheduled < self._cap:
                [later] = self._session.one(_SQL["scheduled"], (lane, now, self._cap - waiting.scheduled))
                yield later
            waiting.scheduled = min(waiting.scheduled + later, self._cap)
            while level is not None:
                first, level = self._session.one(_SQL["levels"], (lane, level, _LEVELS))
                waiting.saw(first)
                yield _LEVELS

    def _count_due(self, waiting: _Waiting, lanes: Iterator[list[int]], now: int) -> Iterator[int]:
        """Count what is due instead, as more is scheduled than is counted."""
        due = 0
        for some in lanes:
            wanted = array("q", some)
            [here] = self._session.one(_SQL["due"], (apsw.carray(wanted), self._cap - due))
            due += here
            if due < self._cap:
                [here] = self._session.one(_SQL["due_later"], (apsw.carray(wanted), now, self._cap - due))
                due += here
            if due >= self._cap:
                return
            yield len(some) + here
        waiting.scheduled = waiting.available - due


class _Waiting:
    """What waits in a queue."""

    def __init__(self, available: int) -> None:
        self.available = available
        self.scheduled = 0
        self.first: int | None = None
        """When the first was due, or will be."""
        self.next: int | None = None
        """When the first of those that are not due is."""

    def saw(self, run_at: int | None) -> None:
        if run_at is not None and (self.first is None or run_at < self.first):
            self.first = run_at

    def saw_later(self, run_at: int | None) -> None:
        if run_at is not None and (self.next is None or run_at < self.next):
            self.next = run_at


def _after(text: str) -> str:
    """The text that follows this one, in the order of bytes."""
    return text + "\0"


def _queue(row: Any, waiting: _Waiting, now: int) -> QueueStats:
    _, name, _, until, available, running, jobs_paused, completed, cancelled, failed = row
    age = now - waiting.first if waiting.first is not None and waiting.first <= now else None
    return QueueStats(
        name, until > now, available, waiting.scheduled, running, jobs_paused, completed, cancelled, failed, age,
        until if now < until < FOREVER else None, None if waiting.next is None else waiting.next - now,
    )  # fmt: skip


def usage_of(session: Session, path: str) -> Usage:
    """What the file and its log take up, without pages that are free; and what there is on the volume."""
    pages, free, size = session.one(_SQL["pages"], ())
    volume, log = os.statvfs(os.path.dirname(path)), f"{path}-wal"
    wal = os.stat(log).st_size if os.path.exists(log) else 0
    used = (pages - free) * size + wal
    capacity = used + free * size + volume.f_bavail * volume.f_frsize
    return Usage(used, capacity, {"free": free * size, "wal": wal})
