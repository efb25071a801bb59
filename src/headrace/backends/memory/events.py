"""Events in memory: a postbox for each listener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.backends.postbox import Postbox


class MemoryEvents:
    """See :class:`headrace.seam.events.Events`."""

    def __init__(self) -> None:
        self._listeners: set[Postbox] = set()

    async def heard(self) -> bool:
        return bool(self._listeners)

    async def tell(self, messages: Sequence[bytes]) -> None:
        for listener in tuple(self._listeners):
            for message in messages:
                listener.post(message)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[bytes]]:
        postbox = Postbox()
        self._listeners.add(postbox)
        try:
            yield aiter(postbox)
        finally:
            self._listeners.discard(postbox)
