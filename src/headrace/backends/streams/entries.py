"""Jobs as windows keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.seam.records import Cells, JobId, Leased, Row, carried
from headrace.types import SECTIONS

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_OUTERMOST = 9
"""Priorities from -8 to 8 have a band each; those beyond share one on either side."""


class Entry(NamedTuple):
    """A row of the scripts ``push`` and ``feed``."""

    id: JobId
    band: int
    run_at: int
    weight: int
    epoch: int
    begun: int
    job: bytes


def band(priority: int) -> int:
    """The band of a priority.

    >>> band(0), band(8), band(500), band(-500)
    (0, 8, 9, -9)
    """
    return max(-_OUTERMOST, min(_OUTERMOST, priority))


def of_row(row: Row, weight: int, now: int) -> Entry:
    """A new job."""
    run_at = now + row.delay if row.run_at is None else row.run_at
    job = _encode(
        (
            row.id, row.task, row.cells, row.tenant, row.key, row.priority, run_at, now, 0, 0, carried(row),
            row.headers, None,
        )
    )  # fmt: skip
    return Entry(row.id, band(row.priority), run_at, weight, 0, 0, job)


class Loss(NamedTuple):
    """Valkey lost its memory."""

    at: int
    """By PostgreSQL's clock."""
    floor: int
    """Above every instant at which it can have given out a job before, by its own clock."""

    def may_concern(self, enqueued_at: int, run_at: int) -> bool:
        """Whether this job may have been given out before: it was there, and a window gives out only what is due."""
        return enqueued_at <= self.at and run_at < self.floor


def of_stored(stored: Sequence[Any], loss: Loss | None) -> Entry:
    """A row of ``feed_v1``."""
    job_id, task, *cells = stored[:6]
    epoch, tenant, key, priority, run_at, enqueued_at, attempt, lost = stored[6:14]
    *options, headers, error, size = stored[14:]
    brought = {name: cell for name, cell in zip(SECTIONS, cells, strict=True) if cell is not None}
    job = _encode(
        (job_id, task, brought, tenant, key, priority, run_at, enqueued_at, attempt, lost, options, headers, error)
    )
    begun = epoch > 0 or (loss is not None and loss.may_concern(enqueued_at, run_at))
    return Entry(job_id, band(priority), run_at, size, abs(epoch), int(begun), job)


def has_lost(stored: Sequence[Any]) -> bool:
    """Whether a row of ``feed_v1`` has lost a worker."""
    return bool(stored[13])


def leased(queue: str, epoch: int, begun: bool, job: bytes, want: frozenset[str] | None) -> Leased:
    """A job that a window gave out."""
    job_id, task, cells, tenant, key, priority, run_at, enqueued_at, attempt, lost, options, headers, error = _decode(
        job
    )
    brought: Cells = cells
    left: tuple[str, ...] = ()
    if want is not None and not cells.keys() <= want:
        brought = {name: cell for name, cell in cells.items() if name in want}
        left = tuple(name for name in SECTIONS if name in cells and name not in want)
    return Leased(  # type: ignore[call-arg]
        job_id, queue, task, brought, epoch, tenant, key, priority, run_at, enqueued_at, attempt, lost, *options,
        headers, error, None, begun, left,
    )  # fmt: skip
