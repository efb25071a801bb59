"""Names of queues that a store has never seen, and of tasks that an app does not have: mostly typing errors."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.api.client import Client
from headrace.cli.loading import Store
from headrace.cli.output import counted, note
from headrace.core.names import unknown_task
from headrace.seam.records import Stats

_TOLD = 20
"""Queues that a note names."""


async def stats_of(client: Client, queue: str) -> Stats:
    """The numbers of the queue; of all, where there is none of that name."""
    found = await client.stats([queue])
    return found if found.queues else await client.stats()


def note_unknown(queue: str, stats: Stats, what: str) -> bool:
    """Say so if no job was ever in the queue, and ``what`` follows from that; whether it is so."""
    known = sorted(found.queue for found in stats.queues)
    if queue in known:
        return False
    more = f" and {counted(len(known) - _TOLD, 'other')}" if len(known) > _TOLD else ""
    note(f"no job was ever in queue {queue!r}; {what}. Known queues: {', '.join(known[:_TOLD]) or 'none'}{more}")
    return True


def note_unknown_tasks(store: Store, tasks: Iterable[str], what: str) -> None:
    """Say so if the app whose store is meant has no such tasks, and ``what`` follows from that; without an app nobody
    knows them."""
    known = store.tasks()
    for task in tasks:
        if known and task not in known:
            note(f"{unknown_task(task, known)}; {what}")
