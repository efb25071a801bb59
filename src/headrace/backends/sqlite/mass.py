"""alter without names: jobs are found while others write, and changed in short turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.backends.sqlite.altering import alter_matching
from headrace.backends.sqlite.selection import BEYOND, FIRST, candidates
from headrace.records import Altered, Change, JobId, Selector

Lane = Callable[[Callable[[Any, int], object], int], asyncio.Future[Any]]
"""How to have something done at an instant, by the reader or by the writer."""


class MassAlteration:
    """Works off a selector, oldest first.

    In a big store the next call for the same change goes on where the last one was, and looks at the older jobs
    last; else each call would walk again over all those that the calls before it have changed.
    """

    def __init__(self) -> None:
        self._last: tuple[Selector, Change, JobId] | None = None

    async def run(self, sel: Selector, change: Change, now: int, read: Lane, write: Lane) -> list[Altered]:
        """Change up to ``sel.limit`` jobs; fewer answers mean that none is left."""
        begin = self._last[2] if self._last is not None and self._last[:2] == (sel, change) else FIRST
        self._last = None
        answers: list[Altered] = []
        few = True
        for start, end in ((begin, BEYOND), (FIRST, begin)):
            here: JobId | None = start
            while here is not None and here < end:
                if len(answers) >= sel.limit:
                    self._last = None if few else (sel, change, here)
                    return answers
                look = partial(candidates, sel, change, here, sel.limit - len(answers))
                found, here, few = await read(look, now)
                seqs = [seq for job_id, seq in found if job_id <= end]
                if seqs:
                    answers += await write(partial(alter_matching, sel, change, seqs), now)
        return answers
