"""The part of a client that schedules and limits use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from headrace.core.clock import Clock
from headrace.core.config import Settings
from headrace.core.events import Observers
from headrace.seam.protocol import Backend
from headrace.seam.records import Altered, Change, Limits, Selector
from headrace.types import Duration

AccessT_co = TypeVar("AccessT_co", covariant=True)


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

    async def pause(
        self, queue: str, lasts: Duration | None = None, *, tenant: str | None = None, task: str | None = None
    ) -> None:
        """Stops claims from a queue, or those of a tenant or a task in it."""

    async def resume(self, queue: str, *, tenant: str | None = None, task: str | None = None) -> None:
        """Lets them go on."""


class Owner(Protocol[AccessT_co]):
    """Something that has a client, or another way to a store; tests may replace it."""

    @property
    def client(self) -> AccessT_co:
        """The way to the store."""
