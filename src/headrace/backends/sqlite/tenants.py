"""The tenants of governed queues, as their jobs come and go. For whose turn it is, see ``visits``."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw

from headrace.backends.sqlite.delayed import lane_of
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.policy import Rate
from headrace.seam.records import Swept

_SQL = load("tenant")

LANES = 2**30
"""Lanes have numbers above this, queues have not."""

Coming = tuple[str, str, int]
"""tenant, task, run_at."""


def put(tx: Transaction, qid: int, jobs: Sequence[Coming]) -> dict[tuple[str, str], int]:
    """Jobs are claimable once they are due; return the lanes that they belong in, by tenant and task."""
    first: dict[str, int] = {}
    for name, _, run_at in jobs:
        if name not in first or run_at < first[name]:
            first[name] = run_at
    tids: dict[str, int] = {}
    lanes: dict[tuple[str, str], int] = {}
    for name, tid, asleep, wake_at, task, lane in _known(tx, qid, tuple(first), tuple({task for _, task, _ in jobs})):
        if lane is not None:
            lanes[name, task] = lane
        if name not in tids:
            tids[name] = tid
            if not asleep or (wake_at is not None and wake_at <= first[name]):
                del first[name]
    for name in first:
        if name not in tids:
            [tids[name]] = tx.one(_SQL["add"], (qid, name))
    if first:
        tx.executemany(_SQL["expect"], [(tids[name], run_at) for name, run_at in first.items()])
    new = list(dict.fromkeys((name, task) for name, task, _ in jobs if (name, task) not in lanes))
    if new:
        [last] = tx.one(_SQL["last_lane"], (LANES,))
        lanes |= {lane: last + number for number, lane in enumerate(new, start=1)}
        tx.executemany(_SQL["add_lane"], [(lanes[name, task], tids[name], task) for name, task in new])
        tx.executemany(_SQL["more_lanes"], list(Counter(tids[name] for name, _ in new).items()))
    return lanes


def _known(tx: Transaction, qid: int, names: tuple[str, ...], tasks: tuple[str, ...]) -> Iterable[Any]:
    """Known tenants: a row for each of their lanes of these tasks, or one row without a lane."""
    if len(tasks) == 1:
        return tx.rows(_SQL["known"], (qid, apsw.carray(names), tasks[0]))
    return tx.rows(_SQL["known_with_tasks"], (qid, apsw.carray(names), apsw.carray(tasks)))


def known(tx: Transaction, qid: int, names: Iterable[str]) -> dict[str, int]:
    """The numbers of tenants, which are added if they are unknown."""
    wanted = tuple(dict.fromkeys(names))
    tids: dict[str, int] = dict(tx.rows(_SQL["numbers"], (qid, apsw.carray(wanted)))) if wanted else {}
    for name in wanted:
        if name not in tids:
            [tids[name]] = tx.one(_SQL["add"], (qid, name))
    return tids


def put_one(tx: Transaction, qid: int, tenant: str, task: str, run_at: int) -> int:
    """A job is claimable once it is due; return the lane that it belongs in."""
    if not tx.rules(qid).governed:
        return qid
    return put(tx, qid, [(tenant, task, run_at)])[tenant, task]


def drop(tx: Transaction, qid: int, lane: int, tenant: str, now: int) -> None:
    """A job has left the lane, or the line of its group. A lane or tenant that has no jobs left is forgotten."""
    lane = lane_of(lane)
    if lane > LANES and (left := tx.first(_SQL["forget_lane"], (lane,))) is not None:
        tx.execute(_SQL["more_lanes"], (left[0], -1))
    if tx.rules(qid).governed:
        _forget(tx, qid, tenant, now)


def _forget(tx: Transaction, qid: int, tenant: str, now: int) -> None:
    for [tid] in tx.rows(_SQL["idle"], (qid, tenant)):
        tx.execute(_SQL["forget"], (tid, now))


def stop(tx: Transaction, jobs: Iterable[tuple[int, str]], now: int) -> None:
    """Jobs of governed queues have stopped running: their tenant and holder."""
    held = Counter(jobs)
    stopped: dict[int, int] = {}
    for (tid, _), number in held.items():
        stopped[tid] = stopped.get(tid, 0) + number
    found = tx.rows(_SQL["stopping"], (apsw.carray(array("q", stopped)),))
    tx.executemany(_SQL["start"], [(tid, -number) for tid, number in stopped.items()])
    if most := {tid: holders for tid, *_, holders in found if holders is not None}:
        _let_go(tx, [(tid, holder, number) for (tid, holder), number in held.items() if tid in most], most)
    for tid, running, idle, full, qid, bounded, _ in found:
        if full:
            tx.execute(_SQL["open"], (tid, now))
        if full or bounded:
            tx.hint_queue(qid)
        if idle and running == stopped[tid]:
            tx.execute(_SQL["forget"], (tid, now))


def _let_go(tx: Transaction, held: Sequence[tuple[int, str, int]], most: Mapping[int, int]) -> None:
    tx.executemany(_SQL["let_go"], held)
    tx.executemany(_SQL["forget_holding"], [(tid, holder) for tid, holder, _ in held])
    tx.executemany(_SQL["take"], list(most.items()))


def pass_through(tx: Transaction, qid: int, tenant: str, now: int) -> None:
    """A job that ran in another queue has moved to a governed one, where it does not run."""
    tx.execute(_SQL["make_room"], (qid, tenant, now))
    _forget(tx, qid, tenant, now)


def reset_rate(tx: Transaction, qid: int, rate: Rate | None, tenant: str) -> None:
    """The tenant has this rate, unless it has one of its own. What it spent of another is forgotten."""
    tx.execute(_SQL["reset_rate"], (qid, *_parts(rate), tenant))


def _parts(rate: Rate | None) -> tuple[int | None, int | None]:
    return (None, None) if rate is None else (rate.every, rate.burst)


def wake(tx: Transaction, qid: int, now: int, tenant: str) -> None:
    """What the tenant may do has changed."""
    tx.execute(_SQL["wake_tenant"], (qid, now, tenant))
    tx.hint_queue(qid)


def change_some(tx: Transaction, qid: int, rate: Rate | None, span: tuple[str, str | bytes], now: int) -> None:
    """The same for all tenants of the queue from one name up to another."""
    tx.execute(_SQL["reset_rates"], (qid, *_parts(rate), *span))
    tx.execute(_SQL["wake_some"], (qid, now, *span))
    tx.hint_queue(qid)


def condemn(session: Session, limit: int, now: int) -> tuple[list[int], Swept]:
    """Tenants without jobs whose rate is saved up."""
    tids = [tid for [tid] in session.rows(_SQL["idle_ones"], (now, limit + 1))]
    return tids[:limit], Swept(len(tids[:limit]), 0, 0, len(tids) > limit)


def forget(tx: Transaction, tids: Sequence[int]) -> None:
    """Forget tenants; if they come back, they are new."""
    if tids:
        tx.execute(_SQL["forget_ones"], (apsw.carray(array("q", tids)),))
