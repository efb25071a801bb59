"""Stores in bad weather."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Stamp
from headrace.testing.wrapped import Carry, Wrapped

T = TypeVar("T")


class Plain(Wrapped):
    """A backend with no capabilities that can be cut off: what a poor store in bad weather looks like."""

    tx = ticks = policies = hints = finish_and_claim = tidy = references = documents = archive = usage = None

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.away = False
        self.calls: list[str] = []

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        self.calls.append(name)
        if self.away:
            raise Unavailable("cut off")
        return await carry(at)
