"""Stores in bad weather."""

from __future__ import annotations

from typing import Any

from headrace.errors import Unavailable
from headrace.seam.protocol import Backend


class Plain:
    """A backend with no capabilities that can be cut off: what a poor store in bad weather looks like."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.limits = inner.limits
        self.tx = None
        self.ticks = None
        self.hints = None
        self.turn = None
        self.away = False
        self.calls: list[str] = []

    def sibling(self) -> Backend:
        return self._inner.sibling()

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.away and name not in ("open", "close"):
                raise Unavailable("cut off")
            return await operation(*args, **kwargs)

        return call
