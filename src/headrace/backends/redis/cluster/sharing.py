"""Sharing a claim out among governed queues and all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headrace.seam.records import Claim, Claimed, Leased, Reaped


class Shared(NamedTuple):
    """What one part gave."""

    claimed: Claimed
    room: int
    """Bytes that there is still room for."""


def parts_of(queues: Sequence[str], governed: Collection[str], paused: Collection[str]) -> list[tuple[str, ...]]:
    """Each governed queue, and the others together, in the order of the first that is named.

    >>> parts_of(["a", "b", "c", "d", "e"], {"b", "e"}, {"d"})
    [('a', 'c'), ('b',), ('e',)]
    """
    parts: dict[str | None, list[str]] = {}
    for queue in dict.fromkeys(queues):
        if queue not in paused:
            parts.setdefault(queue if queue in governed else None, []).append(queue)
    return [tuple(part) for part in parts.values()]


async def share_out(
    req: Claim, governed: Collection[str], paused: Collection[str], take: Callable[[Claim], Awaitable[Shared]]
) -> Claimed:
    """Take an even share of each part first, then what the others left. The parts are asked one after the other, as the
    room depends on what each gives."""
    parts = parts_of(req.queues, governed, paused)
    jobs: list[Leased] = []
    expired: list[Reaped] = []
    coming: dict[tuple[str, ...], int | None] = {}
    passed, chosen, room = False, False, req.max_bytes

    async def give(part: tuple[str, ...], most: int) -> bool:
        nonlocal passed, chosen, room
        claimed, room = await take(replace(req, queues=part, limit=most, max_bytes=room))
        jobs.extend(claimed.jobs)
        expired.extend(claimed.expired)
        coming[part] = claimed.next_in
        passed, chosen = passed or claimed.passed_over, chosen or claimed.chosen
        return len(claimed.jobs) == most

    plenty, skipped = [], []
    for i, part in enumerate(parts):
        share = -(-(req.limit - len(jobs)) // (len(parts) - i))
        if share <= 0 or room <= 0:
            skipped.append(part)
        elif await give(part, share):
            plenty.append(part)
    for part in plenty:
        if room > 0 and len(jobs) < req.limit:
            await give(part, req.limit - len(jobs))
    # This worker may have been woken for these, but has no room for them: wake others.
    await asyncio.gather(*(take(replace(req, queues=part, limit=0)) for part in skipped))
    if len(jobs) >= req.limit:
        return Claimed(jobs, None, expired, passed, chosen)
    known = [next_in for next_in in coming.values() if next_in is not None]
    return Claimed(jobs, 0 if room <= 0 else min(known, default=None), expired, passed, chosen)
