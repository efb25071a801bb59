"""Walks over many jobs of a store, a page at a time."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

from headrace.core.clock import Clock
from headrace.seam.protocol import Backend
from headrace.seam.records import Record, Selector


async def walk(
    backend: Backend,
    sel: Selector,
    clock: Clock | None = None,
    *,
    page: int | None = None,
    most: int = sys.maxsize,
    want: frozenset[str] = frozenset(),
) -> AsyncIterator[list[Record]]:
    """Jobs that match, newest first, at most so many: page by page, and a page may be empty. ``want`` as for
    ``Backend.fetch``. ``page``: jobs that are read at once; as many as the store takes, unless it is said."""
    size, after, left = page or backend.limits.max_batch, None, most
    while left > 0:
        at = None if clock is None else clock.stamp()
        found = await backend.scan(sel, after, min(size, left), at)
        records, left = found.records, left - len(found.records)
        if want and records:
            fetched = await backend.fetch([one.id for one in records], want, at)
            records = [one for one in fetched if one is not None]
        yield records
        if (after := found.after) is None:
            return
