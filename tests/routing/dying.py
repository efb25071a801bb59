"""A store that dies at a given call, before it has an effect or after."""

from __future__ import annotations

import inspect
from typing import Any


class Died(Exception):
    """The process is gone."""


class Death:
    """Counts the calls of all stores that share it."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.calls = 0
        self._at = at
        self._after = after

    async def call(self, work: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.calls += 1
        now = self.calls == self._at
        if now and not self._after:
            raise Died
        answer = await work(*args, **options)
        if now:
            raise Died
        return answer


class Dying:
    """Anything with calls that are awaited, or with parts that have such."""

    def __init__(self, inner: Any, death: Death) -> None:
        self._inner = inner
        self._death = death

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if inspect.iscoroutinefunction(found):

            async def call(*args: Any, **options: Any) -> Any:
                return await self._death.call(found, args, options)

            return call
        if name in ("ticks", "policies", "documents", "transfers", "references", "archive", "journal"):
            return Dying(found, self._death)
        return found
