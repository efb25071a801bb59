"""Delayed jobs lie apart, in the order of ``run_at``, where no claim walks over them.

Each lane has a second one for them, in which every priority is 0. Claims promote what has become due.
"""

from __future__ import annotations

from headrace.backends.sqlite.statements import DELAYED, load
from headrace.backends.sqlite.transaction import BEYOND, Transaction
from headrace.seam.records import JobId

_SQL = load("delayed")
_TRANSITION = load("transition")

PROMOTED_AT_ONCE = 1_000
"""A claim promotes at most this many jobs."""


def delayed(lane: int) -> int:
    """The lane of the delayed jobs of a lane."""
    return DELAYED - lane


def lane_of(lane: int) -> int:
    """The lane that a lane of delayed jobs belongs to; any other lane is its own."""
    return DELAYED - lane if lane < DELAYED else lane


def position(lane: int, priority: int, run_at: int, now: int) -> tuple[int, int]:
    """Lane and priority, as ``ready`` has them, of a job that is claimable from this lane once it is due."""
    return (lane, priority) if run_at <= now else (DELAYED - lane, 0)


def promote(tx: Transaction, lane: int, most: int, now: int) -> tuple[int, int | None]:
    """Make jobs of a lane claimable that have become due, earliest first; return how many, and when the next is due."""
    [last] = tx.rows(_SQL["last"], (delayed(lane), now, most - 1)) or [(now, BEYOND)]
    moved = _move(tx, lane, last)
    row = tx.first(_SQL["next"], (delayed(lane),))
    return moved, None if row is None else row[0]


def demote(tx: Transaction, lane: int, now: int) -> None:
    """The clock was set back: jobs of a lane that are no longer due are delayed again, a bounded number."""
    early = tx.rows(_SQL["early"], (lane, now, PROMOTED_AT_ONCE))
    tx.executemany(_TRANSITION["shift"], [(lane, *row[:3], delayed(lane), 0) for row in early])
    tx.executemany(_TRANSITION["set_lane"], [(row[3], delayed(lane)) for row in early])


def _move(tx: Transaction, lane: int, last: tuple[int, JobId]) -> int:
    bounds = (delayed(lane), *last, lane)
    tx.execute(_SQL["set_lanes"], bounds)
    tx.execute(_SQL["promote"], bounds)
    [moved] = tx.one(_SQL["moved"])
    return int(moved)
