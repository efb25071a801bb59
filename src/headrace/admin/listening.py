"""Listening: what happens in all processes of a store, for anybody in this one who wants to hear it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from headrace.api.client import Client
from headrace.core.feed import Digest, read_digest
from headrace.errors import HeadraceError

_FULL = 500
"""Digests that a listener may be behind; then it loses the oldest."""
_PAUSE = 1.0


class Listening:
    """One subscription at the store, however many listen here; and none while nobody does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._listeners: set[_Listener] = set()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[Digest]]:
        """What happens from now on. Digests may get lost; while the store is away, none come."""
        listener = _Listener()
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._hear(), name="headrace-listening")
        try:
            yield aiter(listener)
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def end(self) -> None:
        """Let everybody who listens here go: nothing more will come."""
        for listener in self._listeners:
            listener.end()

    async def _hear(self) -> None:
        while True:
            with suppress(HeadraceError, OSError):
                events = (await self._client.backend()).events
                if events is None:
                    return
                async with events.listen() as heard:
                    async for message in heard:
                        if (digest := read_digest(message)) is not None:
                            for listener in self._listeners:
                                listener.post(digest)
            await asyncio.sleep(_PAUSE)


class _Listener:
    def __init__(self) -> None:
        self._unread: deque[Digest] = deque(maxlen=_FULL)
        self._arrived = asyncio.Event()
        self._over = False

    def post(self, digest: Digest) -> None:
        self._unread.append(digest)
        self._arrived.set()

    def end(self) -> None:
        self._over = True
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[Digest]:
        while not self._over:
            await self._arrived.wait()
            self._arrived.clear()
            while self._unread:
                yield self._unread.popleft()
