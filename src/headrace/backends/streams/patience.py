"""How long Valkey is waited for where there is a way without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import BackendError, Unavailable

T = TypeVar("T")

_REST = 1.0
"""Seconds for which Valkey is left alone once it did not answer in time."""


class Patience:
    """Waits this many seconds for a call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._rests_until = 0.0

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """Its answer, or ``Unavailable``."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._rests_until:
            raise Unavailable("Valkey is left alone for a moment")
        try:
            async with asyncio.timeout(self._seconds):
                return await call()
        except (TimeoutError, BackendError) as error:
            self._rests_until = loop.time() + _REST
            raise Unavailable("Valkey did not answer in a moment") from error
