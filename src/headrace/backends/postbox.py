"""A listener's postbox for events: messages from any thread in, one awaiting loop out."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

_FULL = 1_000


class Postbox:
    """Keeps messages in order and never blocks the sender. When it is full, the oldest is lost."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._unread: deque[bytes | Exception] = deque(maxlen=_FULL)
        self._arrived = asyncio.Event()

    def post(self, message: bytes | Exception) -> None:
        """Leave a message, or the error that ends them; callable from any thread."""
        self._unread.append(message)
        if threading.get_ident() == self._thread:
            self._arrived.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:  # the listener's loop is closed: nobody reads any more
            self._unread.clear()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while self._unread:
                message = self._unread.popleft()
                if isinstance(message, Exception):
                    raise message
                yield message
            self._arrived.clear()
            if not self._unread:
                await self._arrived.wait()
