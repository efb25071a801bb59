"""What the pages share: the store in numbers, not older than a second, and what happened lately."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headrace.admin.admin import Admin
from headrace.admin.history import STEP, History
from headrace.admin.views import Overview
from headrace.errors import HeadraceError

_FRESH = 1.0
_IDLE = 600.0
"""Seconds without a visit after which nothing is listened to any more."""


class Live:
    """Listens and looks while somebody uses the dashboard, or for ever."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self.history = History()
        self._task: asyncio.Task[None] | None = None
        self._visited = 0.0
        self._for_ever = False
        self._overview: tuple[float, Overview] | None = None
        self._asking = asyncio.Lock()

    def visit(self, *, for_ever: bool = False) -> None:
        """Somebody looks at a page."""
        loop = asyncio.get_running_loop()
        self._visited = loop.time()
        self._for_ever = self._for_ever or for_ever
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="headrace-dashboard")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def overview(self) -> Overview:
        """The store in numbers. However many ask, the store is asked once a second."""
        async with self._asking:
            now = self.now()
            if self._overview is None or now - self._overview[0] > _FRESH:
                self._overview = now, await self._admin.overview()
                self.history.see(self._overview[1], now)
            return self._overview[1]

    def changed(self) -> None:
        """Somebody changed something here: the next page must show it."""
        self._overview = None

    def now(self) -> float:
        """The clock of the history."""
        return asyncio.get_running_loop().time()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(self._hear())
            while self._for_ever or self.now() - self._visited < _IDLE:
                with suppress(HeadraceError, OSError):
                    await self.overview()
                await asyncio.sleep(STEP)
            hearing.cancel()

    async def _hear(self) -> None:
        async with self._admin.listening.listen() as digests:
            async for digest in digests:
                self.history.hear(digest, self.now())
