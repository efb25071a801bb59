"""alter without names: jobs are found while others write, and changed in short turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.backends.sqlite.altering import alter_matching
from headrace.backends.sqlite.selection import FIRST, candidates
from headrace.seam.records import Altered, Change, JobId, Selector

Lane = Callable[[Callable[[Any, int], object], int], asyncio.Future[Any]]
"""How to have something done at an instant, by the reader or by the writer."""


async def alter_many(sel: Selector, change: Change, now: int, read: Lane, write: Lane) -> list[Altered]:
    """Change up to ``sel.limit`` jobs in the order of their ids; fewer answers mean that none is left."""
    answers: list[Altered] = []
    here: JobId | None = FIRST if sel.above is None else sel.above
    while here is not None and len(answers) < sel.limit:
        look = partial(candidates, sel, change, here, sel.limit - len(answers))
        seqs, here = await read(look, now)
        if seqs:
            answers += await write(partial(alter_matching, sel, change, seqs), now)
    return answers
