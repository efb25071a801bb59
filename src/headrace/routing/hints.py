"""Hints of several stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from random import Random

from headrace.core.backoff import Backoff
from headrace.core.tasks import Tasks
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend, Hints
from headrace.seam.records import Hint

log = logging.getLogger("headrace")

_READY = 2.0
"""Seconds within which a store that is open must listen, or the others do so alone."""
_HEARD = 10_000
"""Hints that wait to be taken. One more makes the others wait, and stores lose hints rather than keep them."""


class RoutedHints:
    """Listens to every store, from the moment that it is open."""

    def __init__(self, stores: Sequence[Backend]) -> None:
        self._open = {id(store): asyncio.Event() for store in stores}
        self._hints = [(self._open[id(store)], store.hints) for store in stores if store.hints is not None]

    def opened(self, store: Backend) -> None:
        """Its hints can be heard."""
        self._open[id(store)].set()

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        heard: asyncio.Queue[Hint] = asyncio.Queue(_HEARD)
        listening = [(is_open, hints, asyncio.Event()) for is_open, hints in self._hints]
        tasks = Tasks()
        for is_open, hints, up in listening:
            tasks.start(_pass_on(is_open, hints, topics, heard, up), "headrace-routed-hints")
        try:
            ready = [tasks.start(_set(up), "headrace-ready") for is_open, _, up in listening if is_open.is_set()]
            if ready:
                await asyncio.wait(ready, timeout=_READY)
            yield _from(heard)
        finally:
            await tasks.close()


async def _pass_on(
    is_open: asyncio.Event, hints: Hints, topics: Collection[str], heard: asyncio.Queue[Hint], up: asyncio.Event
) -> None:
    """As long as somebody listens. A store that is away silences no other, and is listened to again when it is back;
    what was missed is found by polling."""
    await is_open.wait()
    backoff = Backoff(Random())
    while True:
        try:
            async with hints.listen(topics) as found:
                backoff.reset()
                up.set()
                async for hint in found:
                    await heard.put(hint)
        except Unavailable:
            up.set()
        except Exception:
            log.exception("listening for hints failed; trying again")
            up.set()
        await asyncio.sleep(backoff.pause())


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _from(heard: asyncio.Queue[Hint]) -> AsyncIterator[Hint]:
    while True:
        yield await heard.get()
