"""A worker that beats."""

from __future__ import annotations

from typing import NamedTuple

from headrace.seam.records import WorkerStats


class Listed(NamedTuple):
    """A worker, as its last beat left it."""

    stats: WorkerStats
    until: int
    """How long it is listed without another beat."""
    steady_since: int
