"""Hints of several stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from headrace.core.tasks import Tasks
from headrace.seam.protocol import Backend, Hints
from headrace.seam.records import Hint

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
        heard: asyncio.Queue[Hint | Exception] = asyncio.Queue(_HEARD)
        ready = [asyncio.Event() for _ in self._hints]
        tasks = Tasks()
        for (is_open, hints), up in zip(self._hints, ready, strict=True):
            tasks.start(_pass_on(is_open, hints, topics, heard, up), "headrace-routed-hints")
        try:
            for (is_open, _), up in zip(self._hints, ready, strict=True):
                if is_open.is_set():
                    await up.wait()
            yield _from(heard)
        finally:
            await tasks.close()


async def _pass_on(
    is_open: asyncio.Event,
    hints: Hints,
    topics: Collection[str],
    heard: asyncio.Queue[Hint | Exception],
    up: asyncio.Event,
) -> None:
    await is_open.wait()
    try:
        async with hints.listen(topics) as found:
            up.set()
            async for hint in found:
                await heard.put(hint)
    except Exception as error:
        await heard.put(error)
    finally:
        up.set()


async def _from(heard: asyncio.Queue[Hint | Exception]) -> AsyncIterator[Hint]:
    while True:
        told = await heard.get()
        if isinstance(told, Exception):
            raise told
        yield told
