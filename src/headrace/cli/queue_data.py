"""The counts of a queue as JSON, the same in every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.api.queue_health import listeners
from headrace.cli.policy_output import paused_until
from headrace.cli.times import seconds
from headrace.seam.records import QueueStats, WorkerStats


def queue_data(queue: QueueStats, workers: Sequence[WorkerStats]) -> dict[str, Any]:
    """A queue, and how many of the workers claim from it."""
    return {
        "queue": queue.queue,
        "paused": queue.paused,
        "paused_until": paused_until(queue),
        "due": queue.due,
        **{name: count for name, count in queue.counts.items() if name not in ("available", "failed")},
        "dead": queue.failed,
        "oldest_due_seconds": seconds(queue.oldest_due_age),
        "workers": len(listeners(queue.queue, workers)),
    }
