"""Workers, as a store lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.seam.records import WorkerStats


def claiming_from(queues: Sequence[str] | None, workers: Iterable[WorkerStats]) -> list[WorkerStats]:
    """Those that claim from one of these queues; None: all."""
    named = None if queues is None else frozenset(queues)
    return [worker for worker in workers if named is None or not named.isdisjoint(worker.queues)]
