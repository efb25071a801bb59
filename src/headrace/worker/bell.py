"""Wakes up the trips of a worker."""

from __future__ import annotations

import asyncio


class Bell:
    """Rung by any part of a worker when something has changed. Trips wait for it when there is nothing to carry."""

    def __init__(self) -> None:
        self.rung = 0
        """How often it has rung."""
        self._waiting: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Something has changed. Called several times for every job, so it must be cheap."""
        self.rung += 1
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def wait(self, rung: int) -> None:
        """Return once it has rung more than ``rung`` times."""
        if self.rung == rung:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
