"""The part of a client that schedules and limits use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.core.clock import Clock
from headrace.core.config import Settings
from headrace.core.events import Observers
from headrace.seam.protocol import Backend
from headrace.seam.records import Altered, Change, Limits, Selector


class StoreAccess(Protocol):
    """A way to a store, opened on first use."""

    settings: Settings
    clock: Clock
    observers: Observers

    @property
    def limits(self) -> Limits:
        """What the store can take."""

    async def backend(self) -> Backend:
        """The store, opened."""

    async def alter(self, sel: Selector, change: Change) -> Sequence[Altered]:
        """Changes the jobs that ``sel`` names."""


class Owner(Protocol):
    """Something that has a client; tests may replace it."""

    @property
    def client(self) -> StoreAccess:
        """The way to the store."""
