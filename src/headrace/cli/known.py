"""Names of queues that a store has never seen, and of tasks that an app does not have: mostly typing errors."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.cli.loading import Store
from headrace.cli.output import note
from headrace.core.names import unknown_task
from headrace.records import Stats


def note_unknown(queue: str, stats: Stats, what: str) -> bool:
    """Say so if no job was ever in the queue, and ``what`` follows from that; whether it is so."""
    known = [found.queue for found in stats.queues]
    if queue in known:
        return False
    note(f"no job was ever in queue {queue!r}; {what}. Known queues: {', '.join(sorted(known)) or 'none'}")
    return True


def note_unknown_tasks(store: Store, tasks: Iterable[str], what: str) -> None:
    """Say so if the app whose store is meant has no such tasks, and ``what`` follows from that; without an app nobody
    knows them."""
    known = store.tasks()
    for task in tasks:
        if known and task not in known:
            note(f"{unknown_task(task, known)}; {what}")
