"""Patience: a call is repeated while the store is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from headrace.core.backoff import Backoff
from headrace.errors import StoreFull, Unavailable

R = TypeVar("R")


class Patience:
    """For how long calls are repeated, with growing pauses. The calls must be safe to repeat."""

    def __init__(self, rng: Random, seconds: float) -> None:
        self._rng = rng
        self.seconds = seconds

    async def repeat(self, call: Callable[[], Awaitable[R]], final: type[Exception] = StoreFull) -> R:
        """The answer to the call, or the last ``Unavailable``. An error that is also ``final`` is raised at once."""
        backoff = Backoff(self._rng)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.seconds
        while True:
            try:
                return await call()
            except Unavailable as error:
                pause = backoff.pause()
                if isinstance(error, final) or loop.time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
