"""One line that is kept: made when it is needed, and again when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.backends.redis.line import Line
from headrace.errors import Unavailable


class Keeper:
    """All who want the line while it is being made wait for one attempt, and share its failure. Whoever stops waiting
    does not stop it."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Line]]) -> None:
        self._make = make
        self._attempt: asyncio.Task[Line] | None = None
        self.line: Line | None = None

    async def get(self) -> Line:
        """The line; a new one if there is none."""
        line = self.line
        if line is not None and line.usable:
            return line
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_task(self._make(), name="headrace-connect")
            self._attempt.add_done_callback(self._made)
        attempt = self._attempt
        await asyncio.wait([attempt])
        if attempt.cancelled():
            raise Unavailable("the connections were closed")
        return attempt.result()

    def _made(self, attempt: asyncio.Task[Line]) -> None:
        if self._attempt is attempt:
            self._attempt = None
        if not attempt.cancelled() and attempt.exception() is None:
            self.line = attempt.result()

    async def close(self) -> None:
        """Hang up."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
        if self.line is not None:
            await self.line.close()
