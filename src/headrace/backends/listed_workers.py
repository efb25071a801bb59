"""Workers, as a store lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.seam.records import WorkerStats


def claiming_from(queues: Sequence[str] | None, workers: Iterable[WorkerStats]) -> list[WorkerStats]:
    """Those that claim from one of these queues. If none are named, or None: all."""
    named = frozenset(queues) if queues else None
    return [worker for worker in workers if named is None or not named.isdisjoint(worker.queues)]
