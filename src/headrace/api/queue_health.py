"""Whether a queue is served: enough workers are alive, and what is due does not wait for too long."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.core.durations import spell_roughly
from headrace.seam.records import QueueStats, Stats, WorkerStats


class QueueHealth(Struct, frozen=True):
    """What was found of a queue."""

    ok: bool
    problems: list[str]
    """What is wrong, in sentences."""
    workers: int
    """How many are alive that claim from it."""
    due: int
    """Jobs that could run now."""


def queue_health(name: str, stats: Stats, *, workers: int, max_age: int | None) -> QueueHealth:
    """Of one queue, by the store's statistics."""
    alive = listeners(name, stats.workers)
    problems = []
    if len(alive) < workers:
        problems.append(f"expected at least {workers} workers of queue {name} alive, found {len(alive)}")
    queue = next((one for one in stats.queues if one.queue == name), None)
    problems += [] if queue is None else waiting_problems(queue, alive, max_age)
    return QueueHealth(not problems, problems, len(alive), 0 if queue is None else queue.due)


def waiting_problems(queue: QueueStats, alive: Sequence[WorkerStats], max_age: int | None) -> list[str]:
    """What is wrong with how long its jobs wait."""
    age = queue.oldest_due_age
    if age is None or queue.paused:
        return []
    waited = spell_roughly(age)
    if not listeners(queue.queue, alive):
        return [f"queue {queue.queue} has due jobs and no worker; the oldest has waited {waited}"]
    if max_age is not None and age > max_age:
        return [f"the oldest due job of queue {queue.queue} has waited {waited}, more than {spell_roughly(max_age)}"]
    return []


def listeners(queue: str, workers: Sequence[WorkerStats]) -> list[WorkerStats]:
    """Those of the workers that claim from the queue. One without slots takes nothing."""
    return [worker for worker in workers if queue in worker.queues and worker.slots > 0]
