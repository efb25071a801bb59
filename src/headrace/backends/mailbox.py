"""A listener's mailbox: hints from any thread in, one awaiting loop out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from headrace.seam.records import Hint

_FULL = 10_000


class Mailbox:
    """Coalesces equal hints and never blocks the sender; past ``_FULL`` unread hints the newest are dropped."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._unread: dict[Hint, None] = {}
        self._arrived = asyncio.Event()

    def post(self, hint: Hint) -> None:
        """Leave a hint; callable from any thread."""
        if len(self._unread) >= _FULL:
            return
        self._unread[hint] = None
        if threading.get_ident() == self._thread:
            self._arrived.set()
        else:
            try:
                self._loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError:  # the listener's loop is closed: nobody reads any more
                self._unread.clear()

    async def __aiter__(self) -> AsyncIterator[Hint]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            unread, self._unread = self._unread, {}
            for hint in unread:
                yield hint
