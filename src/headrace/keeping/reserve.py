"""The reserve: room that is kept aside in a store, and given up when there is no other left."""

from __future__ import annotations

from msgspec import Struct

from headrace.core.clock import Clock
from headrace.core.documents import TypedDocument
from headrace.seam.documents import DocumentStore
from headrace.seam.protocol import Backend

_REST = 600_000_000
"""Microseconds for which nothing is kept aside after it was given up: what needed room has had it by then."""
_STEPS = 64
"""Steps that are taken at a time."""


class _GivenUp(Struct, frozen=True):
    at: int


_GIVEN_UP = TypedDocument[_GivenUp | None]("budget/reserve", _GivenUp, None)


class Reserve:
    """Keeps room aside while there is plenty, so that a full store can still finish jobs and sweep."""

    def __init__(self, backend: Backend, documents: DocumentStore, clock: Clock) -> None:
        self._backend = backend
        self._documents = documents
        self._clock = clock

    async def keep(self, bytes: int) -> None:
        """Keep this many bytes aside, unless they were given up a moment ago."""
        if self._backend.reserve is None:
            return
        given_up = await _GIVEN_UP.read(self._documents)
        if given_up is not None and await self._backend.now(self._clock.stamp()) - given_up.at < _REST:
            return
        kept = -1
        for _ in range(_STEPS):
            before, kept = kept, await self._backend.reserve(bytes)
            if kept >= bytes or kept == before:
                return

    async def give_up(self) -> None:
        """There is no other room left: use this."""
        if self._backend.reserve is None:
            return
        await self._backend.reserve(0)
        now = await self._backend.now(self._clock.stamp())
        await _GIVEN_UP.change(self._documents, lambda _: _GivenUp(now))
