"""What is not due lies apart from what is, in the order of ``run_at``, where no claim walks over it.

Each lane has a second one for that, where every priority is 0; claims bring over what has become due.
"""

from __future__ import annotations

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Transaction
from headrace.seam.records import JobId

_SQL = load("delayed")
_TRANSITION = load("transition")

PROMOTED_AT_ONCE = 1_000
"""So many jobs one claim brings over at most."""
_LATER = 2**40
"""Lanes for later are below the negative of this; the lines of groups, whose numbers are negative too, are not."""
_BEYOND = b"\xff" * 17
"""Sorts after every id."""


def delayed(lane: int) -> int:
    """Where those of a lane lie that are not due."""
    return -_LATER - lane


def lane_of(lane: int) -> int:
    """The lane that such a place belongs to; any other is its own."""
    return -_LATER - lane if lane < -_LATER else lane


def position(lane: int, priority: int, run_at: int, now: int) -> tuple[int, int]:
    """Lane and priority, as ``ready`` has them, of a job that may be claimed from this lane."""
    return (lane, priority) if run_at <= now else (-_LATER - lane, 0)


def promote(tx: Transaction, lane: int, most: int, now: int) -> tuple[int, int | None]:
    """Jobs of a lane that have become due may be claimed, those first that were due first: how many it were, and when
    the next one is due."""
    [last] = tx.rows(_SQL["last"], (delayed(lane), now, most - 1)) or [(now, _BEYOND)]
    moved = _move(tx, lane, last)
    row = tx.first(_SQL["next"], (delayed(lane),))
    return moved, None if row is None else row[0]


def demote(tx: Transaction, lane: int, now: int) -> None:
    """Jobs of a lane that were due until the clock was set back lie apart again, a bounded number."""
    early = tx.rows(_SQL["early"], (lane, now, PROMOTED_AT_ONCE))
    tx.executemany(_TRANSITION["shift"], [(lane, *row[:3], delayed(lane), 0) for row in early])
    tx.executemany(_TRANSITION["lie"], [(row[3], delayed(lane)) for row in early])


def _move(tx: Transaction, lane: int, last: tuple[int, JobId]) -> int:
    bounds = (delayed(lane), *last, lane)
    tx.execute(_SQL["lie"], bounds)
    tx.execute(_SQL["promote"], bounds)
    [moved] = tx.one(_SQL["moved"])
    return int(moved)
