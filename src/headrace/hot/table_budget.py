"""The budget of a hot table: how many bytes it may take up with its indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

ALERT = 0.8
REFUSE = 0.85
_NEAR = 0.7
_FRESH = 5.0
_FRESH_NEAR = 0.5
"""Seconds for which a measurement counts; the second once this part of the bytes is used …"""
_TIMES = 20
"""… or this many times what it took, if that is longer."""


class TableBudget:
    """Measures a table now and then, for those who put rows into it."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self._share = 0.0
        self._until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def share(self, measure: Callable[[], Awaitable[int]]) -> float:
        """Which part of the budget is used, as last measured."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or loop.time() >= self._until:
            began = loop.time()
            self._share = await measure() / self.bytes
            fresh = _FRESH_NEAR if self._share >= _NEAR else _FRESH
            self._until = loop.time() + max(fresh, _TIMES * (loop.time() - began))
            self._loop = loop
        return self._share
