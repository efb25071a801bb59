"""Warnings about queues that a store has never seen and tasks that an app does not have: mostly typos."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.api.client import Client
from headrace.cli.loading import Store
from headrace.cli.output import counted, note
from headrace.core.names import unknown_task
from headrace.seam.records import Stats

_NAMED = 20
"""Most queues that a warning names."""


async def stats_of(client: Client, queue: str) -> Stats:
    """The statistics of the queue; of all queues, if the store does not know it."""
    found = await client.stats([queue])
    return found if found.queues else await client.stats()


def note_unknown(queue: str, stats: Stats, what: str) -> bool:
    """Warn if no job was ever in the queue; ``what`` is the consequence. Returns whether it warned."""
    known = sorted(found.queue for found in stats.queues)
    if queue in known:
        return False
    more = f" and {counted(len(known) - _NAMED, 'other')}" if len(known) > _NAMED else ""
    note(f"no job was ever in queue {queue!r}; {what}. Known queues: {', '.join(known[:_NAMED]) or 'none'}{more}")
    return True


def note_unknown_tasks(store: Store, tasks: Iterable[str], what: str) -> None:
    """Warn about tasks that the app does not have; ``what`` is the consequence. Without an app, any name will do."""
    known = store.tasks()
    for task in tasks:
        if known and task not in known:
            note(f"{unknown_task(task, known)}; {what}")
