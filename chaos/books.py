"""Whether a store agrees with itself: what it counts, lists and finds by name is the same."""

from __future__ import annotations

from collections import Counter

from headrace import App
from headrace.seam.records import JobId, Selector

_NUMBERS = {
    "available": "available", "running": "running", "paused": "jobs_paused", "completed": "completed",
    "cancelled": "cancelled", "failed": "failed",
}  # fmt: skip


async def disagreements(app: App) -> list[str]:
    """What does not fit together, while nobody works."""
    backend = await app.client.backend()
    listed: Counter[tuple[str, str]] = Counter()
    ids: list[JobId] = []
    after = None
    while True:
        page = await backend.scan(Selector(), after, 1_000)
        listed.update((record.queue, record.state.value) for record in page.records)
        ids += [record.id for record in page.records]
        if (after := page.after) is None:
            break
    found = 0
    for start in range(0, len(ids), 1_000):
        found += sum(record is not None for record in await backend.fetch(ids[start : start + 1_000]))
    stats = await backend.stats()
    counted = {
        (queue.queue, state): getattr(queue, number) for queue in stats.queues for state, number in _NUMBERS.items()
    }
    kept = {one.target: one.count for one in stats.kept}
    ended = {state: sum(count for (_, of), count in listed.items() if of == state) for state in kept}
    said = (
        (found != len(ids), f"of {len(ids)} jobs that are listed, {found} are there"),
        (len(set(ids)) != len(ids), f"{len(ids) - len(set(ids))} jobs are listed twice"),
        (+Counter(counted) != listed, f"the queues count {dict(+Counter(counted))}, and {dict(listed)} are listed"),
        (kept != ended, f"the ended count as {kept}, and {ended} are listed"),
    )
    return [text for bad, text in said if bad]
