"""The jobs of a run: waited for, and looked at in the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from headrace import App
from headrace.errors import Unavailable
from headrace.seam.records import JobId, Record


async def until_done(app: App, deadline: float) -> bool:
    """Wait until nothing is left to do; False when that is not so by ``deadline``, by the machine's monotonic clock."""
    while time.monotonic() < deadline:
        try:
            queues = (await app.client.stats()).queues
        except Unavailable:
            queues = None
        if queues is not None and not any(queue.available + queue.running + queue.jobs_paused for queue in queues):
            return True
        await asyncio.sleep(0.2)
    return False


async def records_of(app: App, ids: Sequence[JobId]) -> list[Record | None]:
    """What the store says about each, results included."""
    backend = await app.client.backend()
    found: list[Record | None] = []
    for start in range(0, len(ids), 1_000):
        found += await backend.fetch(ids[start : start + 1_000], frozenset({"result"}))
    return found


def dashed(job_id: JobId) -> str:
    """The id as handlers write it."""
    digits = job_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
