"""Listens for hints from the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from random import Random

from headrace.core.backoff import Backoff
from headrace.errors import Unavailable
from headrace.seam.protocol import Hints
from headrace.seam.records import Hint

log = logging.getLogger("headrace")


async def listen(
    hints: Hints,
    topics: Collection[str],
    heard: Callable[[Hint], None],
    rng: Random,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Pass on hints until cancelled. ``ready`` is called after every (re)connection, to look for what was missed."""
    backoff = Backoff(rng)
    while True:
        try:
            async with hints.listen(topics) as stream:
                backoff.reset()
                ready()
                async for hint in stream:
                    heard(hint)
        except Unavailable:
            await asyncio.sleep(backoff.pause())
        except Exception:
            log.exception("listening for hints failed; trying again")
            await asyncio.sleep(backoff.pause())
