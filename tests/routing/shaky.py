"""A store that goes away, or hangs, as long as a test wants it to."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from typing import Any, Literal

from headrace.backends.memory import MemoryBackend
from headrace.errors import Unavailable

Way = Literal["away", "hangs"]


class Shaky:
    """Anything with calls that are awaited, or with parts that have such. Siblings share the trouble."""

    def __init__(self, inner: Any = None, trouble: list[Way] | None = None) -> None:
        self._inner = MemoryBackend() if inner is None else inner
        self.trouble: list[Way] = [] if trouble is None else trouble
        """Empty: none."""

    def sibling(self) -> Shaky:
        return Shaky(self._inner.sibling(), self.trouble)

    async def close(self) -> None:
        await self._inner.close()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "hints":
            return _ShakyHints(found, self)
        if inspect.iscoroutinefunction(found):

            async def call(*args: Any, **options: Any) -> Any:
                await self.look()
                return await found(*args, **options)

            return call
        if name in ("ticks", "policies", "documents", "transfers", "references", "archive", "parts"):
            return Shaky(found, self.trouble)
        return found

    async def look(self) -> None:
        while self.trouble:
            if self.trouble == ["away"]:
                raise Unavailable("gone")
            await asyncio.sleep(0.02)


class _ShakyHints:
    def __init__(self, inner: Any, store: Shaky) -> None:
        self._inner = inner
        self._store = store

    @asynccontextmanager
    async def listen(self, topics: Any) -> Any:
        await self._store.look()
        async with self._inner.listen(topics) as heard:
            yield self._heard(heard)

    async def _heard(self, heard: Any) -> Any:
        async for hint in heard:
            await self._store.look()
            yield hint
